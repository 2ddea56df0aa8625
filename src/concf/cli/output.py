"""What the commands share: words in, tables out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concf.errors import ConfigError

if TYPE_CHECKING:
    from concf.training.run import Run

WIDE = 200  # columns where nobody watches
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def names(text: str) -> list[str]:
    """The words between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def lengths(text: str) -> list[int]:
    """The lengths of lists between commas."""
    try:
        found = [int(name) for name in names(text)]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ConfigError(f"--at {text!r}: expected lengths of lists such as 20,50")
    return found


def choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse another value."""
    if value not in choices:
        raise ConfigError(f"--{name} {value!r}: choose from {', '.join(choices)}")


def print_table(header: list[str], rows: list[list[str]], title: str | None = None) -> None:
    """On a terminal as wide as that is, else on lines of 200 columns; digits are never cut, see `concf.runtime.text_tables`."""
    from rich.console import Console

    from concf.runtime.text_tables import drawn, lay_out

    console = Console()
    width = console.width if console.is_terminal else WIDE
    layout = lay_out(header, rows, width)
    Console(width=max(width, layout.width)).print(drawn(header, rows, title, layout))
    if layout.dropped:
        typer.echo(f"No room for {', '.join(layout.dropped)}: widen the window, or say --json.")


def print_text(text: str) -> None:
    """On a terminal broken between words, else as one line."""
    import textwrap

    from rich.console import Console

    console = Console()
    broken = textwrap.wrap(text, console.width, break_long_words=False, break_on_hyphens=False)
    typer.echo("\n".join(broken) if console.is_terminal else text)


def print_figures(figures: dict[str, Any]) -> None:
    """A name and a figure a line."""
    shown = {name: f"{value:.3%}" if name == "density" else value for name, value in figures.items()}
    for name, value in shown.items():
        typer.echo(f"{name.replace('_', ' '):>16}  {value:,}" if isinstance(value, int) else f"{name:>16}  {value}")


def title_of(run: Run) -> str:
    """What a table of a run's figures is of."""
    recipe = run.data.recipe
    return f"{recipe.source['name']}, protocol {recipe.protocol.name}, seed {run.seed}"


def print_heads(report: dict[str, Any], title: str, figures: Sequence[str] = ()) -> None:
    """A row for each head and consensus of `Run.summary`: its means of the figures, validation, epoch and objective."""
    from concf.runtime.text_tables import short

    rows = report["recommenders"]
    named = any(each["objective"] not in (None, each["name"]) for each in rows)
    print_table(
        ["", *map(short, figures), f"validation {short(report['metric'])}", "epoch", *["objective"] * named, ""],
        [
            [each["name"], *(f"{each['means'][figure]:.4f}" for figure in figures), f"{each['validation']:.4f}",
             str(each["epoch"]), *[each["objective"] or ""] * named,
             "best head" if each["name"] == report["best_head"] else ""]
            for each in rows
        ],
        title=title,
    )  # fmt: skip
