"""A run in a folder: killed at any moment it goes on to the same end; what is not its own or damaged is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from once import once_for_all
from skipping import posix
from small_run import (
    CLI,
    QUIET,
    SETS,
    SMALL,
    assert_same_end,
    checkpoint,
    contents,
    often,
    write_checkpoint,
)  # fmt: skip

import concf as library
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.models import choose_settings, load_run, train
from concf.reference import balance, losses
from concf.reference.heads import DotHead
from concf.reference.objectives import OBJECTIVES, Objective
from concf.runs.checkpoint import CARD, CHECKPOINT, HISTORY, RUN, RunFolder

# Each moment is a process of its own, forked before anything was computed, that kills itself there.
MOMENTS = """
import os, signal, sys
from pathlib import Path
import safetensors.torch, torch._dynamo  # else every process would import it
import concf.cli.app
import concf.runs.checkpoint as checkpoint
import concf.reference.train as training
from concf.runs import job
job.CHECKPOINT_SECONDS = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def in_the_first_epoch():
    epoch = training.Trainer.epoch
    training.Trainer.epoch = lambda trainer, number: (epoch(trainer, number), die())

def between_checkpoints_after_the_lesson_began():
    save, record = checkpoint.RunFolder.save, checkpoint.RunFolder.record
    checkpoint.RunFolder.save = lambda folder, run, trainer: save(folder, run, trainer) if run.epoch <= 4 else None
    checkpoint.RunFolder.record = lambda folder, line: (record(folder, line), line["epoch"] == 7 and die())

def while_a_line_of_history_is_written():
    def half(folder, line, record=checkpoint.RunFolder.record):
        record(folder, line)
        if line["epoch"] == 6:
            path = folder.path / checkpoint.HISTORY
            path.write_bytes(path.read_bytes()[:-40])
            die()
    checkpoint.RunFolder.record = half

def while_a_checkpoint_is_written():
    saved = []
    def half(tensors, path, metadata, save=safetensors.torch.save_file):
        save(tensors, path, metadata=metadata)
        saved.append(path)
        if len(saved) == 6:
            Path(path).write_bytes(Path(path).read_bytes()[:3000])
            die()
    safetensors.torch.save_file = half

out, *words = sys.argv[1:]
moments = (in_the_first_epoch, between_checkpoints_after_the_lesson_began, while_a_line_of_history_is_written,
           while_a_checkpoint_is_written)

def start(name, *words, moment=lambda: None):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{out}/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        moment()
        sys.argv = ["concf", *words, "--out", f"{out}/{name}"]
        concf.cli.app.main()
        sys.exit()
    return child

