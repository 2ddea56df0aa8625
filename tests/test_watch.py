"""`make accuracy` and `make speed` fail when they should: against lines that were doctored, without training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import watch

GOOD = {"consensus recall@50": 0.30, "head ndcg@50": 0.20}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every training gives the same figures, but for the last digit by its seed."""
    monkeypatch.setattr(watch, "prepare", lambda name, **_: SimpleNamespace(hash=f"hash of {name}"))
    monkeypatch.setattr(
        watch, "figures_of", lambda _, seed: {name: value + 0.001 * seed for name, value in GOOD.items()}
    )
    monkeypatch.setattr(watch, "ratios", lambda: {"training": 9.0, "lists": 2.0})


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["watch.py", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        watch.main()
    return int(end.value.code or 0)


def doctor(path: Path, name: str, factor: float) -> None:
    """Multiply what the lines say of one figure."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        known: dict[str, Any] = line.get("figures") or line["ratios"]
        known[name] = [factor * each for each in known[name]] if isinstance(known[name], list) else factor * known[name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("what", "name", "allowed", "too_much"), [("accuracy", "head ndcg@50", 1.005, 1.03), ("speed", "lists", 0.8, 0.5)]
)
def test_a_line_is_written_held_and_broken(
    what: str, name: str, allowed: float, too_much: float,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(monkeypatch, what, "--results", tmp_path) == 1  # there is no line yet
    assert "no line" in capsys.readouterr().out
    assert run(monkeypatch, what, "--write", "--results", tmp_path) == 0
    path = tmp_path / f"{what}.jsonl"
    doctor(path, name, allowed)
    assert run(monkeypatch, what, "--results", tmp_path) == 0
    assert f"{what}: as it was" in capsys.readouterr().out
    doctor(path, name, too_much / allowed)
    assert run(monkeypatch, what, "--results", tmp_path) == 1
    assert f"{name}" in capsys.readouterr().out.splitlines()[-1]


def test_noise_is_three_deviations_or_half_a_per_cent() -> None:
    assert watch.lowest([0.2, 0.2, 0.2]) == pytest.approx(0.2 * 0.995)
    assert watch.lowest([0.1, 0.2, 0.3]) == pytest.approx(0.2 - 3 * 0.1)
