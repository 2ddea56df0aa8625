"""Refuse a training run whose largest tables cannot fit into free memory; keep freed memory in processes of our own.

Some systems grant any allocation and kill the process when it writes to it: so peak memory is estimated from the
settings before the first allocation. The estimate is a lower bound: temporary tensors, libraries and the log itself
come on top.

A training step allocates tensors as large as the embedding tables and frees them again. The C library returns such
blocks to the system at once, and the system zeroes every page before it hands it out again: much of a step.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path

import torch

from concf.errors import ConfigError, option
from concf.runs.settings import RunSettings
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.system import own_process

FLOAT = INT = 4  # bytes
Tables = Mapping[str, tuple[int, tuple[str, ...]]]  # name -> bytes, and the settings that make the table smaller
UNLIMITED = 1 << 60  # bytes: cgroup v1 writes a number near 2**63 where there is no limit
CGROUPS = {  # version: folder of the memory controller, its limit, its usage, and the reclaimable part of that
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("", "memory.max", "memory.current", "inactive_file"),
}
MOST = 512 << 20  # bytes of parameters up to which freed memory is kept: beyond, memory may be short
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, see <malloc.h>
KEPT, USUAL = 1 << 30, 32 << 20  # bytes: larger blocks are returned at once; USUAL is what glibc adapts to


def refuse_too_large(
    tables: Tables, shape: tuple[int, int], settings: RunSettings, device: torch.device, group: ProcessGroup = ALONE
) -> None:
    """Raise ConfigError if the largest tables do not fit into the free memory of this process. shape: users, items"""
    needed, free = sum(size for size, _ in tables.values()), available_memory(device)
    if device.type == "cpu" and group.several:  # each process has a GPU of its own, but shares the machine's memory
        free //= int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
    if needed <= free:
        return
    largest = sorted(tables, key=lambda name: -tables[name][0])[:3]
    named = ", ".join(f"{name} {tables[name][0] / 1e9:,.1f} GB" for name in largest)
    paths = dict.fromkeys(path for name in largest for path in tables[name][1])
    values = {path: str(reduce(getattr, path.split("."), settings)).lower() for path in paths}
    advice = ", ".join(f"{path} (now {value})" for path, value in values.items() if value != "fast")
    raise ConfigError(
        f"training needs at least {needed / 1e9:,.1f} GB of memory for {shape[0]:,} users and "
        f"{shape[1]:,} items, and {free / 1e9:,.1f} GB are free{' for each process' * group.several}. "
        f"Largest tables: {named}. Set a lower {advice}; or leave out users of few items ({option('min_user')})"
    )


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate, on a GPU or in main memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    free = [int(psutil.virtual_memory().available), *cgroup_memory()]
    with suppress(ImportError, AttributeError):  # process limits: Linux
        import resource

        used = psutil.Process().memory_info()
        for limit, size in ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data)):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY:
                free.append(soft - size)
    return max(min(free), 0)


def cgroup_memory(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left at every level with a limit, from the process's own control group up to the root of the mount.

    Inactive file pages count as free: the kernel reclaims them before it refuses memory.
    """
    free: list[int] = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            version = 2 if not controllers else 1
            if version == 1 and "memory" not in controllers.split(","):
                continue
            folder, limit, usage, reclaimable = CGROUPS[version]
            group = root / folder / path.lstrip("/")
            for level in (each for each in (group, *group.parents) if each.is_relative_to(root / folder)):
                with suppress(OSError, ValueError):  # a level outside the container, or "max": no limit
                    most, used = (int((level / name).read_text()) for name in (limit, usage))
                    stat = dict(each.split() for each in (level / "memory.stat").read_text().splitlines())
                    if most < UNLIMITED:
                        free.append(most - used + int(stat.get(reclaimable, 0)))
    return free


@contextmanager
def kept_memory(size: int, device: torch.device) -> Iterator[None]:
    """Keep freed memory inside the block, in a process of our own with a small model on the CPU. size: its bytes

    glibc has no getter for its thresholds, so a host program's could not be restored: there nothing is set.
    """
    if not own_process.is_set() or device.type != "cpu" or size > MOST or not _set_thresholds(KEPT):
        yield
        return
    try:
        yield
    finally:
        _set_thresholds(USUAL)
        _library("malloc_trim", ctypes.c_size_t(0))


def _set_thresholds(size: int) -> bool:
    """Set both thresholds of malloc; returns whether that worked."""
    return all(_library("mallopt", option, size) == 1 for option in (TRIM_THRESHOLD, MMAP_THRESHOLD))


def _library(name: str, *words: object) -> int | None:
    """Call a function of the C library; None where there is no such function."""
    with suppress(AttributeError, OSError):
        if sys.platform == "linux":
            function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
            return function(*words)
    return None
