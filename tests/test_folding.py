"""Users who were not there in training: the ridge regression written out, and lists from it in Python loops."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from literal_lists import Trained, agreed, numbered
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from concf.errors import ConfigError, DataError
from concf.evaluation.scorers import Factors
from concf.inference import ranker as ranking
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.runs import fold_in as folding
from concf.runs.fold_in import RIDGE, regress, scaled

Vectors = NDArray[np.float64]


def histories(users: int, items: int, share: float, seed: int) -> csr_array:
    rng = np.random.default_rng(seed)
    return csr_array(random_array((users, items), density=share, rng=rng, dtype=np.float32))


def by_hand(train: csr_array, users: Any, ridge: float) -> Vectors:
    """(X' D^2 X + ridge I)^-1 X' D U, dense."""
    rows = (train.toarray() > 0).astype(np.float64)
    for row in rows:
        row /= sqrt(max(row.sum(), 1))
    return np.linalg.solve(rows.T @ rows + ridge * np.eye(rows.shape[1]), rows.T @ np.asarray(users, np.float64))


@pytest.mark.parametrize(("ridge", "shape"), [(0.1, (60, 25, 0.3)), (RIDGE, (15, 40, 0.2)), (100.0, (30, 30, 0.02))])
def test_the_weights_solve_the_ridge_regression(
    ridge: float, shape: tuple[int, int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = histories(*shape, seed=1)  # the sparsest leaves some users and items with nothing
    users = np.random.default_rng(2).normal(size=(shape[0], 6)).astype(np.float32)
    users[:, 5] = 0  # a dimension in which nothing is to be learned
    expected = by_hand(train, users, ridge)
    found = regress(train, users, ridge)
    assert (found.shape, found.dtype) == (expected.shape, np.dtype(np.float32))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    monkeypatch.setattr(folding, "PRECISION", 1e-10)
    found = regress(train, users, ridge)
    assert np.abs(found - expected).max() <= 1e-6 * max(np.abs(expected).max(), 1)
    doubled = train.copy()
    doubled.data *= 7  # how often something was used does not count
    assert np.array_equal(regress(doubled, users, ridge), found)


def test_a_history_is_the_sum_of_its_items_over_the_root_of_its_length() -> None:
    weights = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    new = histories(20, 30, 0.1, seed=7)
    assert 0 in np.diff(new.indptr)
    for row, vector in zip(new.toarray() > 0, scaled(new) @ weights, strict=True):
        items = np.flatnonzero(row)
        assert vector == pytest.approx(weights[items].sum(0) / sqrt(max(len(items), 1)), abs=1e-6)


@pytest.fixture(scope="module")
def group() -> Trained:
    return numbered()


def scores(group: Trained, factors: Factors, history: set[int]) -> dict[int, float]:
    weights = by_hand(group.run.data.train, factors.user, RIDGE)
    vector = sum((weights[group.items.index(item)] for item in history), np.zeros(weights.shape[1]))
    vector = vector / sqrt(len(history)) if history else factors.user.double().mean(0).numpy()
    found = factors.item.double().numpy() @ vector + (0.0 if factors.bias is None else factors.bias.numpy())
    return dict(zip(group.items, found.tolist(), strict=True))


def expected_list(
    group: Trained, history: set[int], k: int, by: str, hidden: set[int], allow: Any = None
) -> dict[int, float]:
    """Item -> score, best first."""
    may = [item for item in group.items if item not in hidden and (allow is None or item in allow)]

    def order(factors: Factors) -> dict[int, float]:
        own = scores(group, factors, history)
        return {item: own[item] for item in sorted(may, key=lambda item: (-own[item], item))}

    if by in group.heads:
        factors = group.run.recommender(by)
        assert isinstance(factors, Factors)
        return dict(list(order(factors).items())[:k])
    chosen, epoch = group.run.settings.consensus, group.run.best["consensus"].epoch
    first = len(may) if allow is not None else max(chosen.top_k or 0, k)
    orders = [list(order(group.vectors[epoch][name]))[:first] for name in group.voters]
    return dict(agreed(orders, chosen.temperature)[:k])


def assert_same(rows: list[dict[str, Any]], expected: dict[int, float]) -> None:
    assert [row["item_id"] for row in rows] == list(expected)
    assert [row["score"] for row in rows] == pytest.approx(list(expected.values()), abs=1e-4)
    assert [row["rank"] for row in rows] == list(range(1, len(expected) + 1))


NEW = [500, 470, 413, 452]


def test_a_new_user_by_every_head_and_by_what_they_agree_on(group: Trained) -> None:
    model = Recommender(group.run, "arrow")
    used, allow, deny = set(NEW), group.items[4:16], group.items[:9]
    for by in ["cml", "multinomial", "consensus", "R-consensus"]:
        rows = model.recommend(k=11, history=NEW, by=by).to_pylist()
        assert_same(rows, expected_list(group, used, 11, by, used))
        assert {row["user_id"] for row in rows} == {None}
        again = model.recommend(k=8, history=NEW, by=by, rules=Rules(filter_viewed=False))
        assert_same(again.to_pylist(), expected_list(group, used, 8, by, set()))
        few = model.recommend(k=8, history=NEW, by=by, items=allow, exclude=deny)
        assert_same(few.to_pylist(), expected_list(group, used, 8, by, used | set(deny), allow))
    assert model.recommend(k=5, history=NEW) == model.recommend(k=5, history=[*NEW, *NEW], by="consensus")
    again = model.recommend(k=30, history=NEW, rules=Rules(filter_viewed=False))
    assert any(item in used for item in again["item_id"].to_pylist())
    ids, scores = model.recommend(k=40, history=NEW, by="bpr", frame="arrays")
    assert (ids.shape, scores.shape) == ((40,), (40,))
    assert ids[26:].tolist() == [-1] * 14


def test_several_at_once_each_as_if_alone_and_known_ones_with_their_log(
    group: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Recommender(group.run, "arrow")
    assert (len(group.viewed.get(7, ())), len(group.viewed[-100]) > 3) == (0, True)
    several = {7: NEW, -100: [500, 470], 8: [], 5: [431], -93: [], 9: group.items}
    deny = {7: [455, 458], -100: [443]}
    for by in ("multinomial", "consensus"):
        found = model.recommend(history=several, k=6, by=by, exclude=deny)
        alone = {
            user: model.recommend(user, history=items, k=6, by=by, exclude=deny) for user, items in several.items()
        }
        for user, items in several.items():
            used = {*items, *group.viewed.get(user, ())}
            rows = [row for row in found.to_pylist() if row["user_id"] == user]
            assert_same(rows, expected_list(group, used, 6, by, used | set(deny.get(user, ()))))
            assert_same(alone[user].to_pylist(), {row["item_id"]: row["score"] for row in rows})
        monkeypatch.setattr(ranking, "CELLS", 1)
        blocks = model.recommend(history=several, k=6, by=by, exclude=deny)
        monkeypatch.undo()
        assert blocks.schema == found.schema
        columns = ["user_id", "item_id", "rank"]
        assert blocks.select(columns) == found.select(columns)
        assert blocks["score"].to_numpy() == pytest.approx(found["score"].to_numpy(), abs=1e-6)
    ids, scores = model.recommend(history=several, k=6, frame="arrays")
    assert (ids.shape, scores.shape) == ((6, 6), (6, 6))
    assert ids[5].tolist() == [-1] * 6  # all was used
    assert model.recommend(history={}).num_rows == 0
    words = model.recommend(history={"a": NEW, "b": [500]}, k=2)  # the new ones may be called anything
    assert words["user_id"].to_pylist() == ["a", "a", "b", "b"]


def test_one_item_is_a_history_and_what_is_wrong_is_said(group: Trained) -> None:
    model = Recommender(group.run, "arrow")
    assert model.recommend(history=500, k=4) == model.recommend(history=[500], k=4)
    assert model.recommend(history=np.array([500, 470]), k=4) == model.recommend(history=(500, 470), k=4)
    for users, history in ((7, {7: [500]}), ([7, 8], [500])):
        with pytest.raises(ConfigError, match="one user's; for several, give a mapping"):
            model.recommend(users, history=history)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="integers of 64 bits or text"):
        model.recommend(history={7: [500], "new": [500]})
