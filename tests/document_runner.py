"""Runs the code of a document: shell lines and Python blocks of a page, in order, in a folder of their own.

The commands are the document's; the numbers are small. Presets train for a few epochs, grids of baselines have one
point, and the catalogue's data sets are small simulated files of the same names. Further changes are in SUBSTITUTIONS,
and what a page takes for granted is in PRELUDES. `concf serve` answers in this process, without a socket.

A fenced block without a language (or `sh`, `bash`) is commands and nothing else; output is marked `text`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from small_service import LocalPool

from concf.baselines.table import BASELINES
from concf.data.catalogue import CATALOGUE, HOME_VARIABLE, Entry, File, Variant
from concf.data.simulate import Simulation
from concf.models import PRESETS, choose_settings
from concf.service.app import create_app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("", "sh", "bash")

SMALL = {
    "strong": ("dimensions=8",),
    "reference": (
        "training.epochs=2", "training.batch=1024", "model.dimensions=8", "consensus.every=1", "consensus.window=2",
    ),
}  # fmt: skip
WORLD = Simulation(users=48, items=100, events=3000, tastes=6, popularity=0.2, activity_spread=0.3)
SUBSTITUTIONS = {
    r"--seeds \d+": "--seeds 1",
    r"range\(3\)": "range(2)",  # splits
}
PRELUDES = {  # page: Python
    "README.md": "log = letters().sort('timestamp'); frame, newer = log[:1200], log[1200:]",
    "recommending.md": "frame = letters()",
}


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


@dataclass
class Page:
    """A page under way. concf: runs the command line in this process, as the fixture of that name does."""

    concf: Callable[..., tuple[int, str, str]]
    patch: pytest.MonkeyPatch
    names: dict[str, Any] = field(default_factory=lambda: {"letters": letters})
    app: Any = None

    def run(self, page: Path) -> None:
        """The prelude, then every block."""
        self.patch.setattr("concf.service.server.serve", self.serve)
        with asyncio.Runner() as runner:
            for block in [Block(0, "python", PRELUDES.get(page.name, "")), *blocks_of(page)]:
                for command in block.commands():
                    self.shell(command, f"{page.name}:{block.line}: {command}", runner)
                if block.language == "python":  # a traceback shows the line of the page
                    code = compile("\n" * block.line + small(block.text), f"{page.name}:{block.line}", "exec")
                    with redirect_stdout(StringIO()):
                        exec(code, self.names)

    def shell(self, command: str, where: str, runner: asyncio.Runner) -> None:
        """One command; whatever is not known fails."""
        name, *words = shlex.split(small(command))
        if name == "concf":
            code, out, err = self.concf(*words)
            assert code == 0, f"{where}\n{out}{err}"
        elif name == "curl":
            answer = runner.run(self.curl(words))
            assert answer.is_success, f"{where}\n{answer.status_code} {answer.text}"
        elif (name, *words[:2]) != ("python", "-m", "reproduction"):  # hours; test_reproduce.py measures small cells
            pytest.fail(f"{where}\nis not run here; see {Path(__file__).name}")

    def serve(self, service: Any, host: str, port: int, access: Any, *_: Any) -> None:
        """In place of a server: what it would answer with."""
        service.make = LocalPool
        asyncio.run(service.reload())
        self.app = create_app(service, access)

    async def curl(self, words: list[str]) -> httpx.Response:
        """The request that curl would make of the few options that documents use."""
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("url")
        parser.add_argument("-H", "--header", action="append", default=[])
        parser.add_argument("--json")
        request = parser.parse_args(words)
        headers = dict(header.split(": ", 1) for header in request.header) | {"Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app)) as http:
            method = "GET" if request.json is None else "POST"
            return await http.request(method, request.url, headers=headers, content=request.json)


def small(text: str) -> str:
    """The same with small numbers."""
    for pattern, numbers in SUBSTITUTIONS.items():
        text = re.sub(pattern, numbers, text)
    return text


def letters() -> pl.DataFrame:
    """A log in which alice and bob used some of the items a to z."""
    log = Simulation(users=60, items=26, events=1500, tastes=4, popularity=0.3).draw(0)
    users = pl.col("user_id").replace_strict({0: "alice", 1: "bob"}, default=pl.format("user {}", "user_id"))
    return log.select(users, item_id=(pl.col("item_id") + ord("a")).map_elements(chr, pl.String), timestamp="timestamp")


def small_world(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make `folder` the current folder, with the files that documents mention, and all numbers small."""
    patch.chdir(folder)
    log, number = WORLD.draw(1), pl.col("item_id")
    log.write_csv("log.csv")
    log[:2500].write_csv("monday.csv")
    log[2500:].write_csv("tuesday.csv")
    log.with_columns(rating=number % 5 + 1).write_csv("ratings.csv")
    later = pl.col("timestamp") - pl.col("timestamp").min() + log["timestamp"].max()
    WORLD.draw(2)[:500].with_columns(later, rating=pl.lit(5)).write_csv("new.csv")
    items = log.select(number.unique())
    items.with_columns(title=pl.format("Item {}", number), category=number % 7, price=number % 40).write_csv(
        "items.csv"
    )
    Path("users.csv").write_text("user_id\n3\n8\n777\n")
    Path("sold-out.txt").write_text("5\n6\n")
    for name, chosen in PRESETS.items():
        patch.setitem(PRESETS, name, choose_settings(chosen, words=SMALL[chosen.kind]))
    for name, baseline in BASELINES.items():
        first = {setting: values[:1] for setting, values in baseline.grid.items()}
        patch.setitem(BASELINES, name, replace(baseline, grid=first))
    patch.setenv(HOME_VARIABLE, str(folder / "home"))
    for name, entry in CATALOGUE.items():
        if not entry.is_split:
            place = folder / "home" / name / "log.csv"
            place.parent.mkdir(parents=True)
            log.write_csv(place)
            file = File(path=f"{name}/log.csv", sha256=sha256(place.read_bytes()).hexdigest())
            patch.setitem(CATALOGUE, name, Entry(title=name, variants=(Variant(files=(file,)),)))
