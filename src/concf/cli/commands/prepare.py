"""`concf prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json, print_figures
from concf.cli.reading import reads_a_log

PARTS = ("train", "valid", "test", "unevaluated", "evaluated_users")


@reads_a_log(protocol="released")
def prepare(
    source: Annotated[str, typer.Argument(help="A file (CSV, TSV, Parquet, JSON lines, .inter, one line per user; gzip too), a quoted glob such as 'logs/*.parquet', a name of `concf data list`, or `demo`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    log: dict[str, Any],
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse data of which something cannot be evaluated.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a data set that is there.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Read a log, filter it, split it, and write a prepared data set.

    **Protocols.** `released`: users and items with fewer than 10 interactions removed, then 60/20/20 per user.
    `paper`: nothing removed, but only users and items with 10 or more are held out. `random`: 60/20/20 per user.
    `leave-last`: each user's newest. `time`: a global cut. `new-users`: a tenth of the users validates, a tenth tests,
    a fifth of their items to be found from the rest. `new-items`: all interactions of a tenth of the items test.
    `given`: SOURCE and --test are the training and the test file, --valid is a file or a share of the training items;
    `gowalla` and `yelp2018` have both files.

    `concf prepare citeulike --protocol released --seed 0 --out data/citeulike`;
    `concf prepare gowalla --protocol given --valid 0.05 --out data/gowalla`
    """
    from concf.data.prepare import prepare as prepare_data

    split = prepare_data(source, seed=seed, strict=strict, out=out, overwrite=overwrite, **log)
    for note in split.notes:
        typer.echo(f"note: {note}", err=True)
    summary = split.summary()
    if as_json:
        typer.echo(json.dumps(summary | {"folder": str(out)}))
        return
    shown = ("users", "items", "interactions", "density", *PARTS, *(["history"] if split.has_new_users else []))
    print_figures({name: summary[name] for name in shown} | {"split hash": split.hash[:16], "folder": str(out)})
