"""One process trains in a folder at a time, and says who it is; an unfinished run says so wherever it is used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_job import until
from skipping import posix
from small_run import LONG, QUIET, SMALL, assert_same_end, contents, small_data, stopped_run

from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.service.loading import Loader
from concf.training.checkpoint import CARD, CHECKPOINT, HISTORY, ITEMS, LOCK, RUN, USERS, load_run
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
CHOSEN = choose_settings("reference", words=SMALL)
WAIT = 120


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def stopped_once(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_run(data, tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


HOLDER = """
import sys, time
from pathlib import Path
from concf.runtime.locks import held
with held(Path(sys.argv[1]), "trains here"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(stopped: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in the folder."""
    words = [sys.executable, "-c", HOLDER, str(stopped / LOCK)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=QUIET) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_of_the_first(
    concf: CLI, stopped: Path, holder: subprocess.Popen[str]
) -> None:
    before = contents(stopped)
    code, out, err = concf("train", "--resume", "--out", stopped)
    assert (code, out) == (2, "")
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.search(
        rf"{re.escape(str(stopped))}: {since} process {holder.pid} on '{socket.gethostname()}' trains", err
    )
    assert "Wait until it has ended, or stop it" in err
    assert contents(stopped) == before


@posix
def test_a_lock_of_a_process_that_was_killed_is_taken_over(
    concf: CLI, stopped: Path, holder: subprocess.Popen[str], data: Path, tmp_path: Path
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert f"process {holder.pid} on" in (stopped / LOCK).read_text()
    assert concf("train", "--resume", "--out", stopped)[0] == 0
    train(Split.load(data), CHOSEN, out=tmp_path / "whole", data_folder=data)
    assert_same_end(stopped, tmp_path / "whole")
    assert sorted(contents(stopped)) == [CARD, CHECKPOINT, HISTORY, ITEMS, RUN, USERS]


def test_two_that_go_on_at_once_do_not_interleave(stopped: Path) -> None:
    """The second one comes while the first one trains, in the same process as in any."""
    refused = []

    def again(record: dict[str, Any]) -> None:
        if not refused:
            with pytest.raises(ConfigError, match=rf"process {os.getpid()} on .* trains here") as error:
                train(data, out=stopped, resume=True)
            refused.append(error)

    data = load_run(stopped).data
    train(data, out=stopped, resume=True, watch=again)
    assert refused
    epochs = [json.loads(line)["epoch"] for line in (stopped / HISTORY).read_text().splitlines()]
    assert epochs == list(range(10))
    assert not (stopped / LOCK).exists()


def use(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        "load_run": lambda: load_run(folder),
        "Recommender.load": lambda: Recommender.load(folder),
        "ConCF.load": lambda: ConCF.load(folder),
        "the service": lambda: Loader()(folder, 1),
    }


@pytest.mark.parametrize("way", ["load_run", "Recommender.load", "ConCF.load", "the service"])
def test_a_run_that_is_not_finished_says_so_in_python(stopped: Path, data: Path, way: str, tmp_path: Path) -> None:
    expected = (
        rf"{re.escape(str(stopped))}: the run is not finished; this is the best of its first 6 epochs. Go on with: "
    )
    with pytest.warns(ConcfWarning, match=expected) as notes:
        use(stopped)[way]()
    assert len([each for each in notes if each.category is ConcfWarning]) == 1
    train(Split.load(data), out=stopped, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConcfWarning)
        use(stopped)[way]()


COMMANDS: list[list[str]] = [
    ["evaluate", "RUN", "--at", "5"], ["recommend", "RUN", "-k", "3"], ["report", "RUN", "--out", "OUT/report.html"],
    ["export", "RUN", "--to", "npz", "--out", "OUT/export"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_run_that_is_not_finished_says_so_on_the_command_line(
    concf: CLI, stopped: Path, tmp_path: Path, words: list[str]
) -> None:
    code, _, err = concf(*(str(stopped) if word == "RUN" else word.replace("OUT", str(tmp_path)) for word in words))
    assert code == 0, err
    assert err.count("not finished") == 1
    assert f"note: {stopped}: the run is not finished; this is the best of its first 6 epochs. Go on with" in err


def until_checkpoint(out: Path, is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not (out / CHECKPOINT).exists():
        assert is_running()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_stopped_and_resumable(out: Path, err: str) -> None:
    assert err.splitlines()[-1] == f"concf: stopped. Go on with: concf train --resume --out {out}"
    assert "Traceback" not in err
    done = json.loads((out / HISTORY).read_text().splitlines()[-1])["epoch"]
    assert done < 399
    run = load_run(out)
    assert not run.finished
    with pytest.raises(KeyboardInterrupt):  # nothing is locked any more
        train(run.data, out=out, resume=True, watch=lambda _: (_ for _ in ()).throw(KeyboardInterrupt))


# The signal may strike while a file is being opened, before its `with` has begun; it is closed all the same.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@posix
def test_sigterm_says_how_to_resume_as_ctrl_c_does(
    concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which saves the start of another one."""
    out, not_handled = tmp_path / "run", []
    monkeypatch.setattr("concf.training.train.train", partial(train, checkpoint_seconds=0))

    def terminate() -> None:
        until_checkpoint(out, lambda: True)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: not_handled.append(True))
    try:
        threading.Thread(target=terminate, daemon=True).start()
        code, _, err = concf("train", data, "--out", out, *LONG, "--set", "training.epochs=400")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, not_handled) == (128 + signal.SIGTERM, [])
    assert_stopped_and_resumable(out, err)


@posix
def test_sigterm_to_several_processes_says_how_to_resume(data: Path, tmp_path: Path) -> None:
    out = stopped_run(data, tmp_path / "run", "training.epochs=400", "training.patience=none")
    before = (out / HISTORY).stat().st_size
    words = ["train", "--resume", "--out", out, "--processes", 2]
    command = [sys.executable, "-m", "concf", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=QUIET)
    until(lambda: (out / HISTORY).stat().st_size > before)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM
    assert_stopped_and_resumable(out, err)
