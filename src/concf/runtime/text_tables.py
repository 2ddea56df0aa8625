"""Text tables: Markdown for documents, and tables of rich for the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

MIN_TEXT = 12  # columns of text are folded to no less
SHORT = {"recall": "R", "ndcg": "N", "precision": "P", "map": "MAP", "mrr": "MRR", "hit": "Hit"}
NUMBER = r"[-+]?[\d.,e+-]+( ± [\d.]+)? ?%?|best|nan|inf|"  # a cell such as `0.1234 ± 0.0056`, `12,000` or `3.1%`


def short(metric: str) -> str:
    """Shorten a metric: `recall@50` -> `R@50`."""
    name, _, n = metric.partition("@")
    return f"{SHORT.get(name, name)}@{n}"


def settings_line(settings: Mapping[str, Any], edges: Sequence[str] = ()) -> str:
    """Write settings on one line, nested ones by their names. edges: settings at the edge of their grid, marked by *"""
    parts = []
    for name, value in settings.items():
        text = f"{value:g}" if isinstance(value, int | float) else value
        text = ", ".join(value) if isinstance(value, dict) else text
        parts.append(f"{name} {text}{'*' if name in edges else ''}")
    return ", ".join(parts) or "none"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, width: int) -> Table:
    """Make a table of `width` characters, or more where numbers need it: text is folded, and numbers are not."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False,
        pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    least = full = 2 * (len(header) - 1)  # the gaps
    for k, column in enumerate(zip(header, *rows, strict=True)):
        numeric = k > 0 and any(column[1:]) and all(re.fullmatch(NUMBER, cell) for cell in column[1:])
        table.add_column(Text(header[k]), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
        widest = max(map(cell_len, column))
        full, least = full + widest, least + (widest if numeric else min(widest, MIN_TEXT))
    table.width = min(full, max(width, least))
    for row in rows:
        table.add_row(*map(Text, row))
    return table
