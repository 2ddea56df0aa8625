"""Repeated events: a pair keeps its count, its first and its last time, and no repeat tells of what is held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from concf.cli.reading import weighting
from concf.data.interactions import Interactions, merge
from concf.data.join import join
from concf.data.parts import PARTS, origin
from concf.data.prepare import prepare, write_parts
from concf.data.reading.read import read
from concf.data.split import Split
from concf.data.weights import LEAST, Weighting
from concf.models import choose_settings

Events = list[tuple[int, int, int]]
Row = tuple[float, int, int]  # count, first time, last time
events = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=40)
DAY, NOW = 86_400, 1_700_000_000


def log_of(rows: Events) -> Interactions:
    return read(pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row"))


def pairs_of(log: Interactions) -> dict[tuple[Any, Any], Row]:
    """(user, item) -> count, first and last time."""
    assert log.timestamp is not None
    assert log.last is not None
    users, items = log.user_ids.values[log.user].tolist(), log.item_ids.values[log.item].tolist()
    rest = zip(log.count.tolist(), log.timestamp.tolist(), log.last.tolist(), strict=True)
    return dict(zip(zip(users, items, strict=True), rest, strict=True))


def literal(rows: Events) -> dict[tuple[int, int], Row]:
    times: dict[tuple[int, int], list[int]] = {}
    for user, item, time in rows:
        times.setdefault((user, item), []).append(time)
    return {pair: (float(len(each)), min(each), max(each)) for pair, each in sorted(times.items())}


@given(events, st.randoms())
def test_a_pair_has_the_first_and_the_last_of_its_times_in_any_order_of_rows(rows: Events, random: Any) -> None:
    found = log_of(rows)
    assert pairs_of(found) == literal(rows)
    assert (found.later is None) == all(first == last for _, first, last in literal(rows).values())
    random.shuffle(rows)
    assert pairs_of(log_of(rows)) == pairs_of(found)


@given(events, events)
def test_merged_logs_are_both_logs_read_at_once(one: Events, other: Events) -> None:
    merged = merge([log_of(one), log_of(other)])[0]
    assert pairs_of(merged) == pairs_of(log_of(one + other))
    assert (merged.later is None) == (log_of(one + other).later is None)


@given(events, st.data())
def test_kept_and_renamed_pairs_keep_their_times(rows: Events, data: Any) -> None:
    log = log_of(rows)
    mask = data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log)))
    expected = {pair: row for (pair, row), kept in zip(pairs_of(log).items(), mask, strict=True) if kept}
    assert pairs_of(log.keep(np.array(mask, bool))) == expected
    renamed = log.with_text_ids("user").with_text_ids("item")
    assert pairs_of(renamed) == {(str(user), str(item)): row for (user, item), row in pairs_of(log).items()}
    assert (renamed.later is None) == (log.later is None)
    assert replace(log, timestamp=None).last is None


def repeating(seed: int, users: int = 30, items: int = 25, n: int = 900) -> pl.DataFrame:
    """A log with repeats and ties, the days of a year, and with users of one event."""
    random = np.random.default_rng(seed)
    user = np.where(np.arange(n) % 20, random.integers(0, users, n), users + np.arange(n))
    columns = {"user_id": user, "item_id": random.integers(0, items, n) ** 2 // items}
    return pl.DataFrame(columns | {"timestamp": NOW - DAY * random.integers(0, 365, n)})


def test_a_folder_has_a_file_of_last_times_only_if_there_are_some(tmp_path: Path) -> None:
    log = repeating(0)
    saved = prepare(log, protocol="time", out=tmp_path / "data")
    loaded = Split.load(tmp_path / "data")
    assert pairs_of(loaded.interactions) == pairs_of(saved.interactions)
    assert loaded.interactions.later is not None
    prepare(log.unique(["user_id", "item_id"]), protocol="time", out=tmp_path / "once")
    assert not (tmp_path / "once" / "last.npy").exists()
    assert Split.load(tmp_path / "once").interactions.later is None
    (tmp_path / "data" / "last.npy").unlink()
    write_parts(loaded, ["train"], tmp_path / "train.csv")  # without last times, which may lie after the cut
    assert pl.read_csv(tmp_path / "train.csv").columns == ["user_id", "item_id", "count", "timestamp"]


def test_of_given_parts_a_pair_keeps_the_times_of_the_earlier() -> None:
    parts: dict[str, Events] = {
        "train": [(1, 1, 10), (1, 1, 12), (1, 2, 11), (2, 1, 5), (3, 3, 1), (3, 4, 1)],
        "valid": [(1, 3, 15), (2, 2, 16), (2, 2, 17)],
        "test": [(1, 4, 30), (2, 4, 3), (1, 1, 20), (1, 3, 21), (2, 2, 31)],
    }
    logs = {name: pl.DataFrame(rows, schema=["user", "item", "time"], orient="row") for name, rows in parts.items()}
    found = prepare(logs["train"], protocol="given", valid=logs["valid"], test=logs["test"]).interactions
    assert pairs_of(found) == literal(parts["test"]) | literal(parts["valid"]) | literal(parts["train"])


def ages(split: Split, parts: list[str]) -> NDArray[np.float64]:
    """[pairs of the parts] the times that weights may know, literally."""
    log, codes, kind = split.interactions, origin(split.parts), split.recipe.protocol.time_cut
    last_part, found = max(PARTS[part] for part in parts), []
    assert log.timestamp is not None
    assert log.last is not None
    for user, code, first, last in zip(log.user, codes, log.timestamp, log.last, strict=True):
        if code > last_part:
            continue
        held_out = [
            time
            for other, part, time in zip(log.user, codes, log.timestamp, strict=True)
            if part > last_part and (kind == "all" or (kind == "user" and other == user))
        ]
        found.append(float(last if all(last < time for time in held_out) else first))
    return np.array(found)


@pytest.mark.parametrize("protocol", ["time", "leave-last", "random"])
@pytest.mark.parametrize("parts", [["train"], ["train", "valid"]])
def test_a_repeat_after_the_cut_is_not_read(protocol: str, parts: list[str]) -> None:
    split = prepare(repeating(1, n=500), protocol=protocol).weighted(Weighting(half_life="60d"))
    time = ages(split, parts)
    log = split.interactions
    assert log.timestamp is not None
    if protocol != "random" and "test" not in parts:
        before = log.timestamp[origin(split.parts) > max(PARTS[part] for part in parts)].min()
        assert (time < before).all() or protocol == "leave-last"
        assert (time != log.last[origin(split.parts) <= max(PARTS[part] for part in parts)]).any()  # type: ignore[index]
    weight = np.exp2((time - time.max()) / (60 * DAY))
    np.testing.assert_allclose(split.log(parts).data, np.maximum(weight / weight.mean(), LEAST), rtol=1e-5)
    first = split.weighted(Weighting(half_life="60d", age="first")).log(parts).data
    rows = origin(split.parts) <= max(PARTS[part] for part in parts)
    weight = np.exp2((log.timestamp[rows] - log.timestamp[rows].max()) / (60 * DAY))
    np.testing.assert_allclose(first, np.maximum(weight / weight.mean(), LEAST), rtol=1e-5)


def test_what_is_forgotten_depends_on_the_last_event() -> None:
    old, since = prepare(repeating(2), protocol="random"), NOW - 150 * DAY
    new = repeating(3, n=200)
    before = pairs_of(old.interactions)
    found = pairs_of(join(old, new, learned=("train", "valid"), drop_before=since).split.interactions)
    kept = {pair for pair, row in before.items() if row[2] >= since}
    assert found.keys() == kept | {pair for pair, row in pairs_of(read(new)).items() if row[2] >= since}


def test_the_option_is_the_setting() -> None:
    settings = choose_settings(words=weighting("log", "90d", "first"))
    assert settings.weights == Weighting(function="log", half_life="90d", age="first")
    assert choose_settings(words=weighting(None, "90d", None)).weights.age == "last"
