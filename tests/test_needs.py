"""What does not fit into memory is refused before anything is trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_recipe import data, small
from small_run import QUIET

from concf.consensus.reranker import n_features
from concf.errors import ConfigError
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.training import memory
from concf.training.config.presets import choose_settings
from concf.training.memory import available_memory
from concf.training.recipe import needs
from concf.training.recipe.needs import least_memory, must_spill
from concf.training.train import train

CPU = torch.device("cpu")


def test_the_least_is_what_is_there_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 48 users, 40 items, 4 heads of 8 factors, one voter more, lists of 12 and 40 items, features of 40 items."""
    split, settings = data(), small()
    users, items = split.train.shape
    tables = 2 * 4 * (users + items) * 8 * 4
    lists = 3 * users * min(40, items) * 4
    asked = users * 12 * (2 * 4 * 4 + 3 * 4)
    solved = 4 * users * 12 * 4 + (split.train.nnz + split.valid.nnz + 64 * users) * (24 + 2 * 16)
    fitted = len(split.validated) * 40 * n_features(4, 3, 1) * 4
    assert least_memory(split, settings, ALONE) == tables + max(fitted, lists + asked, lists + solved)
    monkeypatch.setattr(needs, "MOST_LEARNERS", 1)
    assert least_memory(split, settings, ALONE) == tables + lists + max(asked, solved)
    halves = [least_memory(split, settings, ProcessGroup(rank, 2)) for rank in (0, 1)]
    assert halves[0] == halves[1] < least_memory(split, settings, ALONE)
    pairs = (split.train.nnz + split.valid.nnz + 64 * users) // 2
    sharded = (4 * (users // 2 * 2 + 2 * (items // 2)) + 3 * items) * 8 * 4
    solved = users // 2 * (3 * min(40, items) * 4 + 4 * 12 * 4) + pairs * (2 * 24 + 2 * 16) + 2 * users * 8 * 4
    assert least_memory(split, settings, ProcessGroup(0, 2, shards=True)) == sharded + solved < halves[0]
    wider = choose_settings(settings, {"model": {"dimensions": 16}})
    assert least_memory(split, wider, ALONE) - least_memory(split, settings, ALONE) == tables


def test_what_does_not_fit_is_refused_with_what_may(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = least_memory(data(), small(), ALONE)
    monkeypatch.setattr(needs, "available_memory", lambda device: needed - 1)
    monkeypatch.setattr(needs, "available_disk", lambda: 0)
    monkeypatch.setattr(needs, "SMALLER", ((12,), (8, 4), (12, 3)))
    with pytest.raises(ConfigError, match=r"training needs more than .* GB .* 48 users and 40 items, and there are"):
        train(data(), small(), device="cpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(needs, "available_memory", lambda device: None)  # not known: training begins
    assert train(data(), small(budget="fast", refit="none"), device="cpu").finished


def test_advice_is_what_fits_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    large = choose_settings("strong", {"model": {"dimensions": 512}})
    few = least_memory(
        data(), choose_settings(large, {"model": {"dimensions": 64}, "consensus": {"top_k": 100}}), ALONE
    )
    monkeypatch.setattr(needs, "available_memory", lambda device: int(1.61 * few))
    with pytest.raises(
        ConfigError, match=r"With model.dimensions=64 consensus.top_k=\d+ .* recipe.budget=default it may"
    ):
        train(data(), large, device="cpu")
    monkeypatch.setattr(needs, "available_memory", lambda device: 1000)
    with pytest.raises(ConfigError, match="Take a machine with more"):
        train(data(), large, device="cpu")


def test_processes_share_the_memory_of_a_machine_and_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ProcessGroup(0, 2)
    monkeypatch.setattr(needs, "available_memory", lambda device: least_memory(data(), small(), two))
    monkeypatch.setattr(needs, "available_disk", lambda: 0)
    assert not must_spill(data(), small(), torch.device("cuda"), two)
    with pytest.raises(ConfigError, match="training needs more than"):
        must_spill(data(), small(), CPU, two)


def test_a_run_that_goes_on_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = train(data(), small(budget="fast", refit="none"), device="cpu", out=tmp_path / "run")
    monkeypatch.setattr(needs, "available_memory", lambda device: 1)
    monkeypatch.setattr(needs, "available_disk", lambda: 0)
    assert train(data(), device="cpu", out=tmp_path / "run", resume=True).history == whole.history


def test_the_message_of_the_page_is_that_of_such_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = 1_930_000, 499_000
    log: Any = SimpleNamespace(
        train=SimpleNamespace(shape=(users, items), nnz=60_000_000), validated=range(users),
        valid=SimpleNamespace(indptr=np.array([0, 20, 40]), nnz=18_700_000),
    )  # fmt: skip
    monkeypatch.setattr(needs, "available_memory", lambda device: 24_000_000_000)
    with pytest.raises(ConfigError) as error:
        must_spill(log, choose_settings("strong"), CPU, ALONE)
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"concf: {error.value}" in " ".join(page.split())


@pytest.mark.skipif(sys.platform != "linux", reason="limits and what is used of them are read from /proc")
def test_a_limit_of_the_process_is_seen() -> None:
    script = """
import resource, torch
from concf.training.memory import available_memory
before = available_memory(torch.device("cpu"))
resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
held = torch.ones(1 << 26)
print(before, available_memory(torch.device("cpu")))
"""
    done = subprocess.run([sys.executable, "-c", script], env=QUIET, capture_output=True, text=True, check=True)
    before, limited = map(int, done.stdout.split())
    assert before > 0
    assert 0 < limited < (8 << 30) - (1 << 28)
    assert available_memory(CPU) is not None


def test_nothing_is_known_of_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path, *_: object, **__: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(memory.Path, "read_text", absent)
    assert available_memory(CPU) is None
