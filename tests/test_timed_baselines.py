"""Baselines that know the times of pairs: loops over users and sets as oracles, and laws of time and order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from concf import evaluate, prepare
from concf.baselines import sequences
from concf.baselines.ease import EASE
from concf.baselines.factorisation import ALS, Popularity
from concf.baselines.sequences import SLIST, SequenceALS
from concf.baselines.table import BASELINES, Candidate
from concf.baselines.timed import DecayedALS, DecayedEASE, DecayedPopularity, RecentPopularity, ages
from concf.comparison.compare import compare
from concf.data.simulate import Simulation
from concf.errors import ConfigError, DataError
from concf.evaluation.scorers import as_scorer

USERS, ITEMS = 18, 11
TIMED = [name for name, candidate in BASELINES.items() if candidate.timed]
MODELS = [
    RecentPopularity(share=0.2), DecayedPopularity(half_life=0.3),
    DecayedALS(factors=4, unobserved=0.1, half_life=0.4), DecayedEASE(regularisation=2.0, half_life=0.4),
    SLIST(alpha=0.3, distance=1.5, span=0.4, memory=2.0, regularisation=2.0),
    SequenceALS(factors=4, unobserved=0.1, memory=2.0),
]  # fmt: skip
names = [type(model).__name__ for model in MODELS]


def matrices(dense: np.ndarray) -> tuple[csr_array, csr_array]:
    """(log, times) of [users, items] times, NaN where there is no pair."""
    train = csr_array((~np.isnan(dense)).astype(np.float32))
    return train, csr_array((dense[~np.isnan(dense)], train.indices, train.indptr), shape=train.shape)


def some_times(seed: int = 0, several: int = 9) -> np.ndarray:
    """[users, items] whole times from 0 on, many of them equal; the last user and the last item have nothing."""
    random = np.random.default_rng(seed)
    dense = random.integers(0, several, (USERS, ITEMS)).astype(np.float64)
    dense[random.random((USERS, ITEMS)) > 0.5] = np.nan
    dense[-1], dense[:, -1] = np.nan, np.nan
    return dense


def scores(model: Any, dense: np.ndarray) -> np.ndarray:
    """[users, items] what a baseline scores after it was fitted to times [users, items]."""
    train, times = matrices(dense)
    return all_scores(model.fit(train, times=times) if getattr(model, "timed", False) else model.fit(train))


def all_scores(fitted: Any) -> np.ndarray:
    return as_scorer(fitted).scores(torch.arange(USERS)).double().numpy()


def sets_of(row: np.ndarray) -> list[tuple[float, list[int]]]:
    """(time, items) of a user's sets, in order of time."""
    return [(time, np.flatnonzero(row == time).tolist()) for time in sorted(set(row[~np.isnan(row)]))]


def test_recent_popularity_counts_the_newest_pairs_and_those_of_equal_time() -> None:
    dense = some_times()
    newest = sorted(dense[~np.isnan(dense)], reverse=True)
    for share in (0.01, 0.2, 0.5, 1.0):
        border = newest[math.ceil(share * len(newest)) - 1]
        expected = np.broadcast_to((dense >= border).sum(0), dense.shape)
        assert np.array_equal(scores(RecentPopularity(share=share), dense), expected)


class SolvedALS(ALS):
    """ALS whose users are solved once more at last."""

    def fit(self, train: csr_array, *rest: Any) -> Any:
        return self.fold_in(super().fit(train, *rest), train)


def newer_share(dense: np.ndarray, time: float) -> float:
    """Share of the pairs that are newer than a time."""
    return float((dense > time).sum() / (~np.isnan(dense)).sum())


def test_decayed_popularity_is_a_sum_of_powers_up_to_a_factor() -> None:
    dense, half_life = some_times(), 0.3
    expected = np.zeros(ITEMS)
    for item in range(ITEMS):
        for time in dense[:, item][~np.isnan(dense[:, item])]:
            expected[item] += 2 ** (-newer_share(dense, time) / half_life)
    found = scores(DecayedPopularity(half_life=half_life), dense)[0]
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), atol=1e-6)


@pytest.mark.parametrize(
    ("timed", "plain"),
    [(DecayedALS(factors=4, half_life=0.3), SolvedALS(factors=4)), (DecayedEASE(half_life=0.3), EASE())],
)
def test_a_decayed_model_is_the_plain_one_on_weights_of_mean_one(timed: Any, plain: Any) -> None:
    dense = some_times()
    train, _ = matrices(dense)
    weights = np.array([2 ** (-newer_share(dense, time) / 0.3) for time in dense[~np.isnan(dense)]])
    train.data[:] = weights / weights.mean()
    np.testing.assert_allclose(scores(timed, dense), all_scores(plain.fit(train)), atol=1e-5)


