"""The recipe of the preset `strong`: its stages, what they learn from, its voters, tiny logs, and resuming."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from small_recipe import CLI, LOG, REFITS, SMALL, STAGES, assert_same, data, small, trained, without_seconds
from small_run import Killed, assert_same_end, die_after

from concf.baselines.als import Pairs
from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import RP3beta, Walks
from concf.baselines.table import BASELINES
from concf.consensus.fitting import FOLDS, Weights
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation
from concf.inference.estimator import ConCF
from concf.models import choose_settings, load_run, train, train_job
from concf.runs.job import Job
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong import recipe as stages
from concf.strong import search, students
from concf.strong.ensemble import VOTER_TEMPERATURE, plain_weights
from concf.strong.recipe import BEHIND, STUDENT, Recipe
from concf.strong.run import StrongRun
from concf.strong.settings import StrongSettings

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]


# What a budget pays for


@pytest.mark.parametrize(("budget", "heads", "fixed"), [
    ("fast", ["als-a", STUDENT], ("rp3beta",)), ("default", ["als-a", "als-b", STUDENT], ("rp3beta",)),
    ("thorough", ["als-a", "als-b", "softmax-a", "softmax-b", STUDENT], ("rp3beta", "userknn", "ease")),
])  # fmt: skip
def test_a_budget_has_its_heads_voters_and_stages(budget: str, heads: list[str], fixed: tuple[str, ...]) -> None:
    run = trained(budget)
    assert run.heads == heads
    assert run.settings.fixed_voters == fixed
    assert run.rows() == [*heads, R_CONSENSUS, CONSENSUS]
    stages = [record["stage"] for record in run.history]
    assert [stage for stage in stages if stage.startswith("softmax")] == [head for head in heads if "softmax" in head]
    assert run.epoch == len(stages)
    assert run.chosen.keys() >= {*heads, *fixed} - {STUDENT}
    als = [head for head in heads if head.startswith("als")]
    assert len({run.chosen[name]["unobserved"] for name in als}) == len(als)


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


def test_the_order_of_the_rows_of_a_log_does_not_matter() -> None:
    log = LOG.draw(2).select("user_id", "item_id")
    models = [ConCF(seed=2, **SMALL).fit(each) for each in (log, log.sample(fraction=1.0, shuffle=True, seed=1))]
    for by in (None, STUDENT, R_CONSENSUS):
        lists = [model.recommend(sorted(log["user_id"].unique().to_list()), k=6, by=by) for model in models]
        assert lists[0].equals(lists[1])


# What is learned from


def begun(group: ProcessGroup = ALONE, **recipe: str) -> Recipe:
    """A recipe of which no stage is over."""
    return Recipe(StrongRun(data(), small(**recipe), 3, torch.device("cpu")), group)


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
    monkeypatch.setattr(search, "Walks", lambda log, *rest: logs.add(fingerprint(log)) or Walks(log, *rest))
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


def test_validation_figures_are_from_before_the_refit() -> None:
    runs = [trained(refit=refit) for refit in REFITS]
    before = [[each for each in without_seconds(run) if each["stage"] not in ("refit", "final")] for run in runs]
    for records in before:
        assert [{k: v for k, v in each.items() if k != "epoch"} for each in records] == [
            {k: v for k, v in each.items() if k != "epoch"} for each in before[0]
        ]
    figures = {name: value for record in before[0] for name, value in record.get("validation", {}).items()}
    assert all(figures[name] == best.validation for run in runs for name, best in run.best.items())


def test_the_consensus_is_validated_by_weights_that_its_user_did_not_help_to_fit() -> None:
    recipe = begun()
    for number in range(STAGES.index("rerank") + 1):
        recipe.stage(number)
    weights, users = recipe.weights, recipe.validation.users
    assert weights is not None
    reranker = recipe._reranker(data().train, users, recipe._voters(data().train, users))
    lists = torch.empty_like(reranker.lists)
    for fold in range(FOLDS):
        mine = torch.arange(len(users)) % FOLDS == fold
        lists[mine] = reranker.rerank(Weights(weights.centre, weights.folds[fold], weights.folds))[0][mine]
    assert recipe.metrics[CONSENSUS] == recipe.validation.of_its_users(lists)
    assert torch.equal(recipe._cross_fitted(), lists)


def test_figures_on_what_was_learned_from_are_refused() -> None:
    for refit, parts in REFITS.items():
        message = "was refitted on its" if "valid" in parts else "was fitted to the validation part"
        with pytest.raises(ConfigError, match=message):
            trained(refit=refit).evaluate(on="valid")
    with pytest.raises(ConfigError, match="was refitted on its"):
        trained(refit="everything").evaluate(on="test")


# Voters, votes and the student


def test_a_voters_weight_decays_with_its_validation() -> None:
    run = trained("thorough")
    figures = {name: value for record in run.history for name, value in record.get("validation", {}).items()}
    everyone = [*run.settings.heads, *run.settings.fixed_voters]
    best = max(figures[name] for name in everyone if name != STUDENT)
    expected = [np.exp(-(1 - figures[name] / best) / VOTER_TEMPERATURE) * (name != STUDENT) for name in everyone]
    assert run.best[CONSENSUS].votes["voter_weights"].tolist() == pytest.approx(expected, rel=1e-9)
    assert plain_weights({"als-a": 0.2, "als-sequence": 0.25}) == pytest.approx([np.exp(-0.2 / 0.15), 1])


def test_the_vote_of_a_fixed_voter_is_its_ranking_of_all_that_was_learned_from() -> None:
    run = trained("thorough")
    for place, name in enumerate(run.settings.fixed_voters, len(run.settings.heads)):
        own = {"neighbours": 500} if name == "userknn" else {}
        model = BASELINES[name].make(**run.chosen[name], **own).fit(run.log)
        expected = rank(model, np.arange(run.log.shape[0]), 12, seen=run.log)
        assert run.best[CONSENSUS].votes["items"][place].tolist() == expected.tolist()


def test_the_student_ranks_as_the_consensus_does() -> None:
    run = trained()
    everyone, agreed = np.arange(run.log.shape[0]), run.best[CONSENSUS].lists
    assert agreed is not None
    lists = torch.from_numpy(rank(run.recommender(STUDENT), everyone, 10, seen=run.log))
    shared = [
        len({*mine} & {*theirs}) / 10 for mine, theirs in zip(lists.tolist(), agreed[:, :10].tolist(), strict=True)
    ]
    assert np.mean(shared) > 0.75


def test_the_student_of_a_dense_log_follows_the_consensus() -> None:
    """Forty items a user: with the usual settings it keeps 97 % of the consensus."""
    dense = prepare(Simulation(users=500, items=400, events=75_000, tastes=12).draw(1), protocol="random")
    run = train(dense, StrongSettings(dimensions=32), seed=3)
    figures = {name: result.means()["ndcg@20"] for name, result in run.evaluate(at=[20], metrics=["ndcg"]).items()}
    assert figures[STUDENT] > 0.97 * figures[CONSENSUS] > figures["als-a"]
    assert run.chosen[STUDENT]["listed"] > students.LISTED_WEIGHT


def test_all_processes_decide_alike_whether_ease_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the whole log, where the shares of the processes are on both sides of the bound."""
    groups, users = [ProcessGroup(rank, 5) for rank in range(5)], data().train.shape[0]
    sizes = {len(range(users)[each.share(users)]) for each in groups}
    assert len(sizes) == 2
    for bound, votes in ((min(sizes), False), (min(data().train.shape), True)):
        vote = dataclasses.replace(BASELINES["ease"].vote, most=(bound, bound))
        monkeypatch.setitem(BASELINES, "ease", dataclasses.replace(BASELINES["ease"], vote=vote))
        assert {"ease" in begun(each, budget="thorough").fixed for each in groups} == {votes}


