"""Lists that others made are read as their rows say, whatever the file; what cannot vote is refused."""

from __future__ import annotations

from collections import defaultdict
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array
from test_times import written

from concf.data.prepare import prepare
from concf.data.reading.lists import Lists, read_lists
from concf.data.split import Split
from concf.errors import ConcfWarning, DataError

PAIRS = [(user, item) for user in "abcd" for item in range(10, 18) if (ord(user) + item) % 3]
K = 3


def data(text: bool = True) -> Split:
    users = [user if text else ord(user) for user, _ in PAIRS]
    frame = pl.DataFrame({"user_id": users, "item_id": [item for _, item in PAIRS]})
    return prepare(frame, protocol="random", valid=0.2, test=0.2)


def found(source: Any, k: int = K, split: Split | None = None) -> Lists:
    split = split or data()
    return read_lists(source, "mine", split.interactions, split.train, k)


def literal(
    rows: list[tuple[str, int, float]], split: Split, k: int, by_rank: bool
) -> dict[str, list[tuple[int, float]]]:
    """User -> [(item, score)], by loops over rows."""
    log = split.interactions
    users, items = log.user_ids.values.tolist(), log.item_ids.values.tolist()
    best: dict[str, dict[int, float]] = defaultdict(dict)
    common = [value for user, item, value in rows if user in users and item in items]
    lowest, largest = min(common), max(map(abs, common))
    for user, item, value in rows:
        if user in users and item in items and split.train[users.index(user), items.index(item)] == 0:
            value = -value if by_rank else value
            best[user][item] = max(value, best[user].get(item, -1e9))
    lists = {}
    for user, scored in best.items():
        ordered = sorted(scored, key=lambda item: (-scored[item], item))[:k]
        lists[user] = [
            (item, 1 / log2(2 + place) if by_rank else (scored[item] - lowest) / largest)
            for place, item in enumerate(ordered)
        ]
    return lists


def as_read(lists: Lists, split: Split) -> dict[str, list[tuple[int, float]]]:
    users, items = split.interactions.user_ids.values, split.interactions.item_ids.values
    rows = {
        user: [(items[item], float(score)) for item, score in zip(*row, strict=True) if item >= 0]
        for user, row in zip(users.tolist(), zip(*lists, strict=True), strict=True)
    }
    return {user: row for user, row in rows.items() if row}


def drawn(seed: int, by_rank: bool) -> list[tuple[str, int, float]]:
    """Rows of known and unknown users and items, with pairs and values that come twice."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 9, 60) if by_rank else random.integers(-4, 5, 60) / 2
    return [(str(random.choice(list("abcdx"))), int(random.integers(8, 20)), float(value)) for value in values.tolist()]


@pytest.mark.filterwarnings("ignore:voter 'mine'")
@pytest.mark.parametrize("by_rank", [False, True])
@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "pandas"])
def test_lists_are_what_their_rows_say(form: str, by_rank: bool, tmp_path: Path) -> None:
    split = data()
    for seed in range(3):
        rows, column = drawn(seed, by_rank), "rank" if by_rank else "score"
        frame = pl.DataFrame(rows, schema=["user", "item", column], orient="row")
        path = tmp_path / f"lists-{seed}.{form}"
        source = frame.to_pandas() if form == "pandas" else written(frame, path)
        expected = literal(rows, split, K, by_rank)
        lists = as_read(found(source, split=split), split)
        assert {user: [item for item, _ in row] for user, row in lists.items()} == {
            user: [item for item, _ in row] for user, row in expected.items()
        }
        for user, row in lists.items():
            assert [score for _, score in row] == pytest.approx([score for _, score in expected[user]])


def rows(**columns: Any) -> pl.DataFrame:
    n = max((len(each) for each in columns.values()), default=2)
    return pl.DataFrame({"user": ["a"] * n, "item": list(range(10, 10 + n))} | columns, strict=False)


@pytest.mark.parametrize(("frame", "key"), [
    (rows(), "no column"), (rows(score=[1.0, 1.0, 1.0]), "every score is 1"),
    (rows(score=[float("nan"), float("inf")]), "infinite"), (rows(score=[0.5, None]), "row 1"),
    (rows(rank=[1.0, 1.5]), "row 1"), (rows(rank=[1, -1]), "row 1"),
    (rows(user=["x", "y"], score=[1, 2]), "nothing in common"), (rows(score=[1, 2]).clear(), "no rows"),
])  # fmt: skip
def test_what_cannot_vote_is_refused(frame: pl.DataFrame, key: str) -> None:
    with pytest.raises(DataError, match=f"^voter 'mine': .*{key}"):
        found(frame)


def test_lists_of_learned_pairs_alone_are_refused() -> None:
    split = data()
    users, items = split.train.nonzero()
    ids = split.interactions.user_ids.values[users].tolist(), split.interactions.item_ids.values[items].tolist()
    with (
        pytest.raises(DataError, match="it lists only pairs that were learned from"),
        pytest.warns(ConcfWarning, match=f"{len(users)} rows are left out: of pairs that were learned from"),
    ):
        found(pl.DataFrame({"user": ids[0], "item": ids[1], "rank": range(len(users))}))


@pytest.mark.parametrize(("columns", "key"), [
    ({"user": ["a", "x", "y"], "item": [10, 11, 99], "score": [1, 2, 3]}, "2 users and 1 items"),
    ({"item": [10, 11, 10], "score": [1, 2, 3]}, "repeated"), ({"score": [1, float("nan"), 3]}, "not a number"),
    ({"score": [1, 2, 3]}, "only 1 of 4 users"),
])  # fmt: skip
def test_what_is_left_out_is_said(columns: dict[str, Any], key: str) -> None:
    split = data()
    nothing = csr_array(split.train.shape, dtype=np.float32)
    with pytest.warns(ConcfWarning, match=key):
        read_lists(rows(**columns), "mine", split.interactions, nothing, K)
