"""The evaluation of a recommender: loops over users, and laws that any evaluation keeps."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from scipy.sparse import csr_array

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import ALL_METRICS, evaluate, score_lists
from concf.evaluation.metrics import ACCURACY

CUTS = (1, 5, 10)
PER_USER = (*ACCURACY, "novelty", "popularity")


@pytest.fixture(scope="module", params=[1500, 400], ids=["busy", "sparse"])
def split(request) -> Split:
    """60 users, 40 items; in the sparse one some users are not evaluated."""
    found = prepare(Simulation(users=60, items=40, events=request.param).draw(1), protocol="random")
    assert request.param == 1500 or 0 < len(found.evaluated) < found.train.shape[0]
    return found


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


@pytest.mark.parametrize(("on", "levels", "memory"), [("valid", None, 1), ("test", 3, 1), ("test", None, None)])
def test_evaluation_equals_the_literal_one(split, on, levels, memory):
    scores = draw_scores(split, levels=levels)
    result = evaluate(lambda u: scores[u], split, on=on, at=CUTS, metrics=ALL_METRICS, memory=memory)
    assert on == "valid" or result.users.tolist() == split.evaluated.tolist()
    for n in CUTS:
        per_user, wide = literal_evaluation(scores, split, on, n)
        for name, values in per_user.items():
            np.testing.assert_allclose(result.per_user[f"{name}@{n}"], values, atol=1e-12, err_msg=name)
            assert result.means()[f"{name}@{n}"] == pytest.approx(np.mean(values))
        assert {name: result.means()[f"{name}@{n}"] for name in wide} == pytest.approx(wide)


@pytest.mark.parametrize("groups", [4, 1000])
def test_activity_groups_are_the_users_sorted_by_training_interactions(split, groups):
    result = evaluate(lambda users: draw_scores(split)[users], split, at=[5], metrics=["ndcg"])
    order = sorted(range(len(result.users)), key=lambda place: (-result.activity[place], result.users[place]))
    found = result.by_activity(groups)
    sizes = [group["users"] for group in found]
    assert (len(found), max(sizes) - min(sizes) <= 1) == (min(groups, len(order)), True)
    for group in found:
        members, order = order[: group["users"]], order[group["users"] :]
        assert group["activity"] == pytest.approx(np.mean(result.activity[members]))
        assert group["ndcg@5"] == pytest.approx(np.mean(result.per_user["ndcg@5"][members]))
    assert not order


def test_metrics_and_cuts_that_are_none_are_refused(split):
    for options in ({"at": [0]}, {"at": [0, 5]}, {"at": []}, {"metrics": ["recall", "auc"]}):
        with pytest.raises(ConfigError):
            evaluate(lambda users: draw_scores(split)[users], split, **options)
    lists, one = np.zeros((1, 3), np.int32), csr_array(np.ones((1, 4), np.float32))
    with pytest.raises(ConfigError, match="first 5 ranks of lists of length 3"):
        score_lists(lists, np.arange(1), one, one, at=[1, 5])


def test_an_item_beyond_the_catalogue_is_refused_and_never_another_users_hit():
    test = csr_array(np.eye(2, 4, k=1, dtype=np.float32))  # user 1 holds item 2 out
    lists = np.array([[4 + 2], [0]], np.int32)  # user 0 is recommended an item that does not exist
    with pytest.raises(DataError):
        score_lists(lists, np.arange(2), test, test, at=[1])
