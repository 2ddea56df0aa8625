"""Splits: a slow literal count, the laws that every protocol keeps, and each protocol's own."""

from __future__ import annotations

from dataclasses import replace
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_time_protocol import by_pair

from concf.data.interactions import Interactions
from concf.data.parts import TEST, TRAIN, UNEVALUATED, VALID
from concf.data.prepare import prepare, write_parts
from concf.data.protocols import Given, Paper, Random
from concf.data.reading.read import read
from concf.data.simulate import Simulation
from concf.errors import ConfigError, DataError

LOG = Simulation(users=120, items=60, events=4000).draw(7)


@pytest.mark.parametrize("protocol", ["paper", "random", "new-users"])
def test_another_seed_is_another_split(protocol: str) -> None:
    first = prepare(LOG, protocol=protocol, seed=0)
    second = prepare(LOG, protocol=protocol, seed=1)
    assert first.hash != second.hash
    assert first.with_seed(1).hash == second.hash


def test_every_pair_is_held_out_equally_often() -> None:
    data = read([(user, item) for user in range(50) for item in range(10)])
    protocol = prepare(LOG, protocol="random").recipe.protocol
    times = np.mean([protocol.assign(data, seed) == TEST for seed in range(200)], axis=0)
    assert times.mean() == pytest.approx(0.2)
    assert abs(times - 0.2).max() < 0.15  # 5 standard deviations


def test_paper_holds_out_only_where_user_and_item_have_ten() -> None:
    data = read(LOG)
    parts = Paper().assign(data, 0)
    busy_user, busy_item = data.per_user() >= 10, data.per_item() >= 10
    eligible = busy_user[data.user] & busy_item[data.item]
    assert (parts[~eligible] == TRAIN).all()
    for user in range(data.n_users):
        n = int(eligible[data.user == user].sum())
        assert (parts[data.user == user] == TEST).sum() == n // 5


@pytest.mark.parametrize("n", [1, 5])
def test_leave_last_takes_the_newest(n: int) -> None:
    split = prepare(LOG, protocol="leave-last", last=n)
    data = split.interactions
    assert data.timestamp is not None
    for user in split.evaluated:
        mine = data.user == user
        newest_train = data.timestamp[mine & (split.parts == TRAIN)].max()
        assert data.timestamp[mine & (split.parts == VALID)].min() >= newest_train
        assert data.timestamp[mine & (split.parts == TEST)].min() >= data.timestamp[mine & (split.parts == VALID)].max()
        assert (split.parts[mine] == TEST).sum() <= n
        assert (mine & (split.parts != TRAIN)).sum() == 2 * n


def test_new_items_train_nowhere_and_are_the_only_candidates() -> None:
    split = prepare(LOG, protocol="new-items", seed=3, test=0.2)
    parts, items = by_pair(split), split.interactions.item_ids.values.tolist()
    new = {item for (_, item), part in parts.items() if part % UNEVALUATED == TEST}
    assert len(new) == floor(0.2 * len(items))
    for (user, item), part in parts.items():
        trains = any(part == TRAIN for (other, _), part in parts.items() if other == user)
        assert (part % UNEVALUATED == TEST) == (item in new)
        assert part < UNEVALUATED or not trains
        assert part != TEST or trains
        assert part != VALID or any(part == TRAIN for (_, other), part in parts.items() if other == item)
    assert {items[at] for at in np.flatnonzero(np.asarray(split.candidates("test"))).tolist()} == new
    assert split.candidates("valid") is None
    assert prepare(LOG, protocol="random").candidates("test") is None


def test_given_parts_are_kept_and_the_earlier_part_wins() -> None:
    train = [(1, "a"), (1, "b"), (2, "a"), (2, "c"), (3, "b"), (3, "e")]
    split = prepare(train, protocol="given", valid=[(1, "c"), (2, "b")], test=[(1, "a"), (1, "d"), (1, "e"), (2, "b")])
    parts = by_pair(split)
    assert parts[(1, "a")] == TRAIN  # also in test
    assert parts[(1, "c")] == VALID
    assert parts[(1, "e")] == TEST
    assert parts[(1, "d")] == TEST + UNEVALUATED  # never trains
    assert parts[(2, "b")] == VALID + UNEVALUATED  # in validation and test: then user 2 has no test item
    with pytest.raises(ConfigError, match="cannot be split again"):
        split.with_seed(1)


