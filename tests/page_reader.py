"""A page as a strict reader sees it: every element closed, its tables by label, what it would load."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """tables: (section, label) -> rows of cells' texts; marked: cells in bold or with a mark; charts: their labels."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[tuple[str, str], list[list[str]]] = {}
        self.marked: set[tuple[str, str, int, int]] = set()
        self.charts: list[str] = []
        self.section = self.label = self.style = ""
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), attrs
        self.elements.append((tag, attributes))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self.section = attributes["id"] or ""
        if attributes.get("role") == "region":
            self.label = attributes["aria-label"] or ""
        if attributes.get("role") == "img" and "figure" in self.open:
            self.charts.append(attributes["aria-label"] or "")
        if tag == "table":
            assert (self.section, self.label) not in self.tables, "two tables with the same label"
            self.rows = self.tables[self.section, self.label] = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("mark", "b") and "table" in self.open:
            self.marked.add((self.section, self.label, len(self.rows) - 1, len(self.rows[-1]) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.style += data
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data if "small" not in self.open else f" {data}"

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def ids(self) -> list[str]:
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]


def read_page(text: str) -> Page:
    """The page, if it is whole, names nothing twice, and neither runs nor loads anything."""
    assert text.startswith("<!doctype html>\n")
    page = Page(text.removeprefix("<!doctype html>\n"))
    ids = page.ids()
    assert [each for each, n in Counter(ids).items() if n > 1] == [], "an id occurs twice"
    for tag, attributes in page.elements:
        assert tag not in ("script", "img", "image", "link", "iframe", "object", "form", "base"), tag
        assert not any(name.startswith("on") or name in ("src", "srcset", "data", "action") for name in attributes)
        references = [
            attributes.get("href") or "",
            *re.findall(r"url\((.*?)\)", " ".join(map(str, attributes.values()))),
        ]
        references += [f"#{each}" for each in (attributes.get("aria-labelledby") or "").split()]
        assert all(each[0] == "#" and each[1:] in ids for each in references if each), (tag, attributes)
        assert not any("//" in value or "javascript:" in value for value in attributes.values() if value), attributes
    assert not any(word in page.style for word in ("@import", "url(", "//"))
    return page
