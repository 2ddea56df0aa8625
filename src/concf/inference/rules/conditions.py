"""Conditions on the attributes of items, and groups of items that share one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concf.errors import ConfigError, option
from concf.inference.titles import Catalogue

if TYPE_CHECKING:
    import polars as pl

WORDS = (
    "and",
    "between",
    "case",
    "else",
    "in",
    "like",
    "not",
    "or",
    "then",
    "when",
)  # before a bracket, that are no functions
FUNCTIONS = ("abs", "array_contains", "coalesce", "ends_with", "length", "lower", "starts_with", "upper")
LONGEST = 1000  # characters of a condition: Polars takes minutes for thousands of terms, or overflows its stack


def catalogue_of(given: Any) -> Catalogue:
    """A file of items, or a frame of them, that a caller has given."""
    import polars as pl

    if given is None:
        raise ConfigError(
            f"{option('where')}, {option('at_most')} and new items need attributes of items: give {option('catalogue')}"
        )
    if isinstance(given, Catalogue):
        return given
    if isinstance(given, str | Path):
        return Catalogue(Path(given))
    try:
        return Catalogue(Path("catalogue"), frame=pl.DataFrame(given))
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        raise ConfigError(f"{option('catalogue')} expected a file or a frame, found {type(given).__name__}") from None


def matching(attributes: pl.DataFrame, where: str) -> NDArray[np.bool_]:
    """[items] whether the condition holds, unknown counting as no. Columns of dates are compared with ISO 8601 text."""
    import polars as pl

    dated: list[str] = []
    start = f"{option('where', where)[:200]}: "
    if not isinstance(where, str) or len(where) > LONGEST:
        raise ConfigError(f"{start}expected a condition of at most {LONGEST} characters. For long lists use items")
    _refuse_others(where, start)
    try:
        condition = pl.sql_expr(where)
        unknown = [name for name in condition.meta.root_names() if name not in attributes.columns]
        if unknown:
            raise ConfigError(
                f"{start}no column is called {unknown[0]!r}; the columns are {', '.join(attributes.columns)}. "
                "Text is written in single quotes"
            )
        if condition.meta.has_multiple_outputs():
            raise ConfigError(f"{start}expected one condition, found several columns")
        dated = [name for name in condition.meta.root_names() if attributes.schema[name].is_temporal()]
        found = attributes.sql(f'select ({where}) as "where" from self')["where"]  # knows which columns are dates
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError) as error:
        if dated:
            kind = attributes.schema[dated[0]]
            example = "2024-01-31" if kind == pl.Date else "2024-01-31T18:00:00"
            raise ConfigError(
                f"{start}{dated[0]!r} is a column of {kind}. Compare it with text as '{example}'"
            ) from None
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{start}{first}. Expected a condition, as category in (3, 5) and price < 20") from None
    if found.dtype != pl.Boolean:
        raise ConfigError(f"{start}expected a condition that is true or false, found {found.dtype}")
    shown: NDArray[np.bool_] = found.fill_null(value=False).to_numpy()
    if not shown.any():
        raise ConfigError(f"{start}no item of the log matches")
    return shown


def _refuse_others(where: str, start: str) -> None:
    """Refuse all but plain conditions: some functions take any amount of memory, as lpad(name, 10000000000, 'x')."""
    plain = re.sub(r"""'[^']*'|"[^"]*\"""", " quoted ", where)
    odd = re.findall(r"\\", where) or re.findall(r"(?i)\bselect\b|--|/\*|[^\w\s.,()<>=!+*/%~-]", plain)
    if odd:
        raise ConfigError(f"{start}{odd[0]!r} is not for conditions. Expected a condition, as price < 20 or stock > 0")
    for name in re.findall(r"(\w+)\s*\(", plain):
        if name.lower() not in WORDS + FUNCTIONS:
            raise ConfigError(f"{start}{name} is no function for conditions; choose from {', '.join(FUNCTIONS)}")


def group(attributes: pl.DataFrame, name: str) -> NDArray[np.int64]:
    """[items] a number for each value of a column, from 0; -1 for items without a value."""
    import polars as pl

    if name not in attributes.columns:
        columns = ", ".join(attributes.columns)
        raise ConfigError(f"{option('at_most')} no column is called {name!r}; the columns are {columns}")
    if attributes[name].dtype.is_nested():
        raise ConfigError(f"{option('at_most')} {name!r} holds {attributes[name].dtype}; expected one value an item")
    numbers = attributes[name].cast(pl.String).rank("dense").cast(pl.Int64).fill_null(0) - 1
    return numbers.to_numpy()
