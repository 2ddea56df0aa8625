"""`python -m reproduction`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from concf.cli.app import main
from concf.cli.output import Engine, Json, names, print_table
from concf.comparison.results_log import ResultsLog
from concf.errors import ConcfError, ConfigError
from reproduction.measured import HEADER, Measured, compared, records, text_rows
from reproduction.plan import ALL, EXPERIMENTS, cells_of
from reproduction.running import is_current, run_cells

WHICH = "Which cells"
RUNNING = "How to run"
RESULTS = Path(__file__).with_name("results.jsonl")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.command()
def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments, or all; see --list. Without a name, nothing is measured and the measured figures are shown.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="List the experiments and how much of each is measured.")] = False,
    dataset: Annotated[str | None, typer.Option(help="Only these data sets: citeulike, ciao, foursquare, or another one, such as demo.", rich_help_panel=WHICH)] = None,
    protocol: Annotated[str | None, typer.Option(help="Only these protocols: released, paper.", rich_help_panel=WHICH)] = None,
    preset: Annotated[str | None, typer.Option(help="Only these presets: reference, paper, released.", rich_help_panel=WHICH)] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant, such as ConCF; may be repeated.", rich_help_panel=WHICH)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many splits.", rich_help_panel=WHICH)] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting over those of every variant; such results are kept apart.", rich_help_panel=WHICH)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="every GPU, if there is one", rich_help_panel=RUNNING)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Cells measured at the same time.", show_default="6 for each GPU, 1 on a CPU", rich_help_panel=RUNNING)] = None,
    engine: Annotated[Engine, typer.Option(help="Where they are measured: processes, or ray (a local cluster, or the one at RAY_ADDRESS, with a worker for each core).", rich_help_panel=RUNNING)] = "processes",
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin no cell after so many minutes; the next call goes on.", show_default="all are measured", rich_help_panel=RUNNING)] = None,
    data: Annotated[Path, typer.Option(help="Folder of the prepared data sets.", rich_help_panel=RUNNING)] = Path("data"),
    results: Annotated[Path, typer.Option(help="The lines of results.", show_default="results.jsonl beside this program", rich_help_panel=RUNNING)] = RESULTS,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure the cells of the paper's tables and figures, and show the results beside the published ones.

    `python -m reproduction --list`

    `python -m reproduction main --dataset ciao --seeds 1`

    `python -m reproduction --dataset ciao`

    A measured cell is a line of the results and is not measured again, so a killed run is simply started again.
    """
    log = ResultsLog(results, option="--results")
    if show:
        _list(log, as_json=as_json)
        return
    if not experiments and not log.cells:
        raise ConfigError("no experiment was named. Try: --list, or main")
    changes, failures = change or [], list[str]()
    cells = cells_of(experiments or [ALL], data=names(dataset or ""), protocols=names(protocol or ""),
                     presets=names(preset or ""), variants=variant or [], splits=seeds)  # fmt: skip
    before = len(log.cells)
    if experiments:
        failures = run_cells(
            cells, log, data, device=device, workers=workers, engine=engine, changes=changes, minutes=minutes,
            say=lambda sentence: typer.echo(sentence, err=True),
        )  # fmt: skip
    lines = [line for cell in cells if (line := log.find(cell.key(changes)))]
    rows = compared(Measured(lines), cells)
    if as_json:
        counts = {"cells": len(cells), "measured_now": len(log.cells) - before, "failures": failures}
        typer.echo(json.dumps(counts | {"results": str(results), "figures": records(rows)}))
    else:
        if rows:
            print_table(HEADER, text_rows(rows))
        count = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
        typer.echo(f"{count}, {len(log.cells) - before} of them measured now. Lines: {results}.")
    if failures:
        cells_failed = "1 cell" if len(failures) == 1 else f"{len(failures)} cells"
        raise ConcfError(f"{cells_failed} could not be measured; the others are kept. {failures[0]}")


def _list(log: ResultsLog, *, as_json: bool) -> None:
    listed = []
    for name, experiment in EXPERIMENTS.items():
        cells = experiment.cells()
        measured = sum(is_current(log.find(cell.key()), cell) for cell in cells)
        listed.append({"name": name, "what": experiment.title, "cells": len(cells), "measured": measured})
    if as_json:
        typer.echo(json.dumps(listed))
        return
    rows = [[str(each["name"]), str(each["cells"]), str(each["measured"]), str(each["what"])] for each in listed]
    print_table(["experiment", "cells", "measured", "what"], rows)


if __name__ == "__main__":
    main(app, "python -m reproduction")
