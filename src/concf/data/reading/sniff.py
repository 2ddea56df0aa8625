"""Looking at the beginning of a text file: its separator, its header, its shape."""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from concf.errors import DataError, option

SEPARATORS = ("\t", ",", ";", "|", "::", " ")
SAMPLE_LINES = 200
SAMPLE_BYTES = 1 << 16
TABLE_SHARE = 0.9  # of the sampled lines have the same number of fields: a table, else one line a user

ROLES = {
    "user": ("user_id", "user", "userid", "uid", "customer_id", "visitor_id"),
    "item": ("item_id", "item", "itemid", "iid", "product_id", "article_id", "movie_id", "movieid"),
    "rating": ("rating", "stars"),
    "count": ("count", "weight", "counts", "play_count"),
    "timestamp": ("timestamp", "datetime", "time", "date", "unix_timestamp"),
}
KNOWN_NAMES = {name for names in ROLES.values() for name in names}


Kind = Literal["table", "lines", "either"]


class EmptyFileError(DataError):
    """A file without a row: a mistake where it is the log, nothing where it is one of many files."""


@dataclass(frozen=True)
class TextShape:
    """What a text file looks like.

    header: whether the first line names the columns
    names:  the columns, `0, 1, 2 ..` where there is no header
    skip:   lines before the first line of data, blank ones included
    kind:   a table, one line a user, or either
    """

    separator: str
    header: bool
    names: list[str]
    skip: int
    kind: Kind


def open_bytes(path: Path) -> gzip.GzipFile | BufferedReader:
    """The file's bytes, unpacked if it is gzip (told by its first bytes, not by its name)."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")


def first_lines(path: Path) -> list[str]:
    """Up to 200 lines of the beginning; one at least is not blank."""
    try:
        with open_bytes(path) as file:
            sample = b"".join(_sampled(file))
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip data is damaged ({error}). Fetch or pack the file again") from None
    text = sample.decode("utf-8-sig", errors="replace")
    lines = text.replace("\r\n", "\n").split("\n")
    if "\r" in lines[0]:
        raise DataError(f"{path}:1: the lines end with a carriage return alone. Save the file with ordinary line ends")
    if not any(line.strip() for line in lines):
        raise EmptyFileError(f"{path}: the file is empty. Expected one interaction a line, such as 'user_id,item_id'")
    if lines[0].startswith("#"):
        raise DataError(f"{path}:1: begins with a comment, found {lines[0][:80]!r}. Remove it")
    return lines[:SAMPLE_LINES]


def _sampled(file: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines: 64 KiB of them, but ten at least."""
    size = 0
    for number, line in enumerate(file, start=1):
        yield line
        size += len(line)
        if number >= SAMPLE_LINES or (size >= SAMPLE_BYTES and number >= 10):
            return


def fields(line: str, separator: str) -> list[str]:
    """One line cut at the separator, quotes respected where the separator is a single character."""
    if len(separator) > 1:
        return [field.strip() for field in line.split(separator)]
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=separator))]
    except csv.Error:
        return [field.strip() for field in line.split(separator)]


def _regularity(lines: list[str], separator: str) -> tuple[int, float]:
    """The commonest number of fields, and the share of the lines that have it."""
    width, times = Counter(len(fields(line, separator)) for line in lines).most_common(1)[0]
    return width, times / len(lines)


def find_separator(path: Path, lines: list[str]) -> str:
    """The candidate that cuts the most lines into the same number (two or more) of fields; then the most fields.

    A space stands within fields too, so it is taken only where nothing else makes a table.
    """
    scores = {separator: _regularity(lines, separator) for separator in SEPARATORS}
    usable = [separator for separator in SEPARATORS if scores[separator][0] > 1]
    if not usable:
        raise DataError(
            f"{path}:1: expected at least 2 fields, found {lines[0][:80]!r}. "
            f"Is the separator another one? Give it with {option('separator')}"
        )
    best = max(usable, key=lambda separator: (scores[separator][1], scores[separator][0]))
    tables = [separator for separator in usable if separator != " " and scores[separator][1] >= TABLE_SHARE]
    return max(tables, key=lambda separator: scores[separator][0]) if tables else best


def _is_number(field: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", field) is not None


def column_name(field: str) -> str:
    """A header's field without the type that RecBole writes behind it (`user_id:token`)."""
    return re.sub(r":(token|token_seq|float|float_seq)$", "", field.strip())


def _has_header(path: Path, rows: list[list[str]], wanted: set[str]) -> bool:
    """Whether the first row names the columns, by convention or by the names that the user gave."""
    names = [column_name(field) for field in rows[0]]
    if {name for name in wanted if not name.isdigit()} & set(names) or KNOWN_NAMES & {name.lower() for name in names}:
        return True
    looks_like_names = not any(_is_number(field) for field in rows[0])
    data_has_numbers = len(rows) > 1 and any(_is_number(field) for field in rows[1])
    if looks_like_names and data_has_numbers:
        raise DataError(
            f"{path}:1: the columns {names} are not known. Name them with {option('user')} and {option('item')}, "
            f"or say {option('header', False)} if the first line is data"
        )
    return False


def sniff(path: Path, separator: str | None, header: bool | None, wanted: set[str]) -> TextShape:
    """The shape of a text file. separator, header: what the user said; wanted: the columns the user named."""
    numbered = [(number, line) for number, line in enumerate(first_lines(path)) if line.strip()]
    lines = [line for _, line in numbered]
    separator = separator or find_separator(path, lines)
    width, share = _regularity(lines, separator)
    rows = [fields(line, separator) for line in lines[:2]]
    if header is None:
        header = _has_header(path, rows, wanted)
    kind: Kind = "table" if header else _kind(lines, separator, regular=width > 1 and share >= TABLE_SHARE)
    kind = "table" if kind == "either" and wanted else kind  # who names columns has a table in mind
    names = [column_name(field) for field in rows[0]] if header else [str(place) for place in range(width)]
    doubled = [name for name, times in Counter(names).items() if times > 1]
    if doubled:
        raise DataError(f"{path}:1: column {doubled[0]!r} stands twice in the header. Rename one of the two")
    first_data = numbered[header : header + 1]
    if not first_data:
        raise EmptyFileError(f"{path}: holds no interaction. Expected a user and an item a row")
    return TextShape(separator, header, names, first_data[0][0], kind)


def _kind(lines: list[str], separator: str, regular: bool) -> Kind:
    """What headerless lines hold. Only a space or a tab separates the items of a user."""
    rows = [line.split(separator) for line in lines]
    alone = any(len(row) == 1 and row[0] != "0" for row in rows)  # a user has items, unless their number is 0
    if separator not in " \t" or alone:
        return "table"
    counted = all(row[0] == str(len(row) - 1) for row in rows)
    if not regular or (counted and len(rows[0]) > 2):
        return "lines"
    return "either" if separator == " " and len(rows[0]) > 2 else "table"
