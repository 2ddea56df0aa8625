"""Figures as tables: rows, Markdown for documents. For terminals see `concf.console`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concf.comparison import Comparison

SHORT = {"recall": "R", "ndcg": "N", "precision": "P", "map": "MAP", "mrr": "MRR", "hit": "Hit"}
BLOCKS = "▁▂▃▄▅▆▇█"


def short(metric: str) -> str:
    """`recall@50` -> `R@50`."""
    name, _, n = metric.partition("@")
    return f"{SHORT.get(name, name)}@{n}"


def comparison_rows(comparison: Comparison, test: str = "t") -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean ± spread of each metric, the first's p, seconds to fit, the chosen settings."""
    report = comparison.as_dict(test)
    header = [
        "model",
        *map(short, comparison.metrics),
        f"p ({short(comparison.tuned_on)})",
        "fit s",
        "settings",
    ]
    rows = []
    for model in report["models"]:
        figures = [f"{model['mean'][m]:.4f} ± {model['spread'][m]:.4f}" for m in comparison.metrics]
        p = model["p_against_first"][comparison.tuned_on]
        rows.append(
            [model["model"], *figures, "best" if p is None else f"{p:.2g}", f"{model['fit_seconds']:.1f}",
             words(model["settings"], model["at_grid_edge"])]
        )  # fmt: skip
    return header, rows


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
