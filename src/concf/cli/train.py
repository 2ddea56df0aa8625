"""`concf train`, `concf update` and `concf combine`."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from concf.cli.output import Json, print_heads, title_of
from concf.cli.reading import READING, reads_a_log, refuse_options, weighting
from concf.errors import ConfigError, DataError
from concf.runtime.system import Stopped, stoppable

if TYPE_CHECKING:
    from concf.data.split import Split
    from concf.runs.checkpoint import RunFolder
    from concf.runs.run import Run
    from concf.runtime.process_group import ProcessGroup

MODEL, RUN = "Model", "Run"  # panels of the help page, below those of the log
SHOWN = ("user", "item", "timestamp", "count", "rating", "min_rating", "min_user", "min_item", "protocol",
         "valid", "test")  # fmt: skip
MORE_METRICS = {"voters": "Voters without vectors", "fusions": "Plain fusions, on a sample of users"}


@reads_a_log(SHOWN, moved=True, protocol="by time, if the log has times", valid="0.1", test="0.1", min_item="5")
def train(
    log: dict[str, Any],
    folder: Annotated[Path | None, typer.Argument(metavar="DATA", help="A prepared data set (see `concf prepare`), or a log: a file, or a quoted glob. With --resume it may be left out.", show_default=False)] = None,
    *,
    preset: Annotated[str | None, typer.Option(help="strong, reference, paper or released.", show_default="strong; with --single, reference", rich_help_panel=MODEL)] = None,
    budget: Annotated[Literal["fast", "default", "thorough"] | None, typer.Option(help="Compute budget of the preset strong.", show_default="default", rich_help_panel=MODEL)] = None,
    final: Annotated[bool, typer.Option("--final", help="Refit on everything, the test part too: for production. The run then has no test metrics.", rich_help_panel=MODEL)] = False,
    weights: Annotated[Literal["none", "linear", "log"] | None, typer.Option(help="Weigh interactions by their count: none, linear, or log, ln(1 + count).", show_default="none", rich_help_panel=MODEL)] = None,
    half_life: Annotated[str | None, typer.Option(help="Age at which an interaction counts half, such as 90d (s, h, d, w, y).", show_default="none", rich_help_panel=MODEL)] = None,
    age: Annotated[Literal["first", "last"] | None, typer.Option(help="With --half-life: the event from which the age of a pair counts.", show_default="last", rich_help_panel=MODEL)] = None,
    single: Annotated[str | None, typer.Option(help="One objective alone (SingleCF): bpr, cml, cross-entropy, squared-error, multinomial, multinomial-users.", rich_help_panel=MODEL)] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as consensus.weight=0; may be repeated. The settings are in docs/training.md.", rich_help_panel=MODEL)] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; --set overrides it.", rich_help_panel=MODEL)] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Random seed of the initial weights, batch order and negatives; for a log also of its split.", show_default="0", rich_help_panel=MODEL)] = None,
    out: Annotated[Path, typer.Option(help="The folder of the run: settings, history, checkpoint.", rich_help_panel=RUN)],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.", rich_help_panel=RUN)] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="a GPU if there is one", rich_help_panel=RUN)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.", rich_help_panel=RUN)] = False,
) -> None:  # fmt: skip
    """Train a model: by default `strong`, whose voters' consensus is distilled into one head.

    `concf train data/citeulike --out runs/first`, or `concf train ratings.csv --out runs/mine` from a log. If it
    has times, its newest tenth is held out for testing and the tenth before for validation (if it is small, each user's
    newest items); else a tenth of each user's items for either. Other ways to split a log: `concf prepare`.

    The paper's own model: `--preset reference`; without the consensus loss: `--set consensus.weight=0`. A killed run
    continues, with exactly the same result: `concf train --resume --out runs/first`. By several processes:
    `torchrun --nproc-per-node 8 -m concf train ...`
    """
    from concf.loading import run_settings
    from concf.models import choose_settings, train_job
    from concf.runs.checkpoint import RunFolder
    from concf.runs.job import Job
    from concf.runs.watchers import Lines
    from concf.runtime.process_group import joined, restarted

    if folder is None and not resume:
        raise ConfigError("no data set was named. Try: concf train DATA --out RUN, or continue: --resume --out RUN")
    if resume:
        refuse_options(log, "a resumed run has its data set already. Leave it out")
    home = RunFolder(out)

    with _resumable(out), joined() as group:
        again = group.any(restarted())
        resume = group.any(group.is_main and (resume or (again and home.begun)))  # the same command, after a failure
        if again and group.is_main:
            typer.echo("concf: a process failed, all are started again", err=True)
        words = [f"budget={budget}"] * (budget is not None) + ["refit=everything"] * final
        words += [*weighting(weights, half_life, age), *(change or [])]
        own = run_settings(home) if resume and preset is None else preset
        settings = choose_settings(own, file=config, words=words, single=single)
        data = _data(folder, home, seed, log, resume, group)
        run = train_job(data, settings, Job(home, resume, group, (Lines(),) if group.is_main else ()), seed, device)
    if group.is_main:
        _report(run, out, as_json)


@reads_a_log(READING, format="as the first log")
def update(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run; it stays as it is.")],
    new: Annotated[str, typer.Argument(metavar="NEW_LOG", help="What came since: a file, or a quoted glob.")],
    out: Annotated[Path, typer.Option(help="The folder of the new run.")],
    log: dict[str, Any],
    hold: Annotated[float, typer.Option(min=0, max=1, help="How strongly the vectors of known users and items are held; 0: they move freely, 1: not at all.")] = 0.0,
    rerank: Annotated[Literal["refit", "carry"], typer.Option(help="The re-ranker's weights: fitted to the new pairs, or as before, which is faster.")] = "refit",
    refresh: Annotated[bool, typer.Option("--refresh", help="Train no voter: fold in users with new interactions, and renew trends, newest items, lists and the student.")] = False,
    final: Annotated[bool, typer.Option("--final", help="Learn from the test part too, from now on.")] = False,
    drop_before: Annotated[str | None, typer.Option(metavar="DATE", help="Forget pairs whose last event is older: a date, or a time in the log's own unit.", show_default=False)] = None,
    min_item: Annotated[int, typer.Option(min=1, help="Leave out new items with fewer users.")] = 1,
    data: Annotated[Path | None, typer.Option(help="The data set of the run, if it has moved.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="a GPU if there is one")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Bring a run up to date: new interactions, users and items join what it has learned, without a new search.

    `concf update runs/monday tuesday.csv --out runs/tuesday`

    `concf update runs/monday noon.csv --refresh --out runs/noon`

    Known users and items begin with their vectors, new ones with the mean of those that they occur with. The new run
    can be served, exported and updated like any other. Resume a killed one by `concf train --resume --out runs/tuesday`.
    """
    from concf.models import load_run
    from concf.runs.watchers import Lines
    from concf.strong.update import update as update_run

    with _resumable(out):
        run = update_run(
            load_run(folder, data), new, out=out, hold=hold, rerank=rerank, refresh=refresh, final=final,
            drop_before=drop_before, min_item=min_item, device=device, watch=Lines(), **log,
        )  # fmt: skip
    _report(run, out, as_json)


