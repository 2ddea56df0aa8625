"""`concf recommend`."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concf.cli.output import Json, choice, names, print_table
from concf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from concf.inference.recommender import Recommender

EVERYONE, FEW = "all", 5  # users; so many are shown of all
SPREADING = "Several workers"
COLUMNS = ["user_id", "item_id", "score", "rank"]  # of lists
HEADERS = ("userid", "itemid", "user", "item", "id")  # of a CSV file of ids


def recommend(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    users: Annotated[str, typer.Option(help="all, ids separated by commas, or a file: one id a line, or the first column of a CSV or Parquet file.")] = EVERYONE,
    k: Annotated[int, typer.Option("-k", min=1, help="Items for each user.")] = 10,
    by: Annotated[str | None, typer.Option(help="consensus, R-consensus or a head.", show_default="consensus")] = None,
    out: Annotated[Path | None, typer.Option(help="A .parquet, .csv or .jsonl file; with --engine a folder of Parquet files. Without it a table is shown.")] = None,
    viewed: Annotated[bool, typer.Option("--viewed", help="Also what the user has used.")] = False,
    items: Annotated[str | None, typer.Option(help="Only these items: ids separated by commas, or a file.")] = None,
    exclude: Annotated[str | None, typer.Option(help="Not these items: ids separated by commas, or a file.")] = None,
    unknown_items: Annotated[str, typer.Option(help="Items of --items and --exclude that the log does not have: ignore (with a note) or error.")] = "ignore",
    popular: Annotated[bool, typer.Option("--popular", help="Give users whom the log does not have what is used most.")] = False,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    engine: Annotated[str | None, typer.Option(help="Several workers: ray (a local cluster, or the one at RAY_ADDRESS) or processes.", show_default="this process alone", rich_help_panel=SPREADING)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many; each holds the run in memory.", show_default="one for each core", rich_help_panel=SPREADING)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Recommend to any number of users, in bounded memory. What a user has used is not shown again.

    `concf recommend runs/first --users 42,43 -k 5`

    `concf recommend runs/first --users all -k 50 --out recs.parquet`

    `concf recommend runs/first --users all -k 50 --engine ray --out recs/`
    """
    from concf.inference.recommender import Recommender
    from concf.runtime.progress import working

    if engine is not None or workers is not None:
        _refuse_alone(engine, out)
    choice("unknown-items", unknown_items, ("ignore", "error"))
    model = Recommender.load(folder, data)
    asked = None if users == EVERYONE else _ids(users, model, "user")
    options: dict[str, Any] = {
        "by": by, "filter_viewed": not viewed, "unknown": "popular" if popular else "raise",
        "items": None if items is None else _ids(items, model, "item"),
        "exclude": None if exclude is None else _ids(exclude, model, "item"), "unknown_items": unknown_items,
    }  # fmt: skip
    if options["items"] == []:
        raise ConfigError("--items names no item. Leave it out to allow every item")
    n_users = len(model.user_ids) if asked is None else len(asked)
    if out is None:
        _show(model.stream(model.user_ids.values[:FEW].tolist() if asked is None else asked, k, **options), as_json)
        if asked is None and n_users > FEW:
            typer.echo(f"note: the first {FEW} of {n_users} users; --out writes them all", err=True)
        return
    tables = model.stream(asked, k, **options) if engine is None else iter(())  # notes come before the bar
    with working("recommending", n_users) as advance:
        if engine is None:
            rows = 0
            with _writer(out) as write:
                for table in tables:
                    write(table)
                    rows += table.num_rows
                    advance(min(model.ranker.block(), n_users))
        else:
            from concf.inference.bulk import write_lists

            options |= {"model": model, "data": data, "advance": advance}
            rows = write_lists(folder, out, asked, k, engine=engine, workers=workers, **options)
    said = {"out": str(out), "users": n_users, "rows": rows, "by": by or model.default}
    typer.echo(json.dumps(said) if as_json else f"{rows} rows for {n_users} users by {said['by']}: {out}")


def _refuse_alone(engine: str | None, out: Path | None) -> None:
    from concf.runtime.executors import ENGINES

    if engine is None:
        raise ConfigError(f"--workers needs an --engine: {' or '.join(ENGINES)}")
    choice("engine", engine, ENGINES)
    if out is None:
        raise ConfigError(f"--engine {engine} writes a folder of Parquet files; say where with --out")


def _ids(text: str, model: Recommender, side: str) -> list[Any]:
    """Ids from a file or between commas, as the log has them: integers or text."""
    from concf.runtime.files import refuse_no_file

    path = Path(text)
    if os.path.isfile(text):  # noqa: PTH113, a long list of ids is no name of a file, and no error
        found = _column(path)
    else:
        if path.suffix in (".csv", ".txt", ".parquet", ".jsonl"):
            refuse_no_file(path)
        found = names(text)
    ids = model.user_ids if side == "user" else model.item_ids
    if not ids.are_integers:
        return [str(each) for each in found]
    spelt = [bool(re.fullmatch(r"\s*-?[0-9]+\s*", str(each))) for each in found]
    if side == "user" and not all(spelt):
        raise DataError(f"{text}: {found[spelt.index(False)]!r} is no user of the log, whose users are integers")
    return [int(each) if fits else each for each, fits in zip(found, spelt, strict=True)]


def _column(path: Path) -> list[Any]:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_table(path).column(0).to_pylist())
        except (pa.ArrowException, IndexError):
            raise DataError(f"{path}: cannot be read as a Parquet file with a column of ids") from None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file of ids") from None
    first = [row[0].strip() for row in csv.reader(lines) if row and row[0].strip()]
    return first[1:] if first and first[0].lower().replace("_", "") in HEADERS else first


def _show(tables: Iterator[pa.Table], as_json: bool) -> None:
    rows = [row for table in tables for row in table.to_pylist()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    print_table(
        ["user", "item", "score", "rank"],
        [[str(row["user_id"]), str(row["item_id"]), f"{row['score']:.4f}", str(row["rank"])] for row in rows],
    )


@contextmanager
def _writer(out: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Write tables one after the other; the file appears when all are there."""
    from concf.runtime.files import new_file

    kinds = {".parquet": _parquet, ".csv": _csv, ".jsonl": _json_lines}
    if out.suffix not in kinds:
        raise ConfigError(f"--out {out}: choose a name that ends in {', '.join(kinds)}")
    if out.is_file() and out.stat().st_size and _columns_of(out) != COLUMNS:
        raise DataError(f"{out}: exists and holds no lists of recommendations; it is left alone. Choose another --out")
    with new_file(out) as fresh, kinds[out.suffix](fresh) as write:
        yield write


def _columns_of(path: Path) -> list[str]:
    """The names of a file's columns; none of what cannot be read as its ending says."""
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        with path.open(encoding="utf-8") as file:
            first = file.readline(10_000)
        return list(json.loads(first)) if path.suffix == ".jsonl" else next(csv.reader([first]), [])
    except (ValueError, TypeError, csv.Error):  # of Arrow, JSON and UTF-8
        return []


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    import pyarrow.parquet as pq

    writer: Any = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _csv(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    from pyarrow.csv import WriteOptions, write_csv

    with path.open("wb") as file:

        def write(table: pa.Table) -> None:
            write_csv(table, file, WriteOptions(include_header=file.tell() == 0))

        yield write


@contextmanager
def _json_lines(path: Path) -> Iterator[Callable[[pa.Table], None]]:
    with path.open("w", encoding="utf-8") as file:

        def write(table: pa.Table) -> None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())

        yield write
