"""`concf demo`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from concf.cli.output import Json, print_table, print_text

NOISE = 0.05  # a difference whose p is above is said to be noise


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write; one of an earlier demo is replaced.")] = Path("demo"),
    as_json: Json = False,
) -> None:
    """Do the main job on simulated data: the default preset beside tuned baselines, one user's list and why, a report.

    It takes less than a minute. Then `concf serve demo/run` opens what was learned.
    """
    from concf.experiments.demo import run

    report = run(out)
    if as_json:
        typer.echo(json.dumps(report))
        return
    _print_figures(report)
    _print_gains(report)
    _print_example(report["example"])
    _print_what_next(report)


def _print_figures(report: dict[str, Any]) -> None:
    from concf.runtime.text_tables import short, words

    figures, metric, data = list(report["rows"][0]["means"]), short(report["metric"]), report["data"]
    rows = [
        [_name(row, report), *(f"{row['means'][figure]:.4f}" for figure in figures), f"{row['validation']:.4f}",
         words(row["chosen"])]
        for row in report["rows"]
        if row["kind"] == "baseline" or row["name"] in report["gains"]
    ]  # fmt: skip
    title = (
        f"A simulated log: {data['users']:,} users, {data['items']:,} items, {data['train']:,} pairs to learn from. "
        f"Figures of {data['evaluated_users']:,} users' held-out items:"
    )
    print_table(["", *map(short, figures), f"valid {metric}", "chosen on validation"], rows, title=title)


def _name(row: dict[str, Any], report: dict[str, Any]) -> str:
    if row["kind"] == "baseline":
        return str(row["name"])
    return "ConCF, best head" if row["name"] == report["best_head"] else f"ConCF, {row['name']}"


def _print_gains(report: dict[str, Any]) -> None:
    """What the table says, in words: whichever way it has come out."""
    from concf.runtime.text_tables import words

    typer.echo()
    for name, gains in report["gains"].items():
        print_text(_verdict(name, gains, is_head=name == report["best_head"]))
    changes = "; ".join(f"{part} {words(each)}" for part, each in report["changes"].items())
    tried = ", ".join(f"{row['name']} {row['tried']}" for row in report["rows"] if row.get("tried", 0) > 1)
    print_text(
        f"p: paired t-test over users, on this one split. ConCF: the preset {report['preset']}, for so small a log "
        f"with {changes}. Baselines: the best of several settings on the same validation part ({tried})."
    )
    if "ials" in report["without"]:
        print_text("Without iALS, which needs: pip install 'concf[baselines]'.")


def _verdict(name: str, gains: dict[str, dict[str, Any]], *, is_head: bool) -> str:
    """`ConCF's consensus is first in 4 of 4 figures: R@50 0.4024, 11.3 % above the best baseline (rp3beta, ...`."""
    from concf.runtime.text_tables import short

    who = f"Its best head, {name}, one vector a user and an item," if is_head else f"ConCF's {name}"
    first = sum(each["gain"] > 0 for each in gains.values())
    said = []
    for figure in list(gains)[-2:]:  # at the greatest length
        each = gains[figure]
        way = "above" if each["gain"] >= 0 else "below"
        chance = ", which may be chance" if each["p"] > NOISE else ""
        said.append(
            f"{short(figure)} {each['mean']:.4f}, {abs(each['gain']):.1%} {way} the best baseline "
            f"({each['rival']}, {each['its']:.4f}; p = {each['p']:.1g}{chance})"
        )
    return f"{who} is above every baseline in {first} of {len(gains)} figures: {'; '.join(said)}."


def _print_example(example: dict[str, Any]) -> None:
    history = ", ".join(map(str, example["history"][:10])) + (" ..." if len(example["history"]) > 10 else "")
    typer.echo()
    print_text(
        f"One user's list: {example['user']} used {example['used']} items that are learned from ({history}) and "
        f"{example['held_out']} that were held out. The consensus recommends:"
    )
    rows = [
        [str(each["rank"]), str(each["item"]), "yes" if each["held_out"] else "",
         ", ".join("-" if rank is None else str(rank) for rank in each["votes"].values()),
         ", ".join(map(str, each["like"]))]
        for each in example["items"]
    ]  # fmt: skip
    print_table(["place", "item", "held out", "its rank by each voter", "most like, of what was used"], rows)
    print_text(f"The voters, in this order: {', '.join(example['items'][0]['votes'])}.")


def _print_what_next(report: dict[str, Any]) -> None:
    serves = all(find_spec(library) for library in ("fastapi", "uvicorn", "httptools", "prometheus_client"))
    commands = {
        f"concf serve {report['run']}": "explore it in a browser"
        + ("" if serves else " (first: pip install 'concf[serve]')"),
        f"concf recommend {report['run']} --users {report['example']['user']} -k 10": "lists, here or into a file",
        "concf train your.csv --out run": "learn from a log of your own",
    }
    page = report["report"] or "none, it needs pip install 'concf[report]'"
    typer.echo(f"\nDone in {report['seconds']:.0f} s. Report: {page}. Run: {report['run']}. Next:")
    width = max(map(len, commands))
    for command, what in commands.items():
        typer.echo(f"  {command:<{width}}  # {what}")
