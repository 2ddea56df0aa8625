"""Where memory is short, lists and votes lie on disk, and nothing else changes."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from process_job import linux
from small_recipe import assert_same, data, small, trained
from small_run import QUIET, Killed, die_after

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.training import memory
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.memory import available_disk, mapped_empty
from concf.training.recipe import needs
from concf.training.recipe.needs import least_needs, must_spill
from concf.training.run import Run
from concf.training.train import train

CPU = torch.device("cpu")
pytestmark = [linux, pytest.mark.usefixtures("on_one_thread")]


def short_of_memory(patch: pytest.MonkeyPatch, split: Split, settings: ConCFSettings) -> None:
    """There is as much as training needs at least where lists and votes are on disk, and no more.

    Of so few users the features of those that the re-ranker is fitted on would need more than the lists.
    """
    patch.setattr(needs, "MOST_LEARNERS", 1)
    patch.setattr(needs, "available_memory", lambda device: least_needs(split, settings, ALONE).spilled)


def assert_on_disk(run: Run) -> None:
    for tensor in (run.best[CONSENSUS].lists, run.best[R_CONSENSUS].lists, run.best[CONSENSUS].votes["items"],
                   run.best[CONSENSUS].votes["reranked"]):  # fmt: skip
        assert tensor is not None
        path = Path(str(tensor.untyped_storage().filename))
        assert path.parent == Path(tempfile.gettempdir())
        assert not path.exists()


def test_lists_on_disk_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, data(), small())
    with pytest.warns(ConcfWarning, match=r"GB of lists and votes will lie in temporary files in .* \(TMPDIR\)"):
        spilled = train(data(), small(), seed=3)
    monkeypatch.undo()
    assert_on_disk(spilled)
    assert_same(spilled, trained())


def test_so_are_those_of_a_sample_and_after_a_kill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = choose_settings(small(budget="fast"), {"recipe": {"asked_users": 9}})
    with pytest.warns(ConcfWarning, match="the consensus was formed for 9 of 48 users"):
        expected = train(data(), few, seed=3)
    short_of_memory(monkeypatch, data(), few)
    with pytest.warns(ConcfWarning, match="temporary files"), pytest.raises(Killed):
        train(data(), few, seed=3, device="cpu", out=tmp_path / "run", watch=die_after(3))
    monkeypatch.setattr(needs, "available_memory", lambda device: 1)  # less than before: the run goes on
    with pytest.warns(ConcfWarning, match="temporary files"):
        spilled = train(data(), device="cpu", out=tmp_path / "run", resume=True)
    assert_on_disk(spilled)
    assert_same(spilled, expected)


def test_what_has_no_room_on_disk_either_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, data(), small())
    needed = least_needs(data(), small(), ALONE)
    monkeypatch.setattr(needs, "available_memory", lambda device: needed.memory - 1)
    monkeypatch.setattr(needs, "available_disk", lambda: needed.disk - 1)
    with pytest.raises(ConfigError, match=r"; or set TMPDIR to a folder on a disk that has .* GB for lists and"):
        must_spill(data(), small(), CPU, ALONE)
    monkeypatch.setattr(needs, "available_disk", lambda: needed.disk)
    with pytest.raises(ConfigError, match=r"training needs more than .* GB of memory") as error:
        must_spill(data(), small(), torch.device("cuda"), ALONE)  # whose memory no disk helps
    assert "TMPDIR" not in str(error.value)
    with pytest.warns(ConcfWarning, match="temporary files"):
        assert must_spill(data(), small(), CPU, ALONE)
    monkeypatch.setattr(needs, "available_memory", lambda device: 2 * needed.memory)
    assert not must_spill(data(), small(), CPU, ALONE)


def test_the_note_of_the_page_is_that_of_such_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = 1_000_000, 50_000
    log: Any = SimpleNamespace(
        train=SimpleNamespace(shape=(users, items), nnz=24_000_000), validated=range(users),
        valid=SimpleNamespace(indptr=np.array([0, 20]), nnz=3_000_000),
    )  # fmt: skip
    monkeypatch.setattr(needs, "available_memory", lambda device: 12_000_000_000)
    monkeypatch.setattr(needs, "available_disk", lambda: 20_000_000_000)
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    with pytest.warns(ConcfWarning) as notes:
        assert must_spill(log, choose_settings("strong", {"model": {"dimensions": 64}}), CPU, ALONE)
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    assert f"note: {notes[0].message}" in " ".join(page.split())


def test_what_is_on_disk_at_the_most() -> None:
    """48 users, 40 items; 5 rows of votes, 4 of them of voters, and one of these without vectors; 12 items a vote."""
    kept = 3 * 40 * 4 + 5 * 12 * 4
    assert least_needs(data(), small(), ALONE).disk == 48 * (kept + (4 + 4) * 12 * 4)
    assert least_needs(data(), small(), ProcessGroup(0, 2)).disk == 24 * kept + 48 * kept
    assert least_needs(data(), small(), ProcessGroup(0, 2, shards=True)).disk == 24 * (kept + (4 + 4) * 12 * 4)
    few = choose_settings(small(), {"recipe": {"asked_users": 9}})
    assert least_needs(data(), few, ALONE).disk == (9 + 48) * kept


def test_a_tensor_on_disk_is_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for dtype in (torch.int32, torch.float64):
        tensor = mapped_empty(3, 5, 7, dtype=dtype)
        assert (tensor.shape, tensor.dtype, list(tmp_path.iterdir())) == ((3, 5, 7), dtype, [])
        tensor.fill_(2)[1] = torch.arange(35).view(5, 7)
        assert int(tensor.sum()) == 2 * 70 + 17 * 35
    assert mapped_empty(0, 5, dtype=torch.int32).shape == (0, 5)


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory.os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"0.4 GB of lists .* \(No space left on device\). Set TMPDIR .* --resume$"):
        mapped_empty(100_000_000, dtype=torch.int32)


def test_files_in_memory_are_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_disk() > 0
    if Path("/dev/shm").is_dir():
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
        assert available_disk() == 0
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert available_disk() == 0


LIMITED = """
import resource
from pathlib import Path
import torch
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.runtime.process_group import ALONE
from concf.training.config.presets import choose_settings
from concf.training.recipe import needs
from concf.training.recipe.needs import least_needs
from concf.training.train import train

