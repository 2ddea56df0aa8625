"""The evaluation of a recommender: loops over users, and laws that any evaluation keeps."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pytest
from scipy.sparse import csr_array

from concf.data.interactions import Interactions
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import ALL_METRICS, by_popularity, evaluate, score_lists
from concf.evaluation.metrics import ACCURACY
from concf.model.baselines.factorisation import Popularity
from concf.model.scorers import ListFunction

CUTS = (1, 5, 10)
PER_USER = (*ACCURACY, "novelty", "popularity")


@pytest.fixture(scope="module", params=[1500, 400], ids=["busy", "sparse"])
def split(request) -> Split:
    """60 users, 40 items; in the sparse one some users are not evaluated."""
    return prepare(Simulation(users=60, items=40, events=request.param).draw(1), protocol="random")


def draw_scores(split: Split, seed: int = 0, levels: int | None = None):
    """[users, items] scores without ties, or with many if there are few levels."""
    rng, shape = np.random.default_rng(seed), split.train.shape
    if levels is not None:
        return rng.integers(0, levels, shape).astype(np.float32)
    return rng.permutation(shape[0] * shape[1]).reshape(shape).astype(np.float32)


def literal_evaluation(scores, split: Split, on: str, n: int):
    """User by user: mask, sort the whole catalogue, cut at n, count."""
    train, valid, test = (split.part(name).toarray() > 0 for name in ("train", "valid", "test"))
    held_out, seen = {"valid": (valid, train), "test": (test, train | valid)}[on]
    fame = train.sum(0)
    figures = {name: [] for name in PER_USER}
    exposure = [0] * len(fame)
    for user, row in enumerate(scores.tolist()):
        if not held_out[user].any():
            continue
        free = [item for item in range(len(row)) if not seen[user, item]]
        best = sorted(free, key=lambda item: (-row[item], item))[:n]
        hits = [bool(held_out[user, item]) for item in best]
        total = int(held_out[user].sum())
        gains = [hit / log2(place + 2) for place, hit in enumerate(hits)]
        figures["recall"].append(sum(hits) / total)
        figures["precision"].append(sum(hits) / n)
        figures["ndcg"].append(sum(gains) / sum(1 / log2(place + 2) for place in range(min(total, n))))
        figures["hit"].append(float(any(hits)))
        figures["mrr"].append(1 / (hits.index(True) + 1) if any(hits) else 0.0)
        figures["map"].append(sum(hit * sum(hits[: k + 1]) / (k + 1) for k, hit in enumerate(hits)) / total)
        figures["novelty"].append(sum(-log2(max(fame[item], 1) / len(scores)) for item in best) / len(best))
        figures["popularity"].append(sum(fame[item] for item in best) / len(best))
        for item in best:
            exposure[item] += 1
    spread = sum(abs(one - another) for one in exposure for another in exposure)
    wide = {"coverage": np.mean(np.array(exposure) > 0), "gini": spread / (2 * len(exposure) * sum(exposure))}
    return figures, wide


def renumber_items(split: Split, new) -> Split:
    """The same split with item i at the new position new[i]."""
    old, item = split.interactions, new[split.interactions.item]
    order = np.lexsort((item, old.user))
    moved = Interactions(
        old.user_ids, old.item_ids, old.user[order], item[order].astype(np.int32), old.count[order], None
    )
    return replace(split, interactions=moved, parts=split.parts[order])


@pytest.mark.parametrize("on", ["valid", "test"])
@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("memory", [1, None])
def test_evaluation_equals_the_literal_one(split, on, levels, memory):
    scores = draw_scores(split, levels=levels)
    result = evaluate(lambda u: scores[u], split, on=on, at=CUTS, metrics=ALL_METRICS, memory=memory)
    for n in CUTS:
        per_user, wide = literal_evaluation(scores, split, on, n)
        for name, values in per_user.items():
            np.testing.assert_allclose(result.per_user[f"{name}@{n}"], values, atol=1e-12, err_msg=name)
            assert result.means()[f"{name}@{n}"] == pytest.approx(np.mean(values))
        assert {name: result.means()[f"{name}@{n}"] for name in wide} == pytest.approx(wide)


def test_only_users_with_validation_and_test_items_are_evaluated(split):
    parts = [split.part(name).toarray().any(1) for name in ("train", "valid", "test")]
    result = evaluate(lambda u: draw_scores(split)[u], split)
    assert result.users.tolist() == np.flatnonzero(np.all(parts, axis=0)).tolist()
    assert result.lists.shape == (len(result.users), 50)
    assert result.activity.tolist() == split.train.toarray().sum(1)[result.users].tolist()
    assert {len(values) for values in result.per_user.values()} == {len(result.users)}
    assert set(result.means()) == {"recall@20", "ndcg@20", "recall@50", "ndcg@50"}


def test_the_sparse_split_has_users_who_are_not_evaluated():
    sparse = prepare(Simulation(users=60, items=40, events=400).draw(1), protocol="random")
    assert 0 < len(sparse.evaluated) < sparse.train.shape[0]


@pytest.mark.parametrize("on", ["valid", "test"])
def test_a_recommender_that_knows_the_answers_is_perfect_where_they_fit_into_the_list(split, on):
    answers = split.part(on).toarray()
    result = evaluate(lambda users: answers[users], split, on=on, at=CUTS, metrics=("recall", "ndcg"))
    total = answers.sum(1)[split.evaluated]
    for n in CUTS:
        np.testing.assert_allclose(result.per_user[f"ndcg@{n}"], 1.0)
        np.testing.assert_allclose(result.per_user[f"recall@{n}"], np.minimum(total, n) / total)
    assert (total <= 10).any()


@pytest.mark.parametrize("on", ["valid", "test"])
def test_no_list_holds_an_item_that_is_masked(split, on):
    result = evaluate(lambda users: draw_scores(split)[users], split, on=on, at=[40])
    masked = (split.train + split.valid if on == "test" else split.train).toarray()
    for user, row in zip(result.users, result.lists, strict=True):
        assert set(row[row >= 0].tolist()) == set(np.flatnonzero(masked[user] == 0).tolist())


def test_a_cut_beyond_the_catalogue_gives_every_user_full_recall(split):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=[100], metrics=["recall", "precision"])
    np.testing.assert_allclose(result.per_user["recall@100"], 1.0)
    np.testing.assert_allclose(
        result.per_user["precision@100"], split.test.toarray().sum(1)[split.evaluated] / 100, rtol=1e-6
    )


@pytest.mark.parametrize("groups", [1, 3, 4, 7])
def test_activity_groups_fall_in_activity_are_of_equal_size_and_average_to_the_whole(split, groups):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=CUTS, metrics=PER_USER)
    by_group = result.by_activity(groups)
    sizes = [group["users"] for group in by_group]
    assert len(by_group) == groups
    assert sum(sizes) == len(result.users)
    assert max(sizes) - min(sizes) <= 1
    activities = [group["activity"] for group in by_group]
    assert activities == sorted(activities, reverse=True)
    for name, values in result.per_user.items():
        whole = sum(group[name] * group["users"] for group in by_group) / sum(sizes)
        assert whole == pytest.approx(values.mean())


def test_activity_groups_are_the_users_sorted_by_training_interactions(split):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=[5], metrics=["ndcg"])
    order = sorted(range(len(result.users)), key=lambda place: (-result.activity[place], result.users[place]))
    for group in result.by_activity(4):
        members, order = order[: group["users"]], order[group["users"] :]
        assert group["activity"] == pytest.approx(np.mean(result.activity[members]))
        assert group["ndcg@5"] == pytest.approx(np.mean(result.per_user["ndcg@5"][members]))


def test_more_groups_than_users_give_one_group_a_user(split):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=[5])
    assert [group["users"] for group in result.by_activity(1000)] == [1] * len(result.users)


def test_the_interval_of_a_metric_brackets_its_mean_and_repeats_by_seed(split):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=[10])
    low, high = result.interval("recall@10", draws=500)
    assert low < result.means()["recall@10"] < high
    assert result.interval("recall@10", draws=500) == (low, high)
    assert result.interval("recall@10", level=0.5, draws=500) > (low, 0)


def test_figures_do_not_depend_on_how_the_items_are_numbered(split):
    scores = draw_scores(split)
    new = np.random.default_rng(8).permutation(scores.shape[1])
    old = np.argsort(new)
    first = evaluate(lambda users: scores[users], split, at=CUTS, metrics=ALL_METRICS)
    moved = evaluate(lambda users: scores[users][:, old], renumber_items(split, new), at=CUTS, metrics=ALL_METRICS)
    assert moved.lists.tolist() == np.where(first.lists < 0, -1, new[first.lists]).tolist()
    assert moved.means() == pytest.approx(first.means(), rel=1e-12)
    for name, values in first.per_user.items():
        np.testing.assert_allclose(moved.per_user[name], values, rtol=1e-12)


def test_figures_at_a_cut_do_not_depend_on_which_other_cuts_are_asked_for(split):
    scores = draw_scores(split, levels=4)
    together = evaluate(lambda users: scores[users], split, at=[10, 1, 5, 5], metrics=ALL_METRICS).means()
    for n in CUTS:
        alone = evaluate(lambda users: scores[users], split, at=[n], metrics=ALL_METRICS).means()
        assert alone == {name: together[name] for name in alone}


def test_lists_and_the_scores_they_come_from_are_evaluated_alike(split):
    scores = draw_scores(split)
    ranked = np.argsort(-scores, axis=1)
    by_lists = evaluate(ListFunction(lambda users, k: ranked[users]), split, at=CUTS, metrics=ALL_METRICS)
    assert by_lists.means() == evaluate(lambda users: scores[users], split, at=CUTS, metrics=ALL_METRICS).means()


def test_an_unknown_metric_is_refused_and_the_known_ones_are_named(split):
    with pytest.raises(ConfigError, match=r"unknown metric 'auc'.*recall.*coverage.*novelty"):
        evaluate(lambda users: draw_scores(split)[users], split, metrics=["recall", "auc"])


def test_a_cut_beyond_the_lists_is_refused():
    lists, one = np.zeros((1, 3), np.int32), csr_array(np.ones((1, 4), np.float32))
    with pytest.raises(ConfigError, match="first 5 places of lists of 3"):
        score_lists(lists, np.arange(1), one, one, at=[1, 5])


@pytest.mark.parametrize("at", [[0], [-1], [0, 5], []])
def test_a_cut_below_one_and_no_cut_at_all_are_refused(split, at):
    with pytest.raises(ConfigError):
        evaluate(lambda users: draw_scores(split)[users], split, at=at)


def test_an_item_beyond_the_catalogue_is_refused_and_never_another_users_hit():
    test = csr_array(np.eye(2, 4, k=1, dtype=np.float32))  # user 1 holds item 2 out
    lists = np.array([[4 + 2], [0]], np.int32)  # user 0 is recommended an item that does not exist
    with pytest.raises(DataError):
        score_lists(lists, np.arange(2), test, test, at=[1])


def test_recall_by_popularity_is_that_of_the_held_out_items_of_each_group() -> None:
    """Against loops over users and items."""
    split = prepare(Simulation(users=40, items=30, events=900, tastes=4).draw(1), protocol="random")
    for groups in (1, 3):
        evaluation = evaluate(Popularity().fit(split.train), split, at=8)
        popularity = split.train.toarray().astype(bool).sum(0)
        order = sorted(range(30), key=lambda item: (-popularity[item], item))
        group, before = {}, 0
        for item in order:
            group[item] = min(before * groups // popularity.sum(), groups - 1)
            before += popularity[item]
        rows = by_popularity(evaluation, split, at=8, groups=groups)
        for number, row in enumerate(rows):
            shares = []
            for user, listed in zip(evaluation.users.tolist(), evaluation.lists.tolist(), strict=True):
                wanted = [item for item in split.test[[user]].indices.tolist() if group[item] == number]
                if wanted:
                    shares.append(len(set(wanted) & set(listed)) / len(wanted))
            assert row["items"] == sum(each == number for each in group.values())
            assert row["users"] == len(shares)
            assert row["recall@8"] == pytest.approx(np.mean(shares) if shares else 0.0)
        if groups == 1:
            assert rows[0]["recall@8"] == pytest.approx(evaluation.means()["recall@8"])
