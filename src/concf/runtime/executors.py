"""Independent jobs over several workers: processes of this machine, or those of a Ray cluster.

A worker is given the function once and keeps it from job to job, with whatever the function has loaded by then.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from textwrap import shorten
from typing import Any, TypeVar

from concf.errors import ConcfError, ConfigError, MissingExtraError
from concf.runtime.provenance import VERSION

Job = TypeVar("Job")
Result = TypeVar("Result")
Done = Generator[tuple[Job, "Future[Result]"], None, None]

RAY = "ray"
ENGINES = ("processes", RAY)
RETRIES = 3  # of a job whose worker died; a job that kills every worker it meets must come to an end
KNOCK = 10.0  # seconds within which a cluster must answer
PATIENCE = 10.0  # seconds without any worker, after which it is said what is waited for
OBJECTS = 100 << 20  # bytes that a local Ray keeps for functions and results, which are small
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # on every system: Ray takes 127.0.0.1 for this machine's address
LOCAL = LOOPBACK | {  # of a Ray that is started here, to be set before Ray is imported; no other machine joins it
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else other programs go before its workers
}
JOINED = {  # of one that is there already, likewise: it has answered, and whom it refuses it refuses the 20th time too
    "RAY_NUM_REDIS_GET_RETRIES": "2",
    "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "2",
}
TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the cluster's token unless ~/.ray/auth_token holds it"
AUTO, CLIENT = "auto", "ray://"
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2, which Ray speaks
_log = logging.getLogger(__name__)


class DeadWorkersError(ConcfError):
    """A job was tried again and again, and its worker died each time."""


def execute(
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

    def ready(self) -> str:
        """Its version of concf, when it has started."""
        return VERSION

    def do(self, job: Any) -> Any:
        """One job."""
        return self.function(job)


def _on_ray(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int | None, gpus: float
) -> Done[Job, Result]:
    """A worker is asked for its next job when it has done the last. A dead one's job is given to another.

    Ray starts dead workers again, those of a lost machine on another. A worker for whom the cluster has no room yet is
    waited for only as long as the others have work.
    """
    if not jobs:
        return
    with _cluster(workers) as ray:
        share, room = _room(ray, gpus)
        kind = ray.remote(num_cpus=1, num_gpus=share, max_restarts=-1)(Worker)
        waiting, left = deque((job, 0) for job in jobs), len(jobs)
        actors = [kind.remote(function) for _ in range(min(workers or room, room, left))]
        starting = {_ready(actor): actor for actor in actors}
        busy: dict[Any, tuple[Any, Job, int]] = {}
        idle: list[Any] = []
        patience: float | None = PATIENCE
        try:
            while left:
                while waiting and idle:
                    actor, (job, deaths) = idle.pop(), waiting.popleft()
                    busy[actor.do.remote(job)] = actor, job, deaths
                done, _ = ray.wait([*busy, *starting], timeout=patience)
                patience = None
                if not done:
                    _say_waiting(ray)
                    continue
                (reference,) = done
                if reference in starting:
                    _refuse(ray, reference)
                    idle.append(starting.pop(reference))
                    continue
                actor, job, deaths = busy.pop(reference)
                future = _outcome(ray, reference)
                died = isinstance(future.exception(), DeadWorkersError)
                if died:
                    starting[_ready(actor)] = actor
                else:
                    idle.append(actor)
                if died and deaths < RETRIES:
                    waiting.appendleft((job, deaths + 1))
                else:
                    left -= 1
                    yield job, future
        finally:
            for actor in actors:
                ray.kill(actor)


def _ready(actor: Any) -> Any:
    """Asked as often as it takes: until Ray knows of a machine's end, its workers only seem to be out of reach."""
    return actor.ready.options(max_task_retries=-1).remote()


