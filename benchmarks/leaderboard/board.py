"""The published lines of a leaderboard, a TOML file each in `entries/`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from concf.errors import DataError
from concf.runtime.settings import Settings

ENTRIES = Path(__file__).parent / "entries"
SPLITS = {  # data set -> SHA-256 of ids, pairs and test part of its published files
    "gowalla": "35e09c11a4163b037b1480b9e73104098c76eb9f09cad192b1dcb04d1ea57971",
    "yelp2018": "818e40138a0346ccd7f3b17bb7b6ccc4f63c5cc31f53a7b8f1f658c53a6426fe",
}
HEADER = ["method", "R@20", "N@20", "chosen by", "seconds", "machine", "source"]


class Entry(Settings):
    """One method on one public split."""

    method: str = Field(min_length=1)
    data: Literal["gowalla", "yelp2018"]
    split: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of ids, pairs and test part")
    recall: float = Field(ge=0, le=1, description="Recall@20 on the test part")
    ndcg: float = Field(ge=0, le=1, description="NDCG@20 on the test part")
    chosen_by: Literal["validation", "test", "unknown"] = Field(description="what chose its settings and its epoch")
    source: str = Field(min_length=1, description="where the figures can be read, or a command that gives them")
    seconds: float | None = Field(None, gt=0, description="of training, all choices included")
    machine: str | None = Field(None, description="that the seconds are of")
    processor_seconds: float | None = Field(None, gt=0)
    joules: float | None = Field(None, gt=0)
    memory_gib: float | None = Field(None, gt=0, description="the most memory")
    command: str | None = Field(None, description="that trains it")
    commit: str | None = Field(None, description="of concf, for ours")

    def cells(self) -> list[str]:
        """A row of the table."""
        took = "" if self.seconds is None else f"{self.seconds:.0f}" if self.seconds >= 10 else f"{self.seconds:.1f}"
        return [
            self.method,
            f"{self.recall:.4f}",
            f"{self.ndcg:.4f}",
            self.chosen_by,
            took,
            self.machine or "",
            self.source,
        ]


def published(data: str) -> list[Entry]:
    """The published lines of a data set."""
    known = [_read(path.name, tomllib.loads(path.read_text("utf-8"))) for path in sorted(ENTRIES.iterdir())]
    return [each for each in known if each.data == data]


def ordered(lines: Iterable[Entry]) -> list[Entry]:
    """By NDCG, the best first; equals by recall, then by name."""
    return sorted(lines, key=lambda each: (-each.ndcg, -each.recall, each.method))


def _read(name: str, content: dict[str, Any]) -> Entry:
    try:
        entry = Entry.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if entry.split != SPLITS[entry.data]:
        raise DataError(
            f"{name}: split {entry.split[:16]} is not the public one of {entry.data}, {SPLITS[entry.data][:16]}"
        )
    if (entry.seconds is None) != (entry.machine is None):
        raise DataError(f"{name}: seconds need the machine that they are of, and a machine its seconds")
    return entry
