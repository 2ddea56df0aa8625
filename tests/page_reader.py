"""A page as a strict reader sees it: every element closed, its tables by caption, what it would load."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """tables: (section, caption or chart before) -> rows of cells' texts; marked: cells with a mark or in bold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[tuple[str, str], list[list[str]]] = {}
        self.marked: set[tuple[str, str, int, int]] = set()
        self.section = self.title = ""
        self.figure = self.style = ""
        self.rows: list[list[str]] = []
        self.marks: set[tuple[int, int]] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        self.elements.append((tag, dict(attrs)))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self.section, self.figure = dict(attrs)["id"] or "", ""
        if tag == "svg" and "role" in dict(attrs):
            self.figure = (dict(attrs)["aria-labelledby"] or "").removesuffix("-about").partition("-title")[0]
        if tag == "table":
            self.rows, self.marks, self.title = [], set(), self.figure if "details" in self.open else ""
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if (tag == "mark" or dict(attrs).get("class") == "best") and "table" in self.open:
            self.marks.add((len(self.rows) - 1, len(self.rows[-1]) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            key = (self.section, self.title)
            while key in self.tables:  # of the next user
                key = (key[0], key[1] + "+")
            self.tables[key] = self.rows
            self.marked |= {(*key, *place) for place in self.marks}

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.style += data
            return
        self.texts.append(data)
        if "caption" in self.open:
            self.title += data
        elif self.open and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data if "small" not in self.open else f" {data}"

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def ids(self) -> list[str]:
        return [said["id"] or "" for _, said in self.elements if "id" in said]


def read_page(text: str) -> Page:
    """The page, if it is whole, names nothing twice, and neither runs nor loads anything."""
    assert text.startswith("<!doctype html>\n")
    page = Page(text.removeprefix("<!doctype html>\n"))
    ids = page.ids()
    assert len(set(ids)) == len(ids), "an id occurs twice"
    for tag, said in page.elements:
        assert tag not in ("script", "img", "link", "iframe", "object", "form", "base"), tag
        assert not any(name.startswith("on") or name in ("src", "srcset", "data", "action") for name in said), said
        for name in ("aria-labelledby", "href"):
            for wanted in (said.get(name) or "").split():
                assert wanted.removeprefix("#") in ids, (tag, said)
        assert not any("//" in value or "javascript:" in value for value in said.values() if value), said
    assert not any(word in page.style for word in ("@import", "url(", "//"))
    return page
