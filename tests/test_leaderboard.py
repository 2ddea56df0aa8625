"""Every published line of the leaderboard has its form."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from leaderboard import board

from concf.errors import DataError

ENTRIES = sorted(board.ENTRIES.iterdir())


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_has_its_form(path: Path) -> None:
    entry = board._read(path.name, tomllib.loads(path.read_text(encoding="utf-8")))
    assert path.suffix == ".toml"
    assert path.stem.startswith(f"{entry.data}-")
    assert entry.commit is None, "ours come from benchmarks/results"


@pytest.mark.parametrize("change", [{"recal": 0.1}, {"recall": 18.2}, {"split": "0" * 64}, {"seconds": 5.0}])
def test_a_wrong_entry_is_refused(change: dict[str, object]) -> None:
    right = tomllib.loads(ENTRIES[0].read_text(encoding="utf-8"))
    with pytest.raises(DataError, match=r"mine\.toml"):
        board._read("mine.toml", right | change)
