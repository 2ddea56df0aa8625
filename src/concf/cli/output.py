"""Parsing of arguments and printing of tables, for all commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from concf.errors import ConfigError
from concf.runtime.text_tables import settings_line, short, text_table

if TYPE_CHECKING:
    from concf.runs.run import Run

WIDE = 200  # columns if the output is not a terminal
Engine = Literal["processes", "ray"]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def names(text: str) -> list[str]:
    """Split a list at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_workers(engine: str | None, workers: int | None) -> None:
    """Refuse workers without an engine."""
    if workers is not None and engine is None:
        raise ConfigError("--workers needs an --engine: processes or ray")


def print_table(header: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """Fold text to the width of the terminal, else to 200 columns; a table whose numbers need more is wider."""
    from rich.console import Console

    console = Console()
    table = text_table(header, rows, title, console.width if console.is_terminal else WIDE)
    Console(width=table.width).print(table)


def print_windows(rows: Sequence[dict[str, Any]], first: Sequence[str], title: str) -> None:
    """Print parts of `Split.held_out`. first: columns before the counts"""
    names = [*first, "pairs", "users", "evaluated", "evaluated_users", "new_users", "new_items", "seen"]
    cells = [[f"{row[name]:,}" if isinstance(row[name], int) else row[name] for name in names] for row in rows]
    print_table([name.replace("_", " ") for name in names], cells, title=title)


def print_values(values: dict[str, Any]) -> None:
    """Print a name and its value per line."""
    for name, value in values.items():
        shown = f"{value:.3%}" if name == "density" else f"{value:,}" if isinstance(value, int) else value
        typer.echo(f"{name.replace('_', ' '):>16}  {shown}")


def title_of(run: Run) -> str:
    """Title of a table of a run's metrics."""
    recipe, updates = run.data.recipe, len(run.updates)
    since = f" and {updates} update{'s' * (updates > 1)}" if updates else ""
    return f"{recipe.source['name']}{since}, protocol {recipe.protocol.name}, seed {run.seed}"


def print_heads(report: dict[str, Any], title: str, metrics: Sequence[str] = ()) -> None:
    """Print a row for each head and consensus of `Run.summary`: mean metrics, validation, epoch and objective."""
    rows = report["recommenders"]
    named = any(each["objective"] not in (None, each["name"]) for each in rows)
    epochs = any(each["epoch"] is not None for each in rows)
    chosen = any(each["chosen"] for each in rows)
    header = ["", *map(short, metrics), f"validation {short(report['metric'])}", *["epoch"] * epochs, *["objective"] * named, *["chosen"] * chosen, ""]  # fmt: skip
    cells = [
        [each["name"], *(f"{each['means'][metric]:.4f}" for metric in metrics), f"{each['validation']:.4f}",
         *[str(each["epoch"])] * epochs, *[each["objective"] or ""] * named,
         *[settings_line(each["chosen"]) if each["chosen"] else ""] * chosen,
         "best head" if each["name"] == report["best_head"] else ""]
        for each in rows
    ]  # fmt: skip
    print_table(header, cells, title)