def test_what_the_recipe_has_no_place_for_is_refused() -> None:
    for changes, name in (({"objectives": ["bpr"]}, "objectives"), ({"consensus": {"every": 5}}, "consensus.every")):
        with pytest.raises(
            ConfigError, match=f"{name}: of the model reference, and this is strong.*--preset reference"
        ):
            train(data(), changes)
    n = data().train.shape[0]
    with pytest.raises(ConfigError, match=f"{n + 1} processes for {n} users"):
        train_job(data(), small(), Job(group=ProcessGroup(0, n + 1)), device="cpu")


def test_budget_and_final_on_the_command_line(concf: CLI, tmp_path: Path) -> None:
    data().save(tmp_path / "data")
    words = ["train", tmp_path / "data", "--out", tmp_path / "run", "--final"]
    code, _, err = concf(*words, "--preset", "reference")
    assert (code, "--final" in err, (tmp_path / "run").exists()) == (2, True, False)
    assert concf(*words, "--budget", "fast", "--set", "dimensions=8", "--set", "training.metric=recall@5")[0] == 0
    run = load_run(tmp_path / "run")
    assert (run.settings.budget, run.learned) == ("fast", REFITS["everything"])


# Logs with hardly anything in them


def frame(pairs: list[tuple[int, int]]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema={"user_id": pl.Int64, "item_id": pl.Int64}, orient="row")


