"""The run that is served, and its replacement by another without losing a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from concf.errors import ConcfError
from concf.service.limits import Limits
from concf.service.loading import LOG, Loader, shortened
from concf.service.pool import Pool
from concf.service.problems import Problem
from concf.service.schemas import Reloaded


class Service:
    """Holds the pool of the run that is served.

    folder: of the run; root: the folder below which a reload over HTTP may name runs; without one it names none
    version, loaded: how many runs were loaded, and when the last was, in seconds since 1970; 0 before the first
    """

    def __init__(
        self, loader: Loader, folder: Path, limits: Limits | None = None, root: Path | None = None, workers: int = 1,
        make: Callable[..., Pool] = Pool,
    ) -> None:  # fmt: skip
        self.limits, self.folder, self.root, self.workers, self.make = limits or Limits(), folder, root, workers, make
        self.loader = replace(loader, limits={"k": self.limits.k, "history": self.limits.history})
        self.version, self.loaded, self.closing, self._replaced = 0, 0.0, False, 0
        self._pool: Pool | None = None
        self._turn = asyncio.Lock()
        self._waiting: dict[Path, asyncio.Task[Reloaded]] = {}  # loads that have not begun

    @property
    def pool(self) -> Pool:
        """The pool of the run that is served now. A request reads this once and keeps that run to its end."""
        if self._pool is None:
            raise Problem(503, "not_ready", "the run is being loaded; try again in a moment")
        return self._pool

    @property
    def run_id(self) -> str:
        """The id of the run that is served; empty before the first."""
        return "" if self._pool is None else str(self._pool.facts["run"])

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a worker."""
        return 0 if self._pool is None else len(self._pool.short.waiting) + len(self._pool.long.waiting)

    @property
    def replaced(self) -> int:
        """Number of workers that ended or were ended."""
        return self._replaced + (0 if self._pool is None else self._pool.replaced)

    async def reload(self, folder: Path | None = None) -> Reloaded:
        """Serve the run in another folder, or in the same one again; a run that cannot be served is refused.

        One load at a time; requests for the same folder share one that has not begun.
        """
        source = folder or self.folder
        if source not in self._waiting:
            self._waiting[source] = asyncio.create_task(self._load(source))
        return await asyncio.shield(self._waiting[source])

    async def _load(self, source: Path) -> Reloaded:
        async with self._turn:
            del self._waiting[source]
            if self.closing:
                raise Problem(503, "not_ready", "the service is shutting down")
            pool = self.make(self.loader, source, self.limits, self.workers, self.reload_soon)
            try:
                await pool.start()
            except ConcfError as error:
                if self._pool is not None:
                    LOG.error("reload refused, still serving the old run: %s", error)
                raise
            before, self._pool, self.folder = self._pool, pool, source
            self.version, self.loaded = self.version + 1, time.time()
            if before is not None:
                self._replaced += before.replaced
                before.retire()
                LOG.info("serving %s, version %s", source, self.version)
            return {"run": pool.facts["name"], "id": pool.facts["run"], "version": self.version}

    def reload_soon(self) -> None:
        """Load the folder again in the background; a refusal is logged."""
        task: asyncio.Task[Any] = asyncio.create_task(self.reload())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def allowed(self, name: str) -> Path:
        """Return a folder that a reload over HTTP names; it must be below the root, wherever links lead."""
        folder = Path(name)
        try:
            allowed = self.root is not None and folder.resolve().is_relative_to(self.root.resolve())
        except (OSError, ValueError):  # not a valid path
            allowed = False
        if not allowed:
            reason = "this service was started without --run-root" if self.root is None else f"not below {self.root}"
            raise Problem(409, "refused_run", f"{shortened(name)}: {reason}", "body.run")
        return folder

    async def close(self) -> None:
        """End all processes."""
        if self._pool is not None:
            await self._pool.close()
