"""`concf update`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from concf.cli.commands.train import print_report
from concf.cli.output import Json
from concf.cli.reading import READING, reads_a_log
from concf.runtime.launch import Stopped, stoppable


@reads_a_log(panels=[READING], format="as the first log")
def update(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run; it stays as it is.")],
    new: Annotated[str, typer.Argument(metavar="NEW_LOG", help="What came since: a file, or a quoted glob.")],
    out: Annotated[Path, typer.Option(help="The folder of the new run.")],
    log: dict[str, Any],
    hold: Annotated[float, typer.Option(min=0, max=1, help="How far known users and items are held where they were; 0: they move freely, 1: not at all.")] = 0.0,
    rerank: Annotated[Literal["refit", "carry"], typer.Option(help="The re-ranker's weights: fitted to the new pairs, or as before, which is faster.")] = "refit",
    final: Annotated[bool, typer.Option("--final", help="Learn from the test part too, from now on.")] = False,
    drop_before: Annotated[str | None, typer.Option(metavar="DATE", help="Forget what is older: a date, or a time in the log's own unit.", show_default=False)] = None,
    older: Annotated[bool, typer.Option("--older", help="Add a log that is older than all that the run knows.")] = False,
    min_item: Annotated[int, typer.Option(min=1, help="Leave out new items with fewer users.")] = 1,
    data: Annotated[Path | None, typer.Option(help="The data set of the run, if it has moved.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="a GPU if there is one")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Bring a run up to date: new interactions, users and items join what it has learned, without a new search.

    `concf update runs/monday tuesday.csv --out runs/tuesday`

    Known users and items begin where they were, new ones beside their neighbours. The new run is as good as any: it can
    be served, exported, and updated again. One that was killed goes on with `concf train --resume --out runs/tuesday`.
    """
    from concf.training.checkpoint import RunFolder, load_run
    from concf.training.update import update as update_run

    try:
        with stoppable():
            run = update_run(
                load_run(folder, data), new, out=out, hold=hold, rerank=rerank, final=final, drop_before=drop_before,
                older=older, min_item=min_item, device=device, verbose=True, **log,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        more = f"Go on with: concf train --resume --out {out}" if RunFolder(out).begun else "Nothing was written"
        typer.echo(f"concf: stopped. {more}", err=True)
        raise typer.Exit(128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)) from None
    print_report(run, out, as_json)
