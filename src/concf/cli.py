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

from concf import (
    cli_demo,
    cli_export,
    cli_reading,
    cli_recommend,
    cli_report,
    cli_reproduce,
    cli_serve,
    cli_train,
    cli_tune,
)
from concf.cli_reading import reads_a_log
from concf.console import Json, choice, lengths, names, print_table
from concf.errors import ConcfError, ConfigError, command_line
from concf.launch import follows
from concf.version import VERSION

if TYPE_CHECKING:
    from concf.data.interactions import Interactions

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

_DIVIDED = ("train", "valid", "test", "dropped", "evaluated_users")  # of a split's counts


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
@reads_a_log(protocol="released")
def prepare(
    source: Annotated[str, typer.Argument(help="A file (CSV, TSV, Parquet, JSON lines, .inter, one line a user; gzip too), a quoted glob such as 'logs/*.parquet', a name of `concf data list`, or `demo`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    log: dict[str, Any],
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
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
    from concf.data.prepare import prepare as prepare_data

    split = prepare_data(source, seed=seed, strict=strict, out=out, overwrite=overwrite, **log)
    for note in split.notes:
        typer.echo(f"note: {note}", err=True)
    summary = split.summary()
    if as_json:
        typer.echo(json.dumps(summary | {"folder": str(out)}))
        return
    shown = ("users", "items", "interactions", "density", *_DIVIDED)
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


app.command()(cli_demo.demo)


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
@reads_a_log()
def data_statistics(
    source: Annotated[str, typer.Argument(help="A name of `concf data list`, a file, or `demo`.")],
    log: dict[str, Any],
    seed: Annotated[int, typer.Option(help="With --protocol: of the shuffle.")] = 0,
    as_json: Json = False,
) -> None:
    """Users, items, interactions and density of a log, and what a filter or a protocol would make of it.

    Of a data set of the catalogue also after the filters of its papers.

    `concf data stats log.csv --min-item 5`; `concf data stats log.csv --protocol random --at-least 1`
    """
    if cli_reading.DIVIDING & log.keys():
        _divided_statistics(source, seed, log, as_json)
        return
    from concf.data.options import filter_of, reading_of
    from concf.data.prepare import read_source

    chosen = filter_of(log, None)
    interactions, origin = read_source(source, reading_of(log, None))
    rows = [{"filter": "none", **interactions.statistics()}]
    if chosen is not None:
        rows.append({"filter": chosen.describe(), **chosen.apply(interactions).statistics()})
    else:
        rows += _as_published(source, interactions, origin)
    if as_json:
        typer.echo(json.dumps({"source": origin, "statistics": rows}))
    else:
        _print_statistics(str(origin["name"]), rows)


def _divided_statistics(source: str, seed: int, log: dict[str, Any], as_json: bool) -> None:
    """What a filter and a protocol leave of a log, and what is in each part."""
    from concf.data.prepare import prepare as prepare_data

    split = prepare_data(source, seed=seed, **log)
    recipe, counts = split.recipe, split.counts()
    filters = "; then ".join(step.describe() for step in recipe.filters) or "none"
    rows = [{"filter": filters, **split.interactions.statistics()}]
    if as_json:
        typer.echo(json.dumps({"source": recipe.source, "statistics": rows, "split": counts | {"hash": split.hash}}))
        return
    _print_statistics(f"{recipe.source['name']}, protocol {recipe.protocol.name}, seed {seed}", rows)
    _print_figures({name: counts[name] for name in _DIVIDED})


def _print_statistics(title: str, rows: list[dict[str, Any]]) -> None:
    figures = ("users", "items", "interactions", "events")
    table = [[*(f"{row[name]:,}" for name in figures), f"{row['density']:.3%}", str(row["filter"])] for row in rows]
    print_table([*figures, "density", "filter"], table, title=title)


def _as_published(source: str, interactions: Interactions, origin: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each filter of the papers that used a data set of the catalogue."""
    from concf.data.catalogue import CATALOGUE
    from concf.data.protocols import Released

    if source not in CATALOGUE or origin["name"] != source:
        return []
    known, rows = CATALOGUE[source], []
    if known.statistics is not None:
        rows.append({"filter": known.statistics.describe(), **known.statistics.apply(interactions).statistics()})
    start = known.released_start.apply(interactions) if known.released_start else interactions
    then = Released().filter()
    words = f"{known.released_start.describe()}; then {then.describe()}" if known.released_start else then.describe()
    return [*rows, {"filter": words, **then.apply(start).statistics()}]


def _print_figures(figures: dict[str, Any]) -> None:
    shown = {name: f"{value:.3%}" if name == "density" else value for name, value in figures.items()}
    for name, value in shown.items():
        typer.echo(f"{name.replace('_', ' '):>16}  {value:,}" if isinstance(value, int) else f"{name:>16}  {value}")


def _print_footnote(report: dict[str, Any]) -> None:
    few, many = min(report["evaluated_users"]), max(report["evaluated_users"])
    users = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    typer.echo(
        f"Means over {users} users ± standard deviation over splits {report['seeds']}. Settings chosen on {report['tuned_on']}; "
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
