"""Text tables: Markdown for documents, and tables that fit a terminal without cutting digits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

MIN_NAME = 16  # characters that a long name keeps ...
MIN_TEXT = 24  # ... and other text, before a column is dropped
FRAME, GAP = 3, 2  # characters between two columns of a framed table, and of a plain one
SHORT = {"recall": "R", "ndcg": "N", "precision": "P", "map": "MAP", "mrr": "MRR", "hit": "Hit"}


def short(metric: str) -> str:
    """`recall@50` -> `R@50`."""
    name, _, n = metric.partition("@")
    return f"{SHORT.get(name, name)}@{n}"


def settings_line(settings: Mapping[str, Any], edges: Sequence[str] = ()) -> str:
    """Settings on one line; those at the edge of their grid are marked with *. Of settings within them, the names."""
    parts = []
    for name, value in settings.items():
        text = (
            f"{value:g}" if isinstance(value, int | float) else ", ".join(value) if isinstance(value, dict) else value
        )
        parts.append(f"{name} {text}{'*' if name in edges else ''}")
    return ", ".join(parts) or "none"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, width: int
) -> tuple[Table, list[str]]:
    """A table in `width` characters, and the headers of the columns that are left out.

    A table that does not fit loses its frame; then the names in the first column are shortened and other text is
    wrapped; then columns are dropped, the last one first, except for the first and those without a header.
    """
    cells = [[row[column] for row in rows] for column in range(len(header))]
    full = [max(_widest(name.split()), _widest(texts)) for name, texts in zip(header, cells, strict=True)]
    framed = [max(each, _widest([name])) for each, name in zip(full, header, strict=True)]
    if sum(framed) + FRAME * len(framed) + 1 <= width:
        return _drawn(header, cells, title, dict(enumerate(framed)), framed=True), []
    least = [
        full[k] if _is_numeric(texts) else min(full[k], MIN_TEXT if k else MIN_NAME) for k, texts in enumerate(cells)
    ]
    columns, dropped = list(range(len(header))), list[str]()
    while sum(least[k] for k in columns) + GAP * (len(columns) - 1) > width:
        droppable = [k for k in columns[1:] if header[k]]
        if not droppable:
            break
        columns.remove(droppable[-1])
        dropped.insert(0, header[droppable[-1]])
    widths, available = {k: least[k] for k in columns}, width - GAP * (len(columns) - 1)
    for k in columns:
        widths[k] += max(0, min(full[k] - widths[k], available - sum(widths.values())))
    if not _is_numeric(cells[0]):
        cells[0] = shortened(cells[0], widths[0])
    return _drawn(header, cells, title, widths, framed=False), dropped


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names of at most `width` characters, cut in the middle.

    If possible, they all stay different and no number within a name is cut.
    """
    if width < 3:
        return list(names)
    cuts = [[_cut(name, width, front) for name in names] for front in range((width - 1) // 2, 0, -1)]
    different = [cut for cut in cuts if len(set(cut)) == len(set(names))] or cuts
    return min(different, key=lambda cut: sum(map(_cuts_a_number, names, cut)))


def _drawn(
    header: Sequence[str], cells: list[list[str]], title: str | None, widths: dict[int, int], *, framed: bool
) -> Table:
    """cells: by column; widths: of the columns that are shown."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(title), title_justify="left", pad_edge=framed, show_edge=framed,
        box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD, padding=(0, 1) if framed else (0, GAP - 1, 0, 0),
        width=sum(widths.values()) + (FRAME * len(widths) + 1 if framed else GAP * (len(widths) - 1)),
    )  # fmt: skip
    for k, width in widths.items():
        justify: Literal["left", "right"] = "right" if k > 0 and _is_numeric(cells[k]) else "left"
        table.add_column(Text(header[k]), justify=justify, min_width=width, max_width=width)
    for row in zip(*(cells[k] for k in widths), strict=True):
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table


def _cut(name: str, width: int, front: int) -> str:
    return name if len(name) <= width else f"{name[:front]}…{name[len(name) - (width - 1 - front) :]}"


def _cuts_a_number(name: str, cut: str) -> bool:
    number = r"\d+(?:\.\d+)?"
    return cut != name and not set(re.findall(number, cut)) <= set(re.findall(number, name))


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether all cells are like `0.1234 ± 0.0056`, `12,000`, `3.1%`, `best` or empty."""
    return any(cells) and all(re.fullmatch(r"[-+]?[\d.,e+-]+( ± [\d.]+)? ?%?|best|nan|inf|", cell) for cell in cells)


def _widest(cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cells), default=0)
