"""What each of two processes does: trains every case, and writes what came of it. See process_group.py."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from small_run import LONG, often, small_data

from concf.cli.app import main as command_line
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfError
from concf.models import choose_settings, train_job
from concf.reference.objectives import FORMULATIONS, OBJECTIVES, Formulation
from concf.reference.run import ReferenceRun
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job, as_watchers
from concf.runs.run import Run
from concf.runs.settings import RunSettings
from concf.runtime.process_group import ALONE, ProcessGroup, joined

SEED = 5
for name in ("cml", "squared-error"):
    OBJECTIVES[f"only-votes-{name}"] = lambda *chosen, row=OBJECTIVES[name]: replace(row(*chosen), distilled=False)
FORMULATIONS["frozen"] = Formulation(window_moves=False, newest_votes=False)
CASES: dict[str, dict[str, Any]] = {
    "a frozen window": {"formulation": "frozen", "training": {"epochs": 5}},
    "two voters teach a student": {
        "objectives": ("squares=only-votes-squared-error", "cml=only-votes-cml", "student=bpr"),
        "model": {"encoder": "mf", "sharing": "none"},
        "consensus": {"non_voting": ("student",)},
        "balance": {"on": False},
    },
    "batches of three": {
        "objectives": ("bpr", "multinomial", "multinomial-users", "squared-error"),
        "model": {"encoder": "lightgcn"},
        "consensus": {"top_k": None},
        "training": {"batch": 3, "validated_users": 2},  # of 34 pairs: of the last one a process has none
    },
}
RESUMED = "a frozen window"  # the queue and the window of its checkpoint are not the same rankings


@cache
def data() -> Split:
    return prepare(Simulation(users=11, items=14, events=110, tastes=3).draw(1), protocol="random")


def settings(case: str) -> RunSettings:
    """`reference` scaled down, as in test_train.py: no dropout; decay, so that no true gradient is zero."""
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "encoder": "mlp", "dropout": 0.0, "initial_std": 0.3},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "length": 3},
        "balance": {"settle": 2},
        "training": {"epochs": 3, "batch": 20, "weight_decay": 1e-3, "metric": "recall@3"},
    }
    for part, values in CASES[case].items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings("reference", chosen)


def trained(case: str, group: ProcessGroup = ALONE, **words: Any) -> Run:
    return train_job(data(), settings(case), job(group, **words), SEED, "cpu")


def job(group: ProcessGroup, out: Path | None = None, resume: bool = False, watch: Any = None) -> Job:
    """Where it trains, and with whom."""
    return Job(None if out is None else RunFolder(out), resume, group, as_watchers(watch))


def stopped(case: str, after: int, out: Path, group: ProcessGroup = ALONE) -> None:
    """Train so many epochs of the case, with a checkpoint after each."""

    def watch(record: dict[str, Any]) -> None:
        if record["epoch"] == after - 1:
            raise InterruptedError

    try:
        with often():
            trained(case, group, out=out, watch=watch)
    except InterruptedError:
        return
    raise AssertionError("it went on")


def tensors(run: Run) -> dict[str, torch.Tensor]:
    """The model, and every head and consensus at its best."""
    found = dict(run.model.state_dict()) if isinstance(run, ReferenceRun) else {}
    for name, best in run.best.items():
        found |= {f"{name}/{part}": each for part, each in best.state.items()}
        found |= {f"{name}/lists": best.lists} if best.lists is not None else {}
        found |= {f"{name}/votes/{part}": each for part, each in best.votes.items()}
    return {name: each.contiguous().clone() for name, each in found.items()}


def write(run: Run, folder: Path, name: str, group: ProcessGroup) -> None:
    if group.is_main:
        (folder / f"{name}.json").write_text(json.dumps(run.history))
    save_file(tensors(run), folder / f"{name}.{group.rank}.safetensors")


def refused(group: ProcessGroup) -> str:
    try:
        train_job(data(), settings(RESUMED), Job(group=group), group.rank, "cpu")
    except ConcfError as error:
        return str(error)
    return "nothing"


def by_command(folder: Path) -> None:
    """`concf train` in single precision, a run for others of two processes to be held against."""
    prepared = small_data(folder / f"prepared {os.environ['RANK']}")  # the same in both
    torch.set_default_dtype(torch.float32)
    sys.argv = ["concf", "train", *map(str, [prepared, *LONG, "--device", "cpu", "--out", folder / "undisturbed"])]
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise AssertionError(end.code) from end


def work(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with joined(60) as group:
        for case in CASES:
            write(trained(case, group, out=folder / f"run of {case}"), folder, case, group)
        stopped(RESUMED, 2, folder / "stopped by two", group)
        write(trained(RESUMED, group, out=folder / "stopped by one", resume=True), folder, "resumed", group)
        (folder / f"refused.{group.rank}").write_text(refused(group))
    by_command(folder)
