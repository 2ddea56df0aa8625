"""The recipe of the preset `strong`: its stages, what they learn from, its voters, and what is made of the run."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from small_recipe import CLI, LOG, REFITS, SMALL, STAGES, assert_same, data, small, trained, without_seconds

from concf.consensus.reranker import FOLDS, Weights
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.consensus.voters import NEIGHBOURS
from concf.data.protocols import TEST
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.validation import shared_items
from concf.experiments.compare import compare
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.model.als import Pairs
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.neighbours import RP3beta
from concf.model.baselines.table import BASELINES
from concf.training.config import presets
from concf.training.config.presets import choose_settings, preset
from concf.training.recipe import search
from concf.training.recipe.recipe import STUDENT, VOTER_TEMPERATURE, Recipe
from concf.training.run import Run, make_model
from concf.training.train import train

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]


# What a budget pays for


@pytest.mark.parametrize(
    ("budget", "heads", "fixed"),
    [
        ("fast", ["als-a", "als-b", STUDENT], ("rp3beta",)),
        ("default", ["als-a", "als-b", "softmax-a", STUDENT], ("rp3beta",)),
        ("thorough", ["als-a", "als-b", "softmax-a", "softmax-b", STUDENT], ("rp3beta", "userknn", "ease")),
    ],
)
def test_a_budget_has_its_heads_voters_and_stages(budget: str, heads: list[str], fixed: tuple[str, ...]) -> None:
    run = trained(budget)
    assert run.model.names == run.settings.heads == heads
    assert run.settings.fixed_voters == fixed
    assert run.rows() == [*heads, R_CONSENSUS, CONSENSUS]
    assert run.best_head() == STUDENT
    stages = [record["stage"] for record in run.history]
    assert [stage for stage in stages if stage.startswith("softmax")] == [head for head in heads if "softmax" in head]
    assert run.epoch == len(stages)
    assert run.chosen.keys() >= {*heads, *fixed} - {STUDENT}
    assert len({tuple(run.chosen[name].items()) for name in ("als-a", "als-b")}) == 2
    assert len({tuple(run.chosen[name].items()) for name in fixed}) == len(fixed)
    assert [each["stage"] for each in trained(budget, "none").history] == [each for each in stages if each != "refit"]
    summary = run.summary()
    assert summary["chosen"] == run.chosen
    assert summary["learned"] == ["train", "valid"]
    assert all(row["epoch"] is None for row in summary["recommenders"])


def test_the_default_is_this_recipe() -> None:
    default = choose_settings()
    assert default == preset("strong")
    assert default.recipe is not None
    assert (default.recipe.budget, default.recipe.refit) == ("default", "validation")
    assert default.heads == trained("default").settings.heads
    assert (default.model.encoder, default.model.sharing) == ("mf", "none")
    assert default.consensus.non_voting == (STUDENT,)
    assert default.consensus.consistency_temperature is None
    assert choose_settings(None, {"recipe": {"budget": "fast"}}).heads == ["als-a", "als-b", STUDENT]


def test_it_learns_beyond_popularity() -> None:
    popularity = evaluate(Popularity().fit(data().train), data(), at=5)
    for budget in ("fast", "default", "thorough"):
        figures = trained(budget).evaluate(at=5)
        for name in (STUDENT, R_CONSENSUS, CONSENSUS):
            assert figures[name].means()["recall@5"] > 1.1 * popularity.means()["recall@5"], (budget, name)


# Determinism


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert_same(trained(), train(data(), small(), seed=3))
    with pytest.raises(AssertionError):
        assert_same(trained(), train(data(), small(), seed=4))


def test_the_number_of_threads_does_not_matter() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if before > 1 else 3)
        assert_same(train(data(), small(), seed=3), trained())
    finally:
        torch.set_num_threads(before)


def test_the_order_of_the_rows_of_a_log_does_not_matter() -> None:
    log = LOG.draw(2).select("user_id", "item_id")
    models = [ConCF(seed=2, **SMALL).fit(each) for each in (log, log.sample(fraction=1.0, shuffle=True, seed=1))]
    for by in (None, STUDENT, R_CONSENSUS):
        lists = [model.recommend(sorted(log["user_id"].unique().to_list()), k=6, by=by) for model in models]
        assert lists[0].equals(lists[1])


# What is learned from


def fingerprint(log: csr_array) -> bytes:
    return log.toarray().astype(bool).tobytes()


@pytest.mark.parametrize("refit", REFITS)
def test_every_stage_learns_from_its_parts_alone(refit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: set[bytes] = set()
    observed, fit = Pairs.observed, RP3beta.fit
    monkeypatch.setattr(Pairs, "observed", lambda log, *rest: logs.add(fingerprint(log)) or observed(log, *rest))
    monkeypatch.setattr(
        RP3beta, "fit", lambda self, log, *r, **o: logs.add(fingerprint(log)) or fit(self, log, *r, **o)
    )
    of_stage: dict[str, set[bytes]] = {}
    asked, log_of = [], Split.log
    monkeypatch.setattr(Split, "log", lambda self, parts: asked.append(parts) or log_of(self, parts))

    def watch(record: dict[str, Any]) -> None:
        of_stage[record["stage"]] = set(logs)
        logs.clear()

    split = dataclasses.replace(data())
    run = train(split, small(refit=refit), seed=3, watch=watch)
    everything = sum((getattr(data(), part) for part in REFITS[refit][1:]), data().train).tocsr()
    everything.sort_indices()
    assert run.learned == REFITS[refit]
    assert fingerprint(run.log) == fingerprint(everything)
    assert everything.nnz == sum(getattr(data(), part).nnz for part in REFITS[refit])
    for stage, learned in of_stage.items():
        log = everything if stage in ("refit", "final") else data().train
        assert learned == {fingerprint(log)}, stage
    assert "test" not in vars(split)  # a property that is kept once it is asked for
    assert any("test" in parts for parts in asked) == (refit == "everything")
    for best in run.best.values():
        if best.lists is not None:
            rows, places = (best.lists >= 0).nonzero(as_tuple=True)
            listed = csr_array((np.ones(len(rows)), (rows, best.lists[rows, places])), shape=run.log.shape)
            assert listed.multiply(run.log).nnz == 0


def empty_test(split: Split) -> Split:
    old, kept = split.interactions, split.parts != TEST
    pairs = dataclasses.replace(
        old, user=old.user[kept], item=old.item[kept], count=None if old.count is None else old.count[kept],
        timestamp=None if old.timestamp is None else old.timestamp[kept],
    )  # fmt: skip
    return dataclasses.replace(split, interactions=pairs, parts=split.parts[kept])


@pytest.mark.parametrize("refit", REFITS)
def test_the_test_part_is_learned_from_only_where_everything_is(refit: str) -> None:
    without = train(empty_test(data()), small(refit=refit), seed=3)
    assert without.data.test.nnz == 0
    if refit != "everything":
        assert_same(trained(refit=refit), without)
    else:
        with pytest.raises(AssertionError):
            assert_same(trained(refit=refit), without)
        assert_same(trained(refit="validation"), without)


def test_validation_figures_are_from_before_the_refit() -> None:
    runs = [trained(refit=refit) for refit in REFITS]
    before = [[each for each in without_seconds(run) if each["stage"] not in ("refit", "final")] for run in runs]
    for records in before:
        assert [{k: v for k, v in each.items() if k != "epoch"} for each in records] == [
            {k: v for k, v in each.items() if k != "epoch"} for each in before[0]
        ]
    figures = {name: value for record in before[0] for name, value in record.get("validation", {}).items()}
    for run in runs:
        assert {name: best.validation for name, best in run.best.items()} == {
            name: value for name, value in figures.items() if name not in run.settings.fixed_voters
        }


@cache
def until(stage: str) -> Recipe:
    """The recipe after a stage."""
    settings = small()
    recipe = Recipe(Run(data(), settings, 3, make_model(data(), settings)), torch.device("cpu"))
    for number in range(STAGES.index(stage) + 1):
        recipe.stage(number)
    return recipe


def test_the_consensus_is_validated_by_weights_that_its_user_did_not_help_to_fit() -> None:
    recipe = until("rerank")
    weights, users = recipe.weights, recipe.validation.users
    assert weights is not None
    reranker = recipe._reranker(data().train, users, recipe._voters(data().train, users))
    held_out = recipe.validation.held_out(reranker.lists)
    lists = torch.empty_like(reranker.lists)
    for fold in range(FOLDS):
        mine = torch.arange(len(users)) % FOLDS == fold
        other = held_out.roll(1, 1) & (reranker.lists >= 0)
        other = torch.where((mine & held_out.any(1) & other.any(1))[:, None], other, held_out)
        weights_of_others = reranker.fit(other).folds
        assert torch.allclose(weights_of_others[fold], weights.folds[fold], atol=1e-3)
        assert not torch.allclose(weights_of_others[fold - 1], weights.folds[fold - 1], atol=1e-3)
        lists[mine] = reranker.rerank(Weights(weights.centre, weights.folds[fold], weights.folds))[0][mine]
    assert recipe.figures[CONSENSUS] == recipe.validation.of_its_users(lists)
    assert torch.equal(recipe._cross_fitted(), lists)


def test_figures_on_what_was_learned_from_are_refused(concf: CLI, tmp_path: Path) -> None:
    for refit, parts in REFITS.items():
        for part in ("valid", "test"):
            if part in parts:
                with pytest.raises(ConfigError, match=r"was refitted on its (validation|test) part .* say nothing"):
                    trained(refit=refit).evaluate(on=part)  # type: ignore[arg-type]
            elif part == "valid":
                with pytest.raises(ConfigError, match="was fitted to the validation part"):
                    trained(refit=refit).evaluate(on=part)
            else:
                assert trained(refit=refit).evaluate(on=part, at=5)  # type: ignore[arg-type]
    model = ConCF(seed=3, **SMALL).fit(data(), final=True, out=tmp_path / "run")
    assert model.run.learned == REFITS["everything"]
    for words in ((), ("--on", "valid")):
        code, _, err = concf("evaluate", tmp_path / "run", *words)
        assert (code, "was refitted on its" in err) == (2, True)


# Voters, votes and the student


def test_a_voters_weight_decays_with_its_validation() -> None:
    for budget in ("fast", "default", "thorough"):
        run = trained(budget)
        figures = {name: value for record in run.history for name, value in record.get("validation", {}).items()}
        voters = [name for name in (*run.settings.heads, *run.settings.fixed_voters) if name != STUDENT]
        best = max(figures[name] for name in voters)
        expected = {name: np.exp(-(1 - figures[name] / best) / VOTER_TEMPERATURE) for name in voters} | {STUDENT: 0.0}
        everyone = [*run.settings.heads, *run.settings.fixed_voters]
        weights = run.best[CONSENSUS].votes["voter_weights"].tolist()
        assert dict(zip(everyone, weights, strict=True)) == pytest.approx(expected, rel=1e-9)


def test_the_vote_of_a_fixed_voter_is_its_ranking_of_all_that_was_learned_from() -> None:
    run = trained("thorough")
    for place, name in enumerate(run.settings.fixed_voters, len(run.settings.heads)):
        own = {} if name == "ease" else {"neighbours": NEIGHBOURS}
        model = BASELINES[name].make(**run.chosen[name], **own).fit(run.log)
        expected = rank(model, np.arange(run.log.shape[0]), 12, seen=run.log)
        assert run.best[CONSENSUS].votes["items"][place].tolist() == expected.tolist()


def test_ease_has_no_vote_where_it_would_cost_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained("thorough").best[CONSENSUS].votes["voter_weights"][-1] > 0
    monkeypatch.setattr(search, "CPU_EASE", min(data().train.shape) - 1)
    run = train(data(), small(budget="thorough"), seed=3)
    assert set(run.chosen) == {"als", "als-a", "als-b", "softmax-a", "softmax-b", "rp3beta", "userknn"}
    votes = run.best[CONSENSUS].votes
    assert votes["voter_weights"][-1] == 0
    assert (votes["items"][-1] == -1).all()


def test_explanations_show_every_voter_and_not_the_student() -> None:
    run = trained()
    model = Recommender(run, frame="arrays")
    voters = ["als-a", "als-b", "softmax-a", "rp3beta"]
    for user in model.user_ids.values[::9].tolist():
        items, scores = model.recommend(user, k=6)
        plain, importance = model.recommend(user, k=6, by=R_CONSENSUS)
        assert (np.diff(scores) <= 0).all()
        assert (np.diff(importance) <= 1e-6).all()
        for item, score in zip(items.tolist(), scores.tolist(), strict=True):
            explanation = model.explain(user, item)
            assert [each["head"] for each in explanation["heads"]] == voters
            assert explanation["reranked"] == pytest.approx(score, rel=1e-6)
            assert explanation["heads"][-1]["score"] is None
            assert all(each["C"] == 0 for each in explanation["heads"])
        for item, score in zip(plain.tolist(), importance.tolist(), strict=True):
            explanation = model.explain(user, item)
            votes = [each["vote"] for each in explanation["heads"]]
            assert explanation["importance"] == pytest.approx(score, rel=1e-5)
            assert sum(votes) / len(votes) == pytest.approx(score, rel=1e-5)


def test_items_of_the_refit_are_explained_as_used() -> None:
    model = Recommender(trained(), frame="arrays")
    held_out = data().valid.tocoo()
    for user, item in list(zip(held_out.row, held_out.col, strict=True))[:5]:
        ids = model.user_ids.values[[user]].tolist()[0], model.item_ids.values[[item]].tolist()[0]
        explanation = model.explain(*ids)
        assert explanation["used_in_training"]
        assert explanation["rank"] is None
        assert all(each["rank"] is None for each in explanation["heads"])


def test_the_student_ranks_as_the_consensus_does() -> None:
    for budget in ("fast", "default", "thorough"):
        run = trained(budget)
        everyone, agreed = np.arange(run.log.shape[0]), run.best[CONSENSUS].lists
        assert agreed is not None
        lists = torch.from_numpy(rank(run.recommender(STUDENT), everyone, 10, seen=run.log))
        shares = shared_items({STUDENT: lists}, agreed, 10, run.log.shape[1])
        assert shares[STUDENT] > 0.75


def test_new_users_are_recommended_to_by_the_voters() -> None:
    model = Recommender(trained(), frame="arrays")
    used = model.item_ids.values[:4].tolist()
    for by in (None, *trained().rows()):
        items, scores = model.recommend(history=used, k=5, by=by)
        assert len(set(items.tolist()) - set(used)) == 5
        assert (np.diff(scores) <= 1e-6).all()


def test_voters_are_validated_as_deep_as_the_metric_looks() -> None:
    deep = choose_settings(small(), {"consensus": {"top_k": 3}, "training": {"metric": "recall@15"}})
    run = train(data(), deep, seed=3)
    record = {name: value for each in run.history for name, value in each.get("validation", {}).items()}
    assert {name: run.best[name].validation for name in run.rows()} == {name: record[name] for name in run.rows()}
    fixed = RP3beta(**run.chosen["rp3beta"], neighbours=NEIGHBOURS).fit(data().train)
    means = evaluate(fixed, data(), on="valid", at=15, metrics="recall").means()
    assert record["rp3beta"] == pytest.approx(means["recall@15"])
    assert run.best[CONSENSUS].votes["items"].shape[2] == 3


def test_a_run_says_how_many_users_it_was_validated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained().summary()["validated_users"] == len(data().validated)
    monkeypatch.setattr("concf.training.run.RECIPE_USERS", 17)
    run = Run(data(), small(), 3, make_model(data(), small()))
    assert run.summary()["validated_users"] == len(Recipe(run, torch.device("cpu")).validation.users) == 17


# In a comparison and in a search


def test_head_and_consensus_take_part_in_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "strong", small())
    trainings: list[str] = []
    module = __import__("concf.training.train", fromlist=["train"])
    monkeypatch.setattr(
        module, "train", lambda split, *rest, **options: trainings.append(split.hash) or train(split, *rest, **options)
    )
    comparison = compare(data(), ["popularity", "concf:strong"], seeds=2, at=(5,))
    names = {entrant.name for entrant in comparison.entrants}
    assert names == {"popularity", "concf:strong consensus", "concf:strong head"}
    assert len(trainings) == 2  # one run a split, whatever is shipped of it
    expected = train(data(), small(), seed=data().recipe.seed)
    head = next(entrant for entrant in comparison.entrants if entrant.name.endswith("head"))
    means = evaluate(expected.recommender(expected.best_head()), data(), at=(5,)).means()
    assert head.tests[0]["recall@5"] == pytest.approx(means["recall@5"])
    shown = {each["model"]: each for each in comparison.as_dict()["models"]}
    for name, shipped in (("concf:strong consensus", CONSENSUS), ("concf:strong head", STUDENT)):
        assert shown[name]["fitted_on"] == "train and valid"
        assert shown[name]["validation"] == expected.best[shipped].validation  # from before the refit
    tested = compare(data(), ["concf:strong"], seeds=1, at=(5, 10), refit=False)
    validated = train(data(), small(refit="none"), seed=data().recipe.seed)
    figure = evaluate(validated.recommender(STUDENT), data(), at=(10,)).means()["recall@10"]
    for each in tested.as_dict()["models"]:
        assert (each["fitted_on"], each["validation"]) == ("train", None)  # the run was validated by recall@5
    assert next(each for each in tested.entrants if "head" in each.name).tests[0]["recall@10"] == pytest.approx(figure)
    with pytest.raises(ConfigError, match="unknown model 'weak'"):
        compare(data(), ["concf:weak"], seeds=1)
