"""Checks of the numbers that callers pass; seeds."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from concf.errors import ConfigError

LARGEST_SEED = 2**63 - 1


def check_count(name: str, value: Any) -> int:
    """Check an integer of 1 or more, such as the length of a list; numpy integers are accepted, True is not."""
    return _integer(name, value, 1)


def check_seed(value: Any) -> int:
    """Check a random seed."""
    return _integer("seed", value, 0, LARGEST_SEED)


def check_cutoffs(name: str, value: Iterable[int] | int) -> list[int]:
    """Check one list length or several; returns them without repeats."""
    several = value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
    cutoffs = list(dict.fromkeys(check_count(name, each) for each in several))
    if not cutoffs:
        raise ConfigError(f"{name} = {value!r}: expected at least one length, such as {name}=[20, 50]")
    return cutoffs


def derive_seed(*key: int) -> int:
    """Derive a seed for one purpose, from the run's seed, the epoch and the purpose."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def _integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected an integer, found {type(value).__name__}")
    if int(value) < least or (most is not None and int(value) > most):
        allowed = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} = {value}: expected an integer {allowed}")
    return int(value)
