"""The picture of the package's rooms and imports, drawn from the code: `python tools/architecture.py docs`.

A room is drawn one row below the lowest room that imports it. An arrow points from a room to one that it imports;
arrows that follow from others are left out (the transitive reduction), since almost every room imports the lowest ones.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "concf"
FLOORS: list[str] = runpy.run_path(str(ROOT / "tests" / "floors.py"))["FLOORS"]
PURPOSES = {  # room -> (what it is for, colour)
    "errors": ("messages to users", "#5b6b80"),
    "runtime": ("files, processes, progress", "#5b6b80"),
    "data": ("logs, filters, splits", "#2f6f8f"),
    "evaluation": ("full ranking, metrics, tests", "#4a5aa8"),
    "baselines": ("neighbours, EASE, ALS, walks", "#2f6f8f"),
    "consensus": ("votes, fusions, Eq. 10 to 12", "#b3622f"),
    "runs": ("run folders, checkpoints, cards", "#4a5aa8"),
    "reference": ("the paper: Algorithm 1", "#b3622f"),
    "strong": ("voters, re-ranker, student", "#b3622f"),
    "loading": ("runs of either model", "#5b6b80"),
    "models": ("presets, training", "#5b6b80"),
    "inference": ("lists, fold-in, export", "#3c7d52"),
    "report": ("one page about a run", "#3c7d52"),
    "comparison": ("models on the same splits", "#7562a8"),
    "service": ("HTTP and the explorer", "#3c7d52"),
    "cli": ("one file per command", "#5b6b80"),
}
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW = 640, 250, 46, 74
Graph = dict[str, set[str]]


def imports(package: Path = PACKAGE) -> Graph:
    """Room -> the other rooms that its files import, wherever in a file the import stands."""
    graph: Graph = {room: set() for room in FLOORS}
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if room in graph and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("concf."):
                graph[room].add(str(node.module).split(".")[1])
    return {room: (below & graph.keys()) - {room} for room, below in graph.items()}


def reduced(graph: Graph) -> Graph:
    """The graph without the arrows that a longer path implies. Every arrow must point down."""
    reached: Graph = {}
    for room in FLOORS:
        above = graph[room] - reached.keys()
        if above:
            raise SystemExit(f"{room} imports {', '.join(sorted(above))}, which is not below it in tests/floors.py")
        reached[room] = graph[room].union(*(reached[below] for below in graph[room]))
    return {
        room: {one for one in below if not any(one in reached[other] for other in below)}
        for room, below in graph.items()
    }


def positions(graph: Graph) -> dict[str, tuple[float, float]]:
    """Room -> the centre of its box. Rooms of a row stand side by side; one alone stands below those that import it."""
    importers = {room: [above for above in FLOORS if room in graph[above]] for room in FLOORS}
    row: dict[str, int] = {}
    places: dict[str, tuple[float, float]] = {}
    for room in reversed(FLOORS):
        row[room] = max((row[above] + 1 for above in importers[room]), default=0)
    for room in reversed(FLOORS):
        beside = [other for other in FLOORS if row[other] == row[room]]
        x = WIDTH * (beside.index(room) + 0.5) / len(beside)
        if len(beside) == 1 and importers[room]:
            x = fmean(places[above][0] for above in importers[room])
        places[room] = x, ROW * row[room] + BOX_HEIGHT / 2 + 10
    return places


def picture() -> str:
    """The SVG. Its colours are readable on a light and on a dark page."""
    graph = reduced(imports())
    places = positions(graph)
    height = max(y for _, y in places.values()) + BOX_HEIGHT / 2 + 10
    arrows = [_arrow(places[room], places[below]) for room in FLOORS for below in sorted(graph[room])]
    boxes = [_box(room, *places[room]) for room in FLOORS]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
            'aria-labelledby="title about" text-anchor="middle" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">',
            '<title id="title">The rooms of concf</title>',
            f'<desc id="about">From the bottom up: {", ".join(FLOORS)}. Imports point down only.</desc>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0.5 L7.5 4 L0 7.5 Z" fill="#8492a6"/></marker></defs>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """From the lower edge of one box to the upper edge of another."""
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2 - 2
    bend = (y2 - y1) / 2
    return (
        f'<path d="M{x1:g} {y1:g} C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" fill="none" '
        'stroke="#8492a6" stroke-width="1.75" marker-end="url(#tip)"/>'
    )


def _box(room: str, x: float, y: float) -> str:
    purpose, colour = PURPOSES[room]
    return (
        f'<rect x="{x - BOX_WIDTH / 2:g}" y="{y - BOX_HEIGHT / 2:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="10" fill="{colour}"/>\n'
        f'<text x="{x:g}" y="{y - 3:g}" font-size="14" font-weight="600" fill="#ffffff">{room}</text>'
        f'<text x="{x:g}" y="{y + 14:g}" font-size="12" fill="#ffffff">{purpose}</text>'
    )


if __name__ == "__main__":
    (Path(sys.argv[1]) / "architecture.svg").write_text(picture(), encoding="utf-8")
