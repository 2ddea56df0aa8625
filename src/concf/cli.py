"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from concf import cli_export, cli_recommend, cli_report, cli_reproduce, cli_serve, cli_train, cli_tune
from concf.console import Json, choice, lengths, names, print_table
from concf.errors import ConcfError, ConfigError, command_line
from concf.launch import follows
from concf.version import VERSION

if TYPE_CHECKING:
    from concf.data.scan import Reading

app = typer.Typer(
    name="concf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Public data sets: list, fetch, count.")
app.add_typer(data_app, name="data")

READING = "How to read SOURCE"
FILTER = "What to leave out first"
PROTOCOL = "How to divide"

User = Annotated[str | None, typer.Option(help="Column of the user (its place from 0 if no header).", rich_help_panel=READING)]  # fmt: skip
Item = Annotated[str | None, typer.Option(help="Column of the item.", rich_help_panel=READING)]
Rating = Annotated[str | None, typer.Option(help="Column of an explicit rating.", rich_help_panel=READING)]
MinRating = Annotated[float | None, typer.Option(help="Rows rated below are no interactions.", rich_help_panel=READING)]
Count = Annotated[str | None, typer.Option(help="Column of how often (`none`: leave it out).", rich_help_panel=READING)]
Timestamp = Annotated[
    str | None, typer.Option(help="Column of the time (`none`: leave it out).", rich_help_panel=READING)
]
Format = Annotated[str, typer.Option(help="auto, table, parquet, jsonl, user-lines (id first), counted-lines (count first).", rich_help_panel=READING)]  # fmt: skip
Separator = Annotated[str | None, typer.Option(help="Of a text table, such as ';' or '::'.", rich_help_panel=READING)]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help="Whether line 1 names the columns.", rich_help_panel=READING)]  # fmt: skip


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """**concf**: a log of who used what in, strong top-N recommendations out.

    Begin with `concf demo`, or with a log of your own:

    `concf train log.csv --out runs/mine`, then `concf evaluate runs/mine`

    `concf recommend runs/mine --users all -k 20 --out recs.parquet`

    `concf prepare log.csv --protocol random --out data/mine`, then `concf compare data/mine`
    """
    if version:
        typer.echo(VERSION)
        raise typer.Exit


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="A file (CSV, TSV, Parquet, JSON lines, .inter, one line a user; gzip too), a quoted glob such as 'logs/*.parquet', a name of `concf data list`, or `demo`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    protocol: Annotated[str, typer.Option(help="paper, released, random, leave-last, time or given.", rich_help_panel=PROTOCOL)] = "released",
    seed: Annotated[int, typer.Option(help="Of the shuffle.", rich_help_panel=PROTOCOL)] = 0,
    valid: Annotated[str | None, typer.Option(help="Share held out for validation; with `given`, the file.", rich_help_panel=PROTOCOL)] = None,
    test: Annotated[str | None, typer.Option(help="Share held out for test; with `given`, the file.", rich_help_panel=PROTOCOL)] = None,
    last: Annotated[int | None, typer.Option(help="With `leave-last`: how many.", rich_help_panel=PROTOCOL)] = None,
    valid_from: Annotated[float | None, typer.Option(help="With `time`: the first time of validation.", rich_help_panel=PROTOCOL)] = None,
    test_from: Annotated[float | None, typer.Option(help="With `time`: the first time of test.", rich_help_panel=PROTOCOL)] = None,
    min_user: Annotated[int | None, typer.Option(help="Interactions a user must have.", rich_help_panel=FILTER)] = None,
    min_item: Annotated[int | None, typer.Option(help="Interactions an item must have.", rich_help_panel=FILTER)] = None,
    counts: Annotated[str, typer.Option(help="Count `raw` events or `distinct` pairs.", rich_help_panel=FILTER)] = "distinct",
    core: Annotated[bool, typer.Option("--core", help="Repeat until nothing changes (k-core).", rich_help_panel=FILTER)] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    min_rating: MinRating = None,
    count: Count = None,
    timestamp: Timestamp = None,
    format: Format = "auto",
    separator: Separator = None,
    header: Header = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse data of which something cannot be evaluated.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a data set that is there.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Read a log, filter it, divide it, and write a prepared data set.

    **Protocols.** `released`: users and items with fewer than 10 interactions removed, then 60/20/20 per user.
    `paper`: nothing removed, but only users and items with 10 or more are held out. `random`: 60/20/20 per user.
    `leave-last`: each user's newest. `time`: a global cut. `given`: SOURCE trains, --valid and --test are files.

    `concf prepare citeulike --protocol released --seed 0 --out data/citeulike`
    """
    from concf.data.filters import Filter
    from concf.data.prepare import prepare as prepare_data

    reading = _reading(user, item, rating, min_rating, count, timestamp, format, separator, header)
    chosen = None
    if min_user is not None or min_item is not None:
        chosen = Filter(min_user=min_user or 0, min_item=min_item or 0, counts=counts, core=core)
    elif core or counts != "distinct":
        raise ConfigError("--core and --counts say how to filter; say --min-user or --min-item too")
    settings = {"n": last, "valid_from": valid_from, "test_from": test_from}
    split = prepare_data(
        source, protocol=protocol, seed=seed, filter=chosen, reading=reading, strict=strict, out=out,
        overwrite=overwrite, valid=_share("valid", valid, protocol), test=_share("test", test, protocol),
        **{name: value for name, value in settings.items() if value is not None},
    )  # fmt: skip
    for note in split.notes:
        typer.echo(f"note: {note}", err=True)
    summary = split.summary()
    if as_json:
        typer.echo(json.dumps(summary | {"folder": str(out)}))
        return
    shown = ("users", "items", "interactions", "density", "train", "valid", "test", "dropped", "evaluated_users")
    _print_figures({name: summary[name] for name in shown} | {"split hash": split.hash[:16], "folder": str(out)})


app.command()(cli_train.train)
app.command()(cli_train.evaluate)
app.command()(cli_recommend.recommend)
app.command()(cli_serve.serve)
app.command()(cli_export.export)
app.command()(cli_tune.tune)
app.command()(cli_report.report)
app.command()(cli_reproduce.reproduce)


@app.command()
def compare(
    folder: Annotated[Path, typer.Argument(help="A prepared data set (see `concf prepare`).")],
    models: Annotated[str, typer.Option(help="Names, separated by commas: popularity, itemknn, ease, rp3beta, puresvd, ials, bpr; concf:strong or another preset.")] = "popularity,itemknn,ease,rp3beta",
    seeds: Annotated[int, typer.Option(min=1, help="Splits: the data set's own seed and the next ones.")] = 5,
    at: Annotated[str, typer.Option(help="Lengths of the lists.")] = "20,50",
    metrics: Annotated[str, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall,ndcg",
    tune_on: Annotated[str | None, typer.Option(help="Validation figure that chooses the settings (default: the first metric at the greatest length).")] = None,
    test: Annotated[str, typer.Option(help="Significance: t or wilcoxon, paired, Holm-corrected.")] = "t",
    log: Annotated[Path | None, typer.Option(help="JSON lines of every measurement; a killed comparison goes on from there.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there as Markdown: a .md file.")] = None,
    engine: Annotated[str | None, typer.Option(help="Measure by several workers, with the same result: processes, or ray (a local cluster, or the one at RAY_ADDRESS).", show_default="one after the other")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --engine: how many.", show_default="one for each core")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Tune baselines on validation, test them on several splits, and show who is better and how surely.

    `concf compare data/citeulike --models popularity,itemknn,ease,rp3beta,ials --seeds 5`
    """
    from concf.comparison import compare as compare_models
    from concf.data.folders import new_file
    from concf.data.split import Split
    from concf.spread import ENGINES
    from concf.tables import comparison_rows
    from concf.tables import markdown as markdown_table

    choice("test", test, ("t", "wilcoxon"))
    if markdown is not None and markdown.suffix != ".md":
        raise ConfigError(f"--markdown {markdown}: choose a name that ends in .md")
    if engine is not None:
        choice("engine", engine, ENGINES)
    elif workers is not None:
        raise ConfigError("--workers needs an --engine: processes or ray")
    result = compare_models(
        Split.load(folder),
        names(models),
        seeds=seeds,
        at=lengths(at),
        metrics=names(metrics),
        tune_on=tune_on,
        log=log,
        engine=engine,
        workers=workers,
    )
    table = comparison_rows(result, test)
    if markdown is not None:
        with new_file(markdown) as fresh:
            fresh.write_text(markdown_table(*table), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(result.as_dict(test)))
        return
    print_table(*table, title=f"{result.source}, protocol {result.protocol}, {len(result.seeds)} splits")
    _print_footnote(result.as_dict(test))


