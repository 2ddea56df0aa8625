"""Lists for everyone by several workers: a folder of Parquet files that holds the rows of the plain path, in its order.

A part is named by its first user, written beside and renamed. A worker that dies leaves no part half written, and
whoever does its part again writes the same file: nothing is lost, nothing is doubled.
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

from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.recommender import Recommender
from concf.runtime.arguments import check_count
from concf.runtime.executors import execute
from concf.runtime.files import new_file, new_folder

PARTS = 64  # at least, where there are as many blocks of users: the last to be done should not be long alone
ROWS = 1 << 18  # of a part, at most, give or take a block


@dataclass(frozen=True)
class Part:
    """The users from a position up to another."""

    begin: int
    end: int

    @property
    def name(self) -> str:
        """Of its file; in the order of names parts are in the order of users."""
        return f"users-{self.begin:012d}.parquet"


MARKER = Part(0, 0).name  # every such folder has a first part


def parts_of(users: int, block: int, k: int) -> list[Part]:
    """Parts of whole blocks, as the plain path takes users: then the very same sums are made. One if there are none."""
    wanted = max(1, min(users // PARTS, ROWS // k))
    size = -(-wanted // block) * block
    return [Part(begin, min(begin + size, users)) for begin in range(0, max(users, 1), size)]


Asked = tuple[Part, Sequence[Any] | None]  # and the ids of its users; None where everyone is asked for


@dataclass
class Lists:
    """Writes a part's lists; gives the number of rows. A worker's own copy loads the run with its first part."""

    run: Path
    data: Path | None
    out: Path
    k: int
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> Recommender:
        """The run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConcfWarning)  # what there is to say of it was said before any worker
            return Recommender.load(self.run, self.data)

    def __call__(self, asked: Asked) -> int:
        """Write it."""
        import pyarrow.parquet as pq

        part, named = asked
        users = self.model.user_ids.values[part.begin : part.end] if named is None else named
        with warnings.catch_warnings():  # what there is to note, `write_lists` has noted
            warnings.simplefilter("ignore", ConcfWarning)
            tables = self.model.stream(users, self.k, **self.options)
        first, rows = next(tables), 0
        with new_file(self.out / part.name) as fresh, pq.ParquetWriter(fresh, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                rows += table.num_rows
        return rows


def write_lists(
    run: str | Path,
    out: str | Path,
    users: Sequence[Any] | None = None,
    k: int = 10,
    *,
    engine: str,
    workers: int | None = None,
    data: str | Path | None = None,
    model: Recommender | None = None,
    parts: Sequence[Part] | None = None,
    advance: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> int:
    """Lists of `users`, or of everyone, as a folder of Parquet files; gives the number of rows.

    users: ids, all integers or all text
    run, out, data: paths that every worker can reach: with a cluster of several machines, on storage that they share
    engine, workers: see `executors`. parts: see `parts_of`. advance: called with the number of users of a part
    model: the run, if it is loaded already
    options: as of `Recommender.stream`
    """
    out, run = Path(out).absolute(), Path(run).absolute()
    if out.suffix:
        raise ConfigError(f"--out {out}: an engine writes a folder; choose a name without an ending, as {out.stem}")
    data = None if data is None else Path(data).absolute()
    k, model = check_count("k", k), model or Recommender.load(run, data)
    model.stream(users, k, **options)  # what is wrong or to be noted is said once, before there are workers
    parts = parts or parts_of(len(model.user_ids if users is None else users), model.ranker.block(), k)
    del model
    rows = {}
    with new_folder(out, marker=MARKER, overwrite=True) as fresh:
        jobs = [(part, None if users is None else users[part.begin : part.end]) for part in parts]
        work = Lists(run, data, fresh, k, options)
        with closing(execute(work, jobs, engine, workers)) as finished:  # no worker writes on when one has failed
            for (part, _), done in finished:
                rows[part.name] = done.result()
                advance(part.end - part.begin)
        _tidy(fresh, rows)
    return sum(rows.values())


def _tidy(folder: Path, rows: dict[str, int]) -> None:
    """Leave the parts alone there, without what dead workers had begun; each must have its rows."""
    import pyarrow.parquet as pq

    for path in folder.iterdir():
        if path.name not in rows:
            path.unlink()
    for name, count in rows.items():
        if not (folder / name).is_file() or pq.read_metadata(folder / name).num_rows != count:
            raise DataError(f"{folder / name}: not what a worker has written. Is it on storage that all workers share?")
