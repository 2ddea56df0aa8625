"""Report as one HTML file: a Jinja2 template with matplotlib's charts; no script, no font, no network.

Charts are inline SVG. Their colours become CSS variables, which the page sets for light and dark mode; every name has a
mark of its own too, so that no two lines differ by colour alone. Importing this module needs the extra `report`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from concf.errors import MissingExtraError
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.provenance import VERSION

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined, Template
    from markupsafe import Markup
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise MissingExtraError(error.name or "jinja2", "report", "a report") from None

HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
CURVES = (  # field of the history, title, caption, unit
    ("validation", "Validation", "{metric} of {users} users at every ranking. The best epoch is marked, and kept.", ""),
    ("loss", "Own loss", "Each head's own loss, relative to its first epoch, since units differ.", "relative"),
    ("consensus_loss", "Consensus loss", "Each head's loss against the consensus, relative to its first.", "relative"),
    ("weight", "Balancing weights", "The weight λ of each head's loss at the end of the epoch.", ""),
    ("gradient", "Gradient norms", "Norm of each head's weighted gradient on the shared embeddings.", ""),
)

WIDTH, HEIGHT, ROW = 420, 250, 26  # SVG units; ROW: height of one bar
FRONT, BACK = 8, 9  # characters that are left of a longer name beside a chart
HEADS = ("#0072b2", "#b87400", "#008a64", "#d0521b", "#b5528a", "#2f97cf")  # after Okabe and Ito, darker
PAPER, INK, SOFT, FAINT = "#ffffff", "#1c1e21", "#5c636b", "#e4e7ea"
VARIABLES = {PAPER: "paper", INK: "ink", SOFT: "soft", FAINT: "faint"} | {each: f"c{n}" for n, each in enumerate(HEADS)}
MARKS, DASHES = ("s", "^", "D", "v", "P", "p"), ("-", (0, (6, 3)), (0, (1.5, 2.5)))
STYLE: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.sans-serif": ["DejaVu Sans"], "font.size": 11,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.grid": True, "axes.axisbelow": True,
    "axes.formatter.useoffset": False, "axes.formatter.limits": (-4, 6), "axes.labelcolor": SOFT, "text.color": SOFT,
    "grid.color": FAINT, "grid.linewidth": 1, "xtick.color": SOFT, "ytick.color": SOFT, "xtick.major.size": 0,
    "ytick.major.size": 0, "lines.linewidth": 1.7, "lines.markeredgecolor": PAPER, "lines.markeredgewidth": 0.7,
} | {f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")}  # fmt: skip

Looks = Mapping[str, Mapping[str, Any]]  # name -> options of `Axes.plot`


def page(report: Mapping[str, Any]) -> str:
    """Render the content that `gather` returns as an HTML page."""
    looks, overview = looks_of(report["run"]["heads"]), report["overview"]
    names = [each["name"] for each in report["recommenders"]]
    baselines = {each["name"]: each["mean"] for each in overview["rows"]} if overview else {}
    values = ", ".join(f"{name} {value:.4f}" for name, value in baselines.items())
    return _template().render(
        report,
        version=VERSION,
        changes=[list(each.values()) for each in report["settings"]["changes"]],
        legends=[
            {name: swatch(f"legend-{k}-{n}", name, tuple(looks[name].items())) for n, name in enumerate(names)}
            for k in (0, 1)
        ],
        overview_chart=overview
        and bars("overview", f"Test {_metric_name(overview['metric'])}. {values}", baselines, overview["name"]),
        curve_charts=list(_curve_charts(report, looks)),
        group_charts=list(_group_charts(report, looks)),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("concf", "report"), autoescape=True, finalize=_text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["metric"] = _metric_name
    return environment.get_template("report.html.j2")


def _text(value: Any) -> Any:
    """Escape control and bidirectional characters as \\uXXXX; join lists; write None and booleans in lower case."""
    if isinstance(value, list):
        return "; ".join(str(_text(each)) for each in value) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", value) if type(value) is str else value


def _metric_name(metric: str) -> str:
    return metric.upper() if metric.startswith(("ndcg", "map", "mrr")) else metric.capitalize()


def _group_charts(report: Mapping[str, Any], looks: Looks) -> Iterator[dict[str, Any]]:
    by_name = report["groups"]
    groups: list[Any] = next(iter(by_name.values()), [])
    labels = [f"G-{k + 1}" for k in range(len(groups))]
    for metric in report["drawn"] if groups else ():
        title, caption = f"Test {_metric_name(metric)}", "G-1 has the most active users."
        curves = {name: list(enumerate(group[metric] for group in each)) for name, each in by_name.items()}
        label = f"{title}. {caption} {_ends(curves)}"
        drawing = lines(f"group-{metric}", label, curves, looks, xlabel="group of users", groups=labels)
        yield {"title": title, "caption": caption, "drawing": drawing}


def _curve_charts(report: Mapping[str, Any], looks: Looks) -> Iterator[dict[str, Any]]:
    metric, begin = report["run"]["metric"], report["run"]["first_consensus_epoch"]
    for kind, title, text, unit in CURVES:
        curves = report["curves"][kind]
        balanced = report["settings"]["all"].get("balance.on") and len(report["run"]["heads"]) > 1
        if not curves or (kind in ("weight", "gradient") and not balanced):
            continue
        firsts = {name: (points[0][1] or 1.0) if unit == "relative" else 1.0 for name, points in curves.items()}
        shown = {name: [(epoch, value / firsts[name]) for epoch, value in points] for name, points in curves.items()}
        caption = text.format(metric=_metric_name(metric), users=f"{report['run']['validated_users']:,}")
        drawing = lines(
            f"curve-{kind}", f"{title}. {caption} {_ends(shown)}", shown, looks, xlabel="epoch",
            best={each["name"]: each["epoch"] for each in report["recommenders"]} if kind == "validation" else None,
            since=None if kind == "consensus_loss" else begin,
        )  # fmt: skip
        yield {"title": title, "caption": caption, "drawing": drawing}


def _ends(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """First and last value of each line, for the chart's label."""
    return " ".join(f"{name}: {points[0][1]:.4g} to {points[-1][1]:.4g}." for name, points in curves.items())