@app.command()
def demo(as_json: Json = False) -> None:
    """Do the main job on simulated data: tuned baselines, single objectives and ConCF side by side. Under a minute."""
    from concf.demo import run
    from concf.tables import short, spark, words

    report = run()
    if as_json:
        typer.echo(json.dumps(report))
        return
    figures = list(report["rows"][0]["means"])
    rows = [
        [f"{row['kind']} {row['name']}", *(f"{row['means'][figure]:.4f}" for figure in figures),
         f"{row['validation']:.4f}", words(row["chosen"])]
        for row in report["rows"]
    ]  # fmt: skip
    metric, data = short(report["metric"]), report["data"]
    title = f"Simulated log, {data['users']:,} users, {data['items']:,} items, {data['train']:,} training pairs; test"
    print_table(["", *map(short, figures), f"valid {metric}", "chosen on validation"], rows, title=title)
    changes = "; ".join(f"{part} {words(each)}" for part, each in report["changes"].items())
    typer.echo(
        "One split (protocol random, seed 0): differences of 0.005 are noise.\n"
        f"SingleCF, one objective alone, and ConCF: preset {report['preset']}, but {changes}.\n"
        "So short a run suits ConCF better than objectives alone, which learn more slowly here.\n"
        f"\nConCF's validation {metric} by epoch, all on one scale:"
    )
    values = [value for curve in report["curves"].values() for _, value in curve]
    for name, curve in report["curves"].items():
        line, last = spark([value for _, value in curve], min(values), max(values)), curve[-1]
        typer.echo(f"{name:>18} {line} {last[1]:.4f}{' best head' if name == report['best_head'] else ''}")
    example = report["example"]
    typer.echo(f"\nThe consensus recommends to user {example['user']}, who used {example['history']}:")
    print_table(["rank", "item", ""], [[str(r["rank"]), str(r["item"]), r["was"]] for r in example["items"]])


