"""HTML and SVG by one function, in which whatever is not markup already is escaped."""

from __future__ import annotations

import html
import re

VOID = {"meta", "br", "path", "line", "circle", "rect"}  # nothing stands in them
CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


class Safe(str):
    """Markup, in which all text is escaped."""

    __slots__ = ()


def text(value: object) -> Safe:
    """Any value as text. What cannot be seen, or turns the writing round, is shown by its number."""
    if isinstance(value, Safe):
        return value
    return Safe(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", html.escape(str(value))))


def joined(*parts: object) -> Safe:
    """One after the other; None is nothing."""
    return Safe("".join(text(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Safe:
    """An element; `class_` is the attribute class, `stroke_width` is stroke-width, None is none."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Safe(f"<{name}{said}/>")
    return Safe(f"<{name}{said}>{joined(*children)}</{name}>")
