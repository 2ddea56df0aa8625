"""`concf recommend`."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concf.cli.output import Engine, Json, check_workers, names, print_table
from concf.errors import ConfigError, DataError, note

if TYPE_CHECKING:
    import pyarrow as pa

    from concf.data.ids import Ids

EVERYONE, FEW = "all", 5  # users; how many are shown of all
WORKERS, RULES = "Several workers", "Attributes of items, and rules"
COLUMNS = ["user_id", "item_id", "score", "rank"]  # of lists
HEADERS = ("userid", "itemid", "user", "item", "id")  # of a CSV file of ids


def recommend(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    users: Annotated[str, typer.Option(help="all, ids separated by commas, or a file: one id a line, or the first column of a CSV or Parquet file. A repeated user counts once.")] = EVERYONE,
    k: Annotated[int, typer.Option("-k", min=1, help="Items for each user.")] = 10,
    by: Annotated[str | None, typer.Option(help="consensus, R-consensus or a head.", show_default="consensus")] = None,
    out: Annotated[Path | None, typer.Option(help="A .parquet, .csv or .jsonl file; with --engine a folder of Parquet files. Without it a table is shown.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="When the lists are shown: a date, or a time in the log's own unit. Items age and users are idle until then.", show_default="the newest event that the run has learned")] = None,
    viewed: Annotated[bool, typer.Option("--viewed", help="Also show items that the user has used.")] = False,
    items: Annotated[str | None, typer.Option(help="Only these items: ids separated by commas, or a file.")] = None,
    exclude: Annotated[str | None, typer.Option(help="Not these items: ids separated by commas, or a file.")] = None,
    popular: Annotated[bool, typer.Option("--popular", help="Give users whom the log does not have the most popular items.")] = False,
    csv_safe: Annotated[bool, typer.Option(help="In a .csv file, put a ' before text ids that a spreadsheet would execute: those that begin with = + - @, a tab or a carriage return.")] = True,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes.", rich_help_panel=RULES)] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The catalogue's column of item ids.", show_default="item, item_id or id", rich_help_panel=RULES)] = None,
    new_items: Annotated[bool, typer.Option("--new-items", help="Also recommend items of the catalogue that the log does not have, by their attributes.", rich_help_panel=RULES)] = False,
    where: Annotated[str | None, typer.Option(help="Only items for which this SQL condition on the catalogue's columns holds, as 'category in (3, 5) and price < 20'.", rich_help_panel=RULES)] = None,
    at_most: Annotated[list[str] | None, typer.Option(metavar="COLUMN=N", help="At most N items with the same value of a column of the catalogue; may be repeated.", rich_help_panel=RULES)] = None,
    diversity: Annotated[float, typer.Option(help="From 0 to 1: how much an item loses by its similarity to those above it.", rich_help_panel=RULES)] = 0.0,
    popularity_penalty: Annotated[float, typer.Option(help="From 0 to 1: how much an item loses by its popularity.", rich_help_panel=RULES)] = 0.0,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    engine: Annotated[Engine | None, typer.Option(help="ray (a local cluster, or the one at RAY_ADDRESS) or processes.", show_default="this process alone", rich_help_panel=WORKERS)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many; each holds the run in memory.", show_default="one for each core", rich_help_panel=WORKERS)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Recommend to any number of users, in bounded memory. Items that a user has used are not shown again.

    `concf recommend runs/first --users 42,43 -k 5`

    `concf recommend runs/first --users all -k 50 --out recs.parquet`

    `concf recommend runs/first --catalogue items.csv --where 'price < 20' --at-most category=2 --out recs.parquet`

    `concf recommend runs/first --catalogue items.csv --new-items --out recs.parquet`

    `concf recommend runs/first --at 2026-11-18 --out recs.parquet`

    `concf recommend runs/first --users all -k 50 --engine ray --out recs/`
    """
    from concf.inference.recommender import Recommender
    from concf.inference.rules import Rules
    from concf.inference.titles import Catalogue
    from concf.runtime.progress import working

    check_workers(engine, workers)
    if engine is not None and out is None:
        raise ConfigError(f"--engine {engine} writes a folder of Parquet files. Name it with --out")
    model = Recommender.load(folder, data)
    described = None if catalogue is None else Catalogue(catalogue, catalogue_item).loaded()
    if new_items:
        model.add_items(described)
    chosen = None if users == EVERYONE else list(dict.fromkeys(_ids(users, model.user_ids, refuse_others=True)))
    if not names(users) and chosen == []:
        raise ConfigError(f"--users {users!r} names no user. Leave it out to recommend to everyone")
    rules = Rules(
        described, where, _limits(at_most or []), diversity, popularity_penalty, filter_viewed=not viewed,
        unknown="popular" if popular else "raise",
    )  # fmt: skip
    options: dict[str, Any] = {
        "by": by, "items": None if items is None else _ids(items, model.item_ids),
        "exclude": None if exclude is None else _ids(exclude, model.item_ids), "rules": rules, "at": at,
    }  # fmt: skip
    if options["items"] == []:
        raise ConfigError("--items names no item. Leave it out to allow every item")
    n_users = len(model.user_ids) if chosen is None else len(chosen)
    if out is None:
        shown = model.user_ids.values[:FEW].tolist() if chosen is None else chosen
        lists = [row for table in model.stream(shown, k, **options) for row in table.to_pylist()]
        if as_json:
            typer.echo(json.dumps(lists))
        else:
            cells = [[f"{row[name]:.4f}" if name == "score" else str(row[name]) for name in COLUMNS] for row in lists]
            print_table(["user", "item", "score", "rank"], cells)
        if chosen is None and n_users > FEW:
            typer.echo(f"note: the first {FEW} of {n_users} users; --out writes them all", err=True)
        return
    tables = model.stream(chosen, k, **options) if engine is None else iter(())  # notes come before the bar
    with working("recommending", n_users) as advance:
        if engine is None:
            rows = _write(tables, out, csv_safe, lambda: advance(min(model.ranker.block(), n_users)))
        else:
            from concf.inference.bulk import write_lists

            options |= {"model": model, "data": data, "advance": advance, "new_items": described if new_items else None}
            rows = write_lists(folder, out, chosen, k, engine=engine, workers=workers, **options)
    report = {"out": str(out), "users": n_users, "rows": rows, "by": by or model.default}
    typer.echo(json.dumps(report) if as_json else f"{rows} rows for {n_users} users by {report['by']}: {out}")


