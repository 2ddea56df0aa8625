"""Filters against a slow literal filter, and the k-core's law."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.data.interactions import Filter, Interactions
from concf.data.reading.read import read
from concf.errors import DataError

Log = list[tuple[int, int]]
logs = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=60)


def interactions(log: Log) -> Interactions:
    return read(pl.DataFrame(log, schema=["user", "item"], orient="row"))


def pairs(found: Interactions) -> set[tuple[int, int]]:
    users, items = found.user_ids.values[found.user].tolist(), found.item_ids.values[found.item].tolist()
    return set(zip(users, items, strict=True))


def one_pass(log: Log, min_user: int, min_item: int, counts: str) -> Log:
    counted = log if counts == "raw" else sorted(set(log))
    per_user, per_item = Counter(user for user, _ in counted), Counter(item for _, item in counted)
    return [(user, item) for user, item in log if per_user[user] >= min_user and per_item[item] >= min_item]


@given(logs, st.integers(0, 4), st.integers(0, 4), st.sampled_from(["raw", "distinct"]), st.booleans())
def test_a_filter_is_the_literal_one_and_the_core_its_fixed_point(
    log: Log, min_user: int, min_item: int, counts: str, core: bool
) -> None:
    left, before = one_pass(log, min_user, min_item, counts), log
    while core and left != before:
        left, before = one_pass(left, min_user, min_item, counts), left
    chosen = Filter(min_user=min_user, min_item=min_item, counts=counts, core=core)
    if not left:
        with pytest.raises(DataError, match="leaves nothing"):
            chosen.apply(interactions(log))
        return
    kept = chosen.apply(interactions(log))
    assert pairs(kept) == set(left)
    assert kept.n_events == len(left)
    assert kept.user_ids.values.tolist() == sorted({user for user, _ in left})
    assert kept.item_ids.values.tolist() == sorted({item for _, item in left})
