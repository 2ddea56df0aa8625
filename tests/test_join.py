"""A data set and a newer log joined: literal unions, parts that never leak, and logs that do not fit."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest

from concf.data.join import join
from concf.data.parts import TEST, TRAIN, UNEVALUATED
from concf.data.prepare import prepare
from concf.data.simulate import START, YEAR, Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError

LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(2).unique(["user_id", "item_id"], maintain_order=True)
OLD, NEW = LOG[: len(LOG) * 3 // 4], LOG[len(LOG) * 3 // 4 :]
LEARNED = ("train", "valid")
COLUMNS = ["user_id", "item_id"]
CET = timezone(timedelta(hours=1))


def prepared(log: pl.DataFrame = OLD, **options: Any) -> Split:
    return prepare(log, **{"protocol": "random", "valid": 0.1, "test": 0.1, "at_least": 1} | options)


def rows_of(split: Split) -> dict[tuple[Any, Any], tuple[int, float, Any]]:
    """(user, item) -> part, count, time."""
    log = split.interactions
    users, items = log.user_ids.values[log.user].tolist(), log.item_ids.values[log.item].tolist()
    times = [None] * len(log) if log.timestamp is None else log.timestamp.tolist()
    rest = zip(split.parts.tolist(), log.count.tolist(), times, strict=True)
    return dict(zip(zip(users, items, strict=True), rest, strict=True))


def test_the_union_is_that_of_python_dictionaries() -> None:
    old = prepared()
    again = OLD[:20].with_columns(pl.col("timestamp") + YEAR)  # pairs that come again
    found = join(old, pl.concat([NEW, again]), learned=LEARNED)
    before, after = rows_of(old), rows_of(found.split)
    wanted: dict[tuple[int, int], tuple[float, int]] = {
        pair: (count, time) for pair, (_, count, time) in before.items()
    }
    for user, item, time in pl.concat([NEW, again]).iter_rows():
        count, first = wanted.get((user, item), (0.0, time))
        wanted[user, item] = (count + 1, min(first, time))
    assert {pair: (count, time) for pair, (_, count, time) in after.items()} == wanted
    assert sorted(after) == list(after)
    assert {pair for pair, fresh in zip(after, found.fresh, strict=True) if fresh} == {
        pair for pair in after if pair not in before or before[pair][0] % UNEVALUATED == TEST
    }


@pytest.mark.parametrize("protocol", ["random", "leave-last", "time"])
def test_what_was_learned_is_never_a_test_pair(protocol: str) -> None:
    options = {} if protocol == "random" else {"valid": None, "test": None, "at_least": None}
    old = prepared(protocol=protocol, **options)
    found = join(old, NEW, learned=LEARNED)
    before, after = rows_of(old), rows_of(found.split)
    known = {pair for pair, (part, *_) in before.items() if part < TEST}
    tested = {pair for pair, (part, *_) in after.items() if part == TEST}
    assert tested
    assert not tested & known
    if protocol == "random":
        assert all(after[pair][0] == part for pair, (part, *_) in before.items() if part < UNEVALUATED)
        assert tested - before.keys()  # of the new pairs some are held out, too


def test_new_items_that_are_tested_stay_new() -> None:
    """Of `new-items`: no pair of theirs trains, and they remain candidates; other items of the new log do train."""
    old = prepared(protocol="new-items", at_least=None)
    held = old.candidates("test")
    assert held is not None
    names = set(old.interactions.item_ids.values[held].tolist())
    stranger = NEW[:1].with_columns(pl.lit(999).alias("user_id"), pl.lit(min(names)).alias("item_id"))
    found = join(old, pl.concat([NEW, stranger], how="vertical_relaxed"), learned=LEARNED)
    after = rows_of(found.split)
    assert {item for (_, item), fresh in zip(after, found.fresh, strict=True) if fresh} & names
    assert {item for (_, item), (part, *_) in after.items() if part == TEST} == names
    assert {part for (_, item), (part, *_) in after.items() if item in names} == {TEST, TEST + UNEVALUATED}
    assert after[999, min(names)][0] == TEST + UNEVALUATED  # a user who does not train
    now = found.split.candidates("test")
    assert now is not None
    assert set(found.split.interactions.item_ids.values[now].tolist()) == names


def test_what_cannot_be_evaluated_trains_so_that_every_new_item_has_a_vector() -> None:
    """A pair that was held out before stays in its part all the same."""
    old = prepared()
    found = join(old, NEW, learned=LEARNED)
    assert not (found.split.parts[found.fresh] >= UNEVALUATED).any()
    assert (found.split.interactions.per_item(rows=found.split.parts == TRAIN) > 0)[found.items < 0].all()
    before, after = rows_of(old), rows_of(found.split)
    assert all(after[pair][0] % UNEVALUATED == part % UNEVALUATED for pair, (part, *_) in before.items())


def test_older_rows_are_dropped_with_whom_they_leave_alone() -> None:
    old, since = prepared(), float(OLD["timestamp"].quantile(0.5))
    found = join(old, NEW, learned=LEARNED, drop_before=since)
    kept = {pair for pair, (_, _, time) in rows_of(old).items() if time >= since}
    assert rows_of(found.split).keys() == kept | set(NEW.select(COLUMNS).iter_rows())
    entry = found.split.recipe.source["updates"][0]
    assert entry["dropped"] == len(rows_of(old)) - len(kept)
    gone = set(old.interactions.user_ids.values.tolist()) - set(found.split.interactions.user_ids.values.tolist())
    assert gone == {user for user, _ in rows_of(old)} - {user for user, _ in rows_of(found.split)}


@pytest.mark.parametrize("protocol", ["random", "time"])
def test_what_is_forgotten_and_comes_again_is_not_new(protocol: str) -> None:
    """Voters have learned it, so that it is no test pair either; its count and time are those of the new log."""
    options = {} if protocol == "random" else {"valid": None, "test": None, "at_least": None}
    old, again = prepared(protocol=protocol, **options), OLD[:60].with_columns(pl.col("timestamp") + YEAR)
    found = join(old, pl.concat([NEW, again]), learned=LEARNED, drop_before=float(OLD["timestamp"].quantile(0.5)))
    before, after = rows_of(old), rows_of(found.split)
    new = dict(zip(after, found.fresh.tolist(), strict=True))
    for user, item, time in again.iter_rows():
        assert new[user, item] == (before[user, item][0] % UNEVALUATED == TEST)
        assert after[user, item][1:] == (1, time)
        assert after[user, item][0] != TEST or before[user, item][0] >= TEST


@pytest.mark.parametrize(("unit", "day"), [(1, "2021-01-01"), (1000, datetime(2021, 1, 1, 1, tzinfo=CET))])
def test_a_date_is_in_the_unit_of_the_log(unit: int, day: Any) -> None:
    old, new = (each.with_columns(pl.col("timestamp") * unit) for each in (OLD, NEW))
    found = join(prepared(old), new, learned=LEARNED, drop_before=day)
    by_number = join(prepared(old), new, learned=LEARNED, drop_before=str(1_609_459_200 * unit))
    assert rows_of(found.split) == rows_of(by_number.split)
    assert found.split.interactions.timestamp is not None
    assert found.split.interactions.timestamp.min() >= 1_609_459_200 * unit > START * unit


def test_a_log_is_not_joined_twice(tmp_path: Any) -> None:
    for name, rows in (("first.csv", OLD), ("new.csv", NEW), ("renamed.csv", NEW)):
        rows.write_csv(tmp_path / name)
    old = prepare(tmp_path / "first.csv", protocol="random", min_item=10)  # what it left out would be new
    with pytest.raises(DataError, match=r"first\.csv: nothing new: the run has learned from this log already"):
        join(old, tmp_path / "first.csv", learned=LEARNED)
    second = join(old, tmp_path / "new.csv", learned=LEARNED).split
    with pytest.raises(DataError, match=r"renamed\.csv: nothing new: .* as new\.csv"):
        join(second, tmp_path / "renamed.csv", learned=LEARNED)


WRONG: list[tuple[str, Any, dict[str, Any], str]] = [
    ("columns", NEW.rename({"user_id": "who"}), {}, "no column for the user"),
    ("no times", NEW.select(COLUMNS), {}, "no column of times"),
    ("text users", NEW.with_columns(pl.col("user_id").cast(pl.String) + "x"), {}, "text"),
    ("nothing new", OLD[-5:], {}, "nothing new"),
    ("ms", NEW.with_columns(pl.col("timestamp") * 1000), {}, "Convert them, or .* timestamp="),
    ("late date", NEW, {"drop_before": "2030-01-01"}, "later than all of"),
    ("no date", NEW, {"drop_before": "2024-13-01"}, "expected a date such as"),
    ("all old", NEW, {"drop_before": float(NEW["timestamp"][3])}, "later than all of"),
    ("rare", NEW.with_columns(pl.col("item_id") + 1000), {"min_item": 99}, "Lower min_item="),
]


@pytest.mark.parametrize(("log", "options", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
@pytest.mark.filterwarnings("ignore::concf.ConcfWarning")
def test_a_log_that_does_not_fit_is_refused(log: pl.DataFrame, options: dict[str, Any], words: str) -> None:
    with pytest.raises((DataError, ConfigError), match=words):
        join(prepared(), log, learned=LEARNED, **options)


def test_a_log_that_only_tests_teaches_nothing() -> None:
    cut = {"protocol": "time", "valid": None, "test": None, "at_least": None}
    cut |= {"valid_from": float(OLD["timestamp"].quantile(0.5)), "test_from": float(OLD["timestamp"].quantile(0.75))}
    with pytest.raises(DataError, match=r"every new pair is a test pair.* final=True"):
        join(prepared(**cut), NEW, learned=LEARNED)
    assert join(prepared(**cut), NEW, learned=(*LEARNED, "test")).fresh.sum() == len(NEW)
