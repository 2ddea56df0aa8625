"""What each of several processes does with the default preset. See process_group.py."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
import torch
from process_worker import by_command, write
from scipy.sparse import csr_array
from small_recipe import LOG, data, small
from small_run import Killed, die_after

from concf.data.prepare import prepare
from concf.data.split import Split
from concf.runtime import process_group
from concf.runtime.process_group import ALONE, ProcessGroup, joined
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run
from concf.training.train import train

SEED = 5
DEFAULT, EVERYTHING, UNEVEN, FEW = "the default", "everything at once", "the last users only train", "some are asked"
CASES = {4: (UNEVEN,), 3: (DEFAULT, EVERYTHING), 2: (DEFAULT, FEW)}
COMMAND = ["--set", "model.dimensions=8", "--set", "training.metric=recall@5", "--device", "cpu"]
ELASTIC = {4: 1, 3: 3, 2: None}  # processes -> the last stage that they do of a run that the others go on with


@cache
def disliking() -> Split:
    """A log whose rows have counts, and of which every seventh is a dislike."""
    log = LOG.draw(1).with_row_index("row")
    return prepare(
        log.filter(pl.col("row") % 7 > 0).drop("row"), protocol="random",
        dislikes=log.filter(pl.col("row") % 7 == 0).select("user_id", "item_id"),
    )  # fmt: skip


@cache
def uneven() -> Split:
    """A log whose last quarter of the users have one item each, and so hold out nothing."""
    log = LOG.draw(1).sort("user_id", maintain_order=True)
    last = pl.col("user_id") >= log["user_id"].unique().sort()[-13]
    return prepare(pl.concat([log.filter(~last), log.filter(last).unique("user_id")]), protocol="random")


def case(name: str) -> tuple[Split, ConCFSettings]:
    if name == UNEVEN:
        return uneven(), small()
    if name == EVERYTHING:
        changes = {"recipe": {"budget": "thorough", "popularity_groups": 2}, "weights": {"function": "log"}}
        return disliking(), choose_settings(small(), changes)
    return data(), choose_settings(small(), {"recipe": {"asked_users": 9}}) if name == FEW else small()


def trained(name: str, group: ProcessGroup = ALONE, stop_after: int | None = None, **words: Any) -> Run | None:
    """To its end; or the first stages alone."""
    split, settings = case(name)
    watch = None if stop_after is None else die_after(stop_after)
    with suppress(Killed):
        return train(split, settings, seed=SEED, device="cpu", group=group, watch=watch, **words)
    return None


def train_all(group: ProcessGroup, folder: Path) -> None:
    in_pieces = patch.object(process_group, "PIECE", 256)  # lists are gathered in many pieces
    with in_pieces if group.size == 2 else nullcontext():
        _train_all(group, folder)


def _train_all(group: ProcessGroup, folder: Path) -> None:
    for name in CASES[group.size]:
        run = trained(name, group, out=folder / f"run of {name}")
        assert run is not None
        write(run, folder, name, group)
    if group.size == 4:
        trained(DEFAULT, group, 4, out=folder / "left")
    trained(DEFAULT, group, ELASTIC[group.size], out=folder.parent / "elastic", resume=group.size < max(ELASTIC))


def anonymous() -> int:
    """Bytes of this process that no file is behind."""
    fields = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    return next(1024 * int(field[1]) for field in fields if field[0] == "Anonymous:")


def pages(length: int) -> tuple[int, int]:
    """(Rss, Pss) in bytes of what is mapped of removed files of at least that length."""
    found, sizes = False, {"Rss:": 0, "Pss:": 0}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            begin, end = (int(each, 16) for each in first.split("-"))
            found = rest[-1:] == ["(deleted)"] and "concf-" in line and end - begin >= length
        elif found and first in sizes:
            sizes[first] += 1024 * int(rest[0])
    return sizes["Rss:"], sizes["Pss:"]


def map_a_matrix(group: ProcessGroup) -> dict[str, int]:
    """How much memory a matrix of 64 MB takes that the processes share and have all read."""
    made = []

    def make() -> csr_array:
        made.append(group.rank)
        cells = np.arange(1 << 23, dtype=np.int32)
        return csr_array((cells.astype(np.float32), cells, np.array([0, 1 << 22, 1 << 23], np.int32)), (2, 1 << 23))

    def late(*words: Any, **more: Any) -> Any:
        time.sleep(0.2 * (group.rank == group.size - 1))  # the file stays until the last one has mapped it
        return load(*words, **more)

    before, load = anonymous(), np.load
    with patch("numpy.load", late):
        matrix = group.shared(make)
    assert made == [0] * (group.rank == 0)
    total = (1 << 22) * ((1 << 23) - 1)  # of all numbers below 2^23
    assert int(matrix.indices.sum(dtype=np.int64)) == float(matrix.data.sum(dtype=np.float64)) == total
    group.barrier()
    rss, pss = pages(1 << 24)
    found = {"more": anonymous() - before, "rss": rss, "pss": pss}
    group.barrier()
    matrix.data[0] = 7.0 + group.rank  # its own page
    group.barrier()
    assert matrix.data[0] == 7.0 + group.rank
    return found


def work(folder: Path) -> None:
    """With all processes, then with one fewer."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    while int(os.environ["RANK"]) < (size := int(os.environ["WORLD_SIZE"])) > 1:
        here = folder / str(size)
        here.mkdir(exist_ok=True)
        with joined(60) as group:
            train_all(group, here)
            if Path("/proc/self/smaps").exists():
                (here / f"memory.{group.rank}").write_text(json.dumps(map_a_matrix(group)))
        if size == 2:
            torch.set_default_dtype(torch.float32)
            by_command(folder / "undisturbed", folder / "data", *COMMAND)
        os.environ["WORLD_SIZE"] = str(size - 1)
