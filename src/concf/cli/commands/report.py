"""`concf report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from concf.cli.output import Json
from concf.errors import ConfigError

NAME = "report.html"


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    out: Annotated[Path | None, typer.Option(help="The page, an .html file; one that is there is replaced.", show_default=f"RUN/{NAME}")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and titles.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="Its column of the item.", show_default="item, item_id or id")] = None,
    catalogue_title: Annotated[str | None, typer.Option(help="Its column of the title.", show_default="title or name")] = None,
    examples: Annotated[int, typer.Option(min=0, max=100, help="Users whose lists are shown.")] = 4,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write one page about a run, finished or not: results, training curves, complementarity, example users.

    `concf report runs/first`

    `concf report runs/first --out first.html --catalogue items.csv --examples 8`
    """
    from concf.inference.titles import Catalogue
    from concf.models import load_run
    from concf.report.gather import gather
    from concf.report.page import page
    from concf.runs.checkpoint import RunFolder
    from concf.runtime.files import new_file
    from concf.runtime.progress import working

    target = folder / NAME if out is None else out
    if target.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {target}: choose a name that ends in .html")
    with working("reporting"):
        run = load_run(folder, data)
        ids = run.data.interactions.item_ids
        titles = Catalogue(catalogue, catalogue_item, catalogue_title).titles(ids) if catalogue else {}
        name = folder.resolve().name or "run"
        content = gather(run, RunFolder(folder).description(), name=name, examples=examples, titles=titles)
        with new_file(target) as fresh:
            fresh.write_text(page(content), encoding="utf-8")
    for note in content["notes"][0 if run.finished else 1 :]:  # loading said that it is not finished
        typer.echo(f"note: {note}", err=True)
    typer.echo(json.dumps(content | {"out": str(target)}) if as_json else f"Report: {target}")
