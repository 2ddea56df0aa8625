"""Independent jobs over several workers: processes of this machine, or those of a Ray cluster.

A worker is given the function once and keeps it from job to job, with whatever the function has loaded by then.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

from concf.errors import ConcfError, ConfigError, MissingExtraError

Job = TypeVar("Job")
Result = TypeVar("Result")
Done = Generator[tuple[Job, "Future[Result]"], None, None]

RAY = "ray"
ENGINES = ("processes", RAY)
RETRIES = 3  # of a job whose worker died; a job that kills every worker it meets must come to an end
KNOCK = 10.0  # seconds within which a cluster must take a connection
OBJECTS = 100 << 20  # bytes that a local Ray keeps for functions and results, which are small
LOCAL = {  # of a Ray that is started here, to be set before Ray is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: no other machine joins, so it binds to loopback
    "RAY_worker_niceness": "0",  # else other programs go before its workers
}


class DeadWorkersError(ConcfError):
    """A job was tried again and again, and its worker died each time."""


def spread(
    function: Callable[[Job], Result], jobs: Sequence[Job], engine: str, workers: int | None = None, gpus: float = 0.0
) -> Done[Job, Result]:
    """Each job when it is done, in any order, with its result or its exception.

    function: of a module, or an object of a class of one; it goes to each worker once. A worker has its share of the
              machine's threads, on Ray one
    workers:  how many; None: one for each core of this machine, or of the cluster
    gpus:     the share of a GPU that Ray is to give each worker, if the cluster has any
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine = {engine!r}: choose from {', '.join(ENGINES)}")
    if engine == RAY:
        return _on_ray(function, jobs, workers, gpus)
    return _in_processes(function, jobs, min(workers or os.cpu_count() or 1, max(len(jobs), 1)))


def one_after_the_other(function: Callable[[Job], Result], jobs: Sequence[Job]) -> Done[Job, Result]:
    """The same in this process."""
    for job in jobs:
        future: Future[Result] = Future()
        try:
            future.set_result(function(job))
        except Exception as error:
            future.set_exception(error)
        yield job, future


def _in_processes(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Done[Job, Result]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_keep, initargs=(function, threads)) as pool:
        futures = {pool.submit(_do, job): job for job in jobs}
        try:
            for done in as_completed(futures):
                yield futures[done], done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_kept: list[Callable[[Any], Any]] = []  # in a process of a pool: its function


def _keep(function: Callable[[Any], Any], threads: int) -> None:
    import torch

    torch.set_num_threads(min(threads, torch.get_num_threads()))
    _kept[:] = [function]


def _do(job: Any) -> Any:
    return _kept[0](job)


class Worker:
    """An actor of Ray."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def ready(self) -> None:
        """Answered when the worker has started."""

    def do(self, job: Any) -> Any:
        """One job."""
        return self.function(job)


def _on_ray(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int | None, gpus: float
) -> Done[Job, Result]:
    """A worker is asked for its next job when it has done the last; Ray starts a dead one again, with its job.

    A worker for whom the cluster has no room yet is waited for only as long as the others have work.
    """
    if not jobs:
        return
    with _cluster(workers) as ray:
        share, room = _room(ray, gpus)
        kind = ray.remote(num_cpus=1, num_gpus=share, max_restarts=-1, max_task_retries=RETRIES)(Worker)
        waiting, left = deque(jobs), len(jobs)
        actors = [kind.remote(function) for _ in range(min(workers or room, room, left))]
        starting = {actor.ready.remote(): actor for actor in actors}
        busy: dict[Any, tuple[Any, Job]] = {}
        try:
            while left:
                (reference,), _ = ray.wait([*busy, *starting])
                if reference in starting:
                    actor = starting.pop(reference)
                    _refuse_dead(ray, reference)
                else:
                    actor, job = busy.pop(reference)
                    left -= 1
                    future = _outcome(ray, reference)
                    yield job, future
                    if isinstance(future.exception(), DeadWorkersError):  # it may not come back: ask before a job
                        starting[actor.ready.remote()] = actor
                        continue
                if waiting:
                    job = waiting.popleft()
                    busy[actor.do.remote(job)] = actor, job
        finally:
            for actor in actors:
                ray.kill(actor)


def ray_module() -> Any:
    """Ray, which is imported only where it is asked for."""
    if _address() is None:
        os.environ.update(LOCAL)
    try:
        return import_module(RAY)
    except ImportError:
        raise MissingExtraError(RAY, RAY, "the engine ray") from None


@contextmanager
def _cluster(workers: int | None) -> Iterator[Any]:
    """Ray, connected: as the caller has done it already, to the cluster at RAY_ADDRESS, or to one that is started."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    address = _address()
    try:
        if address is None:
            cores = workers or os.cpu_count()
            ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECTS, **quiet)
        else:
            _knock(address)
            ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"RAY_ADDRESS = {address}: no Ray cluster answers there" if address else "Ray could not be started"
        raise ConfigError(f"{where} ({(str(error) or type(error).__name__).splitlines()[0]})") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _address() -> str | None:
    """Of the cluster to use; None: a local one."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def _knock(address: str) -> None:
    """Raise an OSError if nothing listens there; Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK).close()


def _room(ray: Any, gpus: float) -> tuple[float, int]:
    """The share of a GPU for each worker, and how many the cluster could hold if it did nothing else."""
    there = ray.cluster_resources()
    cards, cores = there.get("GPU", 0.0), there.get("CPU", 0.0)
    room = min(cores, cards / gpus) if cards and gpus else cores
    if room < 1:
        raise ConfigError(f"the Ray cluster has no room for a worker: it has {cores:g} cores and {cards:g} GPUs")
    return int(gpus * 1e4) / 1e4 if cards else 0.0, int(room + 1e-6)  # Ray would round a sixth up, and five would fit


def _refuse_dead(ray: Any, started: Any) -> None:
    try:
        ray.get(started)
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"a worker of the Ray cluster could not start. Has every machine of it this version of concf? ({error})"
        ) from error


def _outcome(ray: Any, reference: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        future.set_exception(error.cause if isinstance(error.cause, Exception) else error)
    except ray.exceptions.RayError as error:
        future.set_exception(
            DeadWorkersError(
                f"its worker died {RETRIES + 1} times, perhaps for want of memory ({type(error).__name__})"
            )
        )
    return future
