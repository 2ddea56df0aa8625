"""A run in a folder: killed at any moment it goes on to the same end; what is not its own or damaged is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from once import once_for_all
from skipping import posix
from small_run import (
    QUIET,
    SETS,
    SMALL,
    assert_same_end,
    checkpoint,
    contents,
    small_data,
    stopped_run,
    write_checkpoint,
)

import concf as library
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.runtime.provenance import VERSION
from concf.training.checkpoint import CARD, CHECKPOINT, HISTORY, ITEMS, RUN, USERS, RunFolder, load_run
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
PRESETS = ("reference", "released")  # a window that moves, and one that stands still from epoch 4 on


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nothing disturbed."""
    torch.set_num_threads(1)
    folders = {preset: tmp_path_factory.mktemp("whole") / preset for preset in PRESETS}
    for preset, folder in folders.items():
        train(Split.load(data), choose_settings(preset, words=SMALL), out=folder, data_folder=data)
    return folders


@pytest.fixture(scope="module")
def stopped_once(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its sixth epoch."""
    torch.set_num_threads(1)
    return stopped_run(data, tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to damage and to go on with."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


# Each moment is a process of its own, forked before anything was computed, that kills itself there. Two more are
# disturbed by the process that forked them.
MOMENTS = """
import json, os, signal, sys, time
from functools import partial
from pathlib import Path
import torch._dynamo  # else every process would import it
import concf.cli.app
import concf.training.checkpoint as checkpoint
import concf.training.train as training
training.train = partial(training.train, checkpoint_seconds=0)

def epoch_of(path):
    with checkpoint.safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["concf"])["state"]["epoch"]

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
    def half(tensors, path, metadata, save=checkpoint.save_file):
        save(tensors, path, metadata=metadata)
        saved.append(path)
        if len(saved) == 6:
            Path(path).write_bytes(Path(path).read_bytes()[:3000])
            die()
    checkpoint.save_file = half

def as_a_checkpoint_takes_its_place():
    replace = Path.replace
    def late(path, target):
        replace(path, target)
        if target.name == checkpoint.CHECKPOINT and epoch_of(target) == 8:
            die()
    Path.replace = late

out, *words = sys.argv[1:]
moments = (in_the_first_epoch, between_checkpoints_after_the_lesson_began, while_a_line_of_history_is_written,
           while_a_checkpoint_is_written, as_a_checkpoint_takes_its_place)

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

def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

children = {
    f"{preset}/{moment.__name__}": start(f"{preset}/{moment.__name__}", *words, "--preset", preset, moment=moment)
    for preset in ("reference", "released") for moment in (moments if preset == "reference" else moments[1::2])
}
for name, child in children.items():
    print(name, end_of(child))

history = Path(out, "disturbed", checkpoint.HISTORY)
for end, said in ((signal.SIGINT, words), (signal.SIGKILL, ["train", "--resume"])):
    before = history.read_text().count("\\n") if history.exists() else 0
    child = start("disturbed", *said)
    while not history.exists() or history.read_text().count("\\n") <= before:
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    os.kill(child, end)
    print(end.name, end_of(child))
"""


@pytest.fixture(scope="module")
def killed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every preset, killed at every moment, and one that was interrupted and killed from outside."""

    def make(folder: Path) -> None:
        script = [sys.executable, "-c", MOMENTS, folder, "train", data, *SETS]
        answer = subprocess.run(script, stdout=subprocess.PIPE, text=True, env=QUIET, check=True, timeout=300)
        deaths = dict(line.split() for line in answer.stdout.splitlines())
        assert deaths.pop("SIGINT") == "130"
        assert set(deaths.values()) == {str(-signal.SIGKILL)}, (folder / "said").read_text()

    return once_for_all(tmp_path_factory, "killed", make)


@pytest.mark.parametrize("preset", PRESETS)
@posix
def test_a_run_killed_at_any_moment_goes_on_to_the_same_end(
    concf: CLI, killed: Path, whole: dict[str, Path], preset: str
) -> None:
    folders = {folder.name: folder for folder in (killed / preset).iterdir()}
    assert len(folders) == (5 if preset == "reference" else 2)
    without = [name for name, folder in folders.items() if not (folder / CHECKPOINT).exists()]
    assert without == ["in_the_first_epoch"] * (preset == "reference")
    assert checkpoint(folders["while_a_checkpoint_is_written"])[0]["state"]["epoch"] == 5
    for folder in folders.values():
        assert concf("train", "--resume", "--out", folder)[0] == 0
        assert_same_end(folder, whole[preset])
        assert sorted(contents(folder)) == [
            CARD,
            CHECKPOINT,
            HISTORY,
            ITEMS,
            RUN,
            USERS,
        ]  # nothing half-written