def ray_module() -> Any:
    """Ray, which is imported only where it is asked for."""
    address = _address()
    if address is None:
        os.environ.update(LOCAL)
    else:
        os.environ.update(JOINED | os.environ)
        if _is_here(address):
            os.environ.update(LOOPBACK)
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
            _knock(_host_and_port(address))
            ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = f"RAY_ADDRESS = {address}: there is no Ray cluster to join" if address else "Ray could not be started"
        raise ConfigError(f"{where} ({_reason(error)})") from error
    with _complaints_on_stderr():
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _complaints_on_stderr() -> Iterator[None]:
    """Ray tells of lost machines on standard output, which is for results."""
    worker: Any = import_module("ray._private.worker")
    say = getattr(worker, "print_to_stdstream", None)  # not part of Ray's interface: without it nothing is changed
    if say is None:
        yield
        return
    worker.print_to_stdstream = lambda data, *more, **named: say(data | {"is_err": True}, *more, **named)
    try:
        yield
    finally:
        worker.print_to_stdstream = say


def _address() -> str | None:
    """Of the cluster to use; None: a local one."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def _is_here(address: str) -> bool:
    """Whether a cluster is looked for on this machine, where it may listen on loopback alone."""
    return address == AUTO or address.startswith(("127.", "localhost:", "[::1]:"))


def _host_and_port(address: str) -> str:
    """Where Ray will connect to: it looks for `auto`, and may take another address of this machine for loopback."""
    if address.startswith(CLIENT):
        return address.removeprefix(CLIENT)
    return str(import_module("ray._private.services").canonicalize_bootstrap_address(address))


def _knock(address: str) -> None:
    """Raise an OSError if nothing there speaks as Ray does; Ray itself would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("that is not HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK) as there:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return
            there.sendall(GREETING)
            answer = there.recv(9)
    except OSError as error:
        raise OSError(f"{address}: {error}") from error
    if answer[3:4] != GREETING[-6:-5]:
        raise OSError(f"{address}: what listens there is not Ray")


def _reason(error: Exception) -> str:
    """What to do about it, or the gist of Ray's long message."""
    whole = f"{error} {error.__cause__}"
    if "AuthToken" in whole or "uthentication token" in whole:
        return f"it wants a token: {TOKEN}"
    if "client connection timeout" in whole:
        return (
            f"Ray's client is not let in: is it the client's port, 10001 unless chosen? If a token is wanted, {TOKEN}"
        )
    if "Failed to connect to Ray cluster" in whole:
        return (
            "what answers there is no head of Ray. Its port is 6379 unless chosen; the client's needs ray:// before it"
        )
    return shorten(str(error) or type(error).__name__, 400)


def _room(ray: Any, gpus: float) -> tuple[float, int]:
    """The share of a GPU for each worker, and how many the cluster could hold if it did nothing else."""
    there = ray.cluster_resources()
    cards, cores = there.get("GPU", 0.0), there.get("CPU", 0.0)
    room = min(cores, cards / gpus) if cards and gpus else cores
    if room < 1:
        raise ConfigError(f"the Ray cluster has no room for a worker: it has {cores:g} cores and {cards:g} GPUs")
    return int(gpus * 1e4) / 1e4 if cards else 0.0, int(room + 1e-6)  # Ray would round a sixth up, and five would fit


def _say_waiting(ray: Any) -> None:
    free, there = (found.get("CPU", 0.0) for found in (ray.available_resources(), ray.cluster_resources()))
    _log.warning(
        "the Ray cluster has started no worker in %g seconds (%g of its %g cores are free): waiting for one",
        PATIENCE, free, there,
    )  # fmt: skip


def _refuse(ray: Any, started: Any) -> None:
    """Raise unless the worker has started with this version."""
    try:
        version = ray.get(started)
    except ray.exceptions.RayError as error:
        raise ConfigError(
            f"a worker of the Ray cluster could not start. Has every machine of it this version of concf? ({error})"
        ) from error
    if version != VERSION:
        raise ConfigError(
            f"a worker of the Ray cluster has concf {version}, and this is {VERSION}: they must be the same"
        )


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
