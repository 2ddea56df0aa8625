"""Tables and bars in narrow windows: digits are never cut, names stay different, what is left out is said."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from conftest import on_a_terminal, until_closed
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from concf.runtime.progress import BAR, shortened_line
from concf.runtime.text_tables import GAP, fitted, shortened
from concf.training.config.presets import STRONG

HEADER = ["", "R@20", "N@20", "R@50", "N@50", "validation R@50", "epoch", ""]
HEADS = [*STRONG.objectives, "R-consensus", "consensus"]
ROWS = [
    [name, *(f"0.{k}23{figure}" for figure in range(4)), f"0.54{k}2", str(3 * k), "best head" if k == 5 else ""]
    for k, name in enumerate(HEADS)
]


def shown(header: list[str], rows: list[list[str]], width: int, title: str | None = None) -> str:
    table, _ = fitted(header, rows, title, width)
    console = Console(width=max(width, table.width), file=None, record=True, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def columns(header: list[str], rows: list[list[str]], width: int) -> list[int]:
    """Which columns are shown, by their texts."""
    table, dropped = fitted(header, rows, None, width)
    kept = [k for k, name in enumerate(header) if name not in dropped]
    assert [str(column.header) for column in table.columns] == [header[k] for k in kept]
    return kept


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 20])
def test_every_figure_of_a_table_is_whole_or_its_column_is_named(width: int) -> None:
    table, _ = fitted(HEADER, ROWS, None, width)
    lines = shown(HEADER, ROWS, width).splitlines()
    for place in columns(HEADER, ROWS, width)[1:]:
        for row in ROWS:
            assert any(row[place] in line for line in lines), (width, row[place])
    assert max(map(len, lines)) <= max(width, table.width)
    assert len({str(name) for name in table.columns[0].cells}) == len(HEADS)
    if width >= 60:
        assert table.width <= width


def test_at_80_columns_evaluate_loses_no_column_and_at_60_the_least_important() -> None:
    assert fitted(HEADER, ROWS, None, 80)[1] == []
    assert fitted(HEADER, ROWS, None, 60)[1] == ["validation R@50", "epoch"]
    assert fitted(HEADER, ROWS, None, 200)[0].show_edge
    assert not fitted(HEADER, ROWS, None, 80)[0].show_edge


def test_figures_with_spreads_are_one_piece_and_words_wrap() -> None:
    header = ["model", "R@20", "N@20", "R@50", "p (R@50)", "settings"]
    rows = [
        ["concf:strong consensus", *["0.1234 ± 0.0012"] * 3, "best", "preset strong, ship consensus"],
        ["rp3beta", *["0.1134 ± 0.0011"] * 3, "0.0012", "alpha 0.5*, beta 0.2, neighbours 200"],
    ]
    for width in (200, 100, 80, 60):
        text = shown(header, rows, width)
        places = columns(header, rows, width)
        assert text.count("0.1134 ± 0.0011") == sum(place in (1, 2, 3) for place in places)
    assert "settings" in fitted(header, rows, None, 80)[1]
    what = "articles that people have put into their libraries, long ago and far away"
    catalogue = [["citeulike", what, "yes"]]
    text = shown(["name", "what", "here"], catalogue, 60)
    assert fitted(["name", "what", "here"], catalogue, None, 60)[1] == []
    assert {*what.split(), "yes"} <= set(text.split())


def test_square_brackets_are_no_markup() -> None:
    assert "[red]" in shown(["item", "what"], [["[red]", "[bold]x"]], 80, "[blue]")
    assert "[blue]" in shown(["item", "what"], [["[red]", "[bold]x"]], 80, "[blue]")


@given(st.lists(st.text("abc@#.0123", min_size=1, max_size=40), min_size=1, max_size=6), st.integers(3, 40))
def test_short_names_stay_and_long_ones_fit(names: list[str], width: int) -> None:
    cut = shortened(names, width)
    assert all(len(each) <= width for each in cut)
    assert all(each == name for each, name in zip(cut, names, strict=True) if len(name) <= width)


def test_numbers_within_names_are_not_torn_apart() -> None:
    names = ["weighted-squares@0.03#student", "weighted-squares@0.04#student", "weighted-squares@0.02"]
    for width in range(14, 28):
        cut = shortened(names, width)
        assert len(set(cut)) == 3
        assert all(re.search(r"(^|[^\d.])0\.0\d", each) for each in cut)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9),
    st.text("abcdefghij-@", min_size=1, max_size=50),
    st.integers(20, 120),
)
def test_what_fits_is_no_wider_than_the_window(values: list[float], name: str, width: int) -> None:
    header = ["model", *(f"R@{n}" for n in range(len(values)))]
    row = [name, *(f"{value:.4f}" for value in values)]
    table, _ = fitted(header, [row], None, width)
    cells = [row[place] for place in columns(header, [row], width)]
    assert all(len(cell) <= column.max_width for cell, column in zip(cells[1:], table.columns[1:], strict=True))
    assert table.width <= max(width, min(len(name), 16) + (6 + GAP) * (len(cells) - 1))


def test_of_a_note_the_last_part_gives_way_first_and_no_digit_is_cut() -> None:
    note = "R@50 consensus .4321, weighted-squares@0.03#student .4300"
    assert shortened_line("training", note, 100) == f"training  {note}"
    assert shortened_line("training", note, 40) == "training  R@50 consensus .4321"
    assert shortened_line("training", note, 20) == "training"
    assert shortened_line("reading a-very-long-name-of-a-log.parquet", "", 20) == "reading a…og.parquet"


EVALUATED = f"""
from concf.cli.output import print_table
print_table({HEADER!r}, {ROWS!r}, title="test figures")
"""
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


@pytest.mark.parametrize("columns", [80, 60])
def test_a_table_on_a_terminal(columns: int) -> None:
    lines = in_a_window(EVALUATED, columns)
    assert max(map(len, lines)) <= max(columns, 80)
    for row in ROWS:
        assert any(all(figure in line for figure in row[1:5]) for line in lines)
    assert any("No room for validation R@50, epoch" in line for line in lines) == (columns == 60)


@pytest.mark.parametrize("columns", [80, 60])
def test_a_bar_keeps_its_width_and_tells_the_time_that_is_left(columns: int) -> None:
    bars = [line for line in in_a_window(WORKED, columns) if line.startswith("training")]
    assert bars
    assert all(len(line) <= columns for line in bars)
    assert all(sum(mark in "━╸╺" for mark in line) >= BAR for line in bars)
    assert re.search(r"5/70 0:00:0\d left 0:0\d:\d\d", bars[-1])
    assert (" R@50 consensus .4321 " in bars[-1]) == (columns == 80)


def test_without_a_terminal_a_table_has_all_columns() -> None:
    plain = subprocess.run([sys.executable, "-c", EVALUATED], capture_output=True, text=True, check=True).stdout
    assert all(name in plain for name in (*HEADS, "validation R@50", "epoch", "best head"))
    assert on_a_terminal([sys.executable, "-c", EVALUATED])[1] == plain
