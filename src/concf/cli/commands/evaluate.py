"""`concf evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from concf.cli.output import Json, lengths, names, print_heads, title_of


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    data: Annotated[Path | None, typer.Option(help="The data set that it was trained on, if it has moved.")] = None,
    on: Annotated[Literal["test", "valid"], typer.Option(help="The part that is held out.")] = "test",
    at: Annotated[str, typer.Option(help="Lengths of the lists.")] = "20,50",
    metrics: Annotated[str, typer.Option(help="recall, ndcg, precision, map, mrr, hit, coverage, gini, novelty, popularity.")] = "recall,ndcg",
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes, by which new and rare items are ranked.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="Its column of the item.", show_default="item, item_id or id")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rank the whole catalogue by every head and consensus of a run, each at the epoch of its best validation.

    `concf evaluate runs/first --at 20,50 --metrics recall,ndcg,coverage`

    `concf evaluate runs/new --catalogue items.csv` for a data set that was split by `new-items`
    """
    from concf.inference.ranker import Ranker, evaluate_new
    from concf.inference.titles import Catalogue
    from concf.models import load_run

    cuts, wanted = lengths(at), names(metrics)
    run = load_run(folder, data)
    shown = run.settings.consensus.shown
    if run.settings.several and max(cuts) > shown:
        typer.echo(
            f"note: the consensus lists have {shown} items (consensus.shown); longer ones are cut there", err=True
        )
    evaluations = (
        run.evaluate(on=on, at=cuts, metrics=wanted)
        if catalogue is None
        else evaluate_new(Ranker(run, items=Catalogue(catalogue, catalogue_item)), on=on, at=cuts, metrics=wanted)
    )
    report = run.summary() | {"folder": str(folder), "on": on}
    report["recommenders"] = [each | {"means": evaluations[each["name"]].means()} for each in report["recommenders"]]
    if as_json:
        typer.echo(json.dumps(report))
        return
    unfinished = "" if run.finished else f", not finished: after {run.epoch} epochs"
    title = f"{title_of(run)}: {on} figures{unfinished}"
    print_heads(report, title, figures=list(report["recommenders"][0]["means"]))
    chosen = "with settings chosen by" if run.unit == "stages" else "each at the epoch of its best"
    typer.echo(
        f"Means over {len(run.data.users(on)):,} users, {chosen} validation (of {report['validated_users']:,} users). "
        f"Split hash {run.data.hash[:16]}."
    )