@posix
def test_a_process_killed_from_outside_or_by_ctrl_c_goes_on(data: Path, killed: Path, whole: dict[str, Path]) -> None:
    run = killed / "disturbed"
    lines = (killed / "said").read_text().splitlines()
    said = [line for line in lines if not line.startswith(("epoch ", "note: only"))]
    assert said == [f"concf: stopped. Go on with: concf train --resume --out {run}"]
    train(Split.load(data), out=run, resume=True)
    assert_same_end(run, whole["reference"])


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


def empty(folder: Path) -> None:
    (folder / CHECKPOINT).write_bytes(b"")


DAMAGED = {
    "cut short": (cut, "checkpoint.safetensors: cut short or damaged"),
    "empty": (empty, "cut short or damaged"),
    "newer run": (lambda folder: change_run(folder, format=9), "run.json: format 9 is newer than this concf"),
    "newer checkpoint": (
        lambda folder: change_checkpoint(folder, format=9),
        "checkpoint.safetensors: format 9 is newer than this concf",
    ),
    "no seed": (lambda folder: change_run(folder, data={}), "run.json: damaged"),
    "checkpoint of another seed": (lambda folder: change_checkpoint(folder, seed=3), "the run has seed 3, not 0"),
    "checkpoint without a ranking": (lambda folder: change_trainer(folder, queue=[77]), "does not fit the run"),
    "unknown setting": (
        lambda folder: change_run(folder, settings={"volume": 11}),
        f"run.json: settings that this concf ({VERSION}) refuses: volume",
    ),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "consensus.weight=0.3"], "the run has other settings: consensus.weight = 0.005, not 0.3"),
        ([*SETS, "--preset", "paper"], "balance.exponent = 0.15, not 1.0"),
        (["--single", "bpr"], 'training.watch = "all", not "bpr"'),
        (["--seed", "4"], "the run has seed 0, not 4"),
    ],
)
def test_a_run_does_not_go_on_as_another(concf: CLI, stopped: Path, words: list[str], message: str) -> None:
    before = contents(stopped)
    code, _, err = concf("train", "--resume", "--out", stopped, *words)
    assert (code, message in err) == (2, True), err
    assert contents(stopped) == before


def test_a_run_does_not_go_on_with_other_data(concf: CLI, stopped: Path, data: Path, tmp_path: Path) -> None:
    Split.load(data).with_seed(7).save(tmp_path / "other")
    before = contents(stopped)
    going_on = ["train", tmp_path / "other", "--resume", "--out", stopped]
    for words in (going_on, ["evaluate", stopped, "--data", tmp_path / "other"]):
        code, _, err = concf(*words)
        assert (code, "trained on another data set (split hash " in err) == (2, True)
    assert contents(stopped) == before