torch.set_num_threads(1)
data = prepare(Simulation(users=20_000, items=700, events=160_000).draw(1), protocol="random")
settings = choose_settings("strong", words=[
    "model.dimensions=8", "consensus.top_k=500", "consensus.shown=600", "training.validated_users=200",
    "recipe.asked_users=300", "recipe.budget=fast",
])
train(prepare(Simulation(users=60, items=40, events=900).draw(1), protocol="random"), settings)  # loads all libraries
needed, unlimited = least_needs(data, settings, ALONE), resource.getrlimit(resource.RLIMIT_DATA)
fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
limit = int(fields["VmData"].split()[0]) * 1024 + int(0.9 * needed.memory)
resource.setrlimit(resource.RLIMIT_DATA, (limit, unlimited[1]))
available = needs.available_disk
needs.available_disk = lambda: 0
try:
    train(data, settings, device="cpu")
    print("not refused")
except ConfigError as error:
    print(error)
needs.available_disk = available
spilled = train(data, settings, device="cpu")
resource.setrlimit(resource.RLIMIT_DATA, unlimited)
whole = train(data, settings, device="cpu")
for name in (CONSENSUS, R_CONSENSUS):
    assert torch.equal(spilled.best[name].lists, whole.best[name].lists)
assert torch.equal(spilled.best[CONSENSUS].votes["items"], whole.best[CONSENSUS].votes["items"])
print([run.best[CONSENSUS].lists.untyped_storage().filename is not None for run in (spilled, whole)])
"""


def test_what_a_limit_refuses_is_trained_with_lists_on_disk() -> None:
    words = [sys.executable, "-W", "ignore", "-c", LIMITED]
    done = subprocess.run(words, env=QUIET, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused, where = done.stdout.splitlines()
    assert "training needs more than 0." in refused
    assert where == "[True, False]"