@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """The public data sets that concf knows, and whether they are here."""
    from concf.data.catalogue import CATALOGUE, data_home, is_here

    rows = [{"name": name, "about": entry.title, "here": is_here(name)} for name, entry in CATALOGUE.items()]
    rows.append({"name": "demo", "about": "Simulated: tastes, popularity and noise", "here": True})
    if as_json:
        typer.echo(json.dumps({"home": str(data_home()), "data": rows}))
        return
    table = [[str(row["name"]), str(row["about"]), "yes" if row["here"] else "no"] for row in rows]
    print_table(["name", "what", "here"], table, title=f"Data home: {data_home()}")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A name of `concf data list`.")], as_json: Json = False
) -> None:
    """Download a data set into the data home (CONCF_DATA_HOME), unless it is there."""
    from concf.data.catalogue import fetch

    paths = [str(path) for path in fetch(name)]
    typer.echo(json.dumps({"name": name, "files": paths}) if as_json else "\n".join(paths))


@data_app.command("stats")
def data_statistics(
    source: Annotated[str, typer.Argument(help="A name of `concf data list`, a file, or `demo`.")],
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    min_rating: MinRating = None,
    count: Count = None,
    timestamp: Timestamp = None,
    format: Format = "auto",
    separator: Separator = None,
    header: Header = None,
    as_json: Json = False,
) -> None:
    """Users, items, interactions and density of a log; of a data set of the catalogue also after the protocols' filters."""
    from concf.data.catalogue import CATALOGUE
    from concf.data.prepare import read_source
    from concf.data.protocols import Released

    reading = _reading(user, item, rating, min_rating, count, timestamp, format, separator, header)
    interactions, origin = read_source(source, reading)
    rows = [{"filter": "none", **interactions.statistics()}]
    if source in CATALOGUE and origin["name"] == source:
        known = CATALOGUE[source]
        if known.statistics is not None:
            rows.append({"filter": known.statistics.describe(), **known.statistics.apply(interactions).statistics()})
        start = known.released_start.apply(interactions) if known.released_start else interactions
        then = Released().filter()
        words = (
            f"{known.released_start.describe()}; then {then.describe()}" if known.released_start else then.describe()
        )
        rows.append({"filter": words, **then.apply(start).statistics()})
    if as_json:
        typer.echo(json.dumps({"source": origin, "statistics": rows}))
        return
    figures = ("users", "items", "interactions", "events")
    table = [[*(f"{row[name]:,}" for name in figures), f"{row['density']:.3%}", str(row["filter"])] for row in rows]
    print_table([*figures, "density", "filter"], table, title=str(origin["name"]))


