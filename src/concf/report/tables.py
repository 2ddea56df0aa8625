"""Tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from concf.report.markup import Safe, tag


def table(
    header: Sequence[object], rows: Sequence[Sequence[object]], *, caption: str | None = None, rule: int | None = None,
    kind: str | None = None,
) -> Safe:  # fmt: skip
    """The first column names the rows. rule: the row before which a line is drawn; kind: a class, such as words."""
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]),
            class_="rule" if place == rule else None)
        for place, row in enumerate(rows)
    ]  # fmt: skip
    named = tag("caption", caption) if caption else None
    return scrolling(tag("table", named, tag("thead", head), tag("tbody", *body), class_=kind), caption or "Table")


def scrolling(inner: Safe, label: str) -> Safe:
    """What may be wider than the page; the keyboard reaches it."""
    return tag("div", inner, class_="wide", tabindex=0, role="region", aria_label=label)


def facts(caption: str, told: Mapping[str, object]) -> Safe:
    """Names and values, one below the other."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in told.items()]
    return scrolling(tag("table", tag("caption", caption), tag("tbody", *rows)), caption)
