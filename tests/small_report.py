"""Runs so small that they are trained at once, and their reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from page_reader import Page, read_page
from small_run import SMALL

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.training.config.presets import choose_settings
from concf.training.train import train

CLI = Callable[..., tuple[int, str, str]]
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1).select("user_id", "item_id")


def trained(folder: Path, *words: str, log: pl.DataFrame = LOG, preset: str = "reference") -> Path:
    split = prepare(log, protocol="random", out=folder / "data")
    train(split, choose_settings(preset, words=[*SMALL, *words]), out=folder / "run", data_folder=folder / "data")
    return folder / "run"


def reported(concf: CLI, folder: Path, *words: object) -> tuple[dict[str, Any], Page]:
    """The command's JSON, and the page that it writes."""
    path = folder.parent / "page.html"
    code, out, err = concf("report", folder, "--json", "--out", path, *words)
    assert code == 0, err
    assert "NaN" not in out
    return json.loads(out), read_page(path.read_text(encoding="utf-8"))
