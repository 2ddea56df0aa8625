"""Full ranking: a sort in plain Python is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array

from concf.baselines.factorisation import PureSVD
from concf.errors import ConfigError, DataError
from concf.evaluation.ranking import NOTHING, cells_in, rank, top_k, top_k_of_sparse
from concf.evaluation.scorers import Factors, ListFunction, ScoreFunction

INF = float("inf")
MANY_TIES_AND_HOLES = st.sampled_from([-INF, -1.0, -0.0, 0.0, 1.0])


def sorted_places(scores, k):
    """[b][k] places by (-score, place)."""
    return [sorted(range(len(row)), key=lambda place: (-row[place], place))[:k] for row in scores.tolist()]


def literal_rank(scores, seen, k):
    """[users, k] the best unseen items above -inf, padded with -1."""
    lists = np.full((len(scores), k), NOTHING)
    for user, row in enumerate(scores.tolist()):
        order = sorted(range(len(row)), key=lambda item: (-row[item], item))
        left = [item for item in order if not seen[user, item] and row[item] > -INF][:k]
        lists[user, : len(left)] = left
    return lists


@st.composite
def rows_and_length(draw, elements):
    n = draw(st.integers(1, 90))
    k = draw(st.one_of(st.just(1), st.just(n), st.integers(1, n), st.integers(1, max(1, n // 4))))
    return draw(arrays(np.float32, (draw(st.integers(1, 4)), n), elements=elements)), k


@st.composite
def rankings(draw):
    """Integer scores with ties, what was seen, the length of the lists."""
    shape = draw(st.integers(1, 7)), draw(st.integers(1, 30))
    scores = draw(arrays(np.float32, shape, elements=st.integers(-2, 2).map(float)))
    return scores, draw(arrays(bool, shape)), draw(st.integers(1, shape[1] + 3))


@pytest.fixture
def model():
    """Integer vectors, so that any order of summation gives the same scores: 7 users, 23 items, many ties."""
    rng = np.random.default_rng(3)
    user, item = rng.integers(-1, 2, (7, 3)).astype(np.float32), rng.integers(-1, 2, (23, 3)).astype(np.float32)
    return user, item, rng.integers(-1, 2, 23).astype(np.float32)


@pytest.fixture
def seen():
    """[7, 23] what was seen; user 2 has seen nothing, user 5 all but three."""
    dense = np.random.default_rng(4).random((7, 23)) < 0.4
    dense[2], dense[5] = False, np.arange(23) % 8 != 0
    return csr_array(dense.astype(np.float32))


@settings(deadline=None, max_examples=60)
@given(rows_and_length(MANY_TIES_AND_HOLES))
def test_top_k_is_that_sort_wherever_a_score_is_above_minus_infinity(drawn):
    scores, k = drawn
    values, places = top_k(torch.tensor(scores), k)
    expected = np.array(sorted_places(scores, k))
    wanted = np.take_along_axis(scores, expected, 1)
    assert values.tolist() == wanted.tolist()
    assert places.numpy()[wanted > -INF].tolist() == expected[wanted > -INF].tolist()


@pytest.mark.parametrize(("n", "k", "levels"), [(1003, 7, 3), (1003, 100, 10_000), (1024, 1, 1), (399, 100, 3)])
def test_top_k_is_that_sort_in_long_rows_that_the_groups_do_not_divide(n, k, levels):
    scores = np.random.default_rng(n + k + levels).integers(0, levels, (5, n)).astype(np.float32)
    assert top_k(torch.tensor(scores), k)[1].tolist() == sorted_places(scores, k)


@settings(deadline=None, max_examples=60)
@given(rankings())
def test_the_top_of_a_sparse_table_is_that_of_the_dense_one(drawn):
    scores, seen, k = drawn[0].clip(0), drawn[1], min(drawn[2], drawn[0].shape[1])
    sparse, hidden = csr_array(scores), csr_array(seen)
    values, places = top_k_of_sparse(sparse, k, cells_in(sparse, hidden), hidden)
    wanted, expected = top_k(torch.tensor(np.where(seen, -INF, scores)), k)
    assert torch.equal(values, wanted)
    assert torch.equal(places[wanted > -INF], expected[wanted > -INF])


@settings(deadline=None, max_examples=50)
@given(rankings(), st.sampled_from([1, 200, None]))
def test_rank_is_a_sort_of_the_unseen_items_for_every_memory_budget(drawn, memory):
    scores, seen, k = drawn
    users = np.arange(len(scores))
    lists = rank(lambda block: scores[block], users, k, seen=csr_array(seen.astype(np.float32)), memory=memory)
    assert lists.tolist() == literal_rank(scores, seen, k).tolist()
    assert lists.dtype == np.int32


def test_lists_follow_the_order_in_which_users_are_asked_for(model, seen):
    whole = rank(model, np.arange(7), 5, seen=seen)
    users = np.array([6, 2, 2, 0])
    assert rank(model, users, 5, seen=seen, memory=1).tolist() == whole[users].tolist()
    assert rank(model, users[:0], 5, seen=seen).shape == (0, 5)


@pytest.mark.parametrize("memory", [1, None])
def test_a_score_that_is_not_a_number_is_refused_and_its_user_named(memory):
    scores = np.zeros((6, 40), np.float32)
    scores[4, 33] = np.nan
    with pytest.raises(DataError, match=r"NaN.*user position 4\b"):
        rank(lambda users: scores[users], np.arange(1, 6), 3, memory=memory)


def test_a_seen_item_may_be_scored_not_a_number():
    scores, seen = np.ones((1, 3), np.float32), csr_array(np.array([[0.0, 1.0, 0.0]], np.float32))
    scores[0, 1] = np.nan
    assert rank(lambda users: scores[users], np.arange(1), 3, seen=seen).tolist() == [[0, 2, -1]]


def test_vectors_give_the_same_lists_however_they_are_handed_over(model, seen):
    arrays, scores = model, model[0] @ model[1].T + model[2]

    class Model:
        def factors(self):
            return Factors.of(*arrays)

    forms = [Factors.of(*arrays), arrays, tuple(map(torch.tensor, arrays)), Model(), ScoreFunction(lambda u: scores[u])]
    lists = [rank(form, np.arange(7), 8, seen=seen, memory=300).tolist() for form in forms]
    assert lists == [literal_rank(scores, seen.toarray(), 8).tolist()] * len(forms)


def column_major_tensor(scores):
    return torch.tensor(scores.T.copy()).T


@pytest.mark.parametrize("form", [np.int8, np.float64, np.asfortranarray, column_major_tensor])
def test_a_score_function_may_return_any_kind_of_numbers_in_any_layout(seen, form):
    scores = np.random.default_rng(5).integers(-3, 4, (7, 23)).astype(np.float32)
    lists = rank(lambda users: form(scores[users]), np.arange(7), 8, seen=seen, memory=300)
    assert lists.tolist() == literal_rank(scores, seen.toarray(), 8).tolist()


def test_given_lists_keep_their_order_and_lose_seen_items_and_empty_places():
    lists = np.array([[5, -1, 2, 0, 4, 1], [3, 1, 0, -1, -1, -1], [-1] * 6])
    seen = csr_array(np.array([[0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 1], [0] * 6], np.float32))
    given_lists = ListFunction(lambda users, k: lists[users])
    assert rank(given_lists, np.arange(3), 3, seen=seen).tolist() == [[5, 0, 4], [3, 0, -1], [-1, -1, -1]]
    assert rank(given_lists, np.array([1, 0]), 2).tolist() == [[3, 1], [5, 2]]


def test_a_given_list_that_names_an_item_twice_is_refused_and_its_user_named():
    with pytest.raises(DataError, match=r"user position 9\b.*twice"):
        rank(ListFunction(lambda users, k: [[4, 2, -1, -1, 4]]), np.array([9]), 2)


@pytest.mark.parametrize("thing", [42, None, (1,), PureSVD()], ids=repr)
def test_what_cannot_be_ranked_is_refused_with_its_type(thing):
    with pytest.raises(ConfigError, match=f"{type(thing).__name__} cannot be ranked"):
        rank(thing, np.arange(2), 1)


def test_an_error_in_one_of_many_blocks_ends_all_of_them():
    rng = np.random.default_rng(0)
    user, item = rng.standard_normal((400, 4)), rng.standard_normal((300, 4))
    item[7] = np.nan
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(DataError, match="NaN"):
            rank((user, item), np.arange(400), 5, memory=300 * 8 * 16)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_shapes_that_do_not_fit_are_refused():
    user, item = np.ones((4, 2)), np.ones((6, 2))
    users, seen = np.arange(4), csr_array((4, 5))
    for model in ((user, np.ones((6, 3))), (user, item, np.ones(5)), (np.ones(4), item)):
        with pytest.raises(ConfigError, match="expected"):
            rank(model, users, 2)
    with pytest.raises(ConfigError, match="6 items and the data has 5"):
        rank((user, item), users, 2, seen=seen)
    for model, chosen, k in (((user, item), [7], 2), (lambda users: np.ones(6), users, 2), ((user, item), users, 0)):
        with pytest.raises(ConfigError, match="expected"):
            rank(model, np.array(chosen), k)


def test_a_list_function_is_asked_for_enough_to_lose_what_was_seen():
    lengths = []

    def best_first(users, k):
        lengths.append(k)
        return np.tile(np.arange(k), (len(users), 1))

    seen = csr_array(np.array([[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0]]))
    assert rank(ListFunction(best_first), np.arange(2), 3, seen=seen).tolist() == [[2, 3, 4], [0, 1, 3]]
    assert lengths == [5]
