"""Charts as inline SVG: lines over epochs or groups, and figures with their intervals.

Colours are classes that the page's style gives a value, in light and in dark; each name has a mark of its own too, so
that no colour needs to be told from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from concf.report.markup import Safe, joined, tag
from concf.runtime.text_tables import shortened

WIDTH, HEIGHT = 420.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 10.0, 36.0
ROW = 26.0  # of a chart of intervals
COLOURS = 6  # of heads, then they begin again with another line
MOST = 400  # points of a line
LONGEST = 18  # letters of a name beside a chart

Point = tuple[float, float]
Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A name's values. look: its colour and mark, see `looks`; marked: the point to mark, if one is."""

    name: str
    look: str
    points: Sequence[Point]
    marked: Point | None = None


@dataclass(frozen=True)
class Row:
    """A figure and its interval."""

    name: str
    look: str
    value: float
    low: float
    high: float


def looks(heads: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Name -> classes; heads by number, the others by their own names."""
    mine = {name: f"c{place % COLOURS} d{min(place // COLOURS, 2)}" for place, name in enumerate(heads)}
    return mine | {name: name.lower() for name in others}


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round figures from `low` to `high`, some `about` of them; one if both are the same."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most some `most` of the points, evenly, the last one among them."""
    step = max(1, ceil(len(points) / most))
    return [*points[:-1:step], *points[-1:]]


def plain(value: float) -> str:
    """A tick: no more digits than it needs."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def lines(
    key: str, title: str, about: str, drawn: Sequence[Line], *, across: str, groups: Sequence[str] = (),
    up: Format = plain, since: tuple[float, str] | None = None, zero: bool = False,
) -> Safe:  # fmt: skip
    """Lines over epochs, or over named groups.

    key: begins the ids; about: what there is to see, for those who do not see it; across: what the axis below is;
    since: a moment to mark, and what it is; zero: whether the scale begins at 0
    """
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    x_scale = _scale(min(xs), max(xs), LEFT + (30 if groups else 0), WIDTH - RIGHT - (30 if groups else 0))
    low, high = _limits([*ys, 0.0] if zero else ys)
    y_scale = _scale(low, high, HEIGHT - BOTTOM, TOP)
    grid = joined(*(_level(y_scale(y), up(y)) for y in ticks(low, high)))
    below = enumerate(groups) if groups else ((x, plain(x)) for x in ticks(min(xs), max(xs)) if float(x).is_integer())
    foot = joined(*(_label(x_scale(x), HEIGHT - BOTTOM + 16, name, "middle") for x, name in below))
    name = _label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, across, "middle", "axis")
    moment = _moment(x_scale(since[0]), since[1]) if since and min(xs) <= since[0] <= max(xs) else None
    body = joined(*(_line(line, x_scale, y_scale, bool(groups)) for line in drawn))
    return _picture(key, title, about, HEIGHT, joined(grid, foot, name, moment, body))


def intervals(key: str, title: str, about: str, rows: Sequence[Row], *, up: Format = plain) -> Safe:
    """Figures as marks, one below the other, each on the line of its interval."""
    left, height = 128.0, TOP + ROW * len(rows) + 24
    low, high = _limits([each for row in rows for each in (row.low, row.high)])
    scale = _scale(low, high, left, WIDTH - RIGHT - 44)
    drawn: list[Safe] = []
    for x in ticks(low, high, 4):
        at = _n(scale(x))
        drawn += [tag("line", x1=at, x2=at, y1=_n(TOP), y2=_n(height - 24), class_="grid"),
                  _label(scale(x), height - 6, up(x), "middle")]  # fmt: skip
    names = shortened([row.name for row in rows], LONGEST)
    for place, row in enumerate(rows):
        y = TOP + ROW * (place + 0.5)
        bar = tag("line", x1=_n(scale(row.low)), x2=_n(scale(row.high)), y1=_n(y), y2=_n(y), class_="bar")
        mark = _mark(row.look, scale(row.value), y, 5)
        said = tag("title", f"{row.name} {row.value:.4f} ({row.low:.4f} to {row.high:.4f})")
        drawn += [
            _label(left - 12, y + 4, names[place], "end", "name"),
            tag("g", said, bar, mark, class_=row.look),
            _label(WIDTH, y + 4, f"{row.value:.4f}", "end", "value"),
        ]
    return _picture(key, title, about, height, joined(*drawn))


def swatch(look: str) -> Safe:
    """A line and a mark as they stand in charts, for a legend."""
    line = tag("path", d="M1 6H25", class_="line")
    return tag("svg", tag("g", line, _mark(look, 13, 6, 4.5), class_=look), viewBox="0 0 26 12", class_="swatch",
               aria_hidden="true")  # fmt: skip


def _picture(key: str, title: str, about: str, height: float, body: Safe) -> Safe:
    named = (tag("title", title, id=f"{key}-title"), tag("desc", about, id=f"{key}-about"))
    return tag(
        "svg", *named, body, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", class_="chart",
        aria_labelledby=f"{key}-title {key}-about",
    )  # fmt: skip


def _limits(values: Iterable[float]) -> tuple[float, float]:
    """With some room; values that are all the same lie in the middle."""
    low, high = min(every := list(values)), max(every)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return (low - room if low != 0 else 0.0), high + room


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    if not high > low:
        return lambda _: (begin + end) / 2
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _level(y: float, name: str) -> Safe:
    across = tag("line", x1=_n(LEFT), x2=_n(WIDTH - RIGHT), y1=_n(y), y2=_n(y), class_="grid")
    return joined(across, _label(LEFT - 7, y + 3.5, name, "end"))


def _moment(x: float, name: str) -> Safe:
    upright = tag("line", x1=_n(x), x2=_n(x), y1=_n(TOP), y2=_n(HEIGHT - BOTTOM), class_="moment")
    late = x > WIDTH * 0.6
    return joined(upright, _label(x - 5 if late else x + 5, TOP + 9, name, "end" if late else "start"))


def _label(x: float, y: float, words: str, anchor: str, kind: str | None = None) -> Safe:
    return tag("text", words, x=_n(x), y=_n(y), text_anchor=anchor, class_=kind)


def _line(line: Line, x_scale: Callable[[float], float], y_scale: Callable[[float], float], dots: bool) -> Safe:
    """The line; a mark at the point that is marked, or at every point, or at the only one."""
    points = [(x_scale(x), y_scale(y)) for x, y in thinned(line.points)]
    path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
    marked = line.points if dots or len(points) == 1 else [line.marked] if line.marked else []
    marks = [_mark(line.look, x_scale(x), y_scale(y), 3.6 if dots else 4.5) for x, y in marked]
    return tag("g", tag("title", line.name), tag("path", d=path, class_="line"), *marks, class_=line.look)


def _mark(look: str, x: float, y: float, size: float) -> Safe:
    """A shape of its own for each look."""
    number = int(look[1]) if look[0] == "c" and look[1:2].isdigit() else -1
    if number < 0:
        return tag("circle", cx=_n(x), cy=_n(y), r=_n(size), class_="mark")
    return tag("path", d=_SHAPES[number](x, y, size), class_="mark")


def _polygon(*corners: Point) -> Callable[[float, float, float], str]:
    """A shape by its corners, in sizes from its middle."""
    return lambda x, y, size: "M" + "L".join(f"{_n(x + size * dx)} {_n(y + size * dy)}" for dx, dy in corners) + "Z"


_SHAPES = (
    _polygon((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),  # square
    _polygon((0, -1.1), (1.05, 0.8), (-1.05, 0.8)),  # triangle
    _polygon((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),  # diamond
    _polygon((-1.05, -0.8), (1.05, -0.8), (0, 1.1)),  # triangle on its head
    _polygon((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4), (0.4, 1.1), (-0.4, 1.1),
             (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),  # cross
    _polygon((0, -1.15), (1.1, -0.3), (0.7, 0.95), (-0.7, 0.95), (-1.1, -0.3)),  # pentagon
)  # fmt: skip


def _n(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")
