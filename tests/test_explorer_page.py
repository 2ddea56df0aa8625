"""The explorer's searches against loops, and its files against what a page may load, say and look like."""

from __future__ import annotations

import gzip
import re
import time
import unicodedata
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concf.data.ids import Ids
from concf.service.explorer.search import Search


def simple(text: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFKD", text) if unicodedata.category(sign)[0] != "M").lower()


WORDS = st.text(st.sampled_from("abAB1é -/\n"), max_size=5)
ROWS = st.tuples(WORDS.filter(bool), st.none() | WORDS, st.integers(0, 3))  # id, title, weight


@given(st.lists(ROWS, min_size=1, max_size=12, unique_by=lambda row: row[0]), WORDS, st.integers(1, 15))
@settings(max_examples=100)
def test_a_search_finds_what_a_loop_finds(rows: list[tuple[str, str | None, int]], query: str, limit: int) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    weight = np.array([row[2] for row in rows])
    indices = Search(Ids(np.array([row[0] for row in rows], object)), weight, [row[1] for row in rows]).find(
        query, limit
    )
    text = simple(query.strip().replace("\n", " "))
    words = re.findall(r"[^\W_]+", text)
    ids = [simple(row[0]).replace("\n", " ") for row in rows]
    titles = [re.findall(r"[^\W_]+", simple(row[1] or "")) for row in rows]

    def order(place: int) -> tuple[Any, ...]:
        titled = bool(words) and all(any(each.startswith(word) for each in titles[place]) for word in words)
        begins = ids[place].startswith(text) or titled
        exact = ids[place] == text
        return (not begins, not exact, -weight[place]) if begins else (True,)

    may = (
        [place for place in range(len(rows)) if not order(place)[0] or text in ids[place]] if text else range(len(rows))
    )
    expected = sorted(may, key=order if text else lambda place: -weight[place])[:limit]
    assert indices.tolist() == expected


def test_a_search_among_a_hundred_thousand_is_quick() -> None:
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(10**7, 100_000, replace=False))
    vocabulary = np.array(["the", "of", *(f"word{n}" for n in range(5000))], object)
    titles = [" ".join(words) for words in vocabulary[rng.integers(0, 5002, (len(ids), 3))]]
    search = Search(Ids(ids), rng.integers(0, 99, len(ids)), [f"the {title}" for title in titles])
    for query in ("", "1", "77", "the", "the w", "w", "nowhere", "the nowhere"):
        seconds = []
        for _ in range(5):
            begin = time.thread_time()  # others may be at work too
            search.find(query, 20)
            seconds.append(time.thread_time() - begin)
        assert min(seconds) < 0.05, query


FILES = {each.name: each.read_text(encoding="utf-8") for each in (files("concf.service.explorer") / "assets").iterdir()}


def test_the_page_loads_only_its_own_files() -> None:
    for name, text in FILES.items():
        loads = re.findall(r"""(?:src|href)="([^"#]+)"|from "\./([^"]+)"|\burl\(([^)]+)\)""", text)
        for path in (first or second or third for first, second, third in loads):
            assert path in ("docs", "./", "openapi.json") or path.removeprefix("explorer/") in FILES, (name, path)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        if name.endswith(".html"):  # the policy of the service forbids what is written into the page
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), name


def test_no_data_is_ever_read_as_markup() -> None:
    for name, text in FILES.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", text), name


def test_the_page_is_small() -> None:
    page = [text for name, text in FILES.items() if not name.startswith("docs")]
    assert sum(map(len, page)) < 70_000
    assert sum(len(gzip.compress(text.encode())) for text in page) < 24_000


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 has it."""

    def light(colour: str) -> float:
        signs = colour.lstrip("#")
        whole = "".join(sign * 2 for sign in signs) if len(signs) == 3 else signs
        parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(theme: int) -> None:
    style = FILES["explorer.css"]
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", style.split(":root {")[theme + 1].split("\n}")[0]))
    text = [(ink, ground) for ink in ("ink", "muted", "accent") for ground in ("paper", "card", "wash")]
    text += [(f"on-s{step}", f"s{step}") for step in range(1, 6)]
    text += [("on-accent", "accent"), ("ink", "mark"), ("ink", "bad-wash")]
    for ink, ground in text:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for edge in ("strong-line", "mark-line", "down"):
        assert contrast(colours[edge], colours["card"]) >= 3, edge
    for ground, ink in re.findall(r"\.h\d { background: (#\w+) !important; color: (#\w+)", style):
        assert contrast(ground, ink) >= 4.5, ground
    steps = [contrast(colours[f"s{step}"], colours["card"]) for step in range(1, 6)]
    assert steps == sorted(steps)  # the steadier, the stronger