def _limits(words: list[str]) -> dict[str, int]:
    """Parse COLUMN=N."""
    limits = {}
    for word in words:
        column, _, number = word.rpartition("=")
        if not column or not re.fullmatch("[0-9]+", number):
            raise ConfigError(f"--at-most {word}: expected a column and a number, as category=2")
        limits[column] = int(number)
    return limits


def _ids(text: str, known: "Ids", *, refuse_others: bool = False) -> list[Any]:
    """Read ids from a file or between commas, as integers or text like those of the log.

    refuse_others: whether text is an error in a log of integers
    """
    from concf.runtime.files import refuse_no_file

    is_file = os.path.isfile(text)  # noqa: PTH113, a long list of ids is no name of a file, and no error
    if not is_file and Path(text).suffix in (".csv", ".txt", ".parquet", ".jsonl"):
        refuse_no_file(Path(text))
    words = _column(Path(text)) if is_file else names(text)
    if not known.are_integers:
        return [str(each) for each in words]
    integers = [bool(re.fullmatch(r"\s*-?[0-9]+\s*", str(each))) for each in words]
    if refuse_others and not all(integers):
        where = f"{text}: " if is_file else ""
        raise DataError(f"{where}{words[integers.index(False)]!r} is no user of the log, whose users are integers")
    return [int(each) if fits else each for each, fits in zip(words, integers, strict=True)]


def _column(path: Path) -> list[Any]:
    import polars as pl

    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path).to_series(0).to_list()
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (pl.exceptions.PolarsError, IndexError, UnicodeDecodeError):
        problem = "cannot be read as a Parquet file" if path.suffix == ".parquet" else "not a text file"
        raise DataError(f"{path}: {problem} of ids") from None
    first = [row[0].strip() for row in csv.reader(lines) if row and row[0].strip()]
    return first[1:] if first and first[0].lower().replace("_", "") in HEADERS else first


def _write(tables: "Iterator[pa.Table]", out: Path, csv_safe: bool, advance: Callable[[], None]) -> int:
    """Write tables one after the other, and return the number of rows; the file appears when all are written."""
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    from concf.runtime.files import new_file

    writers = {".parquet": ParquetWriter, ".csv": CSVWriter, ".jsonl": _json_lines}
    if out.suffix not in writers:
        raise ConfigError(f"--out {out}: choose a name that ends in {', '.join(writers)}")
    if out.is_file() and out.stat().st_size and _columns_of(out) != COLUMNS:
        raise DataError(f"{out}: exists and holds no lists of recommendations; it is left alone. Choose another --out")
    rows, guarded, first = 0, 0, next(tables)
    with new_file(out) as fresh, writers[out.suffix](fresh, first.schema) as writer:
        for table in chain([first], tables):
            safe, count = _guarded(table) if out.suffix == ".csv" and csv_safe else (table, 0)
            writer.write_table(safe)
            rows, guarded = rows + table.num_rows, guarded + count
            advance()
    if guarded:
        note(f"{out}: {guarded} ids that a spreadsheet would execute have a ' before them; --no-csv-safe leaves it out")
    return rows


def _guarded(table: "pa.Table") -> "tuple[pa.Table, int]":
    """Put a ' before text that a spreadsheet would execute; return the table and the number of such cells."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = 0
    for at, column in enumerate(table.columns):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            executed = pc.match_substring_regex(column, "^[=+@\\t\\r-]")
            count += pc.sum(executed).as_py() or 0
            safe = pc.if_else(executed, pc.binary_join_element_wise("'", column, ""), column)
            table = table.set_column(at, table.field(at), safe)
    return table, count


@contextmanager
def _json_lines(path: Path, _schema: "pa.Schema") -> Iterator[Any]:
    """Write a JSON object per row, with the method of Arrow's writers."""
    with path.open("w", encoding="utf-8") as file:
        lines = lambda table: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())  # noqa: E731
        yield SimpleNamespace(write_table=lines)


def _columns_of(path: Path) -> list[str]:
    """Names of a file's columns; none if it cannot be read in the format of its suffix."""
    import polars as pl

    scan: dict[str, Any] = {".parquet": pl.scan_parquet, ".csv": pl.scan_csv, ".jsonl": pl.scan_ndjson}
    try:
        return list(scan[path.suffix](path).collect_schema().names())
    except pl.exceptions.PolarsError:
        return []
