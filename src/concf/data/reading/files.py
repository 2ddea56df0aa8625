"""The files of a log: those that a glob matches, and whether all of them have the same columns."""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path
from typing import Any

from concf.data.reading.scan import Reading, Table, scan_file
from concf.data.reading.sniff import EmptyFileError
from concf.errors import ConfigError, DataError, option


def files_of(log: Any) -> list[Path] | None:
    """The files of a path, a glob (`logs/*.parquet`, `**` for any depth) or a list of these; None for other objects."""
    if isinstance(log, list) and log and all(isinstance(each, str | Path) for each in log):
        return [path for each in log for path in files_of(each) or []]
    if not isinstance(log, str | Path):
        return None
    if not is_glob(log):
        return [Path(log)]
    paths = map(Path, sorted(glob(str(Path(log).expanduser()), recursive=True)))  # noqa: PTH207
    files = [path for path in paths if path.is_file()]
    if not files:
        raise DataError(
            f"no file matches {str(log)!r} (searched from {Path.cwd()}). "
            "Check the folder, and quote the pattern so that the shell does not expand it"
        )
    return files


def is_glob(log: str | Path) -> bool:
    """Whether a name has glob characters and is not itself a file."""
    return has_magic(str(log)) and not Path(log).is_file()


def scan_files(paths: list[Path], reading: Reading) -> list[Table]:
    """A table per file that is not empty, all with the same columns."""
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
        _check_alike(table, tables[0])
    return tables


def _check_alike(table: Table, first: Table) -> None:
    """Refuse a table with other columns than the first, and one whose users are line numbers."""
    different = sorted(table.columns.keys() ^ first.columns.keys())
    if different:
        role = different[0]
        has, lacks = (first, table) if role in first.columns else (table, first)
        fix = f", or leave it out with {option(role, 'none')}" if role in ("count", "timestamp") else ""
        raise DataError(
            f"{table.name}: other columns than {first.name}: {has.name} has a {role} and {lacks.name} has none. "
            f"Use the same columns in all files{fix}"
        )
    if table.users_are_lines:
        raise ConfigError(
            f"{table.name}: in several files a user cannot be the number of a line, which starts again in each. "
            f"Use one file, or begin each line with the user's id ({option('format', 'user-lines')})"
        )
