"""`concf demo`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from concf.cli.output import Json, print_table
from concf.runtime.text_tables import settings_line, short


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write; that of an earlier demo is replaced.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Train the default preset on simulated data, compare it with tuned baselines, write a report.

    It takes less than a minute. Then `concf serve demo/run` shows the model in a browser.
    """
    from concf.cli.demo_run import run

    report = run(out)
    if as_json:
        typer.echo(json.dumps(report))
        return
    metrics, data, best = list(report["rows"][0]["means"]), report["data"], report["best_head"]
    rows = [
        [f"ConCF, {row['name']}" if row["kind"] == "ConCF" else row["name"],
         *(f"{row['means'][name]:.4f}" for name in metrics), f"{row['validation']:.4f}", settings_line(row["chosen"]) if row["chosen"] else ""]
        for row in report["rows"]
        if row["kind"] == "baseline" or row["name"] in ("consensus", best)
    ]  # fmt: skip
    size = f"{data['users']:,} users, {data['items']:,} items, {data['train']:,} training pairs"
    title = f"A simulated log: {size}. Test metrics of {data['evaluated_users']:,} users:"
    print_table(["", *map(short, metrics), f"valid {short(report['metric'])}", "chosen on validation"], rows, title)
    p = f"p = {report['p']:.1g}{', which may be chance' if report['p'] > 0.05 else ''}"
    typer.echo(
        f"The consensus is {abs(report['gain']):.1%} {'above' if report['gain'] >= 0 else 'below'} the best baseline, "
        f"{report['rival']}, in {short(report['metric'])} (paired t-test over users: {p})."
    )
    page = report["report"] or "none, it needs pip install 'concf[report]'"
    typer.echo(f"\nDone in {report['seconds']:.0f} s. Report: {page}. Run: {report['run']}. Next:")
    typer.echo(f"  concf serve {report['run']}  # explore it in a browser")
    typer.echo(f"  concf recommend {report['run']} -k 10  # recommend, here or into a file")
    typer.echo("  concf train your.csv --out run  # train on your own log")
