"""What each of two processes does with the default preset. See process_group.py."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import torch
from process_worker import job, write
from small_recipe import LOG, data, small
from small_run import Killed, die_after

from concf.data.prepare import prepare
from concf.data.split import Split
from concf.models import choose_settings, train_job
from concf.runs.run import Run
from concf.runs.settings import RunSettings
from concf.runtime.process_group import ALONE, ProcessGroup, joined

SEED = 5
DEFAULT, EVERYTHING, UNEVEN = "the default", "everything at once", "the last users only train"
CASES = DEFAULT, EVERYTHING, UNEVEN


@cache
def disliking() -> Split:
    """A log whose rows have counts, and of which every seventh is a dislike."""
    log = LOG.draw(1).with_columns(rating=pl.int_range(pl.len()) % 7)
    return prepare(log, protocol="random", dislike_below=1)


@cache
def uneven() -> Split:
    """A log whose last half of the users have one item each, and so hold out nothing: the second process has nobody."""
    log = LOG.draw(1).sort("user_id", maintain_order=True)
    last = pl.col("user_id") >= log["user_id"].unique().sort()[-24]
    split = prepare(pl.concat([log.filter(~last), log.filter(last).unique("user_id")]), protocol="random")
    assert split.validated.max() < ProcessGroup(1, 2).share(split.train.shape[0]).start
    return split


def case(name: str) -> tuple[Split, RunSettings]:
    if name == UNEVEN:
        return uneven(), choose_settings(small(budget="fast"), {"consensus_users": 9})
    if name == EVERYTHING:
        changes = {"budget": "thorough", "weights": {"function": "log"}}
        return disliking(), choose_settings(small(), changes)
    return data(), small()


def trained(name: str, group: ProcessGroup = ALONE, stop_after: int | None = None, **words: Any) -> Run | None:
    """To its end; or the first stages alone."""
    split, settings = case(name)
    watch = None if stop_after is None else die_after(stop_after)
    with suppress(Killed):
        return train_job(split, settings, job(group, watch=watch, **words), SEED, "cpu")
    return None


def work(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with joined(60) as group:
        for name in CASES:
            run = trained(name, group, out=folder / f"run of {name}")
            assert run is not None
            write(run, folder, name, group)
        trained(DEFAULT, group, 3, out=folder / "left by two")
        trained(DEFAULT, group, out=folder / "left by one", resume=True)
