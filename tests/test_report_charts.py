"""The parts of a report: markup that escapes, charts that stay inside their frame."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.report.charts import HEIGHT, WIDTH, Line, Row, intervals, lines, looks, swatch, thinned, ticks
from concf.report.markup import Safe, joined, tag, text

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


class Reader(HTMLParser):
    """What a browser would take: elements with their attributes, and text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_whatever_is_said_is_text(words: str, value: str) -> None:
    hidden = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
    read = Reader(tag("p", words, title=value))
    expected = [hidden.sub(lambda found: f"\\u{ord(found[0]):04x}", each) for each in (words, value)]
    assert read.elements == [("p", {"title": expected[1]})]
    assert read.said == expected[0]


def test_markup_stands_and_text_is_escaped_once() -> None:
    assert text("<&>'\"") == "&lt;&amp;&gt;&#x27;&quot;"
    assert text(text("<")) == "&lt;"
    assert tag("b", Safe("<i>x</i>"), None, 3, class_="a", data_x=None) == '<b class="a"><i>x</i>3</b>'
    assert tag("line", stroke_width=2) == '<line stroke-width="2"/>'
    assert joined("a\x00b\u202e", None) == "a\\u0000b\\u202e"


@given(numbers, numbers, st.integers(2, 8))
def test_ticks_are_round_even_and_inside(one: float, other: float, about: int) -> None:
    low, high = sorted((one, other))
    if high - low <= max(abs(low), abs(high)) * 1e-6 or high - low < 1e-9:
        return
    found = ticks(low, high, about)
    step = (high - low) / about
    slack = (high - low) * 1e-6
    assert all(low - slack <= each <= high + slack for each in found)
    assert len(found) <= about + 1
    gaps = [after - before for before, after in pairwise(found)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-5) and step * 0.99 <= gap <= step * 2.51 for gap in gaps)


@pytest.mark.parametrize("value", [0.0, -3.5, 7e20])
def test_a_single_value_is_its_own_tick(value: float) -> None:
    assert ticks(value, value) == [value]


@given(st.integers(1, 3000), st.integers(1, 50))
def test_thinned_points_are_few_and_keep_both_ends(n: int, most: int) -> None:
    points = [(float(x), -float(x)) for x in range(n)]
    found = thinned(points, most)
    assert found[0] == points[0]
    assert found[-1] == points[-1]
    assert len(found) <= most + 1
    assert found == sorted(set(found))
    assert thinned(points, n) == points


def coordinates(source: str) -> list[tuple[float, float]]:
    paths = re.findall(r' d="M([^"Z]*)', source)
    return [(float(x), float(y)) for path in paths for x, y in (point.split(" ") for point in path.split("L"))]


@given(st.lists(st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=9), st.booleans())
def test_lines_stay_inside_the_frame(values: list[list[float]], grouped: bool) -> None:
    look = looks([f"head {place}" for place in range(len(values))], ())
    drawn = [
        Line(name, look[name], list(enumerate(each)), (0, each[0])) for name, each in zip(look, values, strict=True)
    ]
    longest = max(map(len, values))
    groups = [f"G-{place}" for place in range(longest)] if grouped else []
    picture = lines("k", "title", "about", drawn, across="epoch", groups=groups, since=(1.0, "then"))
    points = coordinates(picture)
    assert len(points) >= sum(map(len, values))
    assert all(-6 <= x <= WIDTH + 6 and -6 <= y <= HEIGHT + 6 for x, y in points)
    assert "nan" not in picture


def test_a_picture_is_named_and_described() -> None:
    rows = [Row("<bpr>", "c0 d0", 0.2, 0.1, 0.3), Row("x" * 40, "consensus", 0.2, 0.2, 0.2)]
    read = Reader(intervals("k", "Title <1>", "About & more", rows))
    name, said = read.elements[0]
    assert (name, said["role"], said["aria-labelledby"]) == ("svg", "img", "k-title k-about")
    ids = {tag: said["id"] for tag, said in read.elements if said.get("id")}
    assert ids == {"title": "k-title", "desc": "k-about"}
    assert "Title <1>" in read.said
    assert "<bpr> 0.2000 (0.1000 to 0.3000)" in read.said
    assert "x" * 8 + "…" + "x" * 9 in read.said


def test_long_names_beside_a_chart_stay_different() -> None:
    names = [f"weighted-squares@{penalty}" for penalty in ("0.02", "0.04", "0.03#student", "0.04#student")]
    read = Reader(intervals("k", "title", "about", [Row(name, "c0 d0", 0.2, 0.1, 0.3) for name in names]))
    assert all(words in read.said for words in ("…uares@0.02", "…uares@0.04", "…0.03#student", "…0.04#student"))


def test_no_two_looks_are_alike() -> None:
    names = [f"head {place}" for place in range(18)]
    look = looks(names, ("R-consensus", "consensus"))
    assert len(set(look.values())) == 20
    assert len({swatch(look[name]) for name in (*names[:6], "consensus")}) == 7
