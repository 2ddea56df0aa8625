"""Processes on GPUs train as one does. Not collected by itself: `pytest --noconftest tests/gpu_processes.py`.

With one GPU there are two halves of the proof: a process that is alone but takes its collectives for those of several
talks by NCCL, and two processes that share the GPU talk by gloo. With two GPUs, two processes talk by NCCL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu_kernels import settings, small, with_a_student

from concf import models as training
from concf.data.split import Split
from concf.models import choose_settings
from concf.reference import cuda_graphs as capture
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job
from concf.runs.settings import RunSettings
from concf.runtime import process_group as groups
from concf.runtime.process_group import ProcessGroup

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")

EPOCHS = 3
WAIT = 300  # seconds after which a test gives up
CHANGES: dict[str, dict[str, Any]] = {
    "mlp": {"encoder": "mlp"},
    "mf": {"encoder": "mf"},
    "lightgcn": {"encoder": "lightgcn"},
    "student": {"encoder": "mf", "sharing": "none"},
}
STRONG = "strong"  # the default preset


class Several(ProcessGroup):
    """One process that talks as if there were others."""

    @property
    def several(self) -> bool:
        return True


def chosen(case: str) -> RunSettings:
    if case == STRONG:
        consensus = {"top_k": 40, "shown": 40}
        changes = {"dimensions": 16, "consensus": consensus, "training": {"metric": "recall@10"}}
        return choose_settings("strong", changes)
    model = {"dimensions": 24, "dropout": 0.0, "initial_std": 0.3} | CHANGES[case]
    limits = {"epochs": EPOCHS, "batch": 64, "metric": "recall@10"}
    if case == "student":
        return with_a_student(model=model, training=limits)
    return settings("reference", model=model, training=limits | {"weight_decay": 1e-3})


def data(case: str) -> Split:
    return small(300, 120) if case == STRONG else small()


def trained(case: str, group: ProcessGroup = groups.ALONE, out: Path | None = None) -> list[dict[str, Any]]:
    return training.train_job(
        data(case), chosen(case), Job(RunFolder(out) if out else None, group=group), 3, "cuda"
    ).history


def train_all(group: ProcessGroup, folder: Path) -> None:
    """Every case in double precision, and one in single, in which the GPU's own kernels are used."""
    for case in (*CHANGES, STRONG):
        found = trained(case, group, out=folder / f"run of {case}")
        if group.is_main:
            (folder / f"{case}.json").write_text(json.dumps(found))
    torch.set_default_dtype(torch.float32)
    found = trained("mlp", group)
    if group.is_main:
        (folder / "single.json").write_text(json.dumps(found))


def main() -> None:
    """What torchrun starts: process_group of NCCL if every process has a GPU of its own, else of gloo on the first."""
    torch.set_default_dtype(torch.float64)
    folder, size = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        dist.init_process_group(groups._backend(), timeout=timedelta(seconds=60))
        train_all(Several(), folder)
        dist.destroy_process_group()
        return
    shared = torch.cuda.device_count() < size
    if shared:
        groups._backend = lambda: "gloo"
    with groups.joined(60) as group:
        train_all(replace(group, local_rank=0) if shared else group, folder)


def assert_close(found: Any, expected: Any, where: tuple[str, ...] = ()) -> None:
    """Compare two records but for their times: numbers up to rounding, names exactly."""
    if isinstance(expected, dict):
        timeless = [{name for name in record if "seconds" not in name} for record in (found, expected)]
        assert timeless[0] == timeless[1], where
        for name in timeless[0]:
            assert_close(found[name], expected[name], (*where, name))
    elif isinstance(expected, str):
        assert found == expected, where
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), where


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_on_gpus_train_as_one(processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    traced = os.environ | {"PYTHONFAULTHANDLER": "1"}  # a process that aborts says where
    done = subprocess.run([*command, __file__, tmp_path], capture_output=True, text=True, timeout=WAIT, env=traced)
    assert not done.returncode, done.stderr[-3000:]
    monkeypatch.setattr(capture, "WARM_UP", 10**9)  # steps of several processes are not captured
    torch.set_default_dtype(torch.float64)
    try:
        expected = {case: trained(case) for case in (*CHANGES, STRONG)}
    finally:
        torch.set_default_dtype(torch.float32)
    for case, alone in expected.items():
        for mine, theirs in zip(json.loads((tmp_path / f"{case}.json").read_text()), alone, strict=True):
            assert_close(mine, theirs, (case,))
    alone, found = trained("mlp"), json.loads((tmp_path / "single.json").read_text())
    for name in ("loss", "consensus_loss"):
        for mine, theirs in zip(found, alone, strict=True):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-2, abs=1e-6), name


if __name__ == "__main__":
    main()
