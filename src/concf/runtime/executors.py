"""Executors of independent jobs: threads or processes of this machine, or a Ray cluster.

A worker receives the function once and keeps it from job to job, with whatever the function has loaded by then.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice, pairwise
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from concf.errors import ConfigError, MissingExtraError, PeerError

if TYPE_CHECKING:
    import torch

Job = TypeVar("Job")
Result = TypeVar("Result")
Done = Generator[tuple[Job, "Future[Result]"], None, None]

RAY = "ray"
ENGINES = ("processes", RAY)
RUNS_PER_GPU = 6  # training runs that share a GPU well
RETRIES = 3  # of a job whose worker died
AHEAD = 8  # jobs of a thread that are begun before a result is taken: results of all could fill the memory
CPU_BLOCKS = 8  # blocks that an operation is divided into, for the threads
OBJECT_STORE = 100 << 20  # bytes for functions and results, which are small
WORKER = "concf-worker"  # begins the name of a thread
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process and number of threads
_outside: ContextVar[int | None] = ContextVar("threads of PyTorch outside one_thread_each", default=None)


def in_threads(function: Callable[[Job], Result], jobs: Sequence[Job], threads: int) -> Iterator[Result]:
    """Yield the results in the order of the jobs, each job on one thread, with one thread of PyTorch.

    For functions that spend their time in numpy, SciPy or PyTorch. The workers are kept for the next call: to start
    them can take longer than their work.
    """
    if threads == 1 or len(jobs) == 1 or threading.current_thread().name.startswith(WORKER):
        yield from map(function, jobs)
        return
    import torch

    inference = torch.is_inference_mode_enabled()  # of this thread alone, whose tensors the workers may write

    def alone(job: Job) -> Result:
        torch.set_num_threads(1)
        with torch.inference_mode(inference):
            return function(job)

    before, key = torch.get_num_threads(), (os.getpid(), threads)  # a process that this one forks has no threads
    if key not in _pools:
        _pools.setdefault(key, ThreadPoolExecutor(threads, WORKER))
    limit = _blas().limit(limits=1, user_api="blas")
    submitted = (_pools[key].submit(alone, job) for job in jobs)
    pending = deque(islice(submitted, AHEAD * threads))
    try:
        while pending:
            result = pending.popleft().result()
            pending.extend(islice(submitted, 1))
            yield result
    finally:
        for future in pending:
            future.cancel()
        wait(pending)  # no thread works on after an error
        limit.restore_original_limits()
        torch.set_num_threads(before)  # a worker's setting may reach other threads


def in_blocks(function: Callable[[Job], Result], jobs: Sequence[Job], device: torch.device) -> Iterator[Result]:
    """Yield the results in the order of the jobs: on a CPU with all threads, on a GPU one after the other."""
    return in_threads(function, jobs, n_threads() if device.type == "cpu" else 1)


def each_block(function: Callable[[slice], object], length: int, device: torch.device) -> None:
    """Call a function with the slices of `blocks_of`, on threads."""
    for _ in in_blocks(function, blocks_of(length, device), device):
        pass


def blocks_of(length: int, device: torch.device) -> list[slice]:
    """Divide 0 .. length-1 into slices of about equal length; on a GPU one. The number of threads does not matter."""
    count = CPU_BLOCKS if device.type == "cpu" else 1
    bounds = [length * k // count for k in range(count + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds) if begin < end]


def n_threads() -> int:
    """Number of worker threads: PyTorch's, or within `one_thread_each` the number set outside it."""
    import torch

    return _outside.get() or torch.get_num_threads()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Give each operation of PyTorch and NumPy one thread, so that `in_threads` divides the work.

    Threads that share an operation wait for each other, actively; on a busy machine most of the time.
    """
    import torch

    before = torch.get_num_threads()
    token = _outside.set(n_threads())
    torch.set_num_threads(1)
    try:
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
        _outside.reset(token)


def use_one_thread() -> None:
    """Give each operation of PyTorch and NumPy one thread from now on."""
    import torch

    torch.set_num_threads(1)
    _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> Any:
    """The libraries of linear algebra, which have threads of their own."""
    from threadpoolctl import ThreadpoolController

    import_module("numpy")  # or its library would be missing
    return ThreadpoolController()


def execute(
    function: Callable[[Job], Result], jobs: Sequence[Job], engine: str | None, workers: int | None = None,
    gpus: float = 0.0,
) -> Done[Job, Result]:  # fmt: skip
    """Yield each job when it is done, in any order, with a future that holds its result or its exception.

    function: must be picklable; a worker has its share of the threads, on Ray one
    engine:   processes or ray; None: this process, one job after the other
    workers:  number; None: one for each core of this machine, or of the cluster
    gpus:     share of a GPU that Ray reserves for each job, if the cluster has GPUs
    """
    if engine is None:
        return one_after_the_other(function, jobs)
    if engine not in ENGINES:
        raise ConfigError(f"engine = {engine!r}: choose from {', '.join(ENGINES)}")
    if engine == RAY:
        return _on_ray(function, jobs, workers, gpus)
    return _in_processes(function, jobs, min(workers or os.cpu_count() or 1, max(len(jobs), 1)))


def one_after_the_other(function: Callable[[Job], Result], jobs: Sequence[Job]) -> Done[Job, Result]:
    """Execute the jobs in this process."""
    for job in jobs:
        future: Future[Result] = Future()
        try:
            future.set_result(function(job))
        except Exception as error:
            future.set_exception(error)
        yield job, future


def _in_processes(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Done[Job, Result]:
    begin = (function, max(1, (os.cpu_count() or 1) // workers), dict(os.environ))
    start: Any = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(["torch"])  # all workers of this process share its import, which takes seconds
    with ProcessPoolExecutor(workers, context, initializer=_start_process, initargs=begin) as pool:
        futures = {pool.submit(_call, job): job for job in jobs}
        try:
            for done in as_completed(futures):
                yield futures[done], done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_function: dict[str, Callable[[Any], Any]] = {}  # in a worker: the function, by the call of `execute` that sent it


def _start_process(function: Callable[[Any], Any], threads: int, environment: dict[str, str]) -> None:
    os.environ.clear()  # the fork server has the environment that it was started with
    os.environ.update(environment)
    import torch

    torch.set_num_threads(min(threads, torch.get_num_threads()))
    _function[""] = function


def _call(job: Any) -> Any:
    return _function[""](job)


def _call_on_ray(job: Any, call: str, function: list[Any]) -> Any:
    """Run a job with the function of that call of `execute`, from Ray's object store unless this worker has it.

    function: one reference, in a list so that Ray does not resolve it for every job
    """
    if call not in _function:
        _function.clear()
        _function[call] = import_module(RAY).get(function[0])
    return _function[call](job)


def _on_ray(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int | None, gpus: float
) -> Done[Job, Result]:
    """Run the jobs as tasks of Ray, which retries those whose worker or machine is lost."""
    with ray_cluster(workers) as ray:
        share = int(gpus * 1e4) / 1e4 if ray.cluster_resources().get("GPU") else 0.0  # Ray would round a sixth up
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(_call_on_ray)
        sent, waiting, running = (uuid4().hex, [ray.put(function)]), list(reversed(jobs)), dict[Any, Job]()
        try:
            while waiting or running:
                while waiting and len(running) < (workers or len(jobs)):
                    job = waiting.pop()
                    running[task.remote(job, *sent)] = job
                future: Future[Any] = Future()
                with redirect_stdout(sys.stderr):  # Ray prints messages about lost machines
                    (done, *_), _ = ray.wait(list(running))
                    try:
                        future.set_result(ray.get(done))
                    except ray.exceptions.RayTaskError as error:
                        future.set_exception(error.cause if isinstance(error.cause, Exception) else error)
                    except ray.exceptions.RayError as error:
                        reason = f"its worker died {RETRIES + 1} times, perhaps out of memory ({type(error).__name__})"
                        future.set_exception(PeerError(reason))
                yield running.pop(done), future
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


@contextmanager
def ray_cluster(workers: int | None) -> Iterator[Any]:
    """Connect Ray, unless the caller has: to the cluster at RAY_ADDRESS, or to a local one that is started."""
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":  # no usage reports, and nobody else can connect; read when Ray is imported
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    try:
        ray: Any = import_module(RAY)
    except ImportError:
        raise MissingExtraError(RAY, RAY, "the engine ray") from None
    if ray.is_initialized():
        yield ray
        return
    local = {"num_cpus": workers or os.cpu_count(), "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False, **local if address == "local" else {})
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(f"Ray at RAY_ADDRESS = {address}: {shorten(str(error), 400)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
