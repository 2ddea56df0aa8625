"""Numbers that callers give: one of the wrong type or out of range is refused where it is given."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from concf.errors import ConfigError

LARGEST_SEED = 2**63 - 1


def check_count(name: str, value: Any) -> int:
    """An integer of 1 or more, such as the length of a list; numpy's integers are integers, True is none."""
    return _check(name, value, 1, None)


def check_seed(value: Any) -> int:
    """The seed of whatever is drawn at random."""
    return _check("seed", value, 0, LARGEST_SEED)


def check_cutoffs(name: str, value: Iterable[int] | int) -> list[int]:
    """Lengths at which lists are cut, each once: one integer of 1 or more, or several."""
    several = value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
    cutoffs = list(dict.fromkeys(check_count(name, each) for each in several))
    if not cutoffs:
        raise ConfigError(f"{name} = {value!r}: expected at least one length, such as {name}=[20, 50]")
    return cutoffs


def _check(name: str, value: Any, least: int, most: int | None) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected an integer, found {type(value).__name__}")
    number = int(value)
    if number < least or (most is not None and number > most):
        limits = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} = {number}: expected an integer {limits}")
    return number
