"""Text tables: Markdown for documents, and tables that fit a terminal without cutting digits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


def words(settings: Mapping[str, Any], edges: Sequence[str] = ()) -> str:
    """Settings on one line; those at the edge of their grid are marked with *."""
    parts = [
        f"{name} {value:g}{'*' if name in edges else ''}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in settings.items()
    ]
    return ", ".join(parts) or "none"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


@dataclass(frozen=True)
class Layout:
    """How a table is shown.

    columns: the indices of the columns that are shown
    widths:  the width of each of them
    names:   the cells of the first column, shortened if necessary
    dropped: the headers of the columns that are left out
    framed:  whether there are lines between the columns
    """

    columns: list[int]
    widths: list[int]
    names: list[str]
    dropped: list[str]
    framed: bool

    @property
    def width(self) -> int:
        """Of the whole table."""
        n = len(self.widths)
        return sum(self.widths) + (FRAME * n + 1 if self.framed else GAP * (n - 1))


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Layout:
    """Fit a table into `width` characters.

    A table that does not fit loses its frame; then the names in the first column are shortened and other text is
    wrapped; then columns are dropped, the last one first, except for the first and those without a header.
    """
    cells = [[row[column] for row in rows] for column in range(len(header))]
    full = [max(_widest(name.split()), _widest(texts)) for name, texts in zip(header, cells, strict=True)]
    framed = [max(each, _widest([name])) for each, name in zip(full, header, strict=True)]
    columns = list(range(len(header)))
    layout = Layout(columns, framed, cells[0], [], framed=True)
    if layout.width <= width:
        return layout
    least = [
        full[k] if _is_numeric(texts) else min(full[k], MIN_TEXT if k else MIN_NAME) for k, texts in enumerate(cells)
    ]
    dropped: list[str] = []
    while sum(least[k] for k in columns) + GAP * (len(columns) - 1) > width:
        droppable = [k for k in columns[1:] if header[k]]
        if not droppable:
            break
        columns.remove(droppable[-1])
        dropped.insert(0, header[droppable[-1]])
    widths, available = [least[k] for k in columns], width - GAP * (len(columns) - 1)
    for index, k in enumerate(columns):
        widths[index] += max(0, min(full[k] - widths[index], available - sum(widths)))
    names = cells[0] if _is_numeric(cells[0]) else shortened(cells[0], widths[0])
    return Layout(columns, widths, names, dropped, framed=False)


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names of at most `width` characters, cut in the middle.

    If possible, they all stay different and no number within a name is cut.
    """
    if width < 3:
        return list(names)
    cuts = [[_cut(name, width, front) for name in names] for front in range((width - 1) // 2, 0, -1)]
    different = [cut for cut in cuts if len(set(cut)) == len(set(names))] or cuts
    return min(different, key=lambda cut: sum(map(_cuts_a_number, names, cut)))


def drawn(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, layout: Layout) -> Table:
    """The table for rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(title), title_justify="left", pad_edge=layout.framed,
        box=box.HEAVY_HEAD if layout.framed else box.SIMPLE_HEAD, show_edge=layout.framed,
        padding=(0, 1) if layout.framed else (0, GAP - 1, 0, 0),
    )  # fmt: skip
    for k, width in zip(layout.columns, layout.widths, strict=True):
        right = k > 0 and _is_numeric([row[k] for row in rows])
        table.add_column(Text(header[k]), justify="right" if right else "left", min_width=width, max_width=width)
    for name, row in zip(layout.names, rows, strict=True):
        cells = [name, *row[1:]]
        table.add_row(*(Text(cells[k], overflow="fold") for k in layout.columns))
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
