"""Runs the code of a document: shell lines and Python blocks of a page, in order, in a folder of their own.

The commands are the document's; the numbers are small. Presets train for a few epochs, grids of baselines have one
point, and the catalogue's data sets are small simulated files of the same names. Further changes are in SUBSTITUTIONS,
what a page takes for granted is in PRELUDES, and what is not run at all is in EXCEPTIONS, with the reason.

A fenced block without a language (or `sh`, `bash`) is commands and nothing else; output is marked `text`. A block of
Python whose first line is `# name.py` is run and also written to that file, which later commands may import.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import StringIO
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from small_run import QUIET

from concf.cli.app import main as command_line
from concf.data.catalogue import CATALOGUE, HOME_VARIABLE, Entry, File
from concf.data.reading.scan import Reading
from concf.data.simulate import Simulation
from concf.model.baselines.table import BASELINES
from concf.training.config.presets import PRESETS, choose_settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "sh", "bash")

SMALL = (
    "training.epochs=2", "training.batch=1024", "model.dimensions=8", "consensus.every=1", "consensus.window=2",
)  # fmt: skip
WORLD = Simulation(users=48, items=100, events=3000, tastes=6, popularity=0.2, activity_spread=0.3)
SUBSTITUTIONS = {
    r"--seeds \d+": "--seeds 1",
    r"range\(3\)": "range(2)",  # splits
    r'prepare\("demo"': 'prepare("log.csv"',
}
EXCEPTIONS = {
    r"python -m reproduction .*": "needs a checkout, and runs for hours; test_reproduce.py measures small cells",
    r"make \w+": "sets up an environment of its own; that there is such a target is a test",
    r"pip install [^;&|]+": "needs a network; that there is such an extra is a test",
    r"(concf|torchrun) .*--(processes|nproc-per-node) .*": "starts processes; test_processes.py does so",
    r"concf demo": "takes most of a minute, and is run by test_cli.py",
}
PRELUDES = {  # page: commands, then Python
    "README.md": ("", "log = letters().sort('timestamp'); frame, newer = log[:1200], log[1200:]"),
    "data.md": ("concf prepare log.csv --protocol random --out data/mine", ""),
    "evaluation.md": (
        "concf prepare log.csv --protocol random --out data/mine",
        "import concf; model = concf.BASELINES['ease'].make().fit(concf.Split.load('data/mine').train)",
    ),
    "export.md": ("concf train log.csv --preset reference --out runs/first", ""),
    "recommending.md": ("", "frame = letters()"),
}
STARTING = 120.0  # seconds that a server may take
SERVERS = multiprocessing.get_context("forkserver")  # servers are forked from a process that has what takes long
SERVERS.set_forkserver_preload(["torch", "starlette", "uvicorn", "scipy.sparse"])  # and no threads, as Polars has
HTTP = httpx.Client(verify=False)  # one for all: to make one takes longer than a question


@dataclass(frozen=True)
class Block:
    """A fenced block. line: where it begins in its page."""

    line: int
    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """The commands of a shell block, without their comments."""
        if self.language in SHELL:
            for line in re.sub(r"\\\n\s*", "", self.text).splitlines():
                for command in re.sub(r"(^|\s+)#\s.*", "", line).split(" && "):
                    if command.strip():
                        yield command.strip()


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text[: each.start()].count("\n") + 1, each[1], each[2]) for each in fences]


def reason_not_to_run(command: str) -> str | None:
    """Why a command is an exception, if it is one."""
    return next((reason for pattern, reason in EXCEPTIONS.items() if re.fullmatch(pattern, command)), None)


@dataclass
class Page:
    """A page under way. concf: runs the command line in this process, as the fixture of that name does."""

    concf: Callable[..., tuple[int, str, str]]
    patch: pytest.MonkeyPatch
    names: dict[str, Any] = field(default_factory=lambda: {"letters": letters})
    server: BaseProcess | None = None
    port: int = 0

    def run(self, page: Path) -> None:
        """The prelude, then every block."""
        shell, python = PRELUDES.get(page.name, ("", ""))
        blocks = [Block(0, "", shell), Block(0, "python", python), *blocks_of(page)]
        if any(command.startswith("concf serve") for block in blocks for command in block.commands()):
            ensure_running()  # it imports its libraries while the commands before the server run
        try:
            for block in blocks:
                for command in block.commands():
                    if reason_not_to_run(command) is None:
                        self.shell(command, f"{page.name}:{block.line}: {command}")
                if block.language == "python":
                    self.python(block, f"{page.name}:{block.line}")
        finally:
            self.stop()

    def python(self, block: Block, where: str) -> None:
        """In the namespace of the page; a traceback shows the line of the page."""
        if file := re.match(r"# (\w+\.py)\n", block.text):
            Path(file[1]).write_text(block.text, encoding="utf-8")
        code = compile("\n" * block.line + self.here(block.text), where, "exec")
        with redirect_stdout(StringIO()):
            exec(code, self.names)

    def shell(self, command: str, where: str) -> None:
        """One command; whatever is not known fails."""
        name, *words = shlex.split(self.here(command))
        if name == "concf" and words[0] == "serve":
            self.serve([word for word in words if word != "&"])
        elif name == "concf":
            code, out, err = self.concf(*words)
            assert code == 0, f"{where}\n{out}{err}"
        elif name == "curl":
            answer = curl(words)
            assert answer.is_success, f"{where}\n{answer.status_code} {answer.text}"
        elif name == "python":
            subprocess.run([sys.executable, *words], env=QUIET, check=True, capture_output=True)
        else:
            pytest.fail(f"{where}\nneither runs here nor is an exception; see {Path(__file__).name}")

    def here(self, text: str) -> str:
        """The same with small numbers, and with the server's port in place of the usual one."""
        for pattern, numbers in SUBSTITUTIONS.items():
            text = re.sub(pattern, numbers, text)
        return re.sub(r":8000\b", f":{self.port}", text)

    def serve(self, words: list[str]) -> None:
        """Start the server in place of the one before, and wait until it is ready."""
        self.stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = SERVERS.Process(
            target=serve_here, args=(Path.cwd(), [*words, "--port", str(self.port), "--drain", "0"])
        )
        self.server.start()
        end = time.monotonic() + STARTING
        while not is_ready(self.port):
            alive = self.server.is_alive() and time.monotonic() < end
            assert alive, f"concf {' '.join(words)}\n{Path('server.log').read_text()}"
            time.sleep(0.1)

    def stop(self) -> None:
        """End the server, if there is one."""
        if self.server is not None:
            server, self.server = self.server, None
            server.terminate()
            server.join(STARTING)
            if server.exitcode is None:
                server.kill()
                pytest.fail("the server did not end at SIGTERM")


