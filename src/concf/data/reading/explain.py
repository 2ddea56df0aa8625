"""Why a file cannot be read, with the line: found by going through it slowly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl

from concf.data.reading.scan import Reading, format_of
from concf.data.reading.sniff import TextShape, fields, open_bytes, sniff
from concf.errors import DataError, option


def explain(path: Path, reading: Reading, error: BaseException) -> DataError:
    """What the engine stumbled over, with the line, found by reading the file slowly."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read ({error.strerror})")
    if isinstance(error, pl.exceptions.NoDataError):
        return DataError(f"{path}: holds no interaction. Expected a user and an item a row")
    try:
        problem_of = _line_checker(path, reading)
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                problem = problem_of(line)
                if problem:
                    return DataError(f"{path}:{number}: {problem}")
    except (EOFError, OSError) as damage:
        return DataError(f"{path}: the gzip data is damaged ({damage}). Fetch or pack the file again")
    except DataError as sniffed:
        return sniffed
    message = str(error).strip().partition("\n")[0] or type(error).__name__
    return DataError(f"{path}: cannot be read ({message}). Is its format another one? Give it with {option('format')}")


def _line_checker(path: Path, reading: Reading) -> Callable[[bytes], str | None]:
    """What may be wrong with a line of this file, or nothing if it has no lines."""
    kind = format_of(path, reading)
    if kind == "parquet":
        return lambda _line: None
    if kind == "jsonl":
        return lambda line: _undecodable(line) or _not_json(line.decode())
    if kind in ("auto", "table"):
        shape = sniff(path, reading.separator, reading.header, set(reading.named().values()))
        if shape.kind == "table" or kind == "table":
            return lambda line: _undecodable(line) or _wrong_fields(line.decode().rstrip("\r\n"), shape)
    return _undecodable


def _undecodable(line: bytes) -> str | None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        found = line[max(0, error.start - 20) : error.start + 20]
        return f"byte {error.start + 1} is not UTF-8, found {found!r}. Save the file as UTF-8"
    return None


def _not_json(text: str) -> str | None:
    try:
        json.loads(text if text.strip() else "{}")
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}), found {text[:80]!r}. Expected one object a line"
    return None


def _wrong_fields(text: str, shape: TextShape) -> str | None:
    if text.count('"') % 2:
        return f"a quotation mark is not closed, found {text[:80]!r}. Double it or close it"
    found = len(fields(text, shape.separator)) if text.strip() else 0
    if found in (0, len(shape.names)):
        return None
    return (
        f"expected {len(shape.names)} fields, found {found}: {text[:80]!r}. "
        "Quote a field that holds the separator, and leave none out"
    )
