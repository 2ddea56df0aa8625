"""Tables and bars in narrow windows: digits are never cut, and no text of a table is lost."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from concf.runtime.text_tables import MIN_TEXT, text_table


def shown(header: list[str], rows: list[list[str]], width: int, title: str | None = None) -> str:
    table = text_table(header, rows, title, width)
    console = Console(width=table.width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


WORDS = st.text("abc@#. 0123[]", max_size=40).map(str.strip)
NUMBERS = st.floats(0, 1).map("{:.4f}".format) | st.integers(0, 10**9).map("{:,}".format) | st.just("0.1234 ± 0.0012")


@given(st.lists(st.tuples(WORDS, NUMBERS, NUMBERS, WORDS), min_size=1, max_size=5), st.integers(1, 200))
def test_every_number_is_in_one_piece_and_no_text_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    header = ["model", "R@20", "validation R@50", "settings"]
    text = shown(header, [list(row) for row in rows], width)
    lines = text.splitlines()
    for row in rows:
        assert any(row[1] in line and row[2] in line for line in lines)
    expected = "".join(["".join(row) for row in [header, *rows]])
    assert sorted(re.sub(r"[\s─]", "", text)) == sorted(re.sub(r"\s", "", expected))
    numbers = [max(map(len, column)) for column in zip(*[header, *rows], strict=True)][1:3]
    assert max(map(len, lines)) <= max(width, sum(numbers) + 2 * MIN_TEXT + 6)


def test_square_brackets_are_no_markup() -> None:
    text = shown(["item", "what"], [["[red]", "[bold]x"]], 80, "[blue]")
    assert all(word in text for word in ("[red]", "[bold]x", "[blue]"))