@pytest.mark.parametrize("settle", [0, 2])
def test_a_run_goes_on_with_the_losses_that_it_measures_by(data: Path, tmp_path: Path, settle: int) -> None:
    """L^0 is of the first epochs: a run that is resumed after them cannot measure it again."""
    words = [*SMALL, f"balance.settle={settle}", "balance.exponent=2", "balance.learning_rate=0.1"]
    chosen, split = choose_settings("reference", words=words), Split.load(data)

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 4:
            raise KeyboardInterrupt

    train(split, chosen, out=tmp_path / "whole", data_folder=data)
    with pytest.raises(KeyboardInterrupt):
        train(split, chosen, out=tmp_path / "cut", checkpoint_seconds=0, watch=stop, data_folder=data)
    initial = checkpoint(tmp_path / "cut")[1]["trainer/initial"]
    train(split, out=tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")
    assert (initial != 1).all()


def test_what_is_said_again_on_resuming_may_be_said(
    concf: CLI, stopped: Path, data: Path, whole: dict[str, Path]
) -> None:
    words = ["--preset", "reference", *SETS, "--seed", 0, "--device", "cpu"]
    assert concf("train", data, "--resume", "--out", stopped, *words)[0] == 0
    assert_same_end(stopped, whole["reference"])
    before = contents(stopped)
    assert concf("train", "--resume", "--out", stopped)[0] == 0  # it is over: nothing is left to do
    assert contents(stopped) == before


def test_a_folder_that_is_there_is_never_overwritten(concf: CLI, stopped: Path, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("ten years")
    for folder, message in ((stopped, "holds a run already"), (mine, "it is left alone")):
        before = contents(folder)
        code, _, err = concf("train", data, "--out", folder, *SETS)
        assert (code, message in err) == (2, True)
        assert contents(folder) == before
    assert concf("train", data, "--out", mine / "thesis.txt", *SETS)[0] == 2
    assert (mine / "thesis.txt").read_text() == "ten years"


def test_a_file_is_no_folder_for_a_run_on_any_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")

    def at_once(_path: Path) -> Any:  # as of Python 3.13
        raise NotADirectoryError

    monkeypatch.setattr(Path, "iterdir", at_once)
    with pytest.raises(ConfigError, match="it is left alone"):
        RunFolder(tmp_path / "thesis.txt").refuse_occupied()


def test_a_folder_in_which_a_killed_process_began_to_write_is_free(data: Path, tmp_path: Path) -> None:
    stale = tmp_path / ".run.json.partial-999999999"
    stale.write_text("{")
    train(Split.load(data), choose_settings("reference", words=[*SMALL, "training.epochs=1"]), out=tmp_path)
    assert sorted(contents(tmp_path)) == [CARD, CHECKPOINT, HISTORY, ITEMS, RUN, USERS]


def test_a_loaded_run_is_the_run(data: Path, whole: dict[str, Path]) -> None:
    split = Split.load(data)
    run = train(split, choose_settings("reference", words=SMALL))
    loaded = library.load_run(whole["reference"], split)
    assert loaded.summary() == run.summary()
    assert [record["loss"] for record in loaded.history] == [record["loss"] for record in run.history]
    for name in run.rows():
        found, expected = (each.evaluate(at=[5])[name] for each in (loaded, run))
        assert found.lists.tolist() == expected.lists.tolist()
    assert loaded.keep(loaded.best_head()).names == [run.best_head()]
    with pytest.raises(ConfigError, match="nothing is called 'hinge' in this run; there are bpr, cml"):
        loaded.recommender("hinge")


def test_a_run_of_a_gpu_is_of_use_without_one(concf: CLI, stopped: Path) -> None:
    change_run(stopped, device="cuda:77")
    change_checkpoint(stopped, device="cuda:77")
    assert concf("evaluate", stopped, "--at", "5")[0] == 0
    code, _, err = concf("train", "--resume", "--out", stopped)
    assert (code, "device 'cuda:77': PyTorch" in err, "Say --device cpu" in err) == (2, True, True)
    assert concf("train", "--resume", "--out", stopped, "--device", "cpu")[0] == 0


def test_a_run_without_a_folder_of_data_says_so(tmp_path: Path, data: Path) -> None:
    train(Split.load(data), choose_settings("reference", words=[*SMALL, "training.epochs=1"]), out=tmp_path / "run")
    with pytest.raises(DataError, match=r"its data set \(split hash \w+\) was not in a folder. Say where it is now"):
        load_run(tmp_path / "run")
    assert load_run(tmp_path / "run", data).finished


def test_resuming_needs_a_run(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match=r"not a run \(no run.json\). Make one with: concf train"):
        train(Split.load(data), out=tmp_path, resume=True)
    with pytest.raises(ConfigError, match="the folder of the run"):
        train(Split.load(data), resume=True)


def test_rankings_that_queue_and_window_share_are_kept_once(data: Path, tmp_path: Path) -> None:
    def look(record: dict[str, Any]) -> None:
        if record["epoch"] == 4:
            state, tensors = checkpoint(tmp_path / "run")
            assert [state["state"]["trainer"]["consensus"][name] for name in ("queue", "window")] == [[0, 1], [0, 1]]
            assert sum("/rankings/" in name for name in tensors) == 2

    chosen = choose_settings("released", words=SMALL)
    train(Split.load(data), chosen, out=tmp_path / "run", checkpoint_seconds=0, watch=look)
    assert not any(name.startswith("trainer/") for name in checkpoint(tmp_path / "run")[1])


def test_nothing_is_ever_unpickled() -> None:
    for path in Path(library.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "torch.save(", "allow_pickle=True"):
            assert word not in text, path


def test_the_folder_says_what_the_run_is(whole: dict[str, Path], data: Path) -> None:
    said = RunFolder(whole["released"]).description()
    assert said["data_folder"] == str(data)
    assert said["data"]["split_hash"] == Split.load(data).hash
    assert RunFolder(whole["released"]).settings() == choose_settings("released", words=SMALL)
    assert said["device"] == "cpu"
    assert said["provenance"]["versions"]["torch"]
