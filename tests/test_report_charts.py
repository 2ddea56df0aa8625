"""Charts of a report: whatever the values and names are, they stay inside the frame, are named, and follow the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concf.report.charts import HEIGHT, WIDTH, intervals, lines, looks_of, swatch

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)
NASTY = "<b>$x_1$ & 'y'\"#0072b2"


def drawn(*values: list[float], **options: object) -> str:
    names = [f"head {number}" for number in range(len(values))]
    curves = {name: list(enumerate(each)) for name, each in zip(names, values, strict=True)}
    return lines("k", "label", curves, looks_of(names), xlabel="epoch", **options)  # type: ignore[arg-type]


def texts(drawing: str, tag: str = "text") -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawing).iter(tag)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=9), st.booleans())
def test_lines_stay_inside_the_frame(values: list[list[float]], grouped: bool) -> None:
    groups = [f"G-{number}" for number in range(max(map(len, values)))] if grouped else []
    drawing = drawn(*values, groups=groups, since=1, percent=not grouped)
    paths = [
        each.get("d", "") for each in ElementTree.fromstring(drawing).iter("path") if "stroke" in each.get("style", "")
    ]
    points = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", " ".join(paths))
    assert points
    assert all(-10 <= float(x) <= WIDTH + 10 and -10 <= float(y) <= HEIGHT + 10 for x, y in points)
    assert "nan" not in drawing


@pytest.mark.parametrize("values", [[0.0], [0.3, 0.3], [1e-9, 2e-9], [-1e12, 1e12], list(range(3000))])
def test_few_and_many_values_have_ticks_and_a_line(values: list[float]) -> None:
    drawing = drawn(values)
    assert len(texts(drawing)) >= 3
    assert texts(drawing, "title") == ["head 0"]
    assert len(drawing) < 60_000


def test_the_same_values_give_the_same_bytes() -> None:
    assert drawn([1.0, 2.0], [3.0]) == drawn([1.0, 2.0], [3.0])


def test_names_are_text_whatever_they_hold() -> None:
    rows = {NASTY: {"mean": 0.2, "low": 0.1, "high": 0.3}, "x" * 40: {"mean": 0.2, "low": 0.2, "high": 0.2}}
    drawing = intervals("k", f"label {NASTY}", rows, looks_of(list(rows)))
    assert ElementTree.fromstring(drawing).get("aria-label") == f"label {NASTY}"
    assert texts(drawing, "title").count(f"{NASTY} 0.2000 (0.1000 to 0.3000)") == 2  # of the bar and of the mark
    assert "x" * 8 + "…" + "x" * 9 in texts(drawing)
    assert any(text.startswith("<b>$x_1$") for text in texts(drawing))
    assert not list(ElementTree.fromstring(drawing).iter("b"))


def test_long_names_beside_a_chart_stay_different() -> None:
    names = [f"weighted-squares@{penalty}" for penalty in ("0.02", "0.04", "0.03#student", "0.04#student")]
    drawing = intervals("k", "label", {name: {"mean": 0.2, "low": 0.1, "high": 0.3} for name in names}, looks_of(names))
    shown = [text for text in texts(drawing) if "…" in text]
    assert len(set(shown)) == 4
    assert [text.partition("@")[2] or text[-12:] for text in shown] == ["0.02", "0.04", "0.03#student", "0.04#student"]


def test_exact_figures_stand_beside_intervals() -> None:
    drawing = intervals("k", "label", {"bpr": {"mean": 0.12344, "low": 0.1, "high": 0.2}}, looks_of(["bpr"]))
    assert "0.1234" in texts(drawing)


def test_epochs_are_whole_numbers_and_shares_are_percentages() -> None:
    drawing = drawn([0.1, 0.2, 0.4], percent=True, since=2)
    assert {"0", "1", "2", "epoch", "consensus loss begins"} <= set(texts(drawing))
    assert any(text.endswith("%") for text in texts(drawing))
    assert "consensus loss begins" not in texts(drawn([0.1, 0.2], since=7))


def test_no_two_names_look_alike() -> None:
    names = [f"head {number}" for number in range(18)]
    looks: Mapping[str, Mapping[str, object]] = looks_of(names)
    assert len({str(look) for look in looks.values()}) == 20
    marks = [looks[name]["marker"] for name in (*names[:6], "consensus")]
    assert len(set(marks)) == 7, "a mark tells them apart where colours do not"


def test_a_drawing_takes_its_colours_from_the_page_and_loads_nothing() -> None:
    for drawing in (drawn([1.0, 2.0], [2.0, 3.0]), swatch("s", "bpr", tuple(looks_of(["bpr"])["bpr"].items()))):
        assert not re.search(r"#[0-9a-f]{6}\b", drawing)
        assert "var(--c0)" in drawing
        assert not re.search(r"https?:|<style|<metadata|<!--|xmlns", drawing)
        assert all(each.startswith(("k-", "s-")) for each in re.findall(r'id="(.*?)"', drawing))