def combine(
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="A prepared data set (see `concf prepare`).")],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    voter: Annotated[list[str], typer.Option(metavar="NAME=FILE", help="A voter: its name, and its lists by a model that was fitted on the training part (user, item, and score or rank; .csv, .parquet or .jsonl). May be repeated.")],
    final_voter: Annotated[list[str] | None, typer.Option(metavar="NAME=FILE", help="The same voter, fitted on the training and the validation part, to recommend from. For every voter, or for none.", show_default=False)] = None,
    with_own: Annotated[bool, typer.Option("--with-own", help="concf's own voters vote, too.")] = False,
    final: Annotated[bool, typer.Option("--final", help="The final voters were fitted on everything, the test part too: for production. The run then has no test metrics.")] = False,
    budget: Annotated[Literal["fast", "default", "thorough"] | None, typer.Option(help="Compute budget of concf's own voters and the student.", show_default="default")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as consensus.top_k=100; may be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Random seed.", show_default="0")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="a GPU if there is one")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Combine models that you have: their lists vote, are re-ranked on validation, and are distilled into one head.

    `concf data write data/mine --parts train --out train.csv`, fit your models on it, and write their lists. Then:

    `concf combine data/mine --voter als=als.parquet --voter bm25=bm25.csv --out runs/both`

    The run can be evaluated, served, exported and explained like any other. Resume a killed one by
    `concf train --resume --out runs/both`.
    """
    from concf.runs.settings import from_word, merged
    from concf.runs.watchers import Lines
    from concf.strong.combine import combine as combine_voters

    if folder.is_file():
        raise ConfigError(f"{folder}: is a file, not a data set. First: concf prepare {folder} --out DIR")
    settings: dict[str, Any] = {"own": with_own} | ({"budget": budget} if budget else {})
    settings |= {"refit": "everything"} if final else {}
    for word in change or []:
        settings = merged(settings, from_word(word))
    with _resumable(out):
        run = combine_voters(
            folder, _files("--voter", voter), final_voters=_files("--final-voter", final_voter) if final_voter else None,
            settings=settings, seed=seed or 0, out=out, device=device, watch=Lines(),
        )  # fmt: skip
    measured = next(record for record in run.history if "fusions" in record)
    lists = {name: measured["validation"][name] for name in run.fixed_voters}
    _report(run, out, as_json, {"voters": lists, "fusions": measured["fusions"]})


def _files(flag: str, words: list[str]) -> dict[str, Path]:
    """Parse NAME=FILE, each name once."""
    files: dict[str, Path] = {}
    for word in words:
        name, _, file = word.partition("=")
        if not name or not file or name in files:
            raise ConfigError(f"{flag} {word}: expected NAME=FILE, each name once, such as als=als.parquet")
        files[name] = Path(file)
    return files


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """End the block by SIGTERM or Ctrl-C with a hint at --resume; torchrun sends SIGTERM and looks at the exit."""
    from concf.runs.checkpoint import RunFolder
    from concf.runtime.process_group import launched

    try:
        with nullcontext() if launched() else stoppable():
            yield
    except KeyboardInterrupt as stop:
        more = f"Continue with: concf train --resume --out {out}" if RunFolder(out).begun else "Nothing was written"
        if launched():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher sends it again
        else:
            typer.echo(f"concf: stopped. {more}", err=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)) from None


def _report(run: "Run", out: Path, as_json: bool, more: dict[str, dict[str, float]] | None = None) -> None:
    """Print a run. more: a key of `MORE_METRICS` -> more validation metrics"""
    seconds = sum(float(record["seconds"] + record.get("ranking_seconds", 0.0)) for record in run.history)
    report = run.summary() | {"folder": str(out), "seconds": seconds} | (more or {})
    if as_json:
        typer.echo(json.dumps(report))
        return
    print_heads(report, f"{title_of(run)}: {report['epochs']} {run.unit} in {report['seconds']:.0f} s")
    if run.carried_validation:
        typer.echo("These validation metrics are from before the update; the new run was not validated.")
    tested = f"; {report['tested_users']:,} to test on" if "test" not in run.learned else ""
    tested = " of the test part" if run.chosen_late else tested
    typer.echo(f"Validated on {report['validated_users']:,} users{tested}.")
    if "valid" in run.learned:
        on = "everything, the test part too" if "test" in run.learned else "the training and validation parts"
        typer.echo(f"Then refitted on {on}; the metrics above were measured before.")
    typer.echo(f"Best head: {report['best_head']}; {report['why_best_head']}.")
    for name, metrics in (more or {}).items():
        shown = ", ".join(f"{each} {value:.4f}" for each, value in metrics.items())
        typer.echo(f"{MORE_METRICS[name]}: {shown or 'none'}.")
    typer.echo(f"Run: {out}." + ("" if "test" in run.learned else f" Test it with: concf evaluate {out}"))
    for note in report["notes"]:
        typer.echo(f"note: {note}", err=True)


def _data(
    source: Path | None, home: "RunFolder", seed: int | None, log: dict[str, Any], resume: bool, group: "ProcessGroup"
) -> "Split":
    """Load the data set, or make it from a log and keep it in the folder of the run."""
    from concf.data.prepare import split_of
    from concf.data.reading.scan import files_of, is_glob
    from concf.data.split import Split
    from concf.runtime.files import sha256

    if source is None:
        return home.data()
    if not (source.exists() or is_glob(source)):
        raise DataError(f"{source}: no such file or folder. Name a log, or a prepared data set")
    if source.is_dir():
        refuse_options(log, f"for a log, but {source} is a prepared data set. Leave it out, or name the log")
        data = Split.load(source)
        if group.is_main:
            data.note_if_few()
        return data
    if resume:
        data = home.data()
        if not {*map(sha256, files_of(source) or [])} <= {*data.recipe.source.get("sha256", {}).values()}:
            raise ConfigError(f"{source}: not the log that {home.path} began with. Leave it out, or change --out")
        return data
    if group.is_main:
        home.refuse_occupied()
        data = split_of(source, seed or 0, **log)
        size = "{users} users, {items} items, {interactions} pairs".format(**data.interactions.statistics())
        filters = "; then ".join(step.describe() for step in data.recipe.filters)
        typer.echo(f"note: {size}{f' after the filter ({filters})' if filters else ''}", err=True)
        home.keep(data)
    group.barrier()
    return Split.load(home.own_data)
