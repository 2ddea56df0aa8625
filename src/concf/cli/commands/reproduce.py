"""`concf reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concf.cli.output import Json, choice, names, print_table
from concf.errors import ConcfError, ConfigError, DataError

if TYPE_CHECKING:
    from concf.experiments.results_log import ResultsLog

WHICH = "Which cells"
RUNNING = "How to run"
DOCUMENTS = "Documents"
RESULTS = Path("results/reproduction.jsonl")


def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments, or all; see --list.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="Say what there is, and what of it is measured.")] = False,
    dataset: Annotated[str | None, typer.Option(help="Only these data sets: citeulike, ciao, foursquare, or another one, as demo.", rich_help_panel=WHICH)] = None,
    protocol: Annotated[str | None, typer.Option(help="Only these protocols: released, paper.", rich_help_panel=WHICH)] = None,
    preset: Annotated[str | None, typer.Option(help="Only these presets: reference, paper, released.", rich_help_panel=WHICH)] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant, such as ConCF; may be repeated.", rich_help_panel=WHICH)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only so many splits.", rich_help_panel=WHICH)] = None,
    change: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting over those of every variant; such results stand apart.", rich_help_panel=WHICH)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="every GPU, if there is one", rich_help_panel=RUNNING)] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Cells at a time.", show_default="6 for each GPU, 1 on a CPU", rich_help_panel=RUNNING)] = None,
    engine: Annotated[str, typer.Option(help="Who measures them: processes, or ray (a local cluster, or the one at RAY_ADDRESS, with a worker for each core).", rich_help_panel=RUNNING)] = "processes",
    data: Annotated[Path, typer.Option(help="Where prepared data sets are kept.", rich_help_panel=RUNNING)] = Path("data"),
    results: Annotated[Path, typer.Option(help="The lines of results.", rich_help_panel=RUNNING)] = RESULTS,
    render: Annotated[bool, typer.Option("--render", help="Write tables, figures and reproduction.md from the results alone.", rich_help_panel=DOCUMENTS)] = False,
    docs: Annotated[Path, typer.Option(help="Where they are written.", rich_help_panel=DOCUMENTS)] = Path("docs"),
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rebuild the paper's tables and figures: measure what is missing, then draw it beside the paper's values.

    `concf reproduce --list`

    `concf reproduce main --dataset ciao --seeds 1`

    `concf reproduce all`, then `concf reproduce --render`

    A measured cell is a line of the results and is not measured again, so a killed run is simply started again.
    """
    from concf.experiments.paper.plan import cells_of
    from concf.experiments.results_log import ResultsLog
    from concf.runtime.executors import ENGINES

    choice("engine", engine, ENGINES)
    book = ResultsLog(results, option="--results")
    if show:
        _list(book, as_json=as_json)
        return
    if not experiments and not render:
        raise ConfigError("no experiment was named. Try: concf reproduce --list, or concf reproduce main")
    failures: list[str] = []
    if experiments:
        from concf.experiments.paper.running import run_cells

        cells = cells_of(experiments, data=names(dataset or ""), protocols=names(protocol or ""),
                         presets=names(preset or ""), variants=variant or [], splits=seeds)  # fmt: skip
        before = len(book.cells)
        failures = run_cells(
            cells, book, data, device=device, workers=workers, engine=engine, changes=change or [],
            say=lambda sentence: typer.echo(sentence, err=True),
        )  # fmt: skip
        _report(len(cells), len(book.cells) - before, failures, results, as_json=as_json)
    if render:
        from concf.experiments.paper.page import render as draw

        if not book.cells:
            raise DataError(f"{results}: no lines to draw. Measure first, or say where they are with --results")
        for path in draw(list(book.cells.values()), docs, results.parent):
            typer.echo(str(path), err=as_json)
    if failures:
        cells_failed = "1 cell" if len(failures) == 1 else f"{len(failures)} cells"
        raise ConcfError(f"{cells_failed} could not be measured; the others are kept. {failures[0]}")


def _list(book: ResultsLog, *, as_json: bool) -> None:
    from concf.experiments.paper.plan import EXPERIMENTS

    listed = []
    for name, experiment in EXPERIMENTS.items():
        cells = experiment.cells()
        there = sum(book.find(cell.key()) is not None for cell in cells)
        listed.append({"name": name, "what": experiment.title, "cells": len(cells), "measured": there})
    if as_json:
        typer.echo(json.dumps(listed))
        return
    rows = [[str(each["name"]), str(each["cells"]), str(each["measured"]), str(each["what"])] for each in listed]
    print_table(["experiment", "cells", "measured", "what"], rows)


def _report(cells: int, new: int, failures: list[str], results: Path, *, as_json: bool) -> None:
    if as_json:
        said = {"cells": cells, "measured_now": new, "failures": failures, "results": str(results)}
        typer.echo(json.dumps(said))
        return
    where = "" if results == RESULTS else f" --results {results}"
    draw = f" Draw them: concf reproduce --render{where}" if results.exists() else ""
    typer.echo(f"{cells} cell{'s' * (cells != 1)}, {new} of them measured now. Lines: {results}.{draw}")