@given(
    st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 12)), st.sampled_from([TRAIN, TEST]), min_size=1),
    st.sampled_from([0.05, 0.1, 0.29, 0.5, 0.95, 1 - 1e-12]),
    st.integers(0, 3),
)
def test_a_validation_share_keeps_its_laws(files: dict[tuple[int, int], int], share: float, seed: int) -> None:
    data = read(sorted(files))
    protocol = Given(valid=share)
    parts = protocol.assign(data, seed, np.array([files[pair] for pair in sorted(files)], np.uint8))
    assert protocol.evaluable(data, parts) is parts
    train, valid, test = (
        {pair for pair, each in zip(sorted(files), parts, strict=True) if each == part} for part in (TRAIN, VALID, TEST)
    )
    file = {pair for pair, part in files.items() if part == TRAIN}
    assert train | valid == file
    assert test == files.keys() - file
    assert {item for _, item in train} == {item for _, item in file}  # no item stops training
    validated_items = {item for _, item in valid}
    for user in {user for user, _ in file}:
        n = sum(who == user for who, _ in file)
        n_drawn = min(max(floor(round(share * n, 9)), 1), n - 1)
        n_valid = sum(who == user for who, _ in valid)
        n_back = sum(who == user and item not in validated_items for who, item in train)  # at most
        assert n_drawn - n_back <= n_valid <= n_drawn


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 12)), st.integers(0, 4), min_size=1),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
)
def test_with_newest_exactly_the_newest_are_held_out(
    times: dict[tuple[int, int], int], share: float, seed: int
) -> None:
    """Two pairs of a user each keep every item in training, so that no pair goes back to it."""
    for item in range(13):
        times |= {(100 + item, item): 0, (100 + item, (item + 1) % 13): 1}
    pairs = sorted(times)
    files = np.full(len(pairs), TRAIN, np.uint8)
    users, items = zip(*pairs, strict=True)
    log = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": [times[pair] for pair in pairs]})
    data, timeless = read(log), read(log.with_columns(timestamp=1))
    parts = Given(valid=share, newest=True).assign(data, seed, files)
    held = [pair for pair, part in zip(pairs, parts, strict=True) if part == VALID]
    for user in {user for user, _ in pairs}:
        newest = sorted((times[pair] for pair in pairs if pair[0] == user), reverse=True)
        n = min(max(floor(round(share * len(newest), 9)), 1), len(newest) - 1)
        assert sorted((times[pair] for pair in held if pair[0] == user), reverse=True) == newest[:n]
    drawn = [Given(valid=share, newest=newest).assign(timeless, seed, files).tolist() for newest in (True, False)]
    assert drawn[0] == drawn[1]  # where time tells nothing


def test_the_newest_of_lines_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0 7 3 5 1\n1 1 3 7 5\n2 5 7 1 3\n3 3 1 5 7\n")
    (tmp_path / "test.txt").write_text("0 9\n1 9\n2 9\n3 9\n")
    words: dict[str, Any] = {"format": "user-lines", "ordered": True}
    given_parts = {"protocol": "given", "valid": 0.25, "test": tmp_path / "test.txt", "newest": True}
    newest = prepare(tmp_path / "train.txt", **words, **given_parts)
    parts = by_pair(newest)
    assert {pair for pair, part in parts.items() if part == VALID} == {(0, 1), (1, 5), (2, 3), (3, 7)}
    last = prepare(tmp_path / "train.txt", **words, protocol="leave-last")
    assert [by_pair(last)[pair] for pair in ((0, 1), (0, 5), (0, 3))] == [TEST, VALID, TRAIN]
    for split in (last, newest):
        assert split.interactions.timestamp is None  # places are no times
        assert by_pair(split.with_seed(9)) == by_pair(split)


NONSENSE: list[tuple[Any, dict[str, Any], str]] = [
    (LOG, {"protocol": "random", "valid": 0.6, "test": 0.6}, "train"), (LOG, {"protocol": "magic"}, "magic"),
    (LOG, {"protocol": "random", "last": 3}, "last="), (LOG, {"protocol": "random", "newest": True}, "newest="),
    ([(1, 2)], {"protocol": "given", "valid": [("x", 2)], "test": [(1, 3)]}, "no user"),
    (LOG, {"ordered": True}, "ordered"), (LOG, {"ordered": True, "protocol": "time"}, "times"),
    (LOG, {"protocol": "given", "valid": LOG, "test": LOG, "newest": True}, "valid"),
    (LOG, {"protocol": "given", "valid": 0.1, "test": LOG.drop("timestamp"), "newest": True}, "times"),
    (LOG, {"protocol": "given", "valid": 0.1}, "test="),
    ([(1, 5), (2, 5)], {"protocol": "given", "valid": 0.1, "test": [(1, 6)]}, "no user"),
    ([(1, 5), (1, 6), (2, 5), (2, 6)], {"protocol": "given", "valid": 0.1, "test": [(1, 6)]}, "no user"),
    *((LOG, {"protocol": "given", "valid": share, "test": LOG}, "valid") for share in (0, 1, -0.1, float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize(("log", "options", "key"), NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_refused(log: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises((ConfigError, DataError, ValidationError), match=key):
        prepare(log, **options)


def test_pairs_that_are_not_evaluated_are_written_and_are_one_part_of_the_hash(tmp_path: Path) -> None:
    split = prepare(LOG.head(200), protocol="random")
    unevaluated = split.parts >= UNEVALUATED
    assert unevaluated.any()
    assert write_parts(split, ["train", "valid", "test"], tmp_path / "log.csv") == len(split.parts)
    for parts, same in ((split.parts ^ VALID ^ TEST, True), (TRAIN, False)):
        assert (replace(split, parts=np.where(unevaluated, parts, split.parts)).hash == split.hash) == same


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([TRAIN, VALID, TEST])), min_size=1))
def test_what_cannot_be_evaluated_equals_its_literal_definition(log: list[tuple[int, int, int]]) -> None:
    given_part = {(user, item): part for user, item, part in log}
    users, items = zip(*sorted(given_part), strict=True)
    data: Interactions = read(list(zip(users, items, strict=True)))
    parts = np.array([given_part[pair] for pair in sorted(given_part)], np.uint8)
    for both in (False, True):
        warm = set()
        for (user, item), part in given_part.items():
            earlier = {pair for pair, other in given_part.items() if other < (VALID if both else part)}
            if part == TRAIN or ({user} <= {u for u, _ in earlier} and {item} <= {i for _, i in earlier}):
                warm.add((user, item))
        for u in range(6) if both else ():
            mine = {pair for pair in warm if pair[0] == u}
            if not {VALID, TEST} <= {given_part[pair] for pair in mine}:
                warm -= {pair for pair in mine if given_part[pair] != TRAIN}
        expected = [part + UNEVALUATED * (pair not in warm) for pair, part in sorted(given_part.items())]
        assert (Paper() if both else Random()).evaluable(data, parts).tolist() == expected
