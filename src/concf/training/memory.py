"""Freed memory is kept for the next step.

A step makes tensors of the size of the embedding tables and lets them go again. The C library gives blocks so large
back to the system at once, and the system fills every page with zeros before it hands it out anew: much of a step.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from concf.model.model import Model

MOST = 512 << 20  # bytes of parameters up to which memory is kept: beyond, it may be short
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, see <malloc.h>
KEPT, USUAL = 1 << 30, 32 << 20  # bytes: a block of that size is given back at once; the second is what glibc comes to


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
