"""What the benchmarks share: timing in turns, work in a fresh process, a line of results."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turns(works: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """name -> [rounds] seconds. One call of each a round, so that whatever else the machine does hits all alike."""
    for _ in range(warm_up):
        for work in works.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """name -> the median of its repeats."""
    return {name: median(repeats) for name, repeats in times.items()}


def fastest(times: dict[str, list[float]]) -> dict[str, float]:
    """name -> the best of its repeats: on a busy machine nearest to what the work costs."""
    return {name: min(repeats) for name, repeats in times.items()}


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What a function of a module returns when called in a new process, and that process's peak memory in MB."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result, peak = pool.submit(_with_peak, function, arguments).result()
    return result, peak


def _with_peak(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    result = function(*arguments)
    return result, peak_memory()


def peak_memory() -> float:
    """The most memory this process ever held, in MB.

    Linux carries ru_maxrss over from the parent, so that a child of a large process looks large; VmHWM begins anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class AnonymousPeak:
    """The most memory of this process, in MB, that no file stands behind; looked at five times a second (Linux)."""

    def __init__(self) -> None:
        self.peak = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            found = next(line for line in lines if line.startswith("RssAnon"))
            self.peak = max(self.peak, int(found.split()[1]) / 1024)
            time.sleep(0.2)


def refuse_more_memory(gigabytes: float) -> None:
    """From now on this process is refused memory of its own beyond that; pages of mapped files do not count (Linux)."""
    limit = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def busy_cores(while_asleep: float = 0.5) -> float | None:
    """How many cores other processes keep busy just now; None where Linux does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    looks = []
    for _ in range(2):
        time.sleep(while_asleep)  # before the first look too: our own threads spin for a while
        fields = [int(field) for field in stat.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]]
        looks.append((sum(fields[:8]), fields[3] + fields[4]))  # all ticks, and those of idle and waiting for a disk
    (all_before, idle_before), (all_after, idle_after) = looks
    return round((os.cpu_count() or 1) * (1 - (idle_after - idle_before) / (all_after - all_before)), 2)


def write(name: str, line: dict[str, Any]) -> None:
    """Append a measurement to results/NAME.jsonl, with its provenance and what else the machine did, and print it."""
    from concf.runtime.provenance import provenance  # here, so that a rival's process does not pay for it

    RESULTS.mkdir(exist_ok=True)
    line = {"benchmark": name, **line, "cores_busy_elsewhere": busy_cores()}
    text = json.dumps({**_rounded(line), "provenance": provenance()})
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    print(text, flush=True)


def _rounded(value: Any) -> Any:
    """Six significant digits; a clock gives no more."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
