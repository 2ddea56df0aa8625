"""Tables and bars in narrow windows: digits are never cut, and no text of a table is lost."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from conftest import until_closed
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from concf.runtime.progress import BAR, shortened_line
from concf.runtime.text_tables import MIN_TEXT, text_table


def shown(header: list[str], rows: list[list[str]], width: int, title: str | None = None) -> str:
    table = text_table(header, rows, title, width)
    console = Console(width=table.width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


WORDS = st.text("abc@#. 0123[]", max_size=40).map(str.strip)
FIGURES = st.floats(0, 1).map("{:.4f}".format) | st.integers(0, 10**9).map("{:,}".format) | st.just("0.1234 ± 0.0012")


@given(st.lists(st.tuples(WORDS, FIGURES, FIGURES, WORDS), min_size=1, max_size=5), st.integers(1, 200))
def test_every_figure_is_in_one_piece_and_no_text_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    header = ["model", "R@20", "validation R@50", "settings"]
    text = shown(header, [list(row) for row in rows], width)
    lines = text.splitlines()
    for row in rows:
        assert any(row[1] in line and row[2] in line for line in lines)
    expected = "".join(["".join(row) for row in [header, *rows]])
    assert sorted(re.sub(r"[\s─]", "", text)) == sorted(re.sub(r"\s", "", expected))
    figures = [max(map(len, column)) for column in zip(*[header, *rows], strict=True)][1:3]
    assert max(map(len, lines)) <= max(width, sum(figures) + 2 * MIN_TEXT + 6)


def test_square_brackets_are_no_markup() -> None:
    text = shown(["item", "what"], [["[red]", "[bold]x"]], 80, "[blue]")
    assert all(word in text for word in ("[red]", "[bold]x", "[blue]"))


def test_of_a_note_the_last_part_gives_way_first_and_no_digit_is_cut() -> None:
    note = "R@50 consensus .4321, weighted-squares@0.03#student .4300"
    assert shortened_line("training", note, 100) == f"training  {note}"
    assert shortened_line("training", note, 40) == "training  R@50 consensus .4321"
    assert shortened_line("training", note, 20) == "training"
    assert shortened_line("reading a-very-long-name-of-a-log.parquet", "", 20) == "reading a…og.parquet"


WORKED = """
import time
import concf.runtime.progress
concf.runtime.progress.PATIENCE = 0.0
with concf.runtime.progress.working("training", 70) as advance:
    for step in range(5):
        time.sleep(0.3)
        advance(1, "R@50 consensus .4321, weighted-squares@0.03#student .4300")
    time.sleep(0.5)  # until it is drawn
"""


def in_a_window(script: str, columns: int) -> list[str]:
    """The lines that a program writes to a terminal of so many columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    quiet = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=quiet | {"TERM": "xterm"}
    )
    os.close(theirs)
    text = until_closed(ours)
    assert process.wait() == 0
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()))


def test_a_bar_keeps_its_width_and_tells_the_time_that_is_left() -> None:
    columns = 60
    bars = [line for line in in_a_window(WORKED, columns) if line.startswith("training")]
    assert bars
    assert all(len(line) <= columns for line in bars)
    assert all(sum(mark in "━╸╺" for mark in line) >= BAR for line in bars)
    assert re.search(r"5/70 0:00:0\d left 0:0\d:\d\d", bars[-1])
