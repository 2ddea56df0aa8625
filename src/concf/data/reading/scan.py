"""Scan files as lazy tables with the columns user, item and, where present, rating, count and timestamp."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from glob import escape, glob, has_magic
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import model_validator

from concf.data.options import Format
from concf.data.reading.sniff import (
    ROLES,
    SAMPLE_LINES,
    EmptyFileError,
    are_counted,
    bad_line,
    first_line,
    first_lines,
    sniff,
)
from concf.errors import ConfigError, DataError, option
from concf.runtime.files import refuse_no_file
from concf.runtime.settings import Settings

ROW = "row of the source"  # a name that no column has
ID_ROLES = ("user", "item")
UNREADABLE = (pl.exceptions.PolarsError, OSError, EOFError)
SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".pq": "parquet", ".inter": "table"}
SUFFIXES |= {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


class Reading(Settings):
    """Settings for reading a log. A column that is not named is found by its usual names (see `sniff.ROLES`)."""

    roles: ClassVar[dict[str, tuple[str, ...]]] = ROLES  # usual names of the columns
    is_log: ClassVar[bool] = True  # whether options name the columns, and a line may be a user with its items

    user: str | None = None  # column of the user; its index, from 0, in a file without header
    item: str | None = None  # column of the item
    rating: str | None = None  # column of an explicit rating, used only with one of the bounds; "none": there is none
    count: str | None = None  # column with the number of events, or the weight, of a row; "none": there is none
    timestamp: str | None = None  # column of the time; "none": there is none
    time_format: str | None = None  # of times in text, such as %d/%m/%Y; None: ISO 8601
    bad_times: Literal["refuse", "drop"] = "refuse"  # rows whose time is 0, below it, in the future or of another unit
    min_rating: float | None = None  # rows rated lower are not interactions
    dislike_below: float | None = None  # rows rated lower are dislikes; others are interactions, or by `min_rating`
    format: Format = "auto"  # user-lines: the user's id, then its items; counted-lines: their number, then the items
    ordered: bool = False  # whether a line with a user's items is in order of time: places in it are the times
    separator: str | None = None  # of a text table; one or more characters
    header: bool | None = None  # whether the first line of a text table names the columns

    @model_validator(mode="after")
    def _likes_no_dislike(self) -> Reading:
        lowest, bound = self.min_rating, self.dislike_below
        if lowest is not None and bound is not None and lowest < bound:
            raise ValueError(f"min_rating {lowest:g} is below dislike_below {bound:g}: a row cannot be both")
        return self

    @property
    def likes_from(self) -> float | None:
        """Lowest rating of an interaction; None: ratings are not used."""
        return self.dislike_below if self.min_rating is None else self.min_rating

    def named(self) -> dict[str, str]:
        """Columns that the user named, by role."""
        return {role: name for role in self.roles if (name := getattr(self, role)) is not None}


@dataclass(frozen=True)
class Table:
    """Scanned log, not read yet."""

    frame: pl.LazyFrame  # row (of the source, from 0), user, item[, rating][, count][, timestamp]
    name: str  # of the source, for messages
    columns: dict[str, str]  # role -> name of the column in the source
    first_line: int | None = None  # line of the text file with row 0, or None if the source has no lines
    may_be_integers: tuple[str, ...] = ()  # roles (user, item) whose ids are text that may spell integers
    ignored_rating: str | None = None  # name of a rating column that is not used
    users_are_lines: bool = False  # whether a user is the number of a line

    def where(self, row: int) -> str:
        """Position of a row, for messages."""
        return f"{self.name}:{row + self.first_line}" if self.first_line is not None else f"{self.name}, row {row}"


def choose_columns(names: list[str], reading: Reading, where: str) -> dict[str, str]:
    """Return {role: column} for the roles that the source has; an error if the user or the item is missing."""
    if reading.ordered:
        raise ConfigError(f"{where}: {option('ordered', True)} is for lines of users. Set {option('timestamp')}")
    chosen, named, lowered = dict[str, str](), reading.named(), {name.lower(): name for name in reversed(names)}
    for role, usual in reading.roles.items():
        if role in named:
            if named[role] == "none" and role not in ID_ROLES:
                continue
            if named[role] not in names:
                raise DataError(f"{where}: no column {named[role]!r} for the {role}; the columns are {names}")
            chosen[role] = named[role]
        elif present := [lowered[name] for name in usual if name in lowered]:
            chosen[role] = present[0]
        elif role in ID_ROLES:
            fix = f"Name it with {option(role)}" if reading.is_log else f"Rename it to {role}"
            raise DataError(f"{where}: no column for the {role} among {names}. {fix} (usual: {', '.join(usual)})")
    for setting, role in (("min_rating", "rating"), ("dislike_below", "rating"), ("time_format", "timestamp")):
        if getattr(reading, setting) is not None and role not in chosen:
            raise DataError(f"{where}: {option(setting)} needs a {role}. Name its column with {option(role)}")
    return chosen


def table_of(frame: pl.LazyFrame, name: str, columns: dict[str, str], reading: Reading, **details: Any) -> Table:
    """Make the table of a source with the chosen columns {role: column}. A rating is used only with a bound."""
    ignored = columns.pop("rating", None) if reading.likes_from is None else None
    counted = columns.get("count")  # may be the rating, too
    ignored = None if ignored == counted else ignored
    distinct = [column for role, column in columns.items() if role != "rating" or column != counted]
    repeated = [role for role in columns if distinct.count(columns[role]) > 1]
    if repeated:
        raise ConfigError(f"{name}: column {columns[repeated[0]]!r} cannot be {' and '.join(repeated)} at once")
    roles = frame.select(pl.col(ROW).alias("row"), **{role: pl.col(column) for role, column in columns.items()})
    return Table(roles, name, columns, ignored_rating=ignored, **details)


def _scan_lines(path: Path, skip: int = 0) -> pl.LazyFrame:
    """Scan the lines of a text file (row, line); blank lines are left out."""
    lines = pl.scan_csv(
        path, has_header=False, skip_rows=skip, schema={"line": pl.String},
        separator="\x1e", quote_char=None, row_index_name=ROW, glob=False,
    )  # fmt: skip
    return lines.filter(pl.col("line").is_not_null())


def _scan_text_table(path: Path, reading: Reading) -> Table:
    layout = sniff(path, reading.separator, reading.header, set(reading.named().values()))
    may_be_lines = reading.is_log and reading.format == "auto"
    if layout.kind == "lines" and may_be_lines:
        return _scan_user_lines(path, reading)
    if layout.kind == "either" and may_be_lines:
        formats = f"{option('format', 'table')} or {option('format', 'user-lines')}"
        raise DataError(f"{path}:1: a line may be a row of columns or a user with its items. Set {formats}")
    if not layout.header:
        reading = reading.model_copy(update={"user": reading.user or "0", "item": reading.item or "1"})
    columns = choose_columns(layout.names, reading, f"{path}:1")
    if len(layout.separator.encode()) == 1:
        quote = None if ".inter" in path.suffixes else '"'  # RecBole quotes nothing
        frame = pl.scan_csv(
            path, has_header=False, skip_rows=layout.skip, schema=dict.fromkeys(layout.names, pl.String),
            separator=layout.separator, row_index_name=ROW, quote_char=quote, glob=False,
        )  # fmt: skip
        frame = frame.filter(~pl.all_horizontal(pl.col(columns[role]).is_null() for role in ID_ROLES))  # blank lines
    else:
        fields, names = pl.col("line").str.split(layout.separator), layout.names
        complete = pl.when(fields.list.len() == len(names))  # other rows have no ids, and are refused
        cells = {name: complete.then(fields.list.get(k, null_on_oob=True)) for k, name in enumerate(names)}
        frame = _scan_lines(path, layout.skip).select(ROW, **cells)
    return table_of(frame, str(path), columns, reading, first_line=1 + layout.skip, may_be_integers=ID_ROLES)


def _scan_user_lines(path: Path, reading: Reading) -> Table:
    """Scan one line per user: its id, or the number of its items (the user is the line), and then the items."""
    if reading.named() or reading.likes_from is not None or reading.time_format is not None:
        raise ConfigError(f"{path}: a file with one line per user has no columns. Try {option('format', 'table')}")
    lines = [line for line in first_lines(path) if line.strip()]
    separator = reading.separator or (" " if any(" " in line for line in lines) else "\t")
    counted = reading.format == "counted-lines" or (reading.format == "auto" and are_counted(lines, separator))
    parts = pl.col("line").str.strip_chars().str.split(separator)
    frame = _scan_lines(path)
    if counted:
        length = (parts.list.len().cast(pl.Int64) - 1).cast(pl.String)
        wrong = frame.filter(parts.list.first() != length).bottom_k(1, by=ROW).collect(engine="streaming")
        for row, line in wrong.iter_rows():
            fix = f"If lines begin with the user's id, set {option('format', 'user-lines')}"
            raise DataError(f"{path}:{row + 1}: expected the number of items, then these, found {line[:80]!r}. {fix}")
    user = pl.col(ROW).cast(pl.String) if counted else parts.list.first()
    items = frame.select(pl.col(ROW).alias("row"), user=user, item=parts.list.slice(1))
    items = items.filter(pl.col("item").list.len() > 0)
    if reading.ordered:
        items = items.with_columns(timestamp=pl.int_ranges(pl.col("item").list.len()))
    roles = ["user", "item", "timestamp"][: 2 + reading.ordered]
    return Table(
        items.explode(roles[1:]), str(path), {role: role for role in roles},
        first_line=1, may_be_integers=ID_ROLES, users_are_lines=counted,
    )  # fmt: skip


def _scan_json_lines(path: Path, reading: Reading) -> Table:
    """Scan ids as text, because their type may change from line to line; integers become integers again."""
    first_lines(path)  # refuses an empty file
    schema = pl.scan_ndjson(escape(str(path)), infer_schema_length=SAMPLE_LINES).collect_schema()
    columns = choose_columns(schema.names(), reading, f"{path}:1")
    for role in ID_ROLES:
        if not (schema[columns[role]].is_integer() or schema[columns[role]] in (pl.String, pl.Null)):
            raise DataError(f"{path}: the {role} ids are {schema[columns[role]]}; expected strings or integers")
    texts = dict.fromkeys(columns.values(), pl.String)
    frame = pl.scan_ndjson(escape(str(path)), schema=texts, row_index_name=ROW)
    integers = tuple(role for role in ID_ROLES if schema[columns[role]].is_integer())
    return table_of(frame, str(path), columns, reading, first_line=1, may_be_integers=integers)


def _scan_parquet(path: Path, reading: Reading) -> Table:
    frame = pl.scan_parquet(path, row_index_name=ROW, glob=False)
    if not frame.select(pl.len()).collect().item():
        raise EmptyFileError(path)
    columns = choose_columns(frame.drop(ROW).collect_schema().names(), reading, str(path))
    return table_of(frame, str(path), columns, reading)


def scan_file(path: Path, reading: Reading) -> Table:
    """Scan a file in the format that the settings, its name or its first lines say."""
    refuse_no_file(path, f" For the files in it use a pattern, such as '{path / '*.csv'}'")
    if path.stat().st_size == 0:
        raise EmptyFileError(path)
    lines = dict.fromkeys(("user-lines", "counted-lines"), _scan_user_lines)
    scanners = lines | {"parquet": _scan_parquet, "jsonl": _scan_json_lines}
    return scanners.get(format_of(path, reading), _scan_text_table)(path, reading)


def format_of(path: Path, reading: Reading) -> Format:
    """Return the format of the settings, else of the file's name, else `auto`: text to be sniffed."""
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz")]
    return SUFFIXES.get(suffixes[-1], "auto") if reading.format == "auto" else reading.format


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
        with suppress(EmptyFileError):
            tables.append(scan_file(path, reading))
    if not tables:
        raise DataError(f"{paths[0]} and {len(paths) - 1} more: no file contains an interaction")
    for table in tables[1:]:
        different = sorted(table.columns.keys() ^ tables[0].columns.keys())
        if different:
            fix = f"Use the same columns in all files, or leave it out: {option(different[0], 'none')}"
            raise DataError(f"{table.name}: only this file or {tables[0].name} has a {different[0]}. {fix}")
        if table.users_are_lines:
            fix = f"Use one file, or begin lines with the user's id ({option('format', 'user-lines')})"
            raise ConfigError(f"{table.name}: in several files a user cannot be the number of a line. {fix}")
    return tables


def unreadable(paths: list[Path], reading: Reading, error: BaseException) -> DataError:
    """Return the error for files of which one could not be read, with the line, found by reading it line by line."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{error.filename or paths[0]}: cannot be read ({error.strerror})")
    for path in paths:
        try:
            kind, layout = str(format_of(path, reading)), None
            if kind in ("auto", "table"):
                layout = sniff(path, reading.separator, reading.header, set(reading.named().values()))
                kind = "table" if kind == "table" else layout.kind
        except DataError as sniffed:
            if len(paths) > 1 and isinstance(sniffed, EmptyFileError):
                continue
            return sniffed
        if (problem := bad_line(path, kind, layout)) is not None:
            return problem
    name = paths[0] if len(paths) == 1 else f"one of {len(paths)} files, {paths[0]} ..."
    return DataError(f"{name}: cannot be read ({first_line(error)}). Is it another {option('format')}?")