def _reading(
    user: str | None, item: str | None, rating: str | None, min_rating: float | None, count: str | None,
    timestamp: str | None, format: str, separator: str | None, header: bool | None,
) -> Reading:  # fmt: skip
    from concf.data.scan import Reading

    if separator is not None:
        separator = separator.replace("\\t", "\t")
    return Reading(
        user=user, item=item, rating=rating, min_rating=min_rating, count=count, timestamp=timestamp,
        format=format, separator=separator, header=header,
    )  # fmt: skip


def _share(name: str, value: str | None, protocol: str) -> Any:
    """A fraction, or with protocol `given` a file."""
    if value is None or protocol == "given":
        return value
    try:
        return float(value)
    except ValueError:
        raise ConfigError(
            f"--{name} {value!r}: expected a share such as 0.2 (a file only with --protocol given)"
        ) from None


def _print_figures(figures: dict[str, Any]) -> None:
    shown = {name: f"{value:.3%}" if name == "density" else value for name, value in figures.items()}
    for name, value in shown.items():
        typer.echo(f"{name.replace('_', ' '):>16}  {value:,}" if isinstance(value, int) else f"{name:>16}  {value}")


def _print_footnote(report: dict[str, Any]) -> None:
    typer.echo(
        f"Mean ± standard deviation over splits {report['seeds']}. Settings chosen on {report['tuned_on']}; "
        f"* marks the edge of a grid.\np: against the first, {report['test']}. "
        f"Split hashes {', '.join(split[:8] for split in report['split_hashes'])}."
    )


def _fail(message: str) -> NoReturn:
    if follows():  # a mistake of all is said by the first of them, whose end ends the others
        time.sleep(2)
    typer.echo(f"concf: {message}", err=True)
    sys.exit(2)


def main() -> None:
    """Run the program; a user's mistake ends in a message and exit code 2, never in a traceback."""
    # PyTorch's threads spin while they wait for each other: on a busy machine 100 times longer than they work.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        with command_line():
            app(prog_name="concf")
    except ConcfError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except MemoryError as error:
        _fail(f"not enough memory ({error}). Ask for shorter lists, or for less at a time")
    except RuntimeError as error:  # PyTorch's, which has no kind of its own on a CPU
        if "allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        _fail(f"not enough memory ({_size_asked(str(error))}). Set fewer model.dimensions, or a smaller training.batch")
    except ValidationError as error:
        _fail("; ".join(_in_words(dict(problem)) for problem in error.errors()))


def _size_asked(message: str) -> str:
    """What of PyTorch's words helps: how much was asked for."""
    found = re.search(r"tried to allocate [\d.]+ \w+", message, re.IGNORECASE)
    return found[0].lower() if found else message.splitlines()[0]


def _in_words(problem: dict[str, Any]) -> str:
    """One of pydantic's complaints: which setting, what is wrong, what was found."""
    where = ".".join(str(part) for part in problem["loc"])
    found = "" if isinstance(problem["input"], dict) else f", found {problem['input']!r}"
    return f"{where + ': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}{found}"


if __name__ == "__main__":
    main()
