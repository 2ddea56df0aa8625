"""Refuse a training run whose largest tables cannot fit into free memory.

Some systems grant any allocation and kill the process when it writes to it: so peak memory is estimated from the
settings before the first allocation. The estimate is a lower bound, without temporary tensors, libraries and the log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path

import torch

from concf.errors import ConfigError, option
from concf.runs.settings import RunSettings
from concf.runtime.process_group import ALONE, ProcessGroup

FLOAT = INT = 4  # bytes
Tables = Mapping[str, tuple[int, tuple[str, ...]]]  # name -> bytes, and the settings that make the table smaller


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
    fewer = f"{option('min_user')} of prepare, or {option('drop_before')} of an update"
    raise ConfigError(
        f"training needs at least {needed / 1e9:,.1f} GB of memory for {shape[0]:,} users and "
        f"{shape[1]:,} items, and {free / 1e9:,.1f} GB are free{' for each process' * group.several}. "
        f"Largest tables: {named}. Train with a lower {advice}; or on fewer users and pairs ({fewer})"
    )


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate, on a GPU or in main memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    free = [int(psutil.virtual_memory().available), *cgroup_memory()]
    return max(min(free), 0)


def cgroup_memory(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left at every level of cgroup v2 with a limit, from the process's own group up to the root of the mount.

    Inactive file pages count as free: the kernel reclaims them before it refuses memory.
    """
    free: list[int] = []
    with suppress(OSError):
        path = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "")
        group = root / path.lstrip("/")
        for level in (each for each in (group, *group.parents) if each.is_relative_to(root)):
            with suppress(OSError, ValueError):  # a level outside the container, or "max": no limit
                most, used = (int((level / f"memory.{name}").read_text()) for name in ("max", "current"))
                stat = dict(each.split() for each in (level / "memory.stat").read_text().splitlines())
                free.append(most - used + int(stat.get("inactive_file", 0)))
    return free
