"""Voters and the re-ranker: literal lists and features, the weights that explain the validation part best."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import e
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal import listed
from literal_reranker import LiteralCost, LiteralReranker, LiteralVoter, Table, listed_features, ranking
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.neighbours import RP3beta
from concf.consensus import fitting, voters
from concf.consensus.voters import Voter, by_factors, by_scores, voter_weights
from concf.evaluation.scorers import Factors, Offset
from concf.strong import features, reranker
from concf.strong.reranker import Context, Reranker

pytestmark = pytest.mark.usefixtures("on_one_thread")
USERS, ITEMS, SIZE, TOP_K, TEMPERATURE = 31, 13, 4, 6, 4.0
VOTED = {"top_k": TOP_K, "temperature": TEMPERATURE}
EVERYONE = tuple(range(USERS))
NEW, LAST_ITEM, DONE = 4, 7, 9  # users who have used nothing, all but one item, and everything
WEIGHTS = (1.0, 0.6, 0.25)


class Case(NamedTuple):
    """A log, two voters with vectors and one without, and what users hold out: [users, items]."""

    train: csr_array
    heads: tuple[Factors, Factors]
    table: Tensor
    held_out: Tensor


@cache
def case() -> Case:
    """Voters that know something of what is held out; item 3 was used by nobody."""
    random = np.random.default_rng(2)
    draw = torch.Generator().manual_seed(2)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    user, item, bias = drawn(USERS, SIZE), drawn(ITEMS, SIZE), drawn(ITEMS)
    liked = user @ item.T + drawn(USERS, ITEMS)
    used = random.random((USERS, ITEMS)) < 0.3
    used[NEW], used[:, 3] = False, False
    used[LAST_ITEM] = used[DONE] = True
    used[LAST_ITEM, 3] = False
    held_out = (liked > liked.quantile(0.75)) & ~torch.from_numpy(used)
    heads = Factors(user, item, bias), Factors(user + drawn(USERS, SIZE), item)
    return Case(csr_array(used.astype(np.float32)), heads, liked + 2 * drawn(USERS, ITEMS), held_out)


def voters_of(users: Sequence[int], k: int = TOP_K, dtype: torch.dtype = torch.float64) -> list[Voter]:
    rows, train = torch.tensor(users), case().train
    heads = [Factors(*(None if part is None else part.to(dtype) for part in (each.user, each.item, each.bias)))
             for each in case().heads]  # fmt: skip
    listed = by_scores("table", Table(case().table.to(dtype)), train, rows, k)
    return [by_factors("one", heads[0], train, rows, k), listed, by_factors("two", heads[1], train, rows, k)]


def reranker_of(users: Sequence[int] = EVERYONE, length: int = ITEMS, dtype: torch.dtype = torch.float64) -> Reranker:
    found = voters_of(users, dtype=dtype)
    factors = [voter.factors for voter in found if voter.factors is not None]
    context = Context.of(case().train, factors, torch.device("cpu"))
    return Reranker(case().train, torch.tensor(users), found, WEIGHTS, length=length, context=context, **VOTED)


@cache
def literal(users: tuple[int, ...] = EVERYONE) -> LiteralReranker:
    everyone, (one, two) = torch.arange(USERS), case().heads
    three = [
        LiteralVoter(one.scores(everyone), one.item),
        LiteralVoter(case().table),
        LiteralVoter(two.scores(everyone), two.item),
    ]
    found = LiteralReranker(used(), users, three, WEIGHTS, length=ITEMS, **VOTED)
    found.table = cache(found.table)  # type: ignore[method-assign]
    return found


def used() -> Tensor:
    return torch.from_numpy(case().train.toarray() > 0)


def wanted(fast: Reranker, held_out: Tensor | None = None) -> Tensor:
    """[n, L] where the lists have what users hold out. held_out: [users, items]."""
    held_out = case().held_out if held_out is None else held_out
    lists = fast.lists[:, : reranker.TOP].long()
    return held_out[fast.users].gather(1, lists.clamp(min=0)) & (lists >= 0)


@cache
def literal_cost() -> LiteralCost:
    held_out = [{i for i in range(ITEMS) if case().held_out[u, i]} for u in EVERYONE]
    return LiteralCost(literal(), held_out)


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


def test_weights_minimise_the_literal_cost(in_double, monkeypatch) -> None:
    monkeypatch.setattr(reranker, "USERS", 4)  # several blocks
    fast, cost = reranker_of(), literal_cost()
    fitted = fitting.fitted(fast.training(wanted(fast)))
    assert len(cost.learners) > 20
    assert torch.allclose(fitted.centre, cost.centre, rtol=0, atol=1e-9)
    for left_out, weights in [(None, fitted.everyone), *enumerate(fitted.folds)]:
        begin, end = (cost.gradient(each, left_out).abs().max() for each in (cost.prior, weights))
        assert end < 1e-6 * begin
        assert cost(weights, left_out) < cost(cost.prior, left_out)
    assert len(fitted.folds) == fitting.FOLDS
    assert (fitted.folds - fitted.everyone).abs().amax(1).min() > 1e-3  # everyone counts


def test_users_of_earlier_windows_are_learned_from_and_never_left_out(in_double) -> None:
    fast = reranker_of()
    held_out = wanted(fast)
    alone = fitting.fitted(fast.training(held_out), penalty=7.0)
    earlier = reranker_of().training(held_out)
    twice = fitting.fitted(fast.training(held_out).and_earlier([earlier]), penalty=14.0)
    assert torch.allclose(twice.everyone, alone.everyone, atol=1e-6)
    assert torch.allclose(twice.centre, alone.centre)
    assert torch.equal(fast.rerank(twice)[0], reranker_of().rerank(twice)[0])  # by features that are kept, and anew
    parts = [held_out, *(torch.zeros_like(held_out).index_copy(0, torch.arange(n), held_out[:n]) for n in (9, 15))]
    both = fast.training(held_out).and_earlier([reranker_of().training(each) for each in parts[1:]])
    raw = torch.cat([(found := fast.features(each.any(1).nonzero()[:, 0]))[0][~found[1]] for each in parts])
    assert torch.allclose(both.penalty, raw.var(0, correction=0))
    assert torch.allclose((both.features + both.centre)[~both.empty].sum(0), raw.sum(0))
    earlier = reranker_of().training(torch.zeros_like(held_out))
    nobody = fitting.fitted(fast.training(held_out).and_earlier([earlier]), penalty=7.0)
    assert torch.allclose(nobody.folds, alone.folds, atol=1e-6)
    assert (twice.folds - twice.everyone).abs().max() < (alone.folds - alone.everyone).abs().max()


def test_statistics_of_rare_items_are_drawn_to_the_average() -> None:
    std, gap, count = torch.tensor([1.0, 0.1, 0.1]), torch.tensor([2.0, 0.5, 0.5]), torch.tensor([1e9, 0.0, 5.0])
    found = voters.shrunk(std, gap, count)
    expected = [[1.0, ((1 + 0.01 + 0.01) / 3) ** 0.5, ((0.01 + 0.34) / 2) ** 0.5], [2.0, 1.0, 0.75]]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, torch.tensor(theirs), atol=1e-6)


def test_a_step_that_goes_too_far_is_halved(in_double, monkeypatch) -> None:
    """With hardly any penalty a weight is far from where it begins."""
    monkeypatch.setattr(fitting, "PENALTY", 1e-3)
    fast, cost = reranker_of(), literal_cost()
    fitted = fitting.fitted(fast.training(wanted(fast)))
    monkeypatch.setattr(cost, "penalty", cost.penalty / 10 * 1e-3)
    assert cost.gradient(fitted.everyone).abs().max() < 1e-6 * cost.gradient(cost.prior).abs().max()


def test_weights_stay_near_those_of_before(in_double, monkeypatch) -> None:
    """The literal cost again, with another prior and ten times the penalty; the fewer users there are, the nearer."""
    fast, cost = reranker_of(), literal_cost()
    before = fitting.fitted(fast.training(wanted(fast))).everyone + 0.3
    fitted = fitting.fitted(reranker_of().training(wanted(fast)), before).everyone
    monkeypatch.setattr(cost, "prior", before)
    monkeypatch.setattr(cost, "penalty", cost.penalty / fitting.PENALTY * fitting.PENALTY_BEFORE)
    assert cost.gradient(fitted).abs().max() < 1e-6 * cost.gradient(before).abs().max()
    nobody = fitting.fitted(reranker_of().training(torch.zeros_like(wanted(fast))), before).everyone
    assert torch.allclose(nobody, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cross_fitted", [False, True])
def test_lists_are_in_the_order_of_the_literal_scores(in_double, monkeypatch, cross_fitted: bool) -> None:
    monkeypatch.setattr(reranker, "SCORED_USERS", 7)
    fast, slow = reranker_of(), literal()
    fitted = fitting.fitted(fast.training(wanted(fast)))
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
    old, new = fitting.fitted(fast.training(before)), fitting.fitted(fast.training(after))
    fold = row % fitting.FOLDS
    assert torch.allclose(old.folds[fold], new.folds[fold], rtol=0, atol=1e-6)
    others = [each for each in range(fitting.FOLDS) if each != fold]
    assert (old.folds[others] - new.folds[others]).abs().amax(1).min() > 1e-3
    assert (old.everyone - new.everyone).abs().max() > 1e-3
    lists = [fast.rerank(each, cross_fitted=True)[0] for each in (old, new)]
    assert torch.equal(lists[0][fold :: fitting.FOLDS], lists[1][fold :: fitting.FOLDS])
    assert not torch.equal(*lists)


def test_no_more_learn_than_are_allowed_to(in_double, monkeypatch) -> None:
    fast = reranker_of()
    hits = wanted(fast)
    learners = hits.any(1).nonzero()[:, 0]
    few = hits.clone()
    few[learners[7:]] = False
    expected, everyone = fitting.fitted(fast.training(few)), fitting.fitted(fast.training(hits))
    monkeypatch.setattr(reranker, "MOST_LEARNERS", 7)
    found = fitting.fitted(fast.training(hits))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
    assert not torch.allclose(found.everyone, everyone.everyone, rtol=0, atol=1e-3)


def test_what_is_not_reranked_stays_behind(in_double, monkeypatch) -> None:
    monkeypatch.setattr(reranker, "TOP", 4)
    fast = reranker_of()
    lists, scores = fast.rerank(fitting.fitted(fast.training(wanted(fast))))
    plain = fast.lists
    assert not torch.equal(lists, plain)
    assert torch.equal(lists[:, :4].sort(1).values, plain[:, :4].sort(1).values)
    assert torch.equal(lists[:, 4:], plain[:, 4:])
    there = (plain[:, :4] >= 0).all(1)
    assert (scores[there].diff(dim=1) <= 0).all()
    assert torch.allclose(scores[there, 3:].diff(dim=1), torch.tensor(-1.0))


def test_who_has_used_everything_has_an_empty_list_and_no_nan(in_double) -> None:
    fast = reranker_of()
    fitted = fitting.fitted(fast.training(wanted(fast)))
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
        lists, scores = fast.rerank(fitting.fitted(fast.training(wanted(fast))), cross_fitted=True)
        assert lists.shape == scores.shape == fast.lists.shape
        assert [sorted(row) for row in listed(lists)] == [sorted(row) for row in listed(fast.lists)]


def test_nobody_is_listed_for_where_the_only_user_is_not_asked_about() -> None:
    """As in a process whose one user is not validated."""
    lists, scores = voters.first_items(Table(case().table), case().train[:1], torch.empty(0, dtype=torch.int64), TOP_K)
    assert lists.shape == scores.shape == (0, TOP_K)


@pytest.mark.parametrize("cells", [3 * ITEMS, 1 << 22], ids=["in threes", "at once"])
def test_a_voter_without_vectors_has_the_literal_lists_and_features(monkeypatch, cells: int) -> None:
    monkeypatch.setattr(voters, "CPU_CELLS", cells)
    users, table = (8, 2, LAST_ITEM, 0, DONE, 30, 11, NEW), case().table
    found = by_scores("table", Table(table), case().train, torch.tensor(users), TOP_K)
    assert (found.name, found.factors, found.lists.dtype) == ("table", None, torch.int32)
    assert listed(found.lists) == [ranking(table[u].tolist(), used()[u].tolist(), TOP_K) for u in users]
    for row, (u, items) in enumerate(zip(users, listed(found.lists), strict=True)):
        for place in range(TOP_K):
            expected = listed_features(table, used(), users, u, items[place]) if place < len(items) else [0, 0, 0]
            assert found.listed[row, place].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dense", [0.0, 2.0], ids=["by dense blocks", "by sparse ones"])
def test_a_voter_with_sparse_scores_is_that_with_dense_ones(monkeypatch, dense: float) -> None:
    monkeypatch.setattr(voters, "DENSE", dense)
    walks, everyone = RP3beta(neighbours=3).fit(case().train), torch.arange(USERS)
    both = Offset(walks, 0), Table(walks.scores(everyone))
    assert both[0].sparse(everyone) is not None
    found, expected = (by_scores("walks", each, case().train, everyone, 2 * TOP_K) for each in both)
    assert torch.equal(found.lists, expected.lists)
    assert torch.allclose(found.listed, expected.listed, rtol=1e-6, atol=1e-7)
    assert torch.allclose(found.of_items, expected.of_items, rtol=1e-6, atol=1e-7)


def test_a_voter_without_vectors_has_no_unit_and_may_know_nothing() -> None:
    everyone = torch.arange(USERS)
    one, thousand, shifted = (
        by_scores("table", Table(table), case().train, everyone, TOP_K)
        for table in (case().table, 1000 * case().table, case().table + 5)
    )
    assert torch.allclose(one.listed, thousand.listed, rtol=0, atol=1e-9)
    assert torch.allclose(one.listed[..., :2], shifted.listed[..., :2], rtol=0, atol=1e-9)
    assert all(torch.equal(one.lists, each.lists) for each in (thousand, shifted))
    nothing = by_scores("table", Table(torch.zeros(USERS, ITEMS)), case().train, everyone, TOP_K)
    assert not nothing.listed.any()
    assert listed(nothing.lists) == [[i for i in range(ITEMS) if not used()[u, i]][:TOP_K] for u in EVERYONE]


def test_scores_are_cut_where_the_features_of_vectors_are() -> None:
    table = torch.zeros(USERS, ITEMS, dtype=torch.float64)
    table[NEW, 3] = 1e6  # one user stands out, and nobody has used the item
    found = by_scores("table", Table(table), case().train, torch.arange(USERS), TOP_K)
    assert found.lists[NEW, 0] == 3
    assert found.listed[NEW, 0, 1] == features.RELATIVE_SCORE[1]
    assert found.listed[..., 0].abs().max() <= features.Z_SCORE[1]


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), st.floats(0.01, 2), st.floats(0.1, 100))
def test_a_voter_weight_decays_with_its_validation(found: list[float], temperature: float, times: float) -> None:
    weights = voter_weights(found, temperature)
    assert max(weights) == weights[found.index(max(found))] == 1
    order = sorted(range(len(found)), key=found.__getitem__)
    assert all(weights[lower] <= weights[higher] for lower, higher in pairwise(order))
    assert voter_weights([times * each for each in found], temperature) == pytest.approx(weights, rel=1e-6)


def test_a_temperature_below_the_best_a_voter_has_the_weight_1_over_e() -> None:
    assert voter_weights([0.25, 0.24, 0.0], 0.04) == pytest.approx([1, 1 / e, e**-25])
    assert voter_weights([0.0, 0.0], 0.04) == [1, 1]
