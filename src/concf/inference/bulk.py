"""Bulk lists by several workers: a folder of Parquet files with the rows of a single process, in their order.

A part is named by its first user, and renamed into place when it is complete. A worker that dies leaves no partial
file, and the worker that repeats its part writes the same file: nothing is lost or doubled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from concf.errors import ConcfWarning, ConfigError, DataError, option
from concf.inference.recommender import Recommender
from concf.runtime.arguments import check_count
from concf.runtime.executors import execute
from concf.runtime.files import new_file, new_folder

PARTS = 64  # fewest parts, if there are as many blocks of users, to keep all workers busy until the end
ROWS = 1 << 18  # about the most rows of a part


@dataclass(frozen=True)
class Part:
    """Users at positions from `begin` up to `end`."""

    begin: int
    end: int

    @property
    def name(self) -> str:
        """File name; names sort as users do."""
        return f"users-{self.begin:012d}.parquet"


MARKER = Part(0, 0).name  # every such folder has a first part


def parts_of(users: int, block: int, k: int) -> list[Part]:
    """Divide users into parts of whole blocks, whose scores equal a single process's; at least one part."""
    wanted = max(1, min(users // PARTS, ROWS // k))
    size = -(-wanted // block) * block
    return [Part(begin, min(begin + size, users)) for begin in range(0, max(users, 1), size)]


Job = tuple[Part, Sequence[Any] | None]  # a part and its user ids; None: those of the run


@dataclass
class Lists:
    """Write the lists of a part, and return the number of rows. A worker loads the run with its first part."""

    run: Path
    data: Path | None
    out: Path
    k: int
    options: dict[str, Any] = field(default_factory=dict)
    new_items: Any = None

    @cached_property
    def model(self) -> Recommender:
        """Load the run, with new items."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConcfWarning)  # `write_lists` has warned already
            model = Recommender.load(self.run, self.data)
            return model if self.new_items is None else model.add_items(self.new_items)

    def __call__(self, job: Job) -> int:
        """Write a part; returns the number of rows."""
        import pyarrow.parquet as pq

        part, ids = job
        users = self.model.user_ids.values[part.begin : part.end] if ids is None else ids
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConcfWarning)
            tables = self.model.stream(users, self.k, **self.options)
        first, rows = next(tables), 0
        with new_file(self.out / part.name) as fresh, pq.ParquetWriter(fresh, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                rows += table.num_rows
        return rows


def write_lists(
    run: str | Path, out: str | Path, users: Sequence[Any] | None = None, k: int = 10, *, engine: str,
    workers: int | None = None, data: str | Path | None = None, model: Recommender | None = None, new_items: Any = None,
    parts: Sequence[Part] | None = None, advance: Callable[[int], None] = lambda _: None, **options: Any,
) -> int:  # fmt: skip
    """Write the lists of `users`, or of everyone, as a folder of Parquet files; returns the number of rows.

    users: ids, all integers or all text
    run, out, data: paths that every worker can reach, in a cluster on shared storage
    engine, workers: see `executors`. parts: see `parts_of`. advance: called with the number of users of a part
    model: the run, if it is already loaded; new_items: the catalogue that was added to it (`Recommender.add_items`)
    options: further arguments of `Recommender.stream`
    """
    import pyarrow.parquet as pq

    out, run = Path(out).absolute(), Path(run).absolute()
    if out.suffix:
        raise ConfigError(f"{option('out', str(out))}: an engine writes a folder. Choose a name without an ending")
    data = None if data is None else Path(data).absolute()
    work = Lists(run, data, out, check_count("k", k), options, new_items)
    model = model or work.model
    model.stream(users, k, **options)  # errors and warnings come once, before there are workers
    parts = parts or parts_of(len(model.user_ids if users is None else users), model.ranker.block(), k)
    del model
    rows = {}
    with new_folder(out, marker=MARKER, overwrite=True) as fresh:
        jobs = [(part, None if users is None else users[part.begin : part.end]) for part in parts]
        work = Lists(run, data, fresh, k, options, new_items)
        with closing(execute(work, jobs, engine, workers)) as finished:  # no worker writes on when one has failed
            for (part, _), done in finished:
                rows[part.name] = done.result()
                advance(part.end - part.begin)
        for path in fresh.iterdir():
            if path.name not in rows:  # a dead worker's
                path.unlink()
        for path, count in ((fresh / name, count) for name, count in rows.items()):
            if not path.is_file() or pq.read_metadata(path).num_rows != count:
                raise DataError(f"{path}: not as a worker wrote it. Is it on storage that all workers share?")
    return sum(rows.values())
