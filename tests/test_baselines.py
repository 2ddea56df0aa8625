"""Baselines: one contract for all on a checkerboard, and a dense loop as the oracle of each."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from concf.baselines import neighbours as neighbours_module
from concf.baselines.ease import EASE
from concf.baselines.factorisation import IALS, PureSVD
from concf.baselines.neighbours import ItemKNN, Rows, RP3beta, UserKNN
from concf.baselines.table import BASELINES, candidate
from concf.errors import ConfigError, MissingExtraError
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import as_scorer

CPU = torch.device("cpu")
HELD_OUT = 3  # items a user, on the checkerboard
ALS = {"factors": 8, "unobserved": 0.1}
SMALL = {
    "puresvd": {"factors": 2}, "ials": {"factors": 8, "regularisation": 1.0}, "als": ALS, "als-sequence": ALS,
    "als-decayed": ALS | {"half_life": 0.5}, "ease-decayed": {"half_life": 0.5},
}  # fmt: skip


def make(name):
    """The baseline with settings that suit a matrix of a few dozen rows."""
    return candidate(name).make(**SMALL.get(name, {}))


def fit(name, train, seed):
    """The baseline, fitted; one that takes times finds every pair at a time of its own, later items later."""
    if not candidate(name).timed:
        return make(name).fit(train, seed=seed)
    times = csr_array((train.indices.astype(np.float64), train.indices, train.indptr), shape=train.shape)
    return make(name).fit(train, seed=seed, times=times)


def checkerboard():
    """([32, 24], [32, 24]) even users use even items, odd users odd items; three pairs a user are held out."""
    user, item = np.indices((32, 24))
    own = (user - item) % 2 == 0
    held_out = own & ((user // 2 + item // 2) % 4 == 0)
    return csr_array((own & ~held_out).astype(np.float32)), held_out


def some_matrix(users, items, seed=0, density=0.35):
    """[users, items] without structure; the last item and the last user have nothing."""
    dense = np.random.default_rng(seed).random((users, items)) < density
    dense[-1], dense[:, -1] = False, False
    return csr_array(dense.astype(np.float32))


def all_scores(fitted, n_users):
    """[users, items] what a fitted baseline scores."""
    return as_scorer(fitted).scores(torch.arange(n_users)).double().numpy()


@pytest.mark.parametrize("name", list(BASELINES))
def test_a_baseline_finds_what_was_held_out_of_the_checkerboard(name):
    train, held_out = checkerboard()
    lists = rank(fit(name, train, seed=1), np.arange(32), HELD_OUT, seen=train)
    if name.endswith("popularity"):
        counts = all_scores(fit(name, train, seed=1), 1)[0]
        free = [sorted(np.flatnonzero(row == 0), key=lambda item: (-counts[item], item)) for row in train.toarray()]
        assert lists.tolist() == [row[:HELD_OUT] for row in free]
    else:
        assert ((lists - np.arange(32)[:, None]) % 2 == 0).all()
        assert np.sort(lists, 1).tolist() == [np.flatnonzero(row).tolist() for row in held_out]


@pytest.mark.parametrize("name", list(BASELINES))
def test_the_same_data_and_seed_give_the_same_lists_and_the_data_stays_as_it_was(name):
    train = some_matrix(30, 20)
    before = train.toarray()
    first, second = (rank(fit(name, train, seed=5), np.arange(30), 8, seen=train) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert np.array_equal(train.toarray(), before)


def keep_nearest(similarity, k):
    """Of each row the k highest entries off the diagonal, ties to the lower column; the others 0."""
    kept = np.zeros_like(similarity)
    for i, row in enumerate(similarity):
        others = [j for j in range(len(row)) if j != i and row[j] > 0]
        for j in sorted(others, key=lambda j: (-round(row[j], 6), j))[:k]:
            kept[i, j] = row[j]
    return kept


@pytest.mark.parametrize(("neighbours", "shrink"), [(1, 0.0), (4, 7.5), (100, 0.0)])
def test_itemknn_is_the_sum_of_shrunk_cosines_of_the_nearest_items(neighbours, shrink):
    train = some_matrix(20, 14, seed=3)
    users_of = [set(np.flatnonzero(column)) for column in train.toarray().T]
    similarity = np.zeros((14, 14))
    for i, j in product(range(14), repeat=2):
        norm = (len(users_of[i]) * len(users_of[j])) ** 0.5 + shrink
        similarity[i, j] = len(users_of[i] & users_of[j]) / norm if norm else 0.0
    nearest = keep_nearest(similarity, neighbours)
    expected = [[sum(nearest[i, j] for j in np.flatnonzero(row)) for i in range(14)] for row in train.toarray()]
    fitted = ItemKNN(neighbours=neighbours, shrink=shrink).fit(train)
    np.testing.assert_allclose(all_scores(fitted, 20), expected, atol=1e-5)


@pytest.mark.parametrize(("neighbours", "alpha", "beta"), [(1, 1.0, 0.0), (4, 0.7, 0.2), (100, 0.4, -0.1)])
def test_rp3beta_is_the_sum_over_walks_of_three_steps(neighbours, alpha, beta):
    train = some_matrix(15, 11, seed=4)
    pairs = train.toarray() > 0
    per_user, per_item = pairs.sum(1), pairs.sum(0)
    into = np.zeros((11, 11))  # row i: the walks j -> v -> i
    for i, j in product(range(11), repeat=2):
        for v in np.flatnonzero(pairs[:, i] & pairs[:, j]):
            into[i, j] += (1 / per_item[j] * 1 / per_user[v]) ** alpha / per_item[i] ** beta
    into = keep_nearest(into, neighbours)
    expected = np.zeros((15, 11))
    for u, i in product(range(15), range(11)):
        expected[u, i] = sum((1 / per_user[u]) ** alpha * into[i, j] for j in np.flatnonzero(pairs[u]))
    fitted = RP3beta(alpha=alpha, beta=beta, neighbours=neighbours).fit(train)
    np.testing.assert_allclose(all_scores(fitted, 15), expected, atol=1e-5)


@pytest.mark.parametrize(("neighbours", "power", "beta"), [(1, 1.0, 0.0), (4, 1.5, 0.2), (100, 2.0, -0.1)])
def test_userknn_is_the_sum_of_the_cosines_of_the_nearest_users(neighbours, power, beta):
    train = some_matrix(15, 11, seed=4)
    pairs = train.toarray() > 0
    per_item, similarity = pairs.sum(0), np.zeros((15, 15))
    for u, v in product(range(15), repeat=2):
        together = sum(per_item[i] ** -0.5 for i in np.flatnonzero(pairs[u] & pairs[v]))
        similarity[u, v] = (together / (pairs[u].sum() * pairs[v].sum()) ** 0.5) ** power if together else 0.0
    nearest = keep_nearest(similarity, neighbours)
    expected = np.zeros((15, 11))
    for u, i in product(range(15), range(11)):
        expected[u, i] = sum(nearest[u, v] / per_item[i] ** beta for v in np.flatnonzero(pairs[:, i]))
    fitted = UserKNN(neighbours=neighbours, power=power, beta=beta).fit(train)
    np.testing.assert_allclose(all_scores(fitted, 15), expected, atol=1e-5)


MODELS = [
    ItemKNN(neighbours=4), ItemKNN(neighbours=50, shrink=0.0), RP3beta(neighbours=5), UserKNN(neighbours=6),
]  # fmt: skip


@pytest.mark.parametrize("settings", MODELS)
def test_neighbours_do_not_depend_on_blocks_or_threads_to_the_bit(settings, monkeypatch):
    train = some_matrix(40, 23, seed=11)
    whole = all_scores(settings.fit(train), 40)
    monkeypatch.setattr(neighbours_module, "CPU_ROWS", 3)
    monkeypatch.setattr(neighbours_module, "n_threads", lambda: 3)
    assert np.array_equal(all_scores(settings.fit(train), 40), whole)


@pytest.mark.parametrize("settings", MODELS)
def test_the_route_of_a_gpu_gives_the_same_neighbours_and_scores(settings, monkeypatch):
    train = some_matrix(30, 17, seed=12)
    plain = settings.fit(train)
    monkeypatch.setattr(neighbours_module, "_sparse_keys", neighbours_module._dense_keys)
    monkeypatch.setattr(Rows, "_turned_by_scipy", Rows._turned_by_a_sort)
    dense = settings.fit(train)
    for one, other in ((dense.into, plain.into), (dense.profile, plain.profile)):
        assert one.matrix.toarray().tolist() == other.matrix.toarray().tolist()
    expected = all_scores(plain, 30)
    monkeypatch.setattr(neighbours_module, "GPU_CELLS", 20)  # many pieces
    users, out = torch.tensor([7, 0, 29, 7]), torch.full((4, 17), torch.nan)
    scores = neighbours_module._product_by_terms(dense.profile, users, dense.into, out)
    np.testing.assert_allclose(scores.numpy(), expected[users.numpy()], atol=1e-6)


@pytest.mark.parametrize(("shape", "regularisation"), [((20, 12), 0.5), ((12, 20), 300.0)])
def test_ease_is_one_ridge_regression_an_item_on_all_other_items_by_both_routes(shape, regularisation, monkeypatch):
    monkeypatch.setattr("concf.baselines.ease.BLOCK", 4)
    train = some_matrix(*shape, seed=5)
    dense = train.toarray().astype(np.float64)
    expected = np.empty(shape)
    for item in range(shape[1]):
        others = np.delete(dense, item, axis=1)
        gram = others.T @ others + regularisation * np.eye(shape[1] - 1)
        expected[:, item] = others @ np.linalg.solve(gram, others.T @ dense[:, item])
    settings = EASE(regularisation=regularisation)
    for fitted in (settings._by_items(train, CPU), settings._by_users(train, CPU), settings.fit(train)):
        np.testing.assert_allclose(all_scores(fitted, shape[0]), expected, atol=1e-5)


@pytest.mark.parametrize(("shape", "factors"), [((20, 12), 4), ((12, 20), 64)])
def test_puresvd_is_the_truncated_decomposition_of_the_dense_matrix(shape, factors):
    train = some_matrix(*shape, seed=7)
    left, values, right = np.linalg.svd(train.toarray().astype(np.float64))
    rank_ = min(factors, 11)
    expected = left[:, :rank_] * values[:rank_] @ right[:rank_]
    np.testing.assert_allclose(all_scores(PureSVD(factors=factors).fit(train, seed=9), shape[0]), expected, atol=1e-5)


def test_ials_gives_each_item_the_exact_least_squares_answer_to_the_users():
    train, settings = some_matrix(25, 15, seed=8), IALS(factors=3, alpha=10.0, regularisation=2.0, iterations=10)
    fitted = settings.fit(train, seed=3)
    user = fitted.user.double().numpy()
    for item, observed in enumerate(train.toarray().T > 0):
        weight = np.where(observed, 10.0, 1.0)
        gram = (user * weight[:, None]).T @ user + 2.0 * np.eye(3)
        expected = np.linalg.solve(gram, (user * weight[:, None]).T @ observed)
        np.testing.assert_allclose(fitted.item[item].numpy(), expected, atol=1e-3)


def test_an_unknown_baseline_is_refused_and_the_known_ones_are_named():
    with pytest.raises(ConfigError, match=r"unknown model 'slim'.*popularity.*ease.*ials"):
        candidate("slim")


def test_without_implicit_its_baseline_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "implicit.als", None)
    with pytest.raises(MissingExtraError, match=r"implicit.*concf\[baselines\]"):
        IALS().fit(some_matrix(5, 4))
