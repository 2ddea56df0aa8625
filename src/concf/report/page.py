"""The report as one HTML file: a Jinja2 template with matplotlib's charts; no script, no font, no network.

Importing this module needs the extra `report`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from concf.errors import MissingExtraError
from concf.runtime.provenance import VERSION

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined, Template

    from concf.report.charts import Looks, bars, intervals, lines, looks_of, swatch
except ImportError as error:
    raise MissingExtraError(error.name or "jinja2", "report", "a report") from None

TABLE_ROWS = 200  # of the table below a chart
HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
CURVES = (  # field of the history, title, caption, unit
    ("validation", "Validation", "{metric} of {users} users at every ranking. The best epoch is marked, and kept.", ""),
    ("agreement", "Agreement", "Share of the consensus' first {n} items that a head has in its own first {n}.", "%"),
    ("loss", "Own loss", "Each head's own loss, relative to its first epoch, since units differ.", "relative"),
    ("consensus_loss", "Consensus loss", "Each head's loss against the consensus, relative to its first.", "relative"),
    ("weight", "Balancing weights", "The weight λ of each head's loss at the end of the epoch.", ""),
    ("gradient", "Gradient norms", "Norm of each head's weighted gradient on the shared embeddings.", ""),
)

Points = Sequence[tuple[float, float]]


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
        interval_charts=list(_interval_charts(report, looks)),
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


def _interval_charts(report: Mapping[str, Any], looks: Looks) -> Iterator[dict[str, Any]]:
    for metric in report["drawn"] if report["recommenders"][0]["test"] else ():
        title, caption = f"Test {_metric_name(metric)}", "Means and 95 % intervals. The scale does not begin at 0."
        rows = {each["name"]: each["test"][metric] for each in report["recommenders"]}
        best = max(rows, key=lambda name: rows[name]["mean"])
        label = f"{title}. {caption} {best} has the highest."
        yield {"title": title, "caption": caption, "drawing": intervals(f"interval-{metric}", label, rows, looks)}


def _group_charts(report: Mapping[str, Any], looks: Looks) -> Iterator[dict[str, Any]]:
    by_name = report["groups"]
    groups: list[Any] = next(iter(by_name.values()), [])
    labels = [f"G-{k + 1}" for k in range(len(groups))]
    for metric in report["drawn"] if groups else ():
        title, caption = f"Test {_metric_name(metric)}", "G-1 has the most active users."
        curves = {name: list(enumerate(group[metric] for group in each)) for name, each in by_name.items()}
        rows = [
            [labels[k], f"{group['users']:,}", f"{group['activity']:.1f}"]
            + [f"{points[k][1]:.4f}" for points in curves.values()]
            for k, group in enumerate(groups)
        ]
        label = f"{title}. {caption} {_ends(curves)}"
        drawing = lines(f"group-{metric}", label, curves, looks, xlabel="group of users", groups=labels)
        yield {"title": title, "caption": caption, "drawing": drawing, "summary": "Table", "rows": rows,
               "header": ["group", "users", "interactions", *curves]}  # fmt: skip


def _curve_charts(report: Mapping[str, Any], looks: Looks) -> Iterator[dict[str, Any]]:
    metric, begin = report["run"]["metric"], report["run"]["first_consensus_epoch"]
    for kind, title, text, unit in CURVES:
        curves = report["curves"][kind]
        balanced = report["settings"]["all"].get("balance.on") and len(report["run"]["heads"]) > 1
        if not curves or (kind in ("weight", "gradient") and not balanced):
            continue
        firsts = {name: (points[0][1] or 1.0) if unit == "relative" else 1.0 for name, points in curves.items()}
        shown = {name: [(epoch, value / firsts[name]) for epoch, value in points] for name, points in curves.items()}
        caption = text.format(
            metric=_metric_name(metric), n=metric.partition("@")[2], users=f"{report['run']['validated_users']:,}"
        )
        drawing = lines(
            f"curve-{kind}", f"{title}. {caption} {_ends(shown)}", shown, looks, xlabel="epoch", percent=unit == "%",
            best={each["name"]: each["epoch"] for each in report["recommenders"]} if kind == "validation" else None,
            since=None if kind == "consensus_loss" else begin,
        )  # fmt: skip
        values = {name: dict(points) for name, points in curves.items()}
        epochs = sorted({epoch for points in values.values() for epoch in points})
        step = -(-len(epochs) // TABLE_ROWS)
        rows = [
            [epoch, *(_number(each.get(epoch)) for each in values.values())]
            for epoch in sorted({*epochs[::step], epochs[-1]})
        ]
        summary = "Table of the losses themselves" if unit == "relative" else "Table"
        yield {"title": title, "caption": caption, "drawing": drawing, "header": ["epoch", *values], "rows": rows,
               "summary": summary + f", 1 row in {step}" * (step > 1)}  # fmt: skip


def _ends(curves: Mapping[str, Points]) -> str:
    """First and last value of each line, for the chart's label."""
    return " ".join(f"{name}: {points[0][1]:.4g} to {points[-1][1]:.4g}." for name, points in curves.items())


def _number(value: float | None) -> str:
    """Four decimals below 10, two below 1,000, none above."""
    return "" if value is None else f"{value:,.{4 if abs(value) < 10 else 2 if abs(value) < 1000 else 0}f}"
