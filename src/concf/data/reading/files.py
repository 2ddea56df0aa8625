"""Files of a log: match globs, compare columns, and find the line at which a file cannot be read."""

from __future__ import annotations

import json
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import polars as pl

from concf.data.reading.cast import first_line
from concf.data.reading.scan import Reading, Table, format_of, scan_file
from concf.data.reading.sniff import EmptyFileError, TextLayout, damaged_gzip, open_bytes, sniff, split_fields
from concf.errors import ConfigError, DataError, option

UNREADABLE = (pl.exceptions.PolarsError, OSError, EOFError)


def files_of(log: Any) -> list[Path] | None:
    """Return the files of a path, a glob (`logs/**/*.parquet`) or a list of these; None for other objects."""
    if isinstance(log, list) and log and all(isinstance(each, str | Path) for each in log):
        return [path for each in log for path in files_of(each) or []]
    if not isinstance(log, str | Path):
        return None
    if not is_glob(log):
        return [Path(log)]
    paths = map(Path, sorted(glob(str(Path(log).expanduser()), recursive=True)))  # noqa: PTH207
    files = [path for path in paths if path.is_file()]
    if not files:
        raise DataError(f"no file matches {str(log)!r}, searched from {Path.cwd()}. Check the folder and the quotes")
    return files


def is_glob(log: str | Path) -> bool:
    """Whether a name has glob characters and is not itself a file."""
    return has_magic(str(log)) and not Path(log).is_file()


def scan_files(paths: list[Path], reading: Reading) -> list[Table]:
    """Return a table per file that is not empty; all must have the same columns."""
    if len(paths) == 1:
        return [scan_file(paths[0], reading)]
    if reading.ordered:
        raise ConfigError(f"{option('ordered', True)}: a user's line is in one file; found {len(paths)} files")
    tables = []
    for path in paths:
        try:
            tables.append(scan_file(path, reading))
        except EmptyFileError:
            continue
    if not tables:
        raise DataError(f"{paths[0]} and {len(paths) - 1} more: no file contains an interaction")
    for table in tables[1:]:
        different = sorted(table.columns.keys() ^ tables[0].columns.keys())
        if different:
            raise DataError(
                f"{table.name}: other columns than {tables[0].name}: only one of them has a {different[0]}. Use the "
                f"same columns in all files, or leave a count or timestamp out with {option(different[0], 'none')}"
            )
        if table.users_are_lines:
            fix = f"Use one file, or begin lines with the user's id ({option('format', 'user-lines')})"
            raise ConfigError(f"{table.name}: in several files a user cannot be the number of a line. {fix}")
    return tables


def unreadable(paths: list[Path], reading: Reading, error: BaseException) -> DataError:
    """Return the error for files of which one could not be read, with the line, found by reading it line by line."""
    for path in paths[:-1]:
        try:
            scan_file(path, reading).frame.select(pl.all().null_count()).collect(engine="streaming")
        except EmptyFileError:
            continue
        except UNREADABLE:
            break
    else:  # each of these can be read on its own
        path = paths[-1]
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read ({error.strerror})")
    if isinstance(error, pl.exceptions.NoDataError):
        return EmptyFileError(path)
    try:
        kind: str = format_of(path, reading)
        layout = None
        if kind in ("auto", "table"):
            layout = sniff(path, reading.separator, reading.header, set(reading.named().values()))
            kind = "table" if kind == "table" else layout.kind
        with open_bytes(path) as file:
            for number, line in enumerate(file if kind != "parquet" else (), start=1):
                problem = _problem(line, kind, layout)
                if problem:
                    return DataError(f"{path}:{number}: {problem}")
    except (EOFError, OSError) as damage:
        return damaged_gzip(path, damage)
    except DataError as sniffed:
        return sniffed
    return DataError(f"{path}: cannot be read ({first_line(error)}). Is it another {option('format')}?")


def _problem(line: bytes, kind: str, layout: TextLayout | None) -> str | None:
    """What is wrong with a line of a text file; None: nothing."""
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
    expected, n_fields = len(layout.names), len(split_fields(text, layout.separator))
    if n_fields == expected:
        return None
    return f"expected {expected} fields, found {n_fields}: {text[:80]!r}. Quote a field that contains the separator"
