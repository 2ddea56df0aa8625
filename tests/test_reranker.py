"""The re-ranker: its weights explain the validation part best, and what they make of the lists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from literal import LiteralConCF
from test_strong import data, run  # noqa: F401
from test_train import SEED, in_double, listed, tiny  # noqa: F401
from test_train import small as tiny_settings

from concf.consensus.features import N_FEATURES, HeadFeatures
from concf.consensus.reranker import (
    CURVE_FEATURES,
    HEAD_FEATURES,
    PLAIN,
    VOTER_FEATURES,
    Reranked,
    feature_rows,
    popularity_and_activity,
)
from concf.data.split import Split
from concf.errors import ConfigError
from concf.inference.recommender import Recommender
from concf.training.config.presets import choose_settings
from concf.training.run import Run
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")

RERANKED = tiny_settings(
    consensus={
        "fixed_voters": ("rp3beta(beta=0.1)", "itemknn"),
        "rerank": True,
        "voter_temperature": 0.5,
        "consistency_temperature": None,
    }
)


def both_ways() -> tuple[Trainer, LiteralConCF, dict[str, torch.Tensor]]:
    """A trainer and its literal after two epochs, and the lists that the trainer agreed on."""
    split = tiny()
    trainer = Trainer(split, RERANKED, SEED)
    for epoch in range(2):
        trainer.epoch(epoch)
    lists = trainer.consensus.update()
    fixed_voters = [listed(each) for each in trainer.consensus.fixed_rankings]
    literal = LiteralConCF(trainer.model, RERANKED, split.train, fixed_voters, split.valid)
    literal.agree(0)
    return trainer, literal, lists


def test_weights_and_lists_are_the_literal_ones(in_double) -> None:  # noqa: F811
    trainer, literal, lists = both_ways()
    assert torch.allclose(trainer.consensus.reranker.weights, literal.reranker, rtol=0, atol=1e-8)
    curve = literal.reranker[-CURVE_FEATURES - 5 * HEAD_FEATURES : -5 * HEAD_FEATURES]
    assert curve.abs().min() > 1e-3  # where it begins they are 0
    assert literal.reranker[-5 * HEAD_FEATURES :].abs().median() > 1e-3
    assert listed(lists["consensus"]) != listed(lists["R-consensus"])
    for reranked, plain in zip(listed(lists["consensus"]), listed(lists["R-consensus"]), strict=True):
        assert sorted(reranked) == sorted(plain)


def test_who_is_validated_was_not_learned_from(in_double) -> None:  # noqa: F811
    trainer, literal, lists = both_ways()
    assert trainer.consensus.reranked.cross_fitted is not None
    cross_fitted, plain = listed(trainer.consensus.reranked.cross_fitted), listed(lists["R-consensus"])
    validated = trainer.consensus.validation.users.tolist()
    for fold in (0, 1):
        learners = [u for u in validated if u % 2 != fold]
        expected = literal.reranked(plain, 0, learners)
        for user in (u for u in validated if u % 2 == fold):
            assert cross_fitted[user] == expected[user]
    assert trainer.consensus.validate(lists)["consensus"] == trainer.consensus.validation(
        trainer.consensus.reranked.cross_fitted
    )


def test_without_anything_to_learn_from_the_votes_are_as_they_were(in_double) -> None:  # noqa: F811
    trainer, _, lists = both_ways()
    trainer.consensus.validation.valid = torch.empty(0, dtype=torch.int64)
    plain = lists["R-consensus"]
    verdict = reranked_again(trainer, plain)
    weights = trainer.consensus.reranker.weights
    loud = torch.tensor(trainer.consensus.voter_weights)
    assert torch.allclose(weights[PLAIN : VOTER_FEATURES * len(loud) : VOTER_FEATURES], loud / loud.mean())
    assert torch.count_nonzero(weights) == len(loud)
    assert torch.equal(verdict.lists, plain)
    assert torch.equal(verdict.cross_fitted, plain)


def reranked_again(trainer: Trainer, plain: torch.Tensor) -> Reranked:
    agreement, factors = trainer.consensus, trainer.model.factors()
    voters = [trainer.consensus.queue[-1][voter] for voter in agreement.voters]
    return agreement.reranker(
        plain, voters, agreement.voter_weights, [factors[name] for name in agreement.voting_heads()]
    )


def test_what_is_not_reranked_stays_behind(in_double, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("concf.consensus.reranker.TOP", 4)
    trainer, _, lists = both_ways()
    plain = lists["R-consensus"]
    verdict = reranked_again(trainer, plain)
    assert not torch.equal(verdict.lists, plain)
    assert torch.equal(verdict.lists[:, :4].sort(1).values, plain[:, :4].sort(1).values)
    assert torch.equal(verdict.lists[:, 4:], plain[:, 4:])
    assert (verdict.scores.diff(dim=1) <= 0).all()
    assert torch.allclose(verdict.scores[:, 3:].diff(dim=1), torch.tensor(-1.0))


def test_a_part_of_the_users_teaches_weights_for_all(data: Split, in_double, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("concf.consensus.reranker.MOST_LEARNERS", 7)
    trainer = Trainer(data, RERANKED, SEED)
    trainer.epoch(0)
    reranker, plain = trainer.consensus.reranker, trainer.consensus.update()["R-consensus"]
    validated = trainer.consensus.validation.users
    assert 0 < int(reranker.learners.sum()) <= 7 < len(validated)
    few = reranked_again(trainer, plain)
    others = validated[~reranker.learners]
    assert torch.equal(few.lists[others], few.cross_fitted[others])  # nobody learned from them
    kept = reranker.learners.clone()
    reranker.learners = torch.ones_like(kept)
    everyone = reranked_again(trainer, plain)
    reranker.learners = kept
    assert not torch.equal(few.lists, everyone.lists)
    assert torch.equal(reranked_again(trainer, plain).lists, few.lists)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_each_half_of_the_learners_teaches_the_other(data: Split, stride: int, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("concf.consensus.reranker.MOST_LEARNERS", -(-len(data.validated) // stride))
    reranker = Trainer(data, RERANKED, SEED).consensus.reranker
    halves = torch.bincount(reranker.folds[reranker.learners], minlength=2)
    assert halves.sum() == -(-len(data.validated) // stride)
    assert halves.min() > 0.3 * halves.sum()


def test_what_never_changes_has_no_weight_in_single_precision_either(data: Split, monkeypatch) -> None:  # noqa: F811
    whole = HeadFeatures.__call__

    def the_same_of_all(self: HeadFeatures, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        said = whole(self, users, items)
        said[..., -1] = -200.0
        return said

    monkeypatch.setattr(HeadFeatures, "__call__", the_same_of_all)
    trainer = Trainer(data, RERANKED, SEED)
    trainer.epoch(0)
    trainer.consensus.update()
    of_heads = trainer.consensus.reranker.weights[-5 * HEAD_FEATURES :].view(5, HEAD_FEATURES)
    assert of_heads.abs().max() > 1e-3
    assert of_heads[:, N_FEATURES - 1].abs().max() < 1e-6


def test_an_item_that_nobody_names_earns_nothing_but_by_its_popularity_and_what_heads_say() -> None:
    ranks = torch.full((3, 1, 2), 7)
    ranks[1, 0, 0] = 0
    said = torch.arange(2 * N_FEATURES).float().view(1, 2, N_FEATURES)
    features = feature_rows(ranks, torch.tensor([[0.5, -2.0]]), torch.tensor([3.0]), [said], 7, 10.0)
    assert features.shape == (1, 2, 3 * VOTER_FEATURES + CURVE_FEATURES + HEAD_FEATURES)
    assert features[0, 0, : 3 * VOTER_FEATURES].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert not features[0, 1, : 3 * VOTER_FEATURES].any()
    assert features[0, 1, 3 * VOTER_FEATURES : -HEAD_FEATURES].tolist() == [-2, 4, -8, -6, 12]
    assert features[0, 0, -HEAD_FEATURES:].tolist() == [*range(8), 0, 0.5, 1, 1.5, 0, 3, 6, 9]


def test_popularity_and_activity_have_mean_0_and_spread_1(data: Split) -> None:  # noqa: F811
    for each in popularity_and_activity(data.train):
        assert float(each.mean()) == pytest.approx(0, abs=1e-12)
        assert float(each.std(correction=0)) == pytest.approx(1)


def test_lists_are_in_the_order_of_the_reranker_and_explained_by_it(run: Run) -> None:  # noqa: F811
    model = Recommender(run, frame="arrays")
    for user in model.user_ids.values[::9].tolist():
        items, scores = model.recommend(user, k=6)
        assert all(above >= below for above, below in pairwise(scores.tolist()))
        for item, score in zip(items.tolist(), scores.tolist(), strict=True):
            assert model.explain(user, item)["reranked"] == pytest.approx(score, rel=1e-5)
    many_items, many_scores = model.recommend(model.user_ids.values[:5], k=6)
    for place, user in enumerate(model.user_ids.values[:5].tolist()):
        items, scores = model.recommend(user, k=6)
        assert np.array_equal(items, many_items[place])
        assert scores == pytest.approx(many_scores[place], rel=1e-5)


def test_a_reranker_does_not_weigh_consistency() -> None:
    with pytest.raises(ConfigError, match=r"consensus\.rerank weighs ranks, not consistency"):
        choose_settings("strong", {"consensus": {"consistency_temperature": 10.0}})
