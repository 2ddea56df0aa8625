from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.data.interactions import Interactions
from concf.data.parts import TEST, TRAIN, VALID
from concf.data.prepare import prepare, split_of
from concf.data.protocols import Random
from concf.data.reading.read import read
from concf.errors import ConcfWarning, DataError
from concf.inference.estimator import ConCF

RNG = np.random.default_rng(0)


def log(users: int, items: int, longer: int = 0, n_items: int = 30) -> pl.DataFrame:
    """Users with so many items each, and a few longer ones with twenty."""
    sizes = [items] * users + [20] * longer
    rows = [(user, int(item)) for user, size in enumerate(sizes) for item in RNG.permutation(n_items)[:size]]
    return pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.data.split.FEW_USERS", 300)


def held_out(data: Interactions, protocol: Random, part: int) -> list[int]:
    parts = protocol.assign(data, 0)
    return np.bincount(data.user[parts == part], minlength=data.n_users).tolist()


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=12), st.floats(0.01, 0.98), st.floats(0.01, 0.98),
    st.integers(0, 3),
)  # fmt: skip
def test_a_user_holds_out_at_least_so_many_where_that_leaves_something(
    sizes: list[int], valid: float, rest: float, least: int
) -> None:
    test = max((1 - valid) * rest, 0.001)
    if valid + test >= 1:
        return
    protocol = Random(valid=valid, test=test, at_least=least)
    data = read([(user, item) for user, size in enumerate(sizes) for item in range(size)])
    found = [held_out(data, protocol, part) for part in (VALID, TEST, TRAIN)]
    for size, n_valid, n_test, n_train in zip(sizes, *found, strict=True):
        floors = [int(np.floor(share * size + 1e-9)) for share in (valid, test)]
        raised = [max(each, least) for each in floors]
        assert [n_valid, n_test] == (raised if sum(raised) < size else floors)
        assert n_train == size - n_valid - n_test >= 1


@pytest.mark.parametrize("items", [3, 9])
def test_short_histories_are_validated_and_tested(items: int) -> None:
    frame = log(60, items, n_items=12)
    split = split_of(frame, 0, min_item=1)
    assert len(split.evaluated) >= 55  # an item that nobody trains on may be drawn
    assert split.counts()["valid"] == split.counts()["test"] == len(split.evaluated)
    assert split_of(frame.sample(fraction=1.0, shuffle=True, seed=5), 0, min_item=1).hash == split.hash
    with pytest.raises(DataError, match="at_least="):
        prepare(frame, protocol="random", valid=0.1, test=0.1)
    with pytest.raises(DataError, match="filter less"):
        split_of(log(60, 2), 0, min_item=1)


@pytest.mark.usefixtures("few")
def test_few_users_are_noted_once_of_a_split_and_many_are_not(tmp_path: Path) -> None:
    with pytest.warns(ConcfWarning, match="^only 2 of 402 users are validated"):
        split = prepare(log(400, 6, longer=2), protocol="random", valid=0.1, test=0.1, out=tmp_path / "data")
    with pytest.warns(ConcfWarning, match="^only 2 of 402 users are validated"):
        ConCF("reference", training={"epochs": 1}, model={"dimensions": 4}).fit(tmp_path / "data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split.note_if_few()
        prepare(log(400, 6), protocol="random", at_least=1, out=tmp_path / "many")
