"""Run by test_without_posix.py: the main job as Windows would have it, with what only POSIX systems have taken away.

`python without_posix.py FOLDER`. The libraries are imported first, since they were built for this system.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import typer

from concf.runtime.executors import one_thread_each

for library in (
    "filelock", "polars", "pyarrow.parquet", "rich.console", "safetensors.torch", "scipy.optimize",
    "scipy.sparse.csgraph", "scipy.sparse.linalg", "torch._dynamo",
):  # fmt: skip
    import_module(library)
with one_thread_each():  # finds the libraries of linear algebra
    pass
LACKING = (
    "fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "getpgrp", "setpgrp", "setsid", "killpg", "uname",
    "nice", "getloadavg", "mkfifo", "sched_getaffinity", "sched_setaffinity", "statvfs", "sysconf", "wait", "waitid",
    "WNOHANG",
)  # fmt: skip
SIGNALS = ("SIGKILL", "SIGHUP", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGQUIT")
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "_posixsubprocess", "posix")
REAL_OPEN = builtins.open
asked: list[int] = []  # processes, of which Windows was asked whether they run


def no_program(*words: Any, **_: Any) -> Any:
    raise FileNotFoundError(2, "No such file or directory", words)


def kernel(name: str | None = None, **_: Any) -> Any:
    raise AssertionError("ctypes.CDLL(None) is a TypeError on Windows", name)


def guard_files() -> None:
    """No file of the system's own, no open folder, and only a file that may be written can be flushed."""
    opened, flushed, plain = os.open, os.fsync, builtins.open

    def own(path: Any) -> None:
        if isinstance(path, str | Path) and str(path).startswith(("/proc/", "/sys/", "/dev/")):
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def open_descriptor(path: Any, flags: int, *more: Any, **options: Any) -> int:
        own(path)
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more, **options)

    def open_file(path: Any, *words: Any, **options: Any) -> Any:
        own(path)
        return plain(path, *words, **options)

    def fsync(descriptor: int) -> None:
        os.write(descriptor, b"")  # OSError: Bad file descriptor
        flushed(descriptor)

    os.open, os.fsync, builtins.open, io.open = open_descriptor, fsync, open_file, open_file  # type: ignore[assignment]


def become_windows() -> None:
    for name in LACKING:
        if hasattr(os, name):
            delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    ctypes.CDLL = ctypes.WinDLL = kernel  # type: ignore[attr-defined, misc, assignment]
    psutil.pid_exists = lambda pid: asked.append(pid) or pid == os.getpid()
    del os.kill  # Windows would send Ctrl-C to a process, or end it
    subprocess.Popen = no_program  # type: ignore[assignment, misc]
    multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[method-assign]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    free = types.SimpleNamespace(available=8 << 30)
    psutil.virtual_memory = lambda: free  # its own for Windows reads no /proc
    guard_files()
    sys.platform = "win32"


def main(folder: Path) -> None:
    is_linux = sys.platform == "linux"
    become_windows()
    from concf.cli.app import app
    from concf.inference.recommender import Recommender
    from concf.runs.memory import available_memory
    from concf.runtime import provenance
    from concf.runtime.files import held

    def concf(*words: object) -> None:
        typer.main.get_command(app).main([str(word) for word in words], standalone_mode=False)

    draw = np.random.default_rng(0)
    pairs = {(user, (user % 4) * 8 + int(item)) for user in range(40) for item in draw.integers(0, 10, 16)}
    log = folder / "log.csv"
    log.write_text("user,item\n" + "".join(f"u{user},i{item}\n" for user, item in sorted(pairs)), encoding="utf-8")
    left_behind = folder / ".data.partial-9999999"  # by a process that is no more
    left_behind.mkdir()
    concf("prepare", log, "--protocol", "random", "--out", folder / "data")
    assert not left_behind.exists()
    assert 9999999 in asked
    concf("train", folder / "data", "--budget", "fast", "--out", folder / "run")
    concf("train", "--resume", "--out", folder / "run")
    assert not list((folder / "run").glob("*lock*"))
    concf("recommend", folder / "run", "--users", "all", "-k", 3, "--out", folder / "lists.csv")
    recommender = Recommender.load(folder / "run")
    assert len(recommender.recommend("u1", k=3)) == 3
    if is_linux:  # a mapped file could not be replaced
        with REAL_OPEN("/proc/self/maps") as maps:
            assert "checkpoint.safetensors" not in maps.read()
    with held(folder / "lock", "works here"):
        assert (folder / "lock").exists()
    assert available_memory(torch.device("cpu")) == 8 << 30
    assert provenance.provenance()["machine"]["cores"]
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
