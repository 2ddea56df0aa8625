"""Check the numbers that callers pass, type and range, and the names of arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from concf.errors import ConfigError

LARGEST_SEED = 2**63 - 1


def check_count(name: str, value: Any) -> int:
    """An integer of 1 or more, such as the length of a list; numpy integers are accepted, True is not."""
    number = _integer(name, value)
    if number < 1:
        raise ConfigError(f"{name} = {number}: expected an integer of 1 or more")
    return number


def check_names(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse names of arguments that a function does not have, and suggest the nearest one that it has."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]}?" if near else f"Its arguments are {', '.join(known)}"
            raise ConfigError(f"{function}: unknown argument {name!r}. {fix}")


def check_seed(value: Any) -> int:
    """A random seed."""
    number = _integer("seed", value)
    if not 0 <= number <= LARGEST_SEED:
        raise ConfigError(f"seed = {number}: expected an integer from 0 to {LARGEST_SEED}")
    return number


def check_cutoffs(name: str, value: Iterable[int] | int) -> list[int]:
    """The distinct list lengths of one integer or several."""
    several = value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
    cutoffs = list(dict.fromkeys(check_count(name, each) for each in several))
    if not cutoffs:
        raise ConfigError(f"{name} = {value!r}: expected at least one length, such as {name}=[20, 50]")
    return cutoffs


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected an integer, found {type(value).__name__}")
    return int(value)
