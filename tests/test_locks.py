"""One process trains in a folder at a time, and says who it is; an unfinished run says so wherever it is used."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from skipping import posix
from small_run import CLI, LONG, QUIET, assert_same_end, contents, often

from concf.data.split import Split
from concf.errors import ConcfWarning
from concf.inference.recommender import Recommender
from concf.models import load_run, train
from concf.runs.checkpoint import CARD, CHECKPOINT, HISTORY, LOCK, RUN
from concf.service.loading import Loader

WAIT = 120


HOLDER = """
import sys, time
from pathlib import Path
from concf.runtime.files import held
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


@posix
def test_a_second_process_is_refused_until_the_first_is_killed(
    concf: CLI, stopped: Path, holder: subprocess.Popen[str], whole: Path
) -> None:
    before = contents(stopped)
    code, out, err = concf("train", "--resume", "--out", stopped)
    assert (code, out) == (2, "")
    assert f"process {holder.pid} on '{socket.gethostname()}' trains" in err
    assert contents(stopped) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert f"process {holder.pid} on" in (stopped / LOCK).read_text()
    assert concf("train", "--resume", "--out", stopped)[0] == 0
    assert_same_end(stopped, whole)
    assert sorted(contents(stopped)) == [CARD, CHECKPOINT, HISTORY, RUN]


def test_a_run_that_is_not_finished_says_so(concf: CLI, stopped: Path, data: Path) -> None:
    for way in (load_run, Recommender.load, lambda folder: Loader()(folder)):
        with pytest.warns(ConcfWarning, match="not finished; this is the best of its first 6 epochs") as notes:
            way(stopped)
        assert len([each for each in notes if each.category is ConcfWarning]) == 1
    code, _, err = concf("evaluate", stopped, "--at", "5")
    assert (code, err.count("not finished")) == (0, 1)
    train(Split.load(data), out=stopped, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConcfWarning)
        load_run(stopped)


# The signal may strike while a file is being opened, before its `with` has begun; it is closed all the same.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
@posix
def test_sigterm_says_how_to_resume_as_ctrl_c_does(concf: CLI, data: Path, tmp_path: Path) -> None:
    """In this process, which saves the start of another one."""
    out, not_handled = tmp_path / "run", []

    def terminate() -> None:
        deadline = time.monotonic() + WAIT
        while not (out / CHECKPOINT).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: not_handled.append(True))
    try:
        threading.Thread(target=terminate, daemon=True).start()
        with often():
            code, _, err = concf("train", data, "--out", out, *LONG, "--set", "training.epochs=400")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, not_handled) == (128 + signal.SIGTERM, [])
    assert err.splitlines()[-1] == f"concf: stopped. Continue with: concf train --resume --out {out}"
    assert "Traceback" not in err
    assert json.loads((out / HISTORY).read_text().splitlines()[-1])["epoch"] < 399
    run = load_run(out)
    assert not run.finished
    with pytest.raises(KeyboardInterrupt):  # nothing is locked any more
        train(run.data, out=out, resume=True, watch=lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
