"""A log in one file or in many: which files a glob names, and whether they hold the same columns."""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path
from typing import Any

from concf.data.reading.scan import Reading, Table, scan_file
from concf.data.reading.sniff import EmptyFileError
from concf.errors import ConfigError, DataError, option


def files_of(log: Any) -> list[Path] | None:
    """The files that a path, a glob (`logs/*.parquet`, `**` for any depth) or a list of such names; else None."""
    if isinstance(log, list):
        if not log or not all(isinstance(each, str | Path) for each in log):
            return None
        return [path for each in log for path in files_of(each) or []]
    if not isinstance(log, str | Path):
        return None
    if not is_glob(log):
        return [Path(log)]
    paths = [Path(name) for name in sorted(glob(str(Path(log).expanduser()), recursive=True))]  # noqa: PTH207
    files = [path for path in paths if path.is_file()]
    if not files:
        raise DataError(
            f"no file matches {str(log)!r} (looked for in {Path.cwd()}). "
            "Is the folder another one? Quote the pattern, so that the shell leaves it alone"
        )
    return files


def is_glob(log: str | Path) -> bool:
    """Whether it has a glob's signs and is not itself a file."""
    return has_magic(str(log)) and not Path(log).is_file()


def scan_files(paths: list[Path], reading: Reading) -> list[Table]:
    """A table of each file that holds something, all with the same columns."""
    if len(paths) == 1:
        return [scan_file(paths[0], reading)]
    tables = []
    for path in paths:
        try:
            tables.append(scan_file(path, reading))
        except EmptyFileError:
            continue
    if not tables:
        raise DataError(f"{paths[0]} and {len(paths) - 1} more: no file holds an interaction")
    for table in tables:
        _refuse_unlike(table, tables[0])
    return tables


def _refuse_unlike(table: Table, first: Table) -> None:
    here, there = (set(each.frame.collect_schema().names()) for each in (table, first))
    if here != there:
        more, less = (first, table) if there - here else (table, first)
        role = sorted(there ^ here)[0]
        fix = f", or leave it out with {option(role, 'none')}" if role in ("count", "timestamp") else ""
        raise DataError(
            f"{table.name}: other columns than {first.name}: {more.name} has a {role} and {less.name} has none. "
            f"Make the files alike{fix}"
        )
    if table is not first and table.users_are_lines:
        raise ConfigError(
            f"{table.name}: in several files the user cannot be the number of the line, which begins anew in each. "
            f"Give the log as one file, or with a user's id first ({option('format', 'user-lines')})"
        )