children = {moment.__name__: start(moment.__name__, *words, moment=moment) for moment in moments}
for name, child in children.items():
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def killed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that were killed at every moment."""

    def make(folder: Path) -> None:
        script = [sys.executable, "-c", MOMENTS, folder, "train", data, *SETS]
        answer = subprocess.run(script, stdout=subprocess.PIPE, text=True, env=QUIET, check=True, timeout=300)
        deaths = dict(line.split() for line in answer.stdout.splitlines())
        assert set(deaths.values()) == {str(-signal.SIGKILL)}, (folder / "said").read_text()

    return once_for_all(tmp_path_factory, "killed", make)


@posix
def test_a_run_killed_at_any_moment_goes_on_to_the_same_end(concf: CLI, killed: Path, whole: Path) -> None:
    folders = {folder.name: folder for folder in killed.iterdir() if folder.is_dir()}
    without = [name for name, folder in folders.items() if not (folder / CHECKPOINT).exists()]
    assert (len(folders), without) == (4, ["in_the_first_epoch"])
    assert checkpoint(folders["while_a_checkpoint_is_written"])[0]["state"]["epoch"] == 5
    for folder in folders.values():
        assert concf("train", "--resume", "--out", folder)[0] == 0
        assert_same_end(folder, whole)
        assert sorted(contents(folder)) == [CARD, CHECKPOINT, HISTORY, RUN]  # nothing half-written


def change_run(folder: Path, **parts: object) -> None:
    said = json.loads((folder / RUN).read_text())
    (folder / RUN).write_text(json.dumps(said | parts))


def change_checkpoint(folder: Path, **parts: object) -> None:
    state, tensors = checkpoint(folder)
    write_checkpoint(folder, state | parts, tensors)


def change_trainer(folder: Path, **parts: object) -> None:
    state, tensors = checkpoint(folder)
    state["state"]["trainer"]["consensus"] |= parts
    write_checkpoint(folder, state, tensors)


def cut(folder: Path) -> None:
    (folder / CHECKPOINT).write_bytes((folder / CHECKPOINT).read_bytes()[:-1000])


DAMAGED = {
    "cut short": (cut, "cut short or damaged"),
    "newer run": (lambda folder: change_run(folder, format=9), "newer. Update concf"),
    "newer checkpoint": (lambda folder: change_checkpoint(folder, format=9), "newer. Update concf"),
    "no seed": (lambda folder: change_run(folder, data={}), "run.json: damaged"),
    "checkpoint of another seed": (lambda folder: change_checkpoint(folder, seed=3), "its seed is 3, not 0"),
    "checkpoint without a ranking": (lambda folder: change_trainer(folder, queue=[77]), "does not fit the run"),
    "unknown setting": (lambda folder: change_run(folder, settings={"volume": 11}), "volume"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_or_newer_run_is_refused_and_left_as_it_is(concf: CLI, stopped: Path, what: str) -> None:
    damage, message = DAMAGED[what]
    damage(stopped)
    before = contents(stopped)
    code, out, err = concf("train", "--resume", "--out", stopped)
    assert (code, out) == (2, "")
    assert message in err
    assert contents(stopped) == before
    if what != "checkpoint without a ranking":  # to recommend, none is needed
        code, _, err = concf("evaluate", stopped)
        assert (code, message in err) == (2, True)


def test_a_run_does_not_go_on_as_another_or_with_other_data(
    concf: CLI, stopped: Path, data: Path, tmp_path: Path
) -> None:
    Split.load(data).with_seed(7).save(tmp_path / "other")
    before, going_on = contents(stopped), ["train", "--resume", "--out", stopped]
    for words, message in (
        ([*going_on, "--set", "consensus.weight=0.3"], "consensus.weight = 0.005, not 0.3"),
        ([*going_on, "--seed", "4"], "its seed is 0, not 4"),
        ([*going_on, tmp_path / "other"], "trained on another data set"),
        (["evaluate", stopped, "--data", tmp_path / "other"], "trained on another data set"),
    ):
        code, _, err = concf(*words)
        assert (code, message in err) == (2, True), err
    assert contents(stopped) == before


def test_a_run_goes_on_with_the_losses_that_it_measures_by(data: Path, tmp_path: Path, monkeypatch) -> None:
    """L^0 is of the first epochs: a run that is resumed after them cannot measure it again."""
    monkeypatch.setitem(balance.EXPONENT, "own", 2.0)
    monkeypatch.setitem(balance.LEARNING_RATE, "adam", 0.1)
    chosen, split = choose_settings("reference", words=[*SMALL, "balance.settle=2"]), Split.load(data)

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 4:
            raise KeyboardInterrupt

    train(split, chosen, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt), often():
        train(split, chosen, out=tmp_path / "cut", watch=stop)
    initial = checkpoint(tmp_path / "cut")[1]["trainer/initial"]
    train(split, out=tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")
    assert (initial != 1).all()


def test_a_folder_that_is_there_is_never_overwritten(concf: CLI, stopped: Path, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("ten years")
    for folder, message in ((stopped, "holds a run already"), (mine, "it is left alone")):
        before = contents(folder)
        code, _, err = concf("train", data, "--out", folder, *SETS)
        assert (code, message in err) == (2, True)
        assert contents(folder) == before


def test_a_folder_in_which_a_killed_process_began_to_write_is_free(data: Path, tmp_path: Path) -> None:
    stale = tmp_path / ".run.json.partial-999999999"
    stale.write_text("{")
    train(Split.load(data), choose_settings("reference", words=[*SMALL, "training.epochs=1"]), out=tmp_path)
    assert sorted(contents(tmp_path)) == [CARD, CHECKPOINT, HISTORY, RUN]


def test_a_loaded_run_is_the_run(data: Path, whole: Path) -> None:
    split = Split.load(data)
    run = train(split, choose_settings("reference", words=SMALL))
    loaded = library.load_run(whole, split)
    assert loaded.summary() == run.summary()
    assert [record["loss"] for record in loaded.history] == [record["loss"] for record in run.history]
    for name in run.rows():
        found, expected = (each.evaluate(at=[5])[name] for each in (loaded, run))
        assert found.lists.tolist() == expected.lists.tolist()
    assert loaded.keep(loaded.best_head()).names == [run.best_head()]
    with pytest.raises(ConfigError, match="unknown recommender 'hinge'; available: bpr, cml"):
        loaded.recommender("hinge")


def test_a_run_of_a_gpu_is_of_use_without_one(concf: CLI, stopped: Path) -> None:
    change_run(stopped, device="cuda:77")
    change_checkpoint(stopped, device="cuda:77")
    assert concf("evaluate", stopped, "--at", "5")[0] == 0
    code, _, err = concf("train", "--resume", "--out", stopped)
    assert (code, "device 'cuda:77': PyTorch" in err, "Set --device cpu" in err) == (2, True, True)
    assert concf("train", "--resume", "--out", stopped, "--device", "cpu")[0] == 0


def test_resuming_needs_a_run(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match="not a run"):
        train(Split.load(data), out=tmp_path, resume=True)
    unnamed = replace(Split.load(data), folder=None)
    train(unnamed, choose_settings("reference", words=[*SMALL, "training.epochs=1"]), out=tmp_path / "run")
    with pytest.raises(DataError, match="was not in a folder"):
        load_run(tmp_path / "run")
    assert load_run(tmp_path / "run", data).finished
    with pytest.raises(ConfigError, match="the folder of the run"):
        train(Split.load(data), resume=True)


def test_nothing_is_ever_unpickled() -> None:
    for path in Path(library.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "torch.save(", "allow_pickle=True"):
            assert word not in text, path


# A loss or a parameter that is not finite


def ruined_after(batches: int) -> Objective:
    """BPR whose loss is NaN from then on."""
    calls = []

    def loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return losses.bpr(positive, negative) * (1 if len(calls) <= batches else float("nan"))

    return Objective(loss, lambda size, users, items: DotHead(size))


def test_the_last_good_checkpoint_outlives_a_loss_that_is_not_finite(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = Split.load(data)
    chosen = choose_settings("reference", words=[*SMALL, "training.batch=64", 'objectives=["cml", "mine"]'])
    batches = -(-split.train.nnz // 64)
    monkeypatch.setitem(OBJECTIVES, "mine", ruined_after(4 * batches + 2))
    with pytest.raises(DataError, match="the loss of head 'mine' is nan in epoch 4, batch 2"), often():
        train(split, chosen, out=tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert (run.epoch, run.finished, len(run.history)) == (4, False, 4)
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    assert set(run.evaluate(at=[5])) == {"cml", "mine", "R-consensus", "consensus"}


def test_a_step_that_ruins_a_parameter_leaves_no_checkpoint(
    concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.runs.job.CHECKPOINT_SECONDS", 0.0)
    words = ["--set", "training.batch=4096", "--set", "training.learning_rate=1e39"]
    code, _, err = concf("train", data, "--out", tmp_path / "run", "--single", "bpr", *SETS, *words)
    assert (code, "'user' is not finite after the last batch of epoch 0" in err) == (2, True), err
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_a_file_is_no_folder_for_a_run_on_any_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")

    def at_once(_path: Path) -> Any:  # as of Python 3.13
        raise NotADirectoryError

    monkeypatch.setattr(Path, "iterdir", at_once)
    with pytest.raises(ConfigError, match="it is left alone"):
        RunFolder(tmp_path / "thesis.txt").refuse_occupied()
