"""`concf demo`."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json, print_table, print_text
from concf.cli.serve import LIBRARIES
from concf.runtime.text_tables import settings_line, short

SIGNIFICANT = 0.05  # a difference with a higher p may be chance


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
    _print_metrics(report)
    install = "" if all(map(find_spec, LIBRARIES)) else " (first: pip install 'concf[serve]')"
    page = report["report"] or "none, it needs pip install 'concf[report]'"
    typer.echo(f"\nDone in {report['seconds']:.0f} s. Report: {page}. Run: {report['run']}. Next:")
    typer.echo(f"  concf serve {report['run']}  # explore it in a browser{install}")
    typer.echo(f"  concf recommend {report['run']} -k 10  # recommend, here or into a file")
    typer.echo("  concf train your.csv --out run  # train on your own log")


def _print_metrics(report: dict[str, Any]) -> None:
    """Print the table, and what it shows."""
    metrics, metric, data = list(report["rows"][0]["means"]), short(report["metric"]), report["data"]
    ours = {name: f"ConCF, {name}" for name in report["gains"]} | {report["best_head"]: "ConCF, best head"}
    rows = [
        [ours.get(row["name"], row["name"]), *(f"{row['means'][name]:.4f}" for name in metrics),
         f"{row['validation']:.4f}", settings_line(row["chosen"])]
        for row in report["rows"]
        if row["kind"] == "baseline" or row["name"] in ours
    ]  # fmt: skip
    size = f"{data['users']:,} users, {data['items']:,} items, {data['train']:,} training pairs"
    title = f"A simulated log: {size}. Test metrics of {data['evaluated_users']:,} users:"
    print_table(["", *map(short, metrics), f"valid {metric}", "chosen on validation"], rows, title=title)
    typer.echo()
    for name, gains in report["gains"].items():
        who = f"Its best head alone, {name}," if name == report["best_head"] else f"ConCF's {name}"
        print_text(f"{who} {_verdict(gains)}")
    changes = settings_line(report["changes"])
    tried = ", ".join(f"{row['name']} {row['tried']}" for row in report["rows"] if row.get("tried", 0) > 1)
    print_text(
        f"p: paired t-test over users, on this one split. ConCF: the preset {report['preset']}, for so small a log "
        f"with {changes}. Baselines: the best of several settings on the same validation part ({tried})."
    )


def _verdict(gains: dict[str, dict[str, Any]]) -> str:
    """Return `is above every baseline in 4 of 4 metrics: R@50 0.4024, 11.3 % above the best baseline (rp3beta, ...`."""
    above, parts = sum(each["gain"] > 0 for each in gains.values()), []
    for metric, each in list(gains.items())[-2:]:  # the longest lists
        way = "above" if each["gain"] >= 0 else "below"
        chance = ", which may be chance" if each["p"] > SIGNIFICANT else ""
        gain = f"{short(metric)} {each['mean']:.4f}, {abs(each['gain']):.1%} {way} the best baseline"
        parts.append(f"{gain} ({each['rival']}, {each['its']:.4f}; p = {each['p']:.1g}{chance})")
    return f"is above every baseline in {above} of {len(gains)} metrics: {'; '.join(parts)}."
