"""Guess the layout of a text file from its first lines: the separator, the header, and a table or one line per user."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from concf.errors import DataError, option

SEPARATORS = ("\t", ",", ";", "|", "::", " ")
SAMPLE_LINES = 200
SAMPLE_BYTES = 1 << 16  # where lines are long; ten lines are read in any case
TABLE_SHARE = 0.9  # share of the sampled lines with the same number of fields that makes them a table

ROLES = {
    "user": ("user_id", "user", "userid", "uid", "customer_id", "visitor_id"),
    "item": ("item_id", "item", "itemid", "iid", "product_id", "article_id", "movie_id", "movieid"),
    "rating": ("rating", "stars"),
    "count": ("count", "weight", "counts", "play_count"),
    "timestamp": (
        "timestamp", "event_timestamp", "event_time", "eventtime", "occurred_at", "datetime", "date_time", "time",
        "date", "event_date", "ts", "unix_timestamp", "unix_time", "timestamp_ms", "created_at", "createdat",
        "updated_at", "updatedat",
    ),
}  # fmt: skip
KNOWN_NAMES = {name for names in ROLES.values() for name in names}

NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?")
Kind = Literal["table", "lines", "either"]


class EmptyFileError(DataError):
    """Raised for a file without rows; it is skipped if it is one of many files."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: the file is empty or has a header only. Expected a user and an item per row")


@dataclass(frozen=True)
class TextLayout:
    """Layout of a text file."""

    separator: str
    header: bool  # whether the first line names the columns
    names: list[str]  # of the columns, `0, 1, 2 ...` if there is no header
    skip: int  # lines before the first row of data, blank ones included
    kind: Kind  # a table, one line per user, or possibly either


