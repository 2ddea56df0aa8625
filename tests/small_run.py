"""A run so small that it takes a second, and what two runs are compared by."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.models import choose_settings, train
from concf.runs import job
from concf.runs.checkpoint import CARD, CHECKPOINT, HISTORY
from concf.runtime.files import BLANK, FIELD, seal

CLI = Callable[..., tuple[int, str, str]]
SMALL = (
    "training.epochs=10", "training.batch=128", "training.metric=recall@5", "model.dimensions=8", "consensus.every=2",
    "consensus.window=2", "consensus.top_k=8", "consensus.length=4",
    "consensus.shown=12",
)  # fmt: skip
SETS = ["--preset", "reference", *(word for each in SMALL for word in ("--set", each))]
# Long enough to be disturbed.
LONG = [*SETS, "--set", "training.epochs=14", "--set", "training.patience=none"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}  # as many threads as the runs in this process have


def small_data(folder: Path) -> Path:
    """A prepared data set."""
    prepare(Simulation(users=40, items=30, events=900, tastes=4).draw(1), protocol="random", out=folder)
    return folder


def trained_run(data: Path, out: Path, *words: str) -> Path:
    """A run of preset `reference`, and of those settings over the small ones."""
    train(Split.load(data), choose_settings("reference", words=[*SMALL, *words]), out=out)
    return out


def stopped_run(data: Path, out: Path, *words: str) -> Path:
    """The same, stopped after its sixth epoch."""

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 5:
            raise KeyboardInterrupt

    chosen = choose_settings("reference", words=[*SMALL, *words])
    with suppress(KeyboardInterrupt), often():
        train(Split.load(data), chosen, out=out, watch=stop)
        raise AssertionError("it came to its end")
    return out


@contextmanager
def often() -> Iterator[None]:
    """Checkpoints after every epoch."""
    seconds = job.CHECKPOINT_SECONDS
    job.CHECKPOINT_SECONDS = 0.0
    try:
        yield
    finally:
        job.CHECKPOINT_SECONDS = seconds


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with safe_open(folder / CHECKPOINT, framework="pt") as file:
        return json.loads(file.metadata()["concf"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_checkpoint(folder: Path, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Another one in its place, with its checksum."""
    save_file(tensors, folder / CHECKPOINT, metadata={"concf": json.dumps(state), FIELD: BLANK})
    seal(folder / CHECKPOINT)


def history(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / HISTORY).read_text().splitlines()]
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in records]


def assert_same_end(folder: Path, other: Path) -> None:
    assert history(folder) == history(other)
    assert (folder / CARD).read_text() == (other / CARD).read_text()
    (state, tensors), (other_state, other_tensors) = checkpoint(folder), checkpoint(other)
    assert state == other_state
    assert state["state"]["finished"]
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == other_tensors[name].dtype
        assert tensor.numpy().tobytes() == other_tensors[name].numpy().tobytes(), name


class Killed(Exception):
    """A run that ends in the middle."""


def die_after(last: int) -> Callable[[dict[str, Any]], None]:
    """A watch that ends a run after an epoch or stage."""

    def die(record: dict[str, Any]) -> None:
        if record["epoch"] == last:
            raise Killed

    return die