def serve_here(folder: Path, words: list[str]) -> None:
    """`concf serve` in a process of its own."""
    os.chdir(folder)
    log = os.open("server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["concf", *words]
    command_line()


def is_ready(port: int) -> bool:
    try:
        return HTTP.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    except httpx.TransportError:
        return False


def curl(words: list[str]) -> httpx.Response:
    """The request that curl would make of the few options that documents use."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-d", "--data", "--json")
    parser.add_argument("-s", action="store_true")
    request = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in request.header)
    if "--json" in words:
        headers["Content-Type"] = "application/json"
    url = request.url if "://" in request.url else f"http://{request.url}"
    method = request.request or ("GET" if request.data is None else "POST")
    return HTTP.request(method, url, headers=headers, content=request.data, timeout=STARTING)


def letters() -> pl.DataFrame:
    """A log in which alice and bob used some of the items a to z."""
    log = Simulation(users=60, items=26, events=1500, tastes=4, popularity=0.3).draw(0)
    users = pl.col("user_id").replace_strict({0: "alice", 1: "bob"}, default=pl.format("user {}", "user_id"))
    return log.select(users, item_id=(pl.col("item_id") + ord("a")).map_elements(chr, pl.String), timestamp="timestamp")


def small_world(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make `folder` the current folder, with the files that documents mention, and all numbers small."""
    patch.chdir(folder)
    log = WORLD.draw(1)
    log.write_csv("log.csv")
    log[:2500].write_csv("monday.csv")
    log[2500:].write_csv("tuesday.csv")
    log.with_columns(rating=pl.col("item_id") % 5 + 1).write_csv("ratings.csv")
    later = pl.col("timestamp") - pl.col("timestamp").min() + log["timestamp"].max()
    WORLD.draw(2)[:500].with_columns(later, rating=pl.lit(5)).write_csv("new.csv")
    items = log.select(item_id=pl.col("item_id").unique())
    number = pl.col("item_id")
    items.with_columns(title=pl.format("Item {}", number), category=number % 7, price=number % 40).write_csv(
        "items.csv"
    )
    Path("token.txt").write_text("a-token-of-some-length\n")
    Path("admin.txt").write_text("an-admin-token\n")
    Path("users.csv").write_text("user_id\n3\n8\n777\n")
    Path("sold-out.txt").write_text("5\n6\n")
    for name, chosen in PRESETS.items():
        patch.setitem(PRESETS, name, choose_settings(chosen, words=SMALL))
    for name, baseline in BASELINES.items():
        first = {setting: values[:1] for setting, values in baseline.grid.items()}
        patch.setitem(BASELINES, name, replace(baseline, grid=first))
    patch.setenv(HOME_VARIABLE, str(folder / "home"))
    for name, entry in CATALOGUE.items():
        (folder / "home" / name).mkdir(parents=True)
        files = []
        for part, rows in {"train": log[:2500], "test": log[2500:]}.items() if entry.is_split else [("log", log)]:
            place = folder / "home" / name / f"{part}.csv"
            if entry.is_split:
                users = rows.group_by("user_id", maintain_order=True).agg("item_id").rows()
                place.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in users))
            else:
                rows.write_csv(place)
            files.append(File(f"{name}/{part}.csv", sha256(place.read_bytes()).hexdigest()))
        reading = Reading(format="user-lines") if entry.is_split else Reading()
        small = Entry(name, name, variants=((tuple(files), reading),), is_split=entry.is_split)
        patch.setitem(CATALOGUE, name, small)
