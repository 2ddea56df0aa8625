"""`concf export` and `concf report`: vectors of a head, and a page about a run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json
from concf.errors import ConfigError
from concf.runtime.text_tables import short

NAME = "report.html"


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    to: Annotated[str, typer.Option(help="npz (a file) or parquet (a folder).")],
    out: Annotated[Path, typer.Option(help="The file or folder to write; it must not exist yet.")],
    head: Annotated[str | None, typer.Option(help="The head whose vectors are written.", show_default="the best head")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes, which give new and rare items their vectors.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The catalogue's column of item ids.", show_default="item, item_id or id")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write one head's exact vectors, for your own index or store.

    `concf export runs/first --head als-a --to parquet --out vectors`

    `concf export runs/first --to npz --catalogue items.csv --out vectors.npz` with the new items of the catalogue

    The highest inner products of a user's vector with the items' are the head's own list: the item bias is a dimension.
    Items that the user has seen are among them, for you to leave out.
    """
    from concf.inference.export import export as export_head
    from concf.inference.titles import Catalogue
    from concf.models import load_run

    described = None if catalogue is None else Catalogue(catalogue, catalogue_item)
    report = export_head(load_run(folder, data), head, to, out, catalogue=described)
    typer.echo(json.dumps(report) if as_json else _message(report))


def _message(report: dict[str, Any]) -> str:
    chosen, unit, size = report["validation"], report["unit"].removesuffix("s"), sum(report["files"].values())
    new = f", {report['new_items']:,} of them new," if report["new_items"] else ""
    lines = [
        f"Head {report['head']} at {unit} {chosen['epoch']} (validation {short(chosen['metric'])} {chosen['value']:.4f}): "
        f"{report['users']:,} users and {report['items']:,} items{new} in {report['dimensions']} dimensions.",
        f"Written to {report['out']}: {', '.join(report['files'])} ({size / 1e6:,.1f} MB).",
        "The highest inner products are the head's own list; items that a user has seen are yours to leave out.",
    ]
    return "\n".join(lines)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    out: Annotated[Path | None, typer.Option(help="The page, an .html file; an existing one is replaced.", show_default=f"RUN/{NAME}")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and titles.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="The catalogue's column of item ids.", show_default="item, item_id or id")] = None,
    catalogue_title: Annotated[str | None, typer.Option(help="The catalogue's column of titles.", show_default="title or name")] = None,
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
        titles = Catalogue(catalogue, catalogue_item, catalogue_title).read(ids)[0] if catalogue else {}
        name = folder.resolve().name or "run"
        content = gather(run, RunFolder(folder).description(), name=name, examples=examples, titles=titles)
        with new_file(target) as fresh:
            fresh.write_text(page(content), encoding="utf-8")
    for note in content["notes"][0 if run.finished else 1 :]:  # loading noted that it is not finished
        typer.echo(f"note: {note}", err=True)
    typer.echo(json.dumps(content | {"out": str(target)}) if as_json else f"Report: {target}")
