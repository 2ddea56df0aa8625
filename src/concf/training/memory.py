"""How much memory there is; tensors that lie on disk where it is short; and freed memory is kept for the next step.

A step makes tensors of the size of the embedding tables and lets them go again. The C library gives blocks so large
back to the system at once, and the system fills every page with zeros before it hands it out anew: much of a step.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir

import torch
from torch import Tensor

from concf.errors import DataError
from concf.model.model import Model

MOST = 512 << 20  # bytes of parameters up to which memory is kept: beyond, it may be short
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, see <malloc.h>
KEPT, USUAL = 1 << 30, 32 << 20  # bytes: a block of that size is given back at once; the second is what glibc comes to


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process may still take, by machine, container, limits, or of a GPU; None: unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = []
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # of a container
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(limit - used)
    with suppress(OSError, ValueError, KeyError, ImportError):
        import resource  # not on every system

        soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        if soft != resource.RLIM_INFINITY:
            found.append(soft - int(lines["VmData"].split()[0]) * 1024)
    return max(min(found), 0) if found else None


def available_disk() -> int:
    """Bytes that are free for temporary files (TMPDIR); none where these lie in memory themselves (tmpfs)."""
    with suppress(OSError):
        device = Path(gettempdir()).stat().st_dev
        number = f" {os.major(device)}:{os.minor(device)} "
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        kinds = [mount.partition(" - ")[2].split()[0] for mount in mounts if number in mount]
        return 0 if {"tmpfs", "ramfs"} & {*kinds} else shutil.disk_usage(gettempdir()).free
    return 0


def mapped_empty(*shape: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """As `torch.empty` on a CPU, in a temporary file that no folder names any more: its pages need not stay in memory.

    Its room on the disk is taken at once: that it is missing would else be told by a signal that ends the process.
    """
    size = prod(shape)
    if not size:
        return torch.empty(shape, dtype=dtype, device=device)
    try:
        with NamedTemporaryFile(prefix="concf-") as file:
            os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=dtype, device=device).view(shape)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(
            f"{gettempdir()}: {size * dtype.itemsize / 1e9:.1f} GB of lists and votes could not be written there "
            f"({reason}). Set TMPDIR to a folder with more room, and go on with --resume"
        ) from error


@contextmanager
def kept_memory(model: Model) -> Iterator[None]:
    """Keep what is freed inside, where the C library can be told so; afterwards give it back."""
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    if model.user.is_cuda or size > MOST or not _set_thresholds(KEPT):
        yield
        return
    try:
        yield
    finally:
        _set_thresholds(USUAL)
        _library("malloc_trim", ctypes.c_size_t(0))


def _set_thresholds(size: int) -> bool:
    """Whether both were taken."""
    return all(_library("mallopt", option, size) == 1 for option in (TRIM_THRESHOLD, MMAP_THRESHOLD))


def _library(name: str, *words: object) -> int | None:
    """What a function of the C library answers; None where there is no such function."""
    with suppress(AttributeError, OSError):
        if sys.platform == "linux":
            function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
            return function(*words)
    return None
