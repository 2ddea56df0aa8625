"""`concf export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run (see `concf train`).")],
    to: Annotated[str, typer.Option(help="npz (a file), parquet, usearch, faiss or onnx (a folder each).")],
    out: Annotated[Path, typer.Option(help="The file or folder to write; it must not exist yet.")],
    head: Annotated[str | None, typer.Option(help="Whose vectors.", show_default="the best head")] = None,
    approximate: Annotated[bool, typer.Option("--approximate", help="With usearch or faiss: search by HNSW, whose recall is measured.")] = False,
    catalogue: Annotated[Path | None, typer.Option(help="A .csv, .tsv, .parquet or .jsonl file of items and their attributes, which give new and rare items their vectors.")] = None,
    catalogue_item: Annotated[str | None, typer.Option(help="Its column of the item.", show_default="item, item_id or id")] = None,
    data: Annotated[Path | None, typer.Option(help="The data set that the run was trained on, if it has moved.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write one head's exact vectors, for your own index, store or runtime.

    `concf export runs/first --to parquet --out vectors`

    `concf export runs/first --head bpr --to faiss --approximate --out index`

    `concf export runs/first --to npz --catalogue items.csv --out vectors.npz` with the new items of the catalogue

    The highest inner products of a user's vector with the items' are the head's own list: the item bias is a dimension.
    Items that the user has seen are among them, for you to leave out.
    """
    from concf.inference.export import export as export_head
    from concf.inference.titles import Catalogue
    from concf.models import load_run

    described = None if catalogue is None else Catalogue(catalogue, catalogue_item)
    report = export_head(load_run(folder, data), head, to, out, approximate=approximate, catalogue=described)
    typer.echo(json.dumps(report) if as_json else _message(report))


def _message(report: dict[str, Any]) -> str:
    from concf.runtime.text_tables import short

    chosen, size = report["validation"], sum(report["files"].values())
    new = f", {report['new_items']:,} of them new," if report["new_items"] else ""
    lines = [
        f"Head {report['head']} at epoch {chosen['epoch']} (validation {short(chosen['metric'])} {chosen['value']:.4f}): "
        f"{report['users']:,} users and {report['items']:,} items{new} in {report['dimensions']} dimensions.",
        f"Written to {report['out']}: {', '.join(report['files'])} ({size / 1e6:,.1f} MB).",
        "The highest inner products are the head's own list; items that a user has seen are yours to leave out.",
    ]
    if "recall" in report:
        measured = dict(report["recall"])
        at, value, users = (measured.pop(name) for name in ("at", "value", "users"))
        effort = ", ".join(f"{name} {setting}" for name, setting in measured.items())
        lines.append(f"Approximate search ({effort}) finds {value:.2%} of the exact first {at}, over {users:,} users.")
    elif report["to"] == "usearch":
        lines.append("Search with exact=True; without it usearch takes the graph, whose recall --approximate measures.")
    return "\n".join(lines)
