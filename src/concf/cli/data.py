"""`concf prepare`, and `concf data list`, `fetch`, `stats` and `write`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json, names, print_table, print_values, print_windows
from concf.cli.reading import SPLITTING, reads_a_log

PARTS = ("train", "valid", "test", "unevaluated", "evaluated_users")
app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="List, fetch, count and write data sets.")


@reads_a_log(protocol="released")
def prepare(
    source: Annotated[str, typer.Argument(help="A file (CSV, TSV, Parquet, JSON lines, .inter, one line per user; gzip too), a quoted glob such as 'logs/*.parquet', a name of `concf data list`, or `demo`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    log: dict[str, Any],
    seed: Annotated[int, typer.Option(help="Random seed of the split.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing data set.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Read a log, filter it, split it, and write a prepared data set.

    **Protocols.** `released`: users and items with fewer than 10 interactions removed, then 60/20/20 per user.
    `paper`: nothing removed, but only users and items with 10 or more are held out. `random`: 60/20/20 per user.
    `leave-last`: each user's newest. `time`: a global cut. `new-users`: a tenth of the users for validation and a tenth
    for test, of each a fifth of the items. `new-items`: all interactions of a tenth of the items for test.
    `given`: SOURCE and --test are the training and the test file, --valid is a file or a share of the training items;
    `gowalla` and `yelp2018` have both files.

    `concf prepare citeulike --protocol released --seed 0 --out data/citeulike`;
    `concf prepare gowalla --protocol given --valid 0.05 --out data/gowalla`
    """
    from concf.data.prepare import prepare as prepare_data

    split = prepare_data(source, seed=seed, out=out, overwrite=overwrite, **log)
    for note in split.notes:
        typer.echo(f"note: {note}", err=True)
    summary = split.summary() | {"held_out": split.held_out()}
    if as_json:
        typer.echo(json.dumps(summary | {"folder": str(out)}))
        return
    shown = ("users", "items", "interactions", "density", *PARTS, *(["history"] if split.has_new_users else []))
    print_values({name: summary[name] for name in shown} | {"split hash": split.hash[:16], "folder": str(out)})
    if split.recipe.protocol.time_cut == "all":
        print_windows(summary["held_out"], ["part", "from"], "Held out, and the pairs that are not evaluated, by cause")


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """List the public data sets that concf knows, and whether they are here."""
    from concf.data.catalogue import CATALOGUE, data_home, is_here

    rows = [{"name": name, "about": entry.title, "here": is_here(name)} for name, entry in CATALOGUE.items()]
    rows.append({"name": "demo", "about": "Simulated: tastes, popularity and noise", "here": True})
    if as_json:
        typer.echo(json.dumps({"home": str(data_home()), "data": rows}))
        return
    table = [[str(row["name"]), str(row["about"]), "yes" if row["here"] else "no"] for row in rows]
    print_table(["name", "what", "here"], table, title=f"Data home: {data_home()}")


@app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A name of `concf data list`.")], as_json: Json = False
) -> None:
    """Download a data set into the data home (CONCF_DATA_HOME), unless it is there."""
    from concf.data.catalogue import fetch

    paths = [str(path) for path in fetch(name)]
    typer.echo(json.dumps({"name": name, "files": paths}) if as_json else "\n".join(paths))


@app.command("stats")
@reads_a_log()
def data_statistics(
    source: Annotated[str, typer.Argument(help="A name of `concf data list`, a file, or `demo`.")],
    log: dict[str, Any],
    seed: Annotated[int, typer.Option(help="With --protocol: random seed of the shuffle.")] = 0,
    as_json: Json = False,
) -> None:
    """Count users, items, interactions and density of a log, before and after a filter or a protocol.

    Also shown: the columns that are read and the range of the times.

    `concf data stats log.csv --min-item 5`; `concf data stats log.csv --protocol random --at-least 1`
    """
    from concf.data.catalogue import is_catalogued
    from concf.data.prepare import filter_of, read_source, reading_of
    from concf.data.prepare import prepare as prepare_data
    from concf.data.reading.read import columns_of
    from concf.data.reading.times import moment

    report, title, counts = dict[str, Any](), "", dict[str, int]()
    if log.keys() & SPLITTING:
        split = prepare_data(source, seed=seed, **log)
        recipe, counts, interactions = split.recipe, split.counts(), split.interactions
        origin, title = recipe.source, f", protocol {recipe.protocol.name}, seed {seed}"
        logs = [(recipe.filters, interactions)]
        report = {"split": counts | {"hash": split.hash}}
    else:
        interactions, origin = read_source(source, reading_of(log))
        own = filter_of(log)
        logs = [((), interactions), *([((own,), own.apply(interactions))] if own else [])]
    rows: list[dict[str, Any]] = [
        {"filter": "; then ".join(step.describe() for step in filters) or "none", **left.statistics()}
        for filters, left in logs
    ]
    known = "simulation" in origin or is_catalogued(source)
    columns = {} if known else columns_of(source, reading_of(log))
    first, last = interactions.timestamp, interactions.last
    times = [] if first is None or last is None else [moment(first.min()), moment(last.max())]
    if as_json:
        typer.echo(json.dumps({"source": origin, "statistics": rows, "columns": columns, "time_range": times} | report))
        return
    counted = ("users", "items", "interactions", "events")
    table = [[*(f"{row[name]:,}" for name in counted), f"{row['density']:.3%}", str(row["filter"])] for row in rows]
    print_table([*counted, "density", "filter"], table, title=f"{origin['name']}{title}")
    print_values({name: counts[name] for name in PARTS if name in counts})
    words = {"columns": ", ".join(f"{role} = {column}" for role, column in columns.items())}
    print_values({name: text for name, text in (words | {"time_range": " to ".join(times)}).items() if text})


@app.command("write")
def write_data(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="A prepared data set (see `concf prepare`).")],
    out: Annotated[Path, typer.Option(help="A new .parquet, .csv or .jsonl file.")],
    parts: Annotated[str, typer.Option(help="train, valid or test; several with commas.")] = "train",
) -> None:
    """Write parts of a prepared data set as a log, for other programs to learn from (see `concf combine`).

    `concf data write data/mine --parts train,valid --out learn.parquet`
    """
    from concf.data.prepare import write_parts
    from concf.data.split import Split

    typer.echo(f"{write_parts(Split.load(folder), names(parts), out):,} pairs of {parts}: {out}")
