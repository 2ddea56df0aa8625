"""Tables of text: Markdown for documents, and what fits into a terminal: digits are never cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

NAME_LEAST = 16  # columns that a long name keeps ...
TEXT_LEAST = 24  # ... and that words keep, before a column is dropped for them
FRAME, GAP = 3, 2  # columns between two of a framed table, and of a plain one
SHORT = {"recall": "R", "ndcg": "N", "precision": "P", "map": "MAP", "mrr": "MRR", "hit": "Hit"}
BLOCKS = "▁▂▃▄▅▆▇█"


def short(metric: str) -> str:
    """`recall@50` -> `R@50`."""
    name, _, n = metric.partition("@")
    return f"{SHORT.get(name, name)}@{n}"


def words(settings: Mapping[str, Any], edges: Sequence[str] = ()) -> str:
    """Settings on a line; one at the edge of its grid is marked with *."""
    parts = [
        f"{name} {value:g}{'*' if name in edges else ''}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in settings.items()
    ]
    return ", ".join(parts) or "none"


def spark(values: Sequence[float], low: float, high: float) -> str:
    """A curve as blocks, two a value, from `low` to `high`."""
    steps = (round((value - low) / ((high - low) or 1.0) * (len(BLOCKS) - 1)) for value in values)
    return "".join(2 * BLOCKS[step] for step in steps)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


@dataclass(frozen=True)
class Layout:
    """A table as it is shown.

    places:  the columns of the table that are shown, from the left
    widths:  of each of them
    names:   the cells of the first one, shortened where need be
    dropped: the headers of the columns that are left out
    framed:  whether there is room for lines between the columns
    """

    places: list[int]
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
    """What of a table is shown in so many columns.

    A table that does not fit loses its frame; then names, the first column, are shortened and words wrapped; then
    columns are dropped, the last one first, but not names and not a column of marks, which has no header.
    """
    columns = [[row[place] for row in rows] for place in range(len(header))]
    names = [] if _is_figures(columns[0]) else columns[0]
    whole = [max(_widest(header[place].split()), _widest(cells)) for place, cells in enumerate(columns)]
    least = [
        min(whole[place], NAME_LEAST if place == 0 else TEXT_LEAST) if not _is_figures(cells) else whole[place]
        for place, cells in enumerate(columns)
    ]
    spacious = [max(each, _widest([name])) for each, name in zip(whole, header, strict=True)]
    framed = Layout(list(range(len(header))), spacious, columns[0], [], framed=True)
    if framed.width <= width:
        return framed
    places, dropped = list(range(len(header))), list[str]()
    while sum(least[place] for place in places) + GAP * (len(places) - 1) > width:
        unneeded = [place for place in places[1:] if header[place]]
        if not unneeded:
            break
        places.remove(unneeded[-1])
        dropped.insert(0, header[unneeded[-1]])
    widths, left = [least[place] for place in places], width - GAP * (len(places) - 1)
    for k, place in enumerate(places):
        widths[k] += max(0, min(whole[place] - widths[k], left - sum(widths)))
    return Layout(places, widths, shortened(names, widths[0]) if names else columns[0], dropped, framed=False)


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names of at most so many characters: the middle gives way.

    Where that can be, all of them stay different and no number within a name is torn apart.
    """
    if width < 3:
        return list(names)
    cuts = [[_cut(name, width, front) for name in names] for front in range((width - 1) // 2, 0, -1)]
    different = [cut for cut in cuts if len(set(cut)) == len(set(names))] or cuts
    return min(different, key=lambda cut: sum(_is_torn(*pair) for pair in zip(names, cut, strict=True)))


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
    for place, width in zip(layout.places, layout.widths, strict=True):
        right = _is_figures([row[place] for row in rows]) and place > 0
        table.add_column(Text(header[place]), justify="right" if right else "left", min_width=width, max_width=width)
    for name, row in zip(layout.names, rows, strict=True):
        cells = [name, *row[1:]]
        table.add_row(*(Text(cells[place], overflow="fold") for place in layout.places))
    return table


def _cut(name: str, width: int, front: int) -> str:
    return name if len(name) <= width else f"{name[:front]}…{name[len(name) - (width - 1 - front) :]}"


def _is_torn(name: str, cut: str) -> bool:
    """Whether a number of a shortened name stands there in part only."""
    number = r"\d+(?:\.\d+)?"
    return cut != name and not set(re.findall(number, cut)) <= set(re.findall(number, name))


def _is_figures(cells: Sequence[str]) -> bool:
    """Whether a column is of numbers such as `0.1234 ± 0.0056`, `12,000` or `3.1%`, with `best` or gaps between."""
    return any(cells) and all(re.fullmatch(r"[-+]?[\d.,e+-]+( ± [\d.]+)? ?%?|best|nan|inf|", cell) for cell in cells)


def _widest(cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cells), default=0)
