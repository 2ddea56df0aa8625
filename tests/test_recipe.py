"""The recipe of the preset `strong`: its stages, what they learn from, how they resume, and what is made of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from small_run import assert_same_end, history

from concf.consensus.reranker import FOLDS, Weights
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.prepare import prepare
from concf.data.protocols import TEST
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.validation import shared_items
from concf.experiments.compare import compare
from concf.experiments.tune import tune
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.model.als import Pairs
from concf.model.baselines.neighbours import RP3beta
from concf.model.baselines.popularity import Popularity
from concf.model.objectives import LossSettings, choose
from concf.runtime.process_group import ProcessGroup
from concf.training.checkpoint import RunFolder, load_run
from concf.training.config import presets
from concf.training.config.presets import choose_settings, preset
from concf.training.config.settings import ConCFSettings, TrainingSettings
from concf.training.recipe.recipe import NEIGHBOURS, STUDENT, VOTER_TEMPERATURE, Recipe
from concf.training.run import Run, make_model, union
from concf.training.train import train

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]

CLI = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"top_k": 12, "kept": 12, "shown": 12},
    "training": {"metric": "recall@5"},
}
REFITS = {"none": ("train",), "validation": ("train", "valid"), "everything": ("train", "valid", "test")}
LOG = Simulation(users=48, items=40, events=1300, tastes=4)


def small(**recipe: str) -> ConCFSettings:
    return choose_settings(choose_settings("strong", SMALL), {"recipe": recipe})


@cache
def data() -> Split:
    return prepare(LOG.draw(1), protocol="random")


@cache
def trained(budget: str = "default", refit: str = "validation") -> Run:
    return train(data(), small(budget=budget, refit=refit), seed=3)


def without_seconds(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.history]


def assert_same(run: Run, other: Run) -> None:
    """History, vectors, lists and votes, to the bit."""
    assert without_seconds(run) == without_seconds(other)
    states = run.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    for name, best in run.best.items():
        twin = other.best[name]
        assert best.validation == twin.validation
        assert (best.lists is None and twin.lists is None) or torch.equal(
            *map(torch.as_tensor, (best.lists, twin.lists))
        )
        assert all(torch.equal(tensor, twin.votes[part]) for part, tensor in best.votes.items())


# What a budget pays for


@pytest.mark.parametrize(
    ("budget", "heads", "fixed"),
    [
        ("fast", ["als-a", "als-b", STUDENT], ("rp3beta",)),
        ("default", ["als-a", "als-b", "softmax-a", STUDENT], ("rp3beta",)),
        ("thorough", ["als-a", "als-b", "softmax-a", "softmax-b", STUDENT], ("rp3beta-a", "rp3beta-b")),
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
    assert preset("strong").recipe == presets.RECIPE
    assert preset("strong").model.encoder == "mf"
    assert preset("strong").model.sharing == "none"
    assert preset("strong").consensus.non_voting == (STUDENT,)
    assert preset("strong").consensus.consistency_temperature is None
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


def test_the_order_of_the_rows_of_a_log_does_not_matter() -> None:
    log = LOG.draw(2).select("user_id", "item_id")
    models = [ConCF(seed=2, **SMALL).fit(each) for each in (log, log.sample(fraction=1.0, shuffle=True, seed=1))]
    for by in (None, STUDENT, R_CONSENSUS):
        lists = [model.recommend(sorted(log["user_id"].unique().to_list()), k=6, by=by) for model in models]
        assert lists[0].equals(lists[1])


# Resuming


class Killed(Exception):
    pass


def die_after(last: int) -> Callable[[dict[str, Any]], None]:
    def die(record: dict[str, Any]) -> None:
        if record["epoch"] == last:
            raise Killed

    return die


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(data(), small(), seed=3, out=out)
    return out


STAGES = ["search", "als", "softmax-a", "rerank", "student", "refit", "final"]


@pytest.mark.parametrize("last", range(len(STAGES)), ids=STAGES)
def test_a_run_that_is_killed_after_a_stage_goes_on_to_the_same_end(whole: Path, tmp_path: Path, last: int) -> None:
    with pytest.raises(Killed):
        train(data(), small(), seed=3, out=tmp_path / "cut", watch=die_after(last))
    seen: list[str] = []
    run = train(data(), out=tmp_path / "cut", resume=True, watch=lambda record: seen.append(record["stage"]))
    assert seen == STAGES[last + 1 :]
    assert_same_end(tmp_path / "cut", whole)
    assert_same(run, load_run(whole, data()))


@pytest.mark.parametrize("last", [0, 3, 6])
def test_a_stage_whose_checkpoint_was_not_written_is_done_again(
    whole: Path, tmp_path: Path, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RunFolder.save

    def dying(self: RunFolder, run: Run, *rest: Any) -> None:
        if run.epoch == last + 1:
            raise Killed
        save(self, run, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", dying)
        with pytest.raises(Killed):
            train(data(), small(), seed=3, out=tmp_path / "cut")
    assert len(history(tmp_path / "cut")) == last + 1
    train(data(), out=tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "cut", whole)


def test_a_saved_run_is_the_run(whole: Path) -> None:
    assert_same(trained(), load_run(whole, data()))


def test_an_unfinished_run_has_nothing_to_recommend_with(tmp_path: Path, concf: CLI) -> None:
    with pytest.raises(Killed):
        train(data(), small(), seed=3, out=tmp_path / "cut", watch=die_after(2))
    with pytest.raises(DataError, match=r"not finished, .* concf train --resume --out"):
        load_run(tmp_path / "cut", data())
    RunFolder(tmp_path / "cut").keep(data())
    for command in ("evaluate", "report"):
        code, _, err = concf(command, tmp_path / "cut")
        assert (code, "--resume" in err) == (2, True)
    with pytest.raises(ConfigError, match=r"the run has other settings: recipe\.refit"):
        train(data(), {"recipe": {"refit": "none"}}, out=tmp_path / "cut", resume=True)


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

    def watch(record: dict[str, Any]) -> None:
        of_stage[record["stage"]] = set(logs)
        logs.clear()

    split = dataclasses.replace(data())
    run = train(split, small(refit=refit), seed=3, watch=watch)
    everything = union([getattr(data(), part) for part in REFITS[refit]])
    assert run.learned == REFITS[refit]
    assert fingerprint(run.log) == fingerprint(everything)
    assert everything.nnz == sum(getattr(data(), part).nnz for part in REFITS[refit])
    for stage, learned in of_stage.items():
        log = everything if stage in ("refit", "final") else data().train
        assert learned == {fingerprint(log)}, stage
    assert ("test" in vars(split)) == (refit == "everything")  # a property that is kept once it is asked for
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


def test_the_vote_of_rp3beta_is_its_ranking_of_all_that_was_learned_from() -> None:
    run = trained("thorough")
    for place, name in enumerate(run.settings.fixed_voters, len(run.settings.heads)):
        model = RP3beta(**run.chosen[name], neighbours=NEIGHBOURS).fit(run.log)
        expected = rank(model, np.arange(run.log.shape[0]), 12, seen=run.log)
        assert run.best[CONSENSUS].votes["items"][place].tolist() == expected.tolist()


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


# What is refused, on the command line too


@pytest.mark.parametrize("name", ["objectives", "encoder", "teacher", "parts"])
def test_what_the_recipe_has_no_place_for_is_refused(name: str) -> None:
    own: dict[str, Any] = {
        "objectives": {},
        "encoder": print,
        "teacher": np.zeros((48, 3), np.int32),
        "parts": object(),
    }
    with pytest.raises(ConfigError, match=f"{name}: for Algorithm 1.* preset reference"):
        train(data(), small(), **{name: own[name]})


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave --processes out"):
        train(data(), small(), group=ProcessGroup(0, 2))


@pytest.mark.parametrize(
    ("base", "changes", "match"),
    [
        ("strong", {"objectives": ["bpr", "cml"], "consensus": {"non_voting": ()}}, "the recipe has its own"),
        ("strong", {"recipe": {"budget": "huge"}}, "recipe.budget = 'huge'"),
        ("strong", {"recipe": {"epochs": 3}}, "unknown setting 'recipe.epochs'"),
        ("strong", {"model": {"encoder": "mlp"}}, "recipe .* encoder mf, and this is 'mlp'"),
        ("reference", {"recipe": {"refit": "everything"}}, "Choose the preset strong"),
    ],
)
def test_settings_that_make_no_sense_are_refused(base: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        choose_settings(base, changes)


def test_budget_and_final_on_the_command_line(concf: CLI, tmp_path: Path) -> None:
    data().save(tmp_path / "data")
    sets = [word for each in ("model.dimensions=8", "training.metric=recall@5") for word in ("--set", each)]
    for others in (["--preset", "reference"], ["--single", "bpr"]):
        for own in (["--budget", "fast"], ["--final"]):
            code, out, err = concf("train", tmp_path / "data", "--out", tmp_path / "run", *others, *own)
            assert (code, out) == (2, "")
            assert "recipe (--budget, --final)" in err
            assert not (tmp_path / "run").exists()
    words = ["train", tmp_path / "data", "--out", tmp_path / "run", "--seed", 3, *sets, "--budget", "fast", "--final"]
    code, out, err = concf(*words)
    assert code == 0
    assert "refitted on everything" in out
    assert "concf evaluate" not in out
    assert [line.split(":")[0] for line in err.splitlines() if " s" in line and "note" not in line] == [
        "search", "als", "rerank", "student", "refit", "final",
    ]  # fmt: skip
    run = load_run(tmp_path / "run")
    assert run.settings.recipe is not None
    assert (run.settings.recipe.budget, run.learned) == ("fast", REFITS["everything"])
    assert concf("report", tmp_path / "run")[0] == 0


def test_fit_for_production(tmp_path: Path) -> None:
    model = ConCF(seed=3, **SMALL)
    assert model.fit(data(), final=True).run.learned == REFITS["everything"]
    assert_same(model.run, train(data(), small(refit="everything"), seed=3))
    assert model.fit(data()).run.learned == REFITS["validation"]
    model.save(tmp_path / "run")
    assert_same(ConCF.load(tmp_path / "run").run, model.run)
    with pytest.raises(ConfigError, match="Choose the preset strong"):
        ConCF("reference").fit(data(), final=True)


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


@pytest.mark.parametrize("budget", ["fast", "thorough"])
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_log_is_learned_all_the_same(name: str, budget: str) -> None:
    log, valid, test = map(frame, TINY[name])
    model = ConCF(model={"dimensions": 8}, training={"metric": "recall@1"}, recipe={"budget": budget})
    model.fit(log, protocol="given", valid=valid, test=test)
    assert all(torch.isfinite(tensor).all() for tensor in model.run.model.state_dict().values())
    for by in model.run.rows():
        model.recommend(model.user_ids.values.tolist(), k=3, by=by)
    for item in model.item_ids.values.tolist():
        assert np.isfinite(model.explain(0, item)["importance"])
    assert len(model.recommend(history=[0], k=2)) == 2
    assert model.run.evaluate(at=1)


def test_where_no_list_has_what_is_held_out_the_consensus_stays_as_it_is() -> None:
    log, valid, test = map(frame, TINY["one is validated"])
    settings: dict[str, Any] = {"consensus": {"top_k": 1, "kept": 1, "shown": 1}, "training": {"metric": "recall@3"}}
    split = prepare(log, protocol="given", valid=valid, test=test)
    for seed in range(3):
        run = train(split, choose_settings("strong", settings | {"model": {"dimensions": 8}}), seed=seed)
        if run.best[R_CONSENSUS].validation == 0:
            assert torch.equal(*(torch.as_tensor(run.best[name].lists)[:, :1] for name in (CONSENSUS, R_CONSENSUS)))


# Beside the recipe


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
    with pytest.raises(ConfigError, match="unknown preset 'weak'"):
        compare(data(), ["concf:weak"], seeds=1)


def test_trials_of_a_search_count_the_stage_that_has_their_target(tmp_path: Path) -> None:
    space = {"model.dimensions": {"choices": [4, 8]}}
    for target, shipped in ((None, CONSENSUS), ("als-a", "als-a")):
        found = tune(data(), tmp_path / shipped, preset="strong", changes=SMALL, space=space, trials=1, target=target)
        run = train(data(), small(), seed=0)
        assert [each.validation for each in found.trials] == [run.best[shipped].validation]