def open_bytes(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a file as bytes, decompressed if its first bytes are those of gzip."""
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if compressed else path.open("rb")


def first_lines(path: Path) -> list[str]:
    """Return up to 200 lines from the beginning, at least one of which is not blank."""
    sample: list[bytes] = []
    try:
        with open_bytes(path) as file:
            for line in file:
                sample.append(line)
                if len(sample) >= SAMPLE_LINES or (len(sample) >= 10 and sum(map(len, sample)) >= SAMPLE_BYTES):
                    break
    except (EOFError, gzip.BadGzipFile) as error:
        raise damaged_gzip(path, error) from None
    lines = b"".join(sample).decode("utf-8-sig", errors="replace").replace("\r\n", "\n").split("\n")
    if "\r" in lines[0]:
        raise DataError(f"{path}:1: lines end with a carriage return only. Save the file with ordinary line endings")
    if not any(line.strip() for line in lines):
        raise EmptyFileError(path)
    if lines[0].startswith("#"):
        raise DataError(f"{path}:1: begins with a comment, found {lines[0][:80]!r}. Remove it")
    return lines[:SAMPLE_LINES]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def damaged_gzip(path: Path, error: Exception) -> DataError:
    """Return the error for a gzip file that cannot be decompressed."""
    return DataError(f"{path}: the gzip data is damaged ({error}). Download or compress the file again")


def split_fields(line: str, separator: str) -> list[str]:
    """Split one line into fields, with quotes respected if the separator is a single character."""
    try:
        row = next(csv.reader([line], delimiter=separator)) if len(separator) == 1 else line.split(separator)
    except csv.Error:
        row = line.split(separator)
    return [field.strip() for field in row]


def sniff(path: Path, separator: str | None, header: bool | None, columns: set[str]) -> TextLayout:
    """Guess the layout of a text file. separator, header: None if to be guessed; columns: names that the user gave."""
    numbered = [(number, line) for number, line in enumerate(first_lines(path)) if line.strip()]
    lines = [line for _, line in numbered]
    separator = separator or _guess_separator(path, lines)
    width, share = _commonest_width(lines, separator)
    rows = [split_fields(line, separator) for line in lines[:2]]
    if header is None:
        header = _has_header(path, rows, columns)
    kind: Kind = "table" if header else _guess_kind(lines, separator, regular=width > 1 and share >= TABLE_SHARE)
    kind = "table" if kind == "either" and columns else kind  # naming columns implies a table
    names = [_column_name(field) for field in rows[0]] if header else [str(column) for column in range(width)]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path}:1: column {name!r} occurs twice in the header. Rename one of the two")
    if len(numbered) <= header:
        raise EmptyFileError(path)
    return TextLayout(separator, header, names, numbered[int(header)][0], kind)


def _commonest_width(lines: list[str], separator: str) -> tuple[int, float]:
    """Return the most common number of fields, and the share of the lines that have it."""
    width, times = Counter(len(split_fields(line, separator)) for line in lines).most_common(1)[0]
    return width, times / len(lines)


def _guess_separator(path: Path, lines: list[str]) -> str:
    """Return the separator for which most lines have the same number (two or more) of fields; then, the most fields.

    A space, which occurs within fields too, is chosen only if nothing else makes a table.
    """
    widths = {separator: _commonest_width(lines, separator) for separator in SEPARATORS}
    usable = [separator for separator in SEPARATORS if widths[separator][0] > 1]
    if not usable:
        raise DataError(f"{path}:1: expected 2 or more fields, found {lines[0][:80]!r}. Set {option('separator')}")
    tables = [separator for separator in usable if separator != " " and widths[separator][1] >= TABLE_SHARE]
    if tables:
        return max(tables, key=lambda separator: widths[separator][0])
    return max(usable, key=lambda separator: widths[separator][::-1])


def _column_name(field: str) -> str:
    """Strip the type that RecBole appends to a header field (`user_id:token`)."""
    return re.sub(r":(token|token_seq|float|float_seq)$", "", field.strip())


def _has_header(path: Path, rows: list[list[str]], columns: set[str]) -> bool:
    """Whether the first row names the columns, by their usual names or by those that the user gave."""
    names = [_column_name(field) for field in rows[0]]
    given = {name for name in columns if not name.isdigit()}
    named = bool(given & set(names) or KNOWN_NAMES & {name.lower() for name in names})
    if not named and [any(map(NUMBER.fullmatch, row)) for row in rows] == [False, True]:  # names, then data
        fix = f"set {option('user')} and {option('item')}, or {option('header', False)} if the first line is data"
        raise DataError(f"{path}:1: unknown column names {names}: {fix}")
    return named


def _guess_kind(lines: list[str], separator: str, regular: bool) -> Kind:
    """Guess what lines without a header contain. Only a space or a tab separates the items of a user."""
    rows = [line.split(separator) for line in lines]
    single_field = any(len(row) == 1 and row[0] != "0" for row in rows)  # a user has items, unless their number is 0
    if separator not in " \t" or single_field:
        return "table"
    if not regular or (are_counted(lines, separator) and len(rows[0]) > 2):
        return "lines"
    return "either" if separator == " " and len(rows[0]) > 2 else "table"


def are_counted(lines: list[str], separator: str) -> bool:
    """Whether every line begins with the number of its other fields."""
    return all(row[0] == str(len(row) - 1) for row in (line.split(separator) for line in lines))


def bad_line(path: Path, kind: str, layout: TextLayout | None) -> DataError | None:
    """Return the error for the first bad line of a file; None if no line is bad."""
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file if kind != "parquet" else (), start=1):
                if problem := _problem(line, kind, layout):
                    return DataError(f"{path}:{number}: {problem}")
    except (EOFError, OSError) as damage:
        return damaged_gzip(path, damage)
    return None


def _problem(line: bytes, kind: str, layout: TextLayout | None) -> str | None:
    """Word the problem of a line of a text file; None: none."""
    try:
        text = line.decode().rstrip("\r\n")
        if not text.strip():
            return None
        if kind == "jsonl" and not isinstance(json.loads(text), dict):
            return f"not a JSON object, found {text[:80]!r}. Expected one object per line, with a user and an item"
    except UnicodeDecodeError as error:
        context = line[max(0, error.start - 20) : error.start + 20]
        return f"byte {error.start + 1} is not UTF-8, found {context!r}. Save the file as UTF-8"
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}), found {text[:80]!r}. Expected one object per line"
    if kind != "table" or layout is None:
        return None
    if text.count('"') % 2:
        return f"a quotation mark is not closed, found {text[:80]!r}. Double it or close it"
    expected, found = len(layout.names), len(split_fields(text, layout.separator))
    fix = "Quote a field that contains the separator"
    return None if found == expected else f"expected {expected} fields, found {found}: {text[:80]!r}. {fix}"
