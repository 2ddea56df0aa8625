"""A consensus of a sample of users: they teach the student, which ranks for the others."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import small_catalogue
import torch
from recipe_worker import disliking
from small_recipe import LOG, assert_same, data, small, trained

from concf.baselines.als import Pairs, UserSolver
from concf.errors import ConcfWarning
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import ListFunction
from concf.inference.ranker import Ranker
from concf.inference.recommender import Recommender
from concf.models import choose_settings, train
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.strong import search
from concf.strong.search import PLANS, n_consensus_users
from concf.strong.settings import STUDENT, VALIDATED
from concf.strong.update import update

SAMPLED = 20
pytestmark = pytest.mark.filterwarnings("ignore:the consensus was formed for", "ignore:only .* of .* users are")


@cache
def few() -> Run:
    return train(data(), choose_settings(small(), {"consensus_users": SAMPLED}), seed=3)


def listed(run: Run, name: str = CONSENSUS) -> torch.Tensor:
    lists = run.best[name].lists
    assert lists is not None
    return lists


def consensus_users(run: Run) -> list[int]:
    return (listed(run)[:, 0] >= 0).nonzero()[:, 0].tolist()


def test_consensus_users_have_the_lists_of_a_run_for_everyone() -> None:
    run, whole = few(), trained()
    users = consensus_users(run)
    assert len(users) == SAMPLED == run.history[-1]["consensus_users"]
    plain, lists = ([listed(each, name)[users] for each in (run, whole)] for name in (R_CONSENSUS, CONSENSUS))
    assert torch.equal(*plain)
    assert torch.equal(*(each.best[CONSENSUS].votes["items"][:, users] for each in (run, whole)))
    same = [len({*mine[:8]} & {*theirs[:8]}) for mine, theirs in zip(*(each.tolist() for each in lists), strict=True)]
    assert np.mean(same) > 7.5  # RP3beta's item statistics are over the consensus users
    assert run.summary()["recommenders"] == whole.summary()["recommenders"]  # what was measured before


def test_a_sample_of_everyone_changes_nothing() -> None:
    settings = choose_settings(small(), {"consensus_users": 10_000})
    assert_same(train(data(), settings, seed=3), trained())


def test_the_others_have_vectors_by_a_ridge_regression_over_the_consensus_users() -> None:
    run = few()
    factors = run.factors(STUDENT)
    alone = UserSolver(factors.item, **run.chosen["als-a"])(Pairs.observed(run.log, torch.device("cpu")), 48).numpy()
    voters = [each.user.numpy() for each in run.voters.values()]
    known, x = consensus_users(run), np.column_stack([*voters, alone]).astype(np.float64)
    x = np.column_stack([x / np.sqrt((x[known] ** 2).mean(0)), np.ones(len(x))])
    away = (factors.user.numpy() - alone)[known]
    weights = np.linalg.solve(x[known].T @ x[known] + SAMPLED * np.eye(x.shape[1]), x[known].T @ away)
    others = sorted({*range(len(alone))} - {*known})
    assert np.allclose(factors.user.numpy()[others], (alone + x @ weights)[others], atol=1e-5)
    assert not np.allclose(factors.user.numpy()[known], alone[known], atol=1e-2)


def test_the_best_head_ranks_for_the_others() -> None:
    run, model = few(), Recommender(few())
    other = next(user for user in range(len(model.user_ids)) if user not in consensus_users(run))
    user = model.user_ids.values[other]
    best = run.best_head()
    by_head, by_consensus = (model.recommend(user, k=5, by=by) for by in (best, CONSENSUS))
    assert by_head.equals(by_consensus)
    known = model.user_ids.values[consensus_users(run)[0]]
    assert not model.recommend(known, k=12, by=best).equals(model.recommend(known, k=12, by=CONSENSUS))
    explained = model.explain(user, by_consensus["item_id"][0])
    assert (explained["rank"] is None, explained["contributions"], explained["reranked"]) == (False, None, None)
    lists = rank(run.recommender(CONSENSUS), np.array([other]), 5, seen=model.viewed)
    assert model.item_ids.values[lists[0]].tolist() == by_consensus["item_id"].to_list()
    assert evaluate(run.recommender(CONSENSUS), run.data, at=5).means()["recall@5"] > 0


def test_the_sample_size_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = small(budget="fast")
    assert n_consensus_users((1_000_000, 1000), fast) == 1_000_000
    assert n_consensus_users((2_000_000, 500_000), fast) == PLANS["fast"].cells // 500_000
    assert n_consensus_users((2_000_000, 500_000_000), fast) == VALIDATED
    assert n_consensus_users((100, 500_000_000), fast) == 100
    monkeypatch.setitem(search.PLANS, "default", PLANS["default"]._replace(cells=10 * data().train.shape[1]))
    monkeypatch.setattr(search, "VALIDATED", 5)
    with pytest.warns(ConcfWarning, match="computed for 10 of"):
        run = train(data(), small(), seed=3)
    assert len(consensus_users(run)) == 10


def test_an_update_samples_as_many() -> None:
    new = update(few(), LOG.draw(2), device="cpu")
    assert new.consensus_users == len(consensus_users(new)) == SAMPLED


def test_dislikes_are_never_listed() -> None:
    run = train(disliking(), choose_settings(small(), {"consensus_users": 9}), seed=3)
    everyone, disliked = np.arange(run.log.shape[0]), run.data.disliked
    assert disliked is not None
    lists = run.recommender(CONSENSUS)
    assert isinstance(lists, ListFunction)
    by_ranker = Ranker(run).short(everyone, 12, CONSENSUS, [np.empty(0, np.int64)] * len(everyone))
    for user, listed in enumerate(lists.lists(torch.from_numpy(everyone), 12).tolist()):
        refused = {*disliked[[user]].indices.tolist(), *run.log[[user]].indices.tolist()}
        assert not refused & ({*listed} | {*by_ranker[user][0].tolist()})


def test_new_items_stand_once_in_every_list() -> None:
    base = small_catalogue.trained("strong")
    run = train(base.data, choose_settings(base.settings, {"consensus_users": SAMPLED}), seed=base.seed)
    model = Recommender(run).add_items(small_catalogue.catalogue())
    lists = model.recommend(k=10).group_by("user_id").agg("item_id")["item_id"].to_list()
    assert all(len({*items}) == len(items) for items in lists)
    known = {*run.data.interactions.item_ids.values.tolist()}
    assert any({*items} - known for items in lists)