def test_a_history_is_folded_in_with_the_weights_of_its_times() -> None:
    dense = some_times()
    train, times = matrices(dense)
    model = DecayedALS(factors=4, half_life=0.3)
    fitted = model.fit(train, times=times)
    weights = np.array([2 ** (-newer_share(dense, time) / 0.3) for time in dense[~np.isnan(dense)]])
    train.data[:] = weights / weights.mean()
    expected = ALS(factors=4).fold_in(fitted, train).user
    plain, _ = matrices(dense)
    np.testing.assert_allclose(model.fold_in(fitted, plain, times).user, expected, atol=1e-5)
    train.data[:] = 1 / weights.mean()  # all of now
    np.testing.assert_allclose(model.fold_in(fitted, plain).user, ALS(factors=4).fold_in(fitted, train).user, atol=1e-5)


def literal_slist(model: SLIST, dense: np.ndarray) -> np.ndarray:
    """[users, items] by rows of Z and Y, and one constrained ridge regression for each item."""
    view = (~np.isnan(dense)).astype(np.float64)
    sources, targets, weights, now = [], [], [], np.zeros(dense.shape)
    for user, row in enumerate(dense):
        sets = sets_of(row)
        for t in range(1, len(sets)):
            z, y = np.zeros(ITEMS), np.zeros(ITEMS)
            for s, (_, items) in enumerate(sets, start=1):
                for item in items:
                    if s <= t:
                        z[item] = math.exp(-(t - s) / model.distance)
                    else:
                        y[item] = math.exp(-(s - t - 1) / model.distance)
            sources.append(z)
            targets.append(y)
            age = (np.nanmax(dense) - sets[t - 1][0]) / (np.nanmax(dense) - np.nanmin(dense))
            weights.append(1.0 if model.span is None else math.exp(-age / model.span))
        for s, (_, items) in enumerate(sets, start=1):
            now[user, items] = 1.0 if model.memory is None else math.exp(-(len(sets) - s) / model.memory)
    root = np.sqrt((1 - model.alpha) * np.array(weights))[:, None]
    left = np.vstack([model.alpha**0.5 * view, root * sources])
    right = np.vstack([model.alpha**0.5 * view, root * targets])
    b = np.zeros((ITEMS, ITEMS))
    for item in range(ITEMS):
        others = np.delete(np.arange(ITEMS), item)
        gram = left[:, others].T @ left[:, others] + model.regularisation * np.eye(ITEMS - 1)
        b[others, item] = np.linalg.solve(gram, left[:, others].T @ right[:, item])
    return now @ b


