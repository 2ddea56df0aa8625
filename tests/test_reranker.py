"""The re-ranker: literal features, the weights that explain the validation part best, re-ranked lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from small_reranker import (
    DONE,
    EVERYONE,
    ITEMS,
    LAST_ITEM,
    NEW,
    TOP_K,
    USERS,
    WEIGHTS,
    case,
    listed,
    literal,
    literal_cost,
    reranker_of,
    wanted,
)

from concf.consensus import reranker
from concf.consensus.reranker import (
    FOLDS,
    PLAIN,
    VOTER_FEATURES,
    popularity_and_activity,
)

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.mark.parametrize("users", [EVERYONE, (12, 3, LAST_ITEM, 20, 0, DONE, NEW)], ids=["everyone", "some"])
def test_plain_lists_and_features_are_the_literal_ones(in_double, users: tuple[int, ...]) -> None:
    fast, slow = reranker_of(users), literal(users)
    assert listed(fast.lists) == slow.lists
    found, empty = fast.features(torch.arange(len(users)))
    assert found.isfinite().all()
    for row, items in enumerate(slow.lists):
        assert (~empty[row]).tolist() == [place < len(items) for place in range(ITEMS)]
        if items:
            assert torch.allclose(found[row, : len(items)], slow.table(row), rtol=0, atol=1e-9)


def test_what_a_voter_lists_beyond_its_vote_is_not_looked_at(in_double) -> None:
    short, long = reranker_of(), reranker_of(k=TOP_K + 3)
    assert long.voters[1].lists.shape == (USERS, TOP_K + 3)
    assert torch.equal(short.lists, long.lists)
    found, empty = long.features(torch.arange(USERS))
    expected, _ = short.features(torch.arange(USERS))
    assert torch.allclose(found[~empty], expected[~empty], rtol=0, atol=1e-12)


def test_weights_minimise_the_literal_cost(in_double, monkeypatch) -> None:
    monkeypatch.setattr(reranker, "USERS", 4)  # several blocks
    fast, cost = reranker_of(), literal_cost()
    fitted = fast.fit(wanted(fast))
    assert len(cost.learners) > 20
    assert torch.allclose(fitted.centre, cost.centre, rtol=0, atol=1e-9)
    for left_out, weights in [(None, fitted.everyone), *enumerate(fitted.folds)]:
        begin, end = (cost.gradient(each, left_out).abs().max() for each in (cost.prior, weights))
        assert end < 1e-6 * begin
        assert cost(weights, left_out) < cost(cost.prior, left_out)
    assert len(fitted.folds) == FOLDS
    assert (fitted.folds - fitted.everyone).abs().amax(1).min() > 1e-3  # everyone counts


def test_a_step_that_goes_too_far_is_halved(in_double, monkeypatch) -> None:
    """With hardly any penalty a weight is far from where it begins."""
    monkeypatch.setattr(reranker, "PENALTY", 1e-3)
    fast, cost = reranker_of(), literal_cost()
    fitted = fast.fit(wanted(fast))
    monkeypatch.setattr(cost, "penalty", cost.penalty / 10 * 1e-3)
    assert cost.gradient(fitted.everyone).abs().max() < 1e-6 * cost.gradient(cost.prior).abs().max()


def test_weights_stay_near_those_of_before(in_double, monkeypatch) -> None:
    """The literal cost again, with another prior and ten times the penalty; the fewer users there are, the nearer."""
    fast, cost = reranker_of(), literal_cost()
    before = fast.fit(wanted(fast)).everyone + 0.3
    fitted = reranker_of().fit(wanted(fast), before).everyone
    monkeypatch.setattr(cost, "prior", before)
    monkeypatch.setattr(cost, "penalty", cost.penalty / reranker.PENALTY * reranker.PENALTY_BEFORE)
    assert cost.gradient(fitted).abs().max() < 1e-6 * cost.gradient(before).abs().max()
    nobody = reranker_of().fit(torch.zeros_like(wanted(fast)), before).everyone
    assert torch.allclose(nobody, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cross_fitted", [False, True])
def test_lists_are_in_the_order_of_the_literal_scores(in_double, monkeypatch, cross_fitted: bool) -> None:
    monkeypatch.setattr(reranker, "SCORED_USERS", 7)
    fast, slow = reranker_of(), literal()
    fitted = fast.fit(wanted(fast))
    lists, scores = fast.rerank(fitted, cross_fitted=cross_fitted)
    assert listed(lists) != slow.lists
    for row, items in enumerate(slow.lists):
        weights = fitted.folds[row % 5] if cross_fitted else fitted.everyone
        literal_scores = ((slow.table(row) - fitted.centre) @ weights).tolist() if items else []
        order = sorted(range(len(items)), key=lambda place, s=literal_scores: (-s[place], place))
        assert listed(lists)[row] == [items[place] for place in order]
        expected = [literal_scores[place] for place in order] + [-np.inf] * (ITEMS - len(items))
        assert scores[row].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("row", [0, 18])
def test_what_a_user_holds_out_does_not_rank_its_own_list(in_double, row: int) -> None:
    fast = reranker_of()
    before = wanted(fast)
    assert before[row].any()
    after = before.clone()
    after[row] = ~before[row] & (fast.lists[row] >= 0)  # all other items that are listed
    old, new = fast.fit(before), fast.fit(after)
    fold = row % FOLDS
    assert torch.allclose(old.folds[fold], new.folds[fold], rtol=0, atol=1e-6)
    others = [each for each in range(FOLDS) if each != fold]
    assert (old.folds[others] - new.folds[others]).abs().amax(1).min() > 1e-3
    assert (old.everyone - new.everyone).abs().max() > 1e-3
    lists = [fast.rerank(each, cross_fitted=True)[0] for each in (old, new)]
    assert torch.equal(lists[0][fold::FOLDS], lists[1][fold::FOLDS])
    assert not torch.equal(*lists)


def test_single_precision_comes_to_the_same_weights(in_double) -> None:
    fast = reranker_of()
    expected = fast.fit(wanted(fast))
    torch.set_default_dtype(torch.float32)
    single = reranker_of(dtype=torch.float32)
    found = single.fit(wanted(single))
    assert torch.equal(single.lists, fast.lists)
    assert (found.everyone - expected.everyone).abs().max() < 1e-3
    assert found.everyone.dtype == found.folds.dtype == torch.float64


def test_with_nothing_to_learn_from_the_votes_are_as_they_were(in_double) -> None:
    fast = reranker_of()
    fitted = fast.fit(torch.zeros_like(fast.lists, dtype=torch.bool))
    loud = torch.tensor(WEIGHTS)
    for weights in (fitted.everyone, *fitted.folds):
        assert torch.equal(weights[PLAIN : VOTER_FEATURES * len(loud) : VOTER_FEATURES], loud / loud.mean())
        assert torch.count_nonzero(weights) == len(loud)
        assert torch.equal(weights, literal().prior())
    for cross_fitted in (False, True):
        assert torch.equal(fast.rerank(fitted, cross_fitted=cross_fitted)[0], fast.lists)


def test_no_more_learn_than_are_allowed_to(in_double, monkeypatch) -> None:
    fast = reranker_of()
    hits = wanted(fast)
    learners = hits.any(1).nonzero()[:, 0]
    few = hits.clone()
    few[learners[7:]] = False
    expected, everyone = fast.fit(few), fast.fit(hits)
    monkeypatch.setattr(reranker, "MOST_LEARNERS", 7)
    found = fast.fit(hits)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
    assert not torch.allclose(found.everyone, everyone.everyone, rtol=0, atol=1e-3)


def test_what_is_not_reranked_stays_behind(in_double, monkeypatch) -> None:
    monkeypatch.setattr(reranker, "TOP", 4)
    fast = reranker_of()
    lists, scores = fast.rerank(fast.fit(wanted(fast)))
    plain = fast.lists
    assert not torch.equal(lists, plain)
    assert torch.equal(lists[:, :4].sort(1).values, plain[:, :4].sort(1).values)
    assert torch.equal(lists[:, 4:], plain[:, 4:])
    there = (plain[:, :4] >= 0).all(1)
    assert (scores[there].diff(dim=1) <= 0).all()
    assert torch.allclose(scores[there, 3:].diff(dim=1), torch.tensor(-1.0))


def test_who_has_used_everything_has_an_empty_list_and_no_nan(in_double) -> None:
    fast = reranker_of()
    fitted = fast.fit(wanted(fast))
    for cross_fitted in (False, True):
        lists, scores = fast.rerank(fitted, cross_fitted=cross_fitted)
        assert (lists[DONE] == -1).all()
        assert (scores[DONE] == -torch.inf).all()
        assert listed(lists)[LAST_ITEM] == [3]
        assert not scores.isnan().any()
        assert torch.equal(scores > -torch.inf, lists >= 0)


def test_a_list_may_be_longer_or_shorter_than_the_votes(in_double) -> None:
    long, short = reranker_of(length=ITEMS + 5), reranker_of(length=3)
    assert torch.equal(long.lists[:, :3], short.lists)
    assert (long.lists[:, ITEMS:] == -1).all()
    for fast in (long, short):
        lists, scores = fast.rerank(fast.fit(wanted(fast)), cross_fitted=True)
        assert lists.shape == scores.shape == fast.lists.shape
        assert [sorted(row) for row in listed(lists)] == [sorted(row) for row in listed(fast.lists)]


def test_popularity_and_activity_have_mean_0_and_deviation_1() -> None:
    for each in popularity_and_activity(case().train):
        assert float(each.mean()) == pytest.approx(0, abs=1e-12)
        assert float(each.std(correction=0)) == pytest.approx(1)
    for each in popularity_and_activity(csr_array(np.eye(5))):
        assert not each.any()
