"""What each of several processes does: trains every case, and writes what came of it. See process_group.py."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from small_run import LONG, small_data

from concf.cli.app import main as command_line
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfError
from concf.runtime.process_group import ALONE, ProcessGroup, joined
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run
from concf.training.train import train

SEED = 5
CASES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "lightgcn": {"model": {"encoder": "lightgcn"}},
    "paper": {"preset": "paper"},
    "released": {"preset": "released", "training": {"epochs": 5}},
    "squares and cosines teach a student": {
        "objectives": ("als-a=weighted-squares@0.02", "cosine-softmax@0.2", "student=weighted-squares"),
        "model": {"encoder": "mf", "sharing": "none"},
        "consensus": {"warm_up": 2, "non_voting": ("student",), "undistilled": ("als-a", "cosine-softmax@0.2")},
        "balance": {"on": False},
        "training": {"order": "users"},
    },
    "shared squares and cosines": {
        "objectives": ("weighted-squares@0.02", "cosine-softmax@0.2", "squared-error-everywhere", "multinomial"),
        "losses": {"unobserved": 0.2},
    },
    "everything is taught in batches of four": {
        "consensus": {"top_k": None, "kept": None, "tail": None, "undistilled": ()},
        "training": {"batch": 4},  # of 34 pairs: of the last two one process of three has none
    },
    "one batch, and the consensus target carries the weight": {
        "consensus": {"weight_range": None, "weight": 0.3},
        "training": {"batch": 4096},
        "balance": {"update": "epoch"},
    },
    "a table for each head": {
        "objectives": ("bpr", "cml", "multinomial", "multinomial-users"),
        "model": {"encoder": "mf", "sharing": "none"},
        "balance": {"on": False},
        "training": {"order": "users"},
    },
    "a sampled softmax, by user": {
        "objectives": ("cosine-softmax@0.4", "multinomial", "multinomial-users"),
        "losses": {"softmax_samples": 5, "softmax_power": 0.7},
        "training": {"order": "users", "batch": 7},
    },
    "one head, two users validated": {
        "objectives": ("multinomial",),
        "training": {"watch": "multinomial", "validated_users": 2},
    },
    "a frozen window": {"consensus": {"window_moves": False, "newest_votes": False}, "training": {"epochs": 5}},
}
OF_THREE = "everything is taught in batches of four"  # two processes have some of every batch, as in other cases
FEW = ("squares and cosines teach a student", OF_THREE)
RESUMED = "a frozen window"  # the queue and the window of its checkpoint are not the same rankings


@cache
def data() -> Split:
    return prepare(Simulation(users=11, items=14, events=110, tastes=3).draw(1), protocol="random")


def settings(case: str) -> ConCFSettings:
    """A preset scaled down, as in test_train.py: no dropout; decay, so that no true gradient is zero."""
    changes = dict(CASES[case])
    base = changes.pop("preset", "reference")
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "encoder": "mlp", "dropout": 0.0, "layers": 2},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "kept": 8, "length": 3, "tail": 6},
        "training": {"epochs": 3, "batch": 20, "weight_decay": 1e-3, "metric": "recall@3"},
    }
    if base != "paper":
        chosen["model"]["initial_std"], chosen["balance"] = 0.3, {"settle": 2}
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings(base, chosen)


def trained(case: str, group: ProcessGroup = ALONE, **words: Any) -> Run:
    return train(data(), settings(case), seed=SEED, device="cpu", group=group, **words)


def stopped(case: str, after: int, out: Path, group: ProcessGroup = ALONE) -> None:
    """Train so many epochs of the case, with a checkpoint after each."""

    def watch(record: dict[str, Any]) -> None:
        if record["epoch"] == after - 1:
            raise InterruptedError

    try:
        trained(case, group, out=out, checkpoint_seconds=0, watch=watch)
    except InterruptedError:
        return
    raise AssertionError("it went on")


def tensors(run: Run) -> dict[str, torch.Tensor]:
    """The model, and every head and consensus at its best."""
    found = dict(run.model.state_dict())
    for name, best in run.best.items():
        found |= {f"{name}/{part}": each for part, each in best.state.items()}
        found |= {f"{name}/lists": best.lists} if best.lists is not None else {}
        found |= {f"{name}/votes/{part}": each for part, each in best.votes.items()}
    return {name: each.contiguous().clone() for name, each in found.items()}


def write(run: Run, folder: Path, name: str, group: ProcessGroup) -> None:
    if group.is_main:
        (folder / f"{name}.json").write_text(json.dumps(run.history))
    save_file(tensors(run), folder / f"{name}.{group.rank}.safetensors")


def refused(group: ProcessGroup, chosen: ConCFSettings, **words: Any) -> str:
    try:
        train(data(), chosen, group=group, device="cpu", **words)
    except ConcfError as error:
        return str(error)
    return "nothing"


def on_a_full_disk(group: ProcessGroup, out: Path) -> str:
    """What a process says when the one that writes may write no more than 9,000 bytes to a file."""
    import resource  # not on every system

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if group.is_main:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, unlimited[1]))
    try:
        return refused(group, settings("mlp"), out=out, checkpoint_seconds=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def cases(processes: int) -> tuple[str, ...]:
    return {1: ("mlp",), 2: tuple(case for case in CASES if case != OF_THREE)}.get(processes, FEW)


def by_command(out: Path, *words: object) -> None:
    """`concf train`, in the processes that are there."""
    sys.argv = ["concf", "train", *map(str, words), "--out", str(out)]
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise AssertionError(end.code) from end


def run_command(folder: Path) -> None:
    """In single precision, a run for others of two processes to be held against."""
    prepared = small_data(folder / f"prepared {os.environ['RANK']}")  # the same in both
    torch.set_default_dtype(torch.float32)
    by_command(folder / "undisturbed", prepared, *LONG, "--device", "cpu")
    torch.set_default_dtype(torch.float64)


def train_all(group: ProcessGroup, folder: Path) -> None:
    for case in cases(group.size):
        write(trained(case, group, out=folder / f"run of {case}"), folder, case, group)
    stopped(RESUMED, 2, folder / "stopped here", group)
    write(trained(RESUMED, group, out=folder / "stopped alone", resume=True), folder, "resumed", group)
    if group.size == 2:
        trained(RESUMED, group, out=folder.parent / "3" / "stopped here", resume=True)
    if group.several:
        (folder / f"refused.{group.rank}").write_text(refused(group, settings("mlp"), seed=group.rank))


def work(folder: Path) -> None:
    """With all processes, then with one fewer: each of them begins anew on the store that the others have used."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    while int(os.environ["RANK"]) < (size := int(os.environ["WORLD_SIZE"])):
        here = folder / str(size)
        here.mkdir(exist_ok=True)
        with joined(60) as group:
            train_all(group, here)
        if size == 2:
            run_command(here)
            with joined(60) as group:
                (here / f"full.{group.rank}").write_text(on_a_full_disk(group, here / "full disk"))
                sys.stdout.flush()
                os._exit(0)  # as after any error: nobody waits for the others
        os.environ["WORLD_SIZE"] = str(size - 1)