USED = sorted({(user, (2 * user + j * j) % 9) for user in range(12) for j in range(3)})
FREE = [[item for item in range(9) if (user, item) not in USED] for user in range(12)]
EVERYTHING = [(11, item) for item in range(9)]
# name -> training, validation and test pairs
TINY: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]] = {
    "3 users, 4 items": ([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3)], [(0, 2)], [(0, 3), (2, 0)]),
    "one is validated": (USED, [(0, FREE[0][0])], [(0, FREE[0][1]), (1, FREE[1][0])]),
    "one has used all": (
        sorted({*USED, *EVERYTHING}), [(0, FREE[0][0]), (3, FREE[3][0])], [(0, FREE[0][1]), (1, FREE[1][0])],
    ),
    "one validates all that is left": (
        sorted({*USED, *EVERYTHING[:-1]}), [EVERYTHING[-1], (3, FREE[3][0])], [(3, FREE[3][1])],
    ),
    "one has nothing to train on": (USED, [(99, 1), (0, FREE[0][0])], [(99, 2), (0, FREE[0][1])]),
}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_log_is_learned_all_the_same(name: str) -> None:
    log, valid, test = map(frame, TINY[name])
    model = ConCF(dimensions=8, training={"metric": "recall@1"}, budget="thorough")
    model.fit(log, protocol="given", valid=valid, test=test)
    assert all(torch.isfinite(tensor).all() for best in model.run.best.values() for tensor in best.state.values())
    for by in model.run.rows():
        model.recommend(model.user_ids.values.tolist(), k=3, by=by)
    for item in model.item_ids.values.tolist():
        assert np.isfinite(model.explain(0, item)["importance"])
    assert len(model.recommend(history=[0], k=2)) == 2
    assert model.run.evaluate(at=1)


def test_where_no_list_has_what_is_held_out_the_consensus_stays_as_it_is() -> None:
    log, valid, test = map(frame, TINY["one is validated"])
    settings: dict[str, Any] = {"consensus": {"top_k": 1, "shown": 1}, "training": {"metric": "recall@3"}}
    split = prepare(log, protocol="given", valid=valid, test=test)
    runs = [train(split, choose_settings("strong", settings | {"dimensions": 8}), seed=seed) for seed in range(3)]
    missed = [run for run in runs if run.best[R_CONSENSUS].validation == 0]
    assert missed
    for run in missed:
        assert torch.equal(*(torch.as_tensor(run.best[name].lists)[:, :1] for name in (CONSENSUS, R_CONSENSUS)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(data(), small(), seed=3, out=out)
    return out


@pytest.mark.parametrize("last", [0, 2, 4])
def test_a_run_that_is_killed_after_a_stage_goes_on_to_the_same_end(whole: Path, tmp_path: Path, last: int) -> None:
    with pytest.raises(Killed):
        train(data(), small(), seed=3, out=tmp_path / "cut", watch=die_after(last))
    with pytest.raises(DataError, match="not finished"):
        load_run(tmp_path / "cut", data())
    with pytest.raises(ConfigError, match=r"the run has other settings: refit"):
        train(data(), {"refit": "none"}, out=tmp_path / "cut", resume=True)
    seen: list[str] = []
    run = train(data(), out=tmp_path / "cut", resume=True, watch=lambda record: seen.append(record["stage"]))
    assert seen == STAGES[last + 1 :]
    assert_same_end(tmp_path / "cut", whole)
    assert_same(run, load_run(whole, data()))


@pytest.mark.parametrize(("share", "goes_on"), [(0.99, False), (1.01, True)])
def test_a_softmax_goes_on_if_it_is_not_far_behind_als_on_the_users_of_the_search(
    share: float, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, random = begun(budget="thorough"), torch.Generator().manual_seed(0)
    item = torch.randn(data().train.shape[1], 8, generator=random)
    vectors = torch.from_numpy(data().train.toarray()) @ item, item
    recipe.searched = Validation(data(), recipe.run.metric, recipe.device, validated=data().validated[:9])
    figure = search.measured(Factors(*vectors), data().train, recipe.searched)
    assert 0 < figure < 1
    recipe.vectors["als-a"], recipe.metrics["als-a"] = vectors, float(goes_on)  # of other users
    monkeypatch.setattr(search, "search_temperature", lambda *_: 2 * [(share * BEHIND * figure, 0.1, vectors)])
    monkeypatch.setattr(stages, "fit_softmax", lambda *_, **__: vectors)
    recipe._softmax("softmax-a")
    assert recipe.chosen["softmax-a"]["epochs"] == 1 + recipe.plan.softmax[0] * goes_on


def test_lists_of_known_users_need_no_pytorch(tmp_path: Path) -> None:
    model = ConCF(budget="fast", **SMALL).fit(LOG.draw(1), out=tmp_path / "run")
    run = "app(sys.argv[1:], standalone_mode=False); print('torch' in sys.modules)"
    words = ["recommend", str(tmp_path / "run"), "--users", "3,8", "-k", "5", "--exclude", "1", "--json"]
    command = [sys.executable, "-c", f"import sys; from concf.cli.app import app; {run}", *words]
    lists, found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (json.loads(lists), found) == (model.recommend([3, 8], 5, exclude=[1]).to_dicts(), "False")
