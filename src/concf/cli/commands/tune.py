"""`concf tune`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concf.cli.output import Engine, Json, check_workers, print_table

if TYPE_CHECKING:
    from concf.experiments.tune import Trial, Tuning

SETTINGS = "Settings"
RUNNING = "How to run"
SHOWN = 10  # of the best trials


def tune(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A prepared data set (see `concf prepare`).")],
    out: Annotated[Path, typer.Option(help="The folder of the search. If it holds the same search, that is continued.")],
    trials: Annotated[int, typer.Option(min=1, help="In all, including those that are done.")] = 50,
    space: Annotated[Path | None, typer.Option(help="A TOML file with the settings to search: `consensus.weight = { low = 0.001, high = 0.1, log = true }`, `model.dimensions = { choices = [32, 64] }`.", show_default="eight settings, see docs/tuning.md", rich_help_panel=SETTINGS)] = None,
    preset: Annotated[str, typer.Option(help="reference, paper, released or strong; it is the first trial.", rich_help_panel=SETTINGS)] = "reference",
    change: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every trial, which is left out of the default space; may be repeated.", rich_help_panel=SETTINGS)] = None,
    target: Annotated[str | None, typer.Option(help="Whose validation figure counts: consensus, or a head such as bpr.", show_default="training.watch", rich_help_panel=SETTINGS)] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the search, and of the training of every trial.", rich_help_panel=SETTINGS)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="a GPU if there is one", rich_help_panel=RUNNING)] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="No trial begins after this time.", show_default="no limit", rich_help_panel=RUNNING)] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Trials of a round, which are drawn together from the rounds before.", rich_help_panel=RUNNING)] = 1,
    engine: Annotated[Engine | None, typer.Option(help="With --at-once: several workers, by processes or ray (a local cluster, or the one at RAY_ADDRESS).", show_default="this process", rich_help_panel=RUNNING)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="With --engine: how many.", show_default="one for each core", rich_help_panel=RUNNING)] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Search for better settings by their validation figure with Optuna's TPE. The test part is not used.

    `concf tune data/citeulike --out tuned --trials 50`

    `concf train data/citeulike --config tuned/best.toml --out runs/tuned`

    The first trial is the preset. A trial below the median of the others is stopped early. The same command continues a
    search that was killed, with the same result; a larger --trials extends it.

    With --at-once 4, trials are drawn in rounds of four: the result depends on this number, but not on --engine.
    """
    from concf.data.split import Split
    from concf.experiments.tune import tune as search
    from concf.training.run import n_validated

    check_workers(engine, workers)
    try:
        data = Split.load(folder)
        result = search(
            data, out, preset=preset, words=change or [], space=space, trials=trials, seconds=seconds,
            seed=seed, device=device, target=target, at_once=at_once, engine=engine, workers=workers,
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo("concf: stopped. The same command continues", err=True)
        raise typer.Exit(130) from None
    validated = n_validated(data, result.settings)
    if as_json:
        typer.echo(json.dumps(result.summary() | {"validated_users": validated}))
    else:
        _print(result, folder, validated)


def _print(result: Tuning, data: Path, validated: int) -> None:
    from concf.experiments.study import BEST
    from concf.runtime.text_tables import short

    names = _short_names([name for trial in result.trials for name in trial.changes])
    rows = [
        [str(each.number), f"{each.validation:.4f}", str(each.epochs), _words(each, names)]
        for each in result.ranked()[:SHOWN]
    ]
    title = f"{_counts(result)}. The best {len(rows)} of the finished ones:"
    figure = f"validation {short(result.metric)} of {result.target}"
    print_table(["trial", figure, "epochs", "settings"], rows, title=title)
    for reason, count in Counter(each.reason for each in result.trials if each.reason).most_common(3):
        typer.echo(f"{count} could not be trained: {reason}")
    if result.importance:
        shares = ", ".join(f"{names[name]} {share:.0%}" for name, share in result.importance.items())
        typer.echo(f"Importance for the best tenth of the trials (PED-ANOVA): {shares}")
    typer.echo(f"Validated on {validated:,} users.")
    typer.echo(f"Best settings: {result.folder / BEST}. Train with: {result.command(str(data))}")


def _short_names(names: list[str]) -> dict[str, str]:
    """The last part of each name where no other has it too."""
    last = Counter(name.rpartition(".")[2] for name in set(names))
    return {name: part if last[part := name.rpartition(".")[2]] == 1 else name for name in names}


def _counts(result: Tuning) -> str:
    states = Counter(each.state for each in result.trials)
    counts = [f"{count} {'stopped early' if state == 'stopped' else state}" for state, count in states.items()]
    again = sum(each.repeats for each in result.trials)
    return f"{len(result.trials)} trials: {', '.join(counts)}" + (f"; {again} repeated another" if again else "")


def _words(trial: Trial, names: dict[str, str]) -> str:
    values = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in trial.changes.items()}
    drawn = ", ".join(f"{names[name]} {value}" for name, value in values.items())
    return drawn if trial.number else f"the preset: {drawn}"
