"""What lifted an item: the re-ranker's own features and weights, added up by loops."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from small_recipe import trained

from concf.evaluation.scorers import Factors
from concf.inference.explain import SPEAKERS, similarity_shares, speakers
from concf.inference.recommender import Recommender
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.strong.recipe import Recipe
from concf.strong.reranker import TOP
from concf.strong.settings import STUDENT, TIME
from tests.test_clock import ordered

OF_A_HEAD = ["z", "relative", "near", "nearest", "score", "deviation", "gap", "mean"]
ASPECT = {"recent-popularity": "trend", "als-decayed": "taste", "als-sequence": "order"}
KIND = {"z": "score", "relative": "score", "score": "score", "near": "similarity", "nearest": "similarity"}


def columns(run: Run) -> list[tuple[str | None, str, str]]:
    """The group of every feature, in the order that the docstring of `feature_rows` gives."""
    heads, fixed = [name for name in run.heads if name != STUDENT], [n for n in run.fixed_voters if n in run.chosen]
    named: list[tuple[str | None, str, str]] = []
    for voter in (*heads, *fixed):
        named += [(voter, "rank", ASPECT.get(voter, "taste"))] * 3
    named += [(None, "popularity", "popularity")] * 5
    for head in heads:
        for feature in (*OF_A_HEAD, *OF_A_HEAD[:4], *OF_A_HEAD[:4]):  # alone, times p, times q
            named.append((head, KIND[feature], "taste") if feature in KIND else (None, "popularity", "popularity"))
    if TIME in run.chosen:
        named += ([(None, "trend", "trend")] * 6 + [(None, "newest", "order")] * 2) * 2
    rest = " and ".join(name for name in fixed if name not in ASPECT)
    for voter in fixed:
        named += [(voter, "score", ASPECT[voter]) if voter in ASPECT else (rest, "score", "taste")] * 8
    return named


@pytest.mark.parametrize("timed", [False, True])
def test_contributions_are_the_rerankers_terms_added_up(timed: bool) -> None:
    run: Run = ordered("default") if timed else trained("thorough")  # several fixed voters
    assert ("slist" in run.fixed_voters, "slist" in run.chosen) == (timed, False)  # a GPU would fit it
    model, recipe = Recommender(run, "arrays"), Recipe(run)
    recipe.vectors = {name: (run.factors(name).user, run.factors(name).item) for name in run.heads}
    recipe.chosen = run.chosen
    recipe.metrics = {name: value for record in run.history for name, value in record.get("validation", {}).items()}
    users = torch.arange(run.log.shape[0])
    reranker = recipe._reranker(run.log, users, recipe._voters(run.log, users))
    features, empty = reranker.features(users)
    votes, found = run.best[CONSENSUS].votes, model.ranker.contributions
    assert found is not None
    named = columns(run)
    assert set(found.groups) == set(named)
    assert features.shape[2] == len(named) == len(votes["weights"])
    for user in users[::9].tolist():
        listed = {int(item): row for row, item in enumerate(reranker.lists[user, :TOP]) if not empty[user, row]}
        terms = ((features[user].double() - votes["centre"].double()) * votes["weights"].double()).numpy()
        expected = {item: dict.fromkeys(found.groups, 0.0) for item in listed}
        for item, row in listed.items():
            for group, term in zip(named, terms[row], strict=True):
                expected[item][group] += term  # type: ignore[index]
        mine = found.of_user(user)
        assert mine.keys() == expected.keys()
        for place, group in enumerate(found.groups):
            mean = np.mean([each[group] for each in expected.values()])
            for item, values in mine.items():
                assert values[place] == pytest.approx(expected[item][group] - mean, abs=2e-4 if timed else 2e-5)


@pytest.mark.parametrize("timed", [False, True])
def test_an_explanation_adds_up_to_the_score_above_the_mean_candidate(timed: bool) -> None:
    run: Run = ordered("default") if timed else trained()
    model = Recommender(run, "arrays")
    best = run.best[CONSENSUS]
    assert best.lists is not None
    for row in range(0, len(best.lists), 15):
        scores = best.votes["reranked"][row][:TOP]
        mean = float(scores[best.lists[row][:TOP] >= 0].mean())
        user = model.user_ids.values[[row]].tolist()[0]
        used = set(model.item_ids.values[run.log[[row]].indices].tolist())
        for item in model.recommend(user, k=4)[0].tolist():
            why = model.explain(user, item)
            assert why["contributions"] is not None
            assert why["reranked"] is not None
            assert sum(each["value"] for each in why["contributions"]) == pytest.approx(
                why["reranked"] - mean, abs=1e-4
            )
            assert why["aspects"] is not None
            assert set(why["aspects"]) == {"taste", "popularity", *(["order", "trend"] if timed else [])}
            assert sum(why["aspects"].values()) == pytest.approx(why["reranked"] - mean, abs=1e-4)
            assert 0 < len(why["because"]) <= SPEAKERS
            assert {each["item"] for each in why["because"]} <= used
            shares = [each["share"] for each in why["because"]]
            assert shares == sorted(shares, reverse=True)
    absent = model.explain(user, min(used))
    assert (absent["contributions"], absent["aspects"], absent["reranked"]) == (None, None, None)


def test_shares_against_a_loop() -> None:
    torch.manual_seed(0)
    voters = [Factors(torch.randn(2, 3), torch.randn(6, 3)) for _ in range(2)]
    voters[0].item[5] = -voters[0].item[0]  # the opposite: no reason
    voters[1].item[5] = -voters[1].item[0]
    history, items = np.array([0, 2, 4]), np.array([1, 3, 5])
    shares = similarity_shares(voters, history, items)

    def cosine(factors: Factors, one: int, other: int) -> float:
        a, b = factors.item[one].tolist(), factors.item[other].tolist()
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return max(dot / sqrt(sum(x * x for x in a)) / sqrt(sum(y * y for y in b)), 0.0)

    for row, item in enumerate(items.tolist()):
        for column, used in enumerate(history.tolist()):
            parts = []
            for factors in voters:
                for power in (2, 8):
                    whole = sum(cosine(factors, item, other) ** power for other in history.tolist())
                    parts.append(cosine(factors, item, used) ** power / whole if whole else 0.0)
            assert shares[row, column] == pytest.approx(sum(parts) / 4, abs=1e-6)
    assert shares[2, 0] == 0
    best = speakers(shares)
    assert best[0][0][0] == int(shares[0].argmax())
    assert all(share > 0 for each in best for _, share in each)
    assert speakers(similarity_shares(voters, np.array([], np.int64), items)) == [[], [], []]
