"""The preset `strong`: fixed voters, voter weights by validation, students, and what is shipped of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from concf.consensus.fixed_voters import fixed_voter
from small_run import assert_same_end, small_data

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.experiments.compare import compare
from concf.inference.recommender import Recommender
from concf.model.baselines.neighbours import RP3beta
from concf.model.objectives import LossSettings, choose
from concf.model.scorers import ListFunction
from concf.runtime.settings import named
from concf.training.config import presets
from concf.training.config.presets import choose_settings, preset
from concf.training.config.settings import ConCFSettings, TrainingSettings
from concf.training.run import Run
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

VOTERS, STUDENTS = (tuple(named(entry)[0] for entry in entries) for entries in (presets.VOTERS, presets.STUDENTS))

SMALL: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"every": 2, "warm_up": 2, "top_k": 8, "kept": 12, "length": 4, "tail": 4, "shown": 12},
    "training": {"epochs": 10, "metric": "recall@5", "learning_rate": 0.02},
}


def small(**changes: Any) -> ConCFSettings:
    return choose_settings(choose_settings("strong", SMALL), changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


@pytest.fixture(scope="module")
def run(data: Split) -> Run:
    return train(data, small(), seed=3)


def test_only_students_are_taught_and_one_of_them_is_what_a_good_run_ships(run: Run) -> None:
    taught = [record["consensus_loss"] for record in run.history if any(record["consensus_loss"].values())]
    assert len(taught) == 10 - run.settings.consensus.first_consensus_epoch
    for consensus_target in taught:
        assert all(consensus_target[name] > 0 for name in STUDENTS)
        assert not any(consensus_target[name] for name in VOTERS)


def test_it_learns_beyond_popularity_and_its_fixed_voters_alone(data: Split) -> None:
    learned = train(data, small(training={"epochs": 30, "patience": None}), seed=3)
    figures = {
        name: found.means()["recall@5"] for name, found in learned.evaluate(at=(5,), metrics=("recall",)).items()
    }
    fixed_voters = evaluate(RP3beta(alpha=0.5, beta=0.2).fit(data.train), data, at=(5,), metrics=("recall",)).means()
    assert figures["consensus"] > 0.9 * fixed_voters["recall@5"]
    assert max(figures[name] for name in STUDENTS) > 0.6 * figures["consensus"]


class Killed(Exception):
    pass


@pytest.mark.parametrize("last", [1, 4, 7])
def test_a_killed_run_goes_on_to_the_same_end(data: Split, tmp_path: Path, last: int) -> None:
    def die(record: dict[str, Any]) -> None:
        if record["epoch"] == last:
            raise Killed

    train(data, small(), seed=3, out=tmp_path / "whole", checkpoint_seconds=0)
    with pytest.raises(Killed):
        train(data, small(), seed=3, out=tmp_path / "cut", checkpoint_seconds=0, watch=die)
    train(data, out=tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")


def test_the_votes_of_heads_and_fixed_voters_make_up_the_importance(data: Split) -> None:
    run = train(data, small(consensus={"rerank": False}), seed=3)
    model = Recommender(run, frame="arrays")
    heads = [*VOTERS, *STUDENTS, *run.settings.consensus.fixed_names]
    for user in model.user_ids.values[::7].tolist():
        items, scores = model.recommend(user, k=6)
        for item, score in zip(items.tolist(), scores.tolist(), strict=True):
            told = model.explain(user, item)
            assert [each["head"] for each in told["heads"]] == heads
            assert told["importance"] == pytest.approx(score, rel=1e-6)
            assert told["reranked"] is None
            assert sum(each["vote"] for each in told["heads"]) / len(heads) == pytest.approx(score, rel=1e-6)
            assert all(each["C"] == 0 for each in told["heads"])


def fixed(lists: torch.Tensor) -> ListFunction:
    return ListFunction(lambda users, _k: lists[torch.from_numpy(users)])


def test_a_voter_weight_is_as_loud_as_its_validation_says(run: Run, data: Split) -> None:
    best = run.best["consensus"]
    record = next(each for each in run.history if each["epoch"] == best.epoch)["validation"]
    lists = [fixed_voter(name).ranking(data.train, 12, 3) for name in run.settings.consensus.fixed_voters]
    found = [record[name] for name in (*VOTERS, *STUDENTS)]
    found += [
        evaluate(fixed(each), data, on="valid", at=(5,), metrics=("recall",)).means()["recall@5"] for each in lists
    ]
    expected = np.exp(-(1 - np.array(found) / max(found)) / run.settings.consensus.voter_temperature)
    assert best.votes["voter_weights"].numpy() == pytest.approx(expected, rel=1e-9)


def test_folded_in_users_are_heard_with_the_voter_weights_of_the_run(run: Run) -> None:
    model = Recommender(run, frame="arrays")
    history = model.item_ids.values[:4].tolist()
    items, scores = model.recommend(history=history, k=5)
    assert len(set(items.tolist()) - set(history)) == 5
    assert (np.diff(scores) <= 1e-6).all()


def test_a_fixed_voter_ranks_as_its_baseline_does(data: Split) -> None:
    expected = rank(RP3beta(alpha=0.5, beta=-0.2).fit(data.train), np.arange(40), 9, seen=data.train)
    assert fixed_voter("rp3beta(alpha=0.5, beta=-0.2)").ranking(data.train, 9, 0).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nobody", "unknown model 'nobody'"),
        ("rp3beta(", "expected a baseline, such as rp3beta"),
        ("rp3beta(beta=much)", "fixed voter 'rp3beta"),
        ("rp3beta(gamma=1)", "fixed voter 'rp3beta"),
    ],
)
def test_a_fixed_voter_that_cannot_come_is_refused(data: Split, name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        train(data, small(consensus={"fixed_voters": (name,)}))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("bpr@0.1", "only weighted-squares, cosine-softmax take a value after @"),
        ("cosine-softmax@warm", "temperature = 'warm'"),
        ("cosine-softmax@0", "temperature = '0'"),
        ("weighted-squares@-1", "penalty = '-1'"),
        ("cosine-softmax@0.1#", "unknown objective"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        choose((name,), LossSettings())


@pytest.mark.parametrize(("pairs", "steps", "size"), [(120_000, 12, 10_000), (50, 12, 1024), (10**9, 12, 65536)])
def test_a_batch_is_a_share_of_the_pairs_within_bounds(pairs: int, steps: int, size: int) -> None:
    assert TrainingSettings(steps=steps, batch=77).pairs_of_batch(pairs) == size
    assert TrainingSettings(batch=77).pairs_of_batch(pairs) == 77


def test_head_and_consensus_take_part_in_a_comparison(data: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("concf.training.config.presets", fromlist=["PRESETS"]).PRESETS, "strong", small())
    trained: list[str] = []
    module = __import__("concf.training.train", fromlist=["train"])
    monkeypatch.setattr(module, "train", lambda split, **said: trained.append(split.hash) or train(split, **said))
    found = compare(data, ["popularity", "concf:strong"], seeds=2, at=(5,))
    assert {entrant.name for entrant in found.entrants} == {"popularity", "concf:strong consensus", "concf:strong head"}
    assert len(trained) == 2  # one run a split, whatever is shipped of it
    expected = train(data, small(), seed=data.recipe.seed)
    head = next(entrant for entrant in found.entrants if entrant.name.endswith("head"))
    means = evaluate(expected.recommender(expected.best_head()), data, at=(5,)).means()
    assert head.tests[0]["recall@5"] == pytest.approx(means["recall@5"])
    with pytest.raises(ConfigError, match="unknown preset 'weak'"):
        compare(data, ["concf:weak"], seeds=1)


def test_the_preset_is_what_the_document_says() -> None:
    chosen = preset("strong")
    assert chosen.model.encoder == "mf"
    assert chosen.model.sharing == "none"
    assert chosen.consensus.undistilled == VOTERS
    assert chosen.consensus.consistency_temperature is None
