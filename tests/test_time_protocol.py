"""Splits by time: laws on random logs with ties, literal counts, windows, everyone, and the default of training."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.data.catalogue import fetch
from concf.data.parts import TEST, VALID, origin
from concf.data.prepare import prepare, split_of
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.evaluation.evaluate import evaluate

DAY = 86_400
START = 1_600_000_000
Event = tuple[int, int, int]  # user, item, time


def frame(events: list[Event], unit: int = 1) -> pl.DataFrame:
    users, items, times = zip(*events, strict=True)
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": [time * unit for time in times]})


def by_pair(split: Split) -> dict[tuple[int, int], int]:
    log = split.interactions
    users, items = log.user_ids.values[log.user].tolist(), log.item_ids.values[log.item].tolist()
    return dict(zip(zip(users, items, strict=True), split.parts.tolist(), strict=True))


def first_times(events: list[Event]) -> dict[tuple[int, int], int]:
    first: dict[tuple[int, int], int] = {}
    for user, item, time in events:
        first[user, item] = min(time, first.get((user, item), time))
    return first


logs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 12).map(lambda day: START + day * DAY)),
    min_size=12, max_size=80,
)  # fmt: skip


@given(
    logs, st.sampled_from(["time", "leave-last", "random", "paper", "released", "new-users", "new-items"]), st.randoms()
)
def test_laws_of_every_protocol(events: list[Event], protocol: str, random: Any) -> None:
    options: dict[str, Any] = {"test": 0.2, "valid": 0.2} if protocol in ("time", "random") else {}
    try:
        split = prepare(frame(events), protocol=protocol, seed=1, **options)
    except DataError:
        return  # nothing can be evaluated
    parts, first = by_pair(split), first_times(events)
    if protocol != "released":  # which filters
        assert parts.keys() == first.keys()
    if protocol in ("time", "leave-last"):
        for (user, item), part in parts.items():
            for (other, later), another in parts.items():
                if part % 8 < another % 8 and (protocol == "time" or user == other):
                    assert first[user, item] < first[other, later]
    for (user, item), part in parts.items():
        if part in (VALID, TEST) and protocol not in ("new-users", "new-items"):
            earlier = [pair for pair, each in parts.items() if each % 8 < part]
            assert any(other == user for other, _ in earlier)
            assert any(other == item for _, other in earlier)
    shuffled = list(events)
    random.shuffle(shuffled)
    assert by_pair(prepare(frame(shuffled), protocol=protocol, seed=1, **options)) == parts
    if protocol in ("time", "leave-last"):
        names = random.sample(range(100), 10)
        renamed = prepare(
            frame([(user, names[item], time) for user, item, time in events]), protocol=protocol, **options
        )
        assert by_pair(renamed) == {(user, names[item]): part for (user, item), part in parts.items()}


def test_an_independent_count_of_ciao() -> None:
    with fetch("ciao")[0].open() as file:
        rows = [(row["user_id"], row["item_id"], int(row["timestamp"])) for row in csv.DictReader(file)]
    users, items = Counter(user for user, _, _ in rows), Counter(item for _, item, _ in rows)
    first = first_times([row for row in rows if users[row[0]] >= 5 and items[row[1]] >= 5])  # type: ignore[misc]
    times = sorted(first.values())
    cuts = [times[-(-8 * (len(times) - 1) // 10)], times[-(-9 * (len(times) - 1) // 10)], float("inf")]
    counted = []
    for begin, end in pairwise(cuts):
        users_before = {user for (user, _), time in first.items() if time < begin}
        items_before = {item for (_, item), time in first.items() if time < begin}
        window = [pair for pair, time in first.items() if begin <= time < end]
        pairs = [pair for pair in window if pair[0] in users_before and pair[1] in items_before]
        counted.append((len({user for user, _ in pairs}), len(pairs), len(window)))
    split = prepare("ciao", protocol="time")
    assert [(row["evaluated_users"], row["evaluated"], row["pairs"]) for row in split.held_out()] == counted
    assert [users for users, _, _ in counted] == [753, 550]
    for row in split.held_out():
        assert row["pairs"] == row["evaluated"] + row["new_users"] + row["new_items"]
        assert row["other"] == 0


DAYS = [(user, user + day, START + day * DAY) for day in range(40) for user in range(8) if (user + day) % 3]


@pytest.mark.parametrize("unit", [1, 1000])
def test_windows_by_duration_and_date(unit: int) -> None:
    log, first = frame(DAYS, unit), first_times(DAYS)
    day = lambda at: datetime.fromtimestamp(START + at * DAY, UTC).isoformat()  # noqa: E731
    newest = max(time for _, _, time in DAYS)
    first_of = lambda days: {pair for pair, time in first.items() if time > newest - days * DAY}  # noqa: E731
    held = first_of(28)  # 28 whole days, the newest among them
    split = prepare(log, protocol="time", test="28d", valid="1w")
    assert {pair for pair, part in by_pair(split).items() if part % 8 == TEST} == held
    assert {pair for pair, part in by_pair(split).items() if part % 8 == VALID} == first_of(35) - held
    assert by_pair(prepare(log, protocol="time", test="672h", valid="7d")) == by_pair(split)
    same = prepare(log, protocol="time", test_from=day(12), valid_from=day(5))
    assert by_pair(same) == by_pair(split)
    assert by_pair(prepare(log, protocol="time", test_from=(START + 12 * DAY) * unit, valid="7d")) == by_pair(split)
    assert same.held_out()[1]["from"] == day(12)[:10]


@pytest.mark.parametrize(("options", "message"), [
    ({"test": "28x"}, "28d"), ({"test_from": "2999-01-01"}, "newest time is"), ({"test_from": "soon"}, "2024-01-31"),
    ({"test_from": START + 20 * DAY, "valid_from": START + 22 * DAY}, "nothing lies between"),
    ({"test": 0.6, "valid": 0.5}, "leave nothing to train on"), ({"test": "90d"}, "leaves no user"),
])  # fmt: skip
def test_impossible_windows_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ConfigError, ValueError), match=message):
        prepare(frame(DAYS), protocol="time", **options)


def test_everyone_counts_new_users_and_new_items() -> None:
    log = Simulation(users=80, items=40, events=2500).draw(3)
    late = (pl.col("user_id") >= 70) | (pl.col("item_id") >= 35)
    log = log.filter(~late | (pl.col("timestamp") > pl.col("timestamp").quantile(0.9)))
    split = prepare(log, protocol="time", test=0.2)
    data, parts = split.interactions, origin(split.parts)
    scores = np.random.default_rng(0).random((data.n_users, data.n_items)).astype(np.float32)
    found = evaluate(lambda users: scores[users], split, at=5, metrics=["recall", "ndcg", "hit"], everyone=True)
    popularity = np.bincount(data.item[parts != TEST], minlength=data.n_items)
    targets = defaultdict(set)
    for user, item in zip(data.user[parts == TEST].tolist(), data.item[parts == TEST].tolist(), strict=True):
        targets[user].add(item)
    assert found.users.tolist() == sorted(targets)
    assert len(split.evaluated) < len(targets)
    for row, user in enumerate(found.users.tolist()):
        own = set(data.item[(data.user == user) & (parts != TEST)].tolist())
        by = scores[user] if own else popularity
        best = sorted((item for item in range(data.n_items) if item not in own), key=lambda item: (-by[item], item))[:5]
        hits = [item in targets[user] for item in best]
        ideal = sum(1 / np.log2(rank + 2) for rank in range(min(5, len(targets[user]))))
        gain = sum(hit / np.log2(rank + 2) for rank, hit in enumerate(hits))
        assert found.per_user["recall@5"][row] == sum(hits) / len(targets[user])
        assert found.per_user["ndcg@5"][row] == pytest.approx(gain / ideal)
        assert found.per_user["hit@5"][row] == any(hits)
    with pytest.raises(ConfigError, match="everyone"):
        evaluate(lambda users: scores[users], prepare(log, protocol="new-items"), everyone=True)


def test_a_filter_by_time_does_not_look_at_the_test_part() -> None:
    log = Simulation(users=80, items=60, events=1200).draw(5)
    cut = int(log["timestamp"].quantile(0.8))
    before, after = log.filter(pl.col("timestamp") < cut), log.filter(pl.col("timestamp") >= cut)
    other = after.with_columns(
        item_id=pl.lit(after["item_id"].max(), after["item_id"].dtype)
    )  # a test part of one item
    options: dict[str, Any] = {"protocol": "time", "test_from": cut, "valid_from": int(log["timestamp"].quantile(0.6))}
    known = []
    for later in (after, other):
        split = prepare(pl.concat([before, later]), **options, min_item=6, core=True)
        known.append({pair for pair, part in by_pair(split).items() if part % 8 != TEST})
        unfiltered = prepare(pl.concat([before, later]), **options)
        assert [row["pairs"] for row in split.held_out()][1] == [row["pairs"] for row in unfiltered.held_out()][1]
    assert known[0] == known[1]
    assert len(known[0]) < len({*zip(before["user_id"], before["item_id"], strict=True)})


@pytest.mark.parametrize(("users", "times", "protocol", "share"), [
    (1200, "ordered", "time", 0.1), (420, "ordered", "time", 0.2), (60, "ordered", "leave-last", None),
    (1200, "equal", "random", 0.1), (1200, "none", "random", 0.1),
])  # fmt: skip
def test_the_default_follows_the_log(users: int, times: str, protocol: str, share: float | None) -> None:
    log = Simulation(users=users, items=60, events=users * 12).draw(1)
    log = log.drop("timestamp") if times == "none" else log.with_columns(timestamp=5) if times == "equal" else log
    with pytest.warns(ConcfWarning, match=f"protocol {protocol}, since"):
        split = split_of(log, 0)
    assert split.recipe.protocol.name == protocol
    assert share is None or getattr(split.recipe.protocol, "test") == share  # noqa: B009
    assert split_of(log, 0, protocol="random").recipe.protocol.name == "random"


def test_newest_items_of_very_few_users_are_no_default() -> None:
    once = [(user, item, START) for user in range(1500) for item in range(user % 7, user % 7 + 6)]
    again = [(user, 13 + k, START + (k + 1) * DAY) for user in range(20) for k in range(3)]
    assert split_of(frame(once + again), 0).recipe.protocol.name == "random"