def looks_of(heads: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Choose line styles of heads and consensuses: six colours and marks, then these with other dashes."""
    n = len(HEADS)
    return {
        name: {"color": HEADS[k % n], "marker": MARKS[k % n], "linestyle": DASHES[k // n % len(DASHES)]}
        for k, name in enumerate(heads)
    } | {
        R_CONSENSUS: {"color": SOFT, "marker": "o", "linestyle": (0, (5, 3))},
        CONSENSUS: {"color": INK, "marker": "o", "linewidth": 2.6},
    }


def lines(
    key: str, label: str, curves: Mapping[str, Sequence[tuple[float, float]]], looks: Looks, *, xlabel: str,
    groups: Sequence[str] = (), best: Mapping[str, float] | None = None, since: float | None = None,
) -> Markup:  # fmt: skip
    """Draw a line for each name, over epochs or over named groups.

    key: prefix of the ids within the SVG; label: for screen readers; since: first epoch with a consensus loss;
    best: name -> the only epoch to mark (by default some marks are spread along each line)
    """
    with _figure(key, HEIGHT) as (figure, axes):
        for number, (name, points) in enumerate(curves.items()):
            x, y = zip(*points, strict=True)
            every: Any = max(1, len(x) // 6) if best is None else [k for k, at in enumerate(x) if at == best[name]]
            options = {"markevery": every, "markersize": 6 if best is None else 9, "gid": f"line-{number}"}
            axes.plot(x, y, clip_on=False, **options, **looks[name])
        axes.set_xlabel(xlabel)
        axes.grid(visible=False, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if groups:
            axes.set_xticks(range(len(groups)), groups)
        low, high = axes.get_xlim()
        if since is not None and low <= since <= high:
            axes.axvline(since, color=SOFT, linewidth=1, linestyle=(0, (2, 3)))
            side = "right" if since > (low + high) / 2 else "left"
            axes.text(since, 1.02, "consensus loss begins", transform=axes.get_xaxis_transform(), ha=side, fontsize=10)
        return _svg(figure, key, label, curves)


def bars(key: str, label: str, rows: Mapping[str, float], strong: str) -> Markup:
    """Draw a bar from 0 for each name, names on the left and values on the right. strong: the highlighted name"""
    with _figure(key, ROW * len(rows) + 4) as (figure, axes):
        colours = [HEADS[0] if name == strong else FAINT for name in rows]
        axes.barh(range(len(rows)), list(rows.values()), height=0.62, color=colours)
        for number, value in enumerate(rows.values()):
            axes.text(1.03, number, f"{value:.4f}", transform=axes.get_yaxis_transform(), va="center", color=INK)
        names = [name if len(name) <= FRONT + 1 + BACK else f"{name[:FRONT]}…{name[-BACK:]}" for name in rows]
        axes.set_yticks(range(len(rows)), names, color=INK)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks([])
        axes.grid(visible=False)
        return _svg(figure, key, label)


@lru_cache(256)
def swatch(key: str, name: str, look: tuple[tuple[str, Any], ...]) -> Markup:
    """Draw a line with its mark, for a legend."""
    with _figure(key, 12, 28, layout=None) as (figure, axes):
        axes.set_position((0, 0, 1, 1))
        axes.set_axis_off()
        axes.plot([0, 1, 2], [0] * 3, markevery=[1], markersize=7, **dict(look))
        return _svg(figure, key, name)


@contextmanager
def _figure(key: str, height: float, width: float = WIDTH, layout: Any = "constrained") -> Iterator[Any]:
    """Yield a figure and its axes; the salt makes matplotlib's ids a function of the drawing."""
    with rc_context(STYLE | {"svg.hashsalt": key}):
        figure = Figure(figsize=(width / 72, height / 72), layout=layout)
        yield figure, figure.subplots()


def _svg(figure: Figure, key: str, label: str, tooltips: Iterable[str] = ()) -> Markup:
    """Convert matplotlib's SVG for use within HTML: colours become variables, coordinates get two decimals.

    label: for screen readers; tooltips: of the elements line-0, line-1, ...
    """

    def converted(name: str, value: str) -> str:
        if name == "style":
            return re.sub("#[0-9a-f]{6}", lambda colour: f"var(--{VARIABLES[colour[0]]})", value)
        if name == "d":
            return re.sub(r"(\.\d\d)\d+", r"\1", value).replace("\n", "")
        return f"{key}-{value}" if name == "id" else value.replace("#", f"#{key}-")

    output = StringIO()
    figure.savefig(output, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(output.getvalue())
    root[:] = [child for child in root if child.find("{*}style") is None]  # that would apply to the whole page
    texts = {f"{key}-line-{number}": text for number, text in enumerate(tooltips)}
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]  # HTML needs no namespaces
        attributes = {name.rpartition("}")[2]: value for name, value in element.items()}
        element.attrib = {name: converted(name, value) for name, value in attributes.items()}
        if element.get("id") in texts:
            ElementTree.SubElement(element, "title").text = texts[element.attrib.pop("id")]
    root.attrib = {"class": "chart", "role": "img", "aria-label": label, "viewBox": root.attrib["viewBox"]}
    return Markup(ElementTree.tostring(root, encoding="unicode"))
