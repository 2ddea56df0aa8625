"""`concf leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from concf.cli.output import Json, print_table


def leaderboard(
    data: Annotated[Literal["gowalla", "yelp2018"], typer.Argument(metavar="DATA", help="gowalla or yelp2018.")],
    run: Annotated[Path | None, typer.Option(help="The folder of a run that was trained on the public split: its lines are placed among the others.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Recall@20 and NDCG@20 on a public split: published lines and ours, with what chose their settings and the cost.

    `concf leaderboard gowalla`; `concf leaderboard gowalla --run runs/gowalla`
    """
    from concf.experiments.leaderboard.board import HEADER, SPLITS, entries, of_run, ordered

    own = []
    if run is not None:
        from concf.training.checkpoint import load_run

        own = of_run(load_run(run), data, str(run))
    lines = ordered([*entries(data), *own])
    if as_json:
        typer.echo(json.dumps({"data": data, "split": SPLITS[data], "lines": [each.model_dump() for each in lines]}))
        return
    marks = {each.method: ["<- this run"] for each in own}
    rows = [each.cells() + (marks.get(each.method, [""]) if own else []) for each in lines]
    print_table(HEADER + [""] * bool(own), rows, title=f"{data}, test part of the public split {SPLITS[data][:16]}")