@pytest.mark.parametrize("several", [3, 9, 1000])
@pytest.mark.parametrize("settings", [
    {"alpha": 0.1, "distance": 1.0, "span": 0.3, "memory": 1.0, "regularisation": 1.0},
    {"alpha": 0.7, "distance": 4.0, "span": None, "memory": None, "regularisation": 20.0},
    {"alpha": 0.5, "distance": 0.001, "span": 2.0, "memory": 0.001, "regularisation": 3.0},
])  # fmt: skip
def test_slist_is_a_ridge_regression_over_the_rows_of_every_set(
    settings: dict[str, Any], several: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dense = SLIST(**settings), some_times(1, several)
    expected = literal_slist(model, dense)
    np.testing.assert_allclose(scores(model, dense), expected, atol=1e-6)
    monkeypatch.setattr(sequences, "TERMS", 7)  # many blocks
    np.testing.assert_allclose(scores(model, dense), expected, atol=1e-6)


@pytest.mark.parametrize("several", [3, 9, 1000])
@pytest.mark.parametrize(("memory", "ridge"), [(0.5, 1.0), (5.0, 0.001)])
def test_the_ridge_in_als_space_maps_every_history_to_the_next_set(several: int, memory: float, ridge: float) -> None:
    dense = some_times(2, several)
    plain = ALS(factors=4, unobserved=0.1).fit(matrices(dense)[0])
    item = plain.item.double().numpy()
    rows, targets, histories = [], [], np.zeros((USERS, 4))
    for user, row in enumerate(dense):
        sets = [items for _, items in sets_of(row)]
        for t in range(1, len(sets) + 1):
            p = sum(math.exp(-(t - s) / memory) * item[i] for s in range(1, t + 1) for i in sets[s - 1])
            if t < len(sets):
                rows.append(p)
                targets.append(item[sets[t]].mean(0))
            histories[user] = p
    gram = np.array(rows).T @ np.array(rows)
    mapped = np.linalg.solve(gram + ridge * np.trace(gram) / 4 * np.eye(4), np.array(rows).T @ np.array(targets))
    found = scores(SequenceALS(factors=4, unobserved=0.1, memory=memory, ridge=ridge), dense)
    np.testing.assert_allclose(found, histories @ mapped @ item.T, atol=2e-4)


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_neither_the_unit_nor_the_start_of_time_matters(model: Any) -> None:
    dense = some_times(4)
    expected = scores(model, dense)
    for moved in (dense * 86_400, dense - 5, dense * 0.125 + 1_300_000_000):
        np.testing.assert_allclose(scores(model, moved), expected, atol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_renumbered_users_and_items_have_the_scores_of_before(model: Any) -> None:
    dense, random = some_times(5), np.random.default_rng(0)
    users, items = random.permutation(USERS), random.permutation(ITEMS)
    if isinstance(model, ALS):  # which starts at random: compare where it has converged
        model = model.model_copy(update={"factors": ITEMS, "sweeps": 300})
    there = scores(model, dense[users][:, items])
    np.testing.assert_allclose(there, scores(model, dense)[users][:, items], atol=2e-3)


@pytest.mark.parametrize("name", TIMED)
def test_a_longer_catalogue_and_an_empty_log_are_no_problem(name: str) -> None:
    model = BASELINES[name].make()
    train, times = matrices(np.full((USERS, ITEMS), np.nan))
    assert not all_scores(model.fit(train, times=times)).any()


@pytest.mark.parametrize(("model", "equal", "several"), [
    (RecentPopularity(share=0.01), Popularity(), 1), (DecayedPopularity(half_life=0.01), Popularity(), 1),
    (DecayedALS(factors=4, half_life=0.01), SolvedALS(factors=4), 1), (DecayedEASE(half_life=0.01), EASE(), 1),
    (SLIST(alpha=0.25, regularisation=10.0, span=0.1), EASE(regularisation=40.0), 1),
    (SequenceALS(factors=4), ALS(factors=4), 1),
    (RecentPopularity(share=1.0), Popularity(), 9), (DecayedPopularity(), Popularity(), 9),
    (DecayedALS(factors=4), SolvedALS(factors=4), 9), (DecayedALS(factors=4, half_life=1e12), SolvedALS(factors=4), 9),
    (DecayedEASE(), EASE(), 9), (SLIST(alpha=1.0, memory=None, regularisation=30.0), EASE(regularisation=30.0), 9),
])  # fmt: skip
def test_at_equal_times_or_without_a_decay_the_model_is_one_without_times(model: Any, equal: Any, several: int) -> None:
    dense = some_times(6, several)
    np.testing.assert_allclose(scores(model, dense), scores(equal, dense), atol=1e-6)


def test_times_of_other_pairs_are_refused() -> None:
    train, times = matrices(some_times(8))
    with pytest.raises(DataError, match="other pairs"):
        ages(train, times[::-1].tocsr())


LOG = Simulation(users=120, items=40, events=3000).draw(1)


def test_times_of_a_split_have_the_cells_of_its_log_and_zero_is_a_time() -> None:
    log = LOG.with_columns(timestamp=LOG["timestamp"] - LOG["timestamp"].min())
    data, first = prepare(log, protocol="time"), dict[tuple[int, int], float]()
    for user, item, time in log.sort("timestamp").rows():
        first.setdefault((user, item), time)
    assert min(first.values()) == 0
    for parts in (["train"], ["train", "valid"], ["test"]):
        pairs, times = data.log(parts), data.times(parts)
        assert np.array_equal(pairs.indices, times.indices)
        assert np.array_equal(pairs.indptr, times.indptr)
        users, items = data.interactions.user_ids, data.interactions.item_ids
        row = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
        ids = zip(users.named(row), items.named(times.indices), strict=True)
        assert times.dtype == np.float64
        assert times.data.tolist() == [first[pair] for pair in ids]
    shuffled = prepare(log.sample(fraction=1, shuffle=True, seed=0), protocol="time").times(["train"])
    assert np.array_equal(shuffled.data, data.times(["train"]).data)


def test_a_comparison_fits_timed_baselines_with_the_times_of_the_fitted_pairs() -> None:
    data = prepare(LOG, protocol="time")
    models = {"recent": Candidate(RecentPopularity, {"share": (0.5,)}), "slist": Candidate(SLIST)}
    result = {
        entrant.name: entrant for entrant in compare(data, models, seeds=1, metrics=["recall@10", "ndcg@10"]).entrants
    }
    parts = ["train", "valid"]
    for name, model in (("recent", RecentPopularity(share=0.5)), ("slist", SLIST())):
        fitted = model.fit(data.log(parts), times=data.times(parts))
        assert result[name].tests[0] == pytest.approx(evaluate(fitted, data, at=10).means())


def test_timed_baselines_are_refused_before_anything_is_fitted_where_there_are_no_times_or_new_users() -> None:
    untimed = prepare(LOG.drop("timestamp"), protocol="random")
    with pytest.raises(DataError, match="no times"):
        untimed.times(["train"])
    with pytest.raises(ConfigError, match=r"als-sequence.*no times"):
        compare(untimed, ["popularity", "als-sequence"], seeds=1)
    with pytest.raises(ConfigError, match=r"slist.*new users"):
        compare(prepare(LOG, protocol="new-users"), ["slist"], seeds=1)
