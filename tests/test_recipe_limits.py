"""What the recipe refuses, on the command line too, and logs with hardly anything in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_recipe import CLI, REFITS, SMALL, assert_same, data, small, trained

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.prepare import prepare
from concf.errors import ConfigError
from concf.evaluation.validation import Validation
from concf.inference.estimator import ConCF
from concf.model.objectives import LossSettings, choose
from concf.model.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.training.checkpoint import load_run
from concf.training.config.presets import choose_settings
from concf.training.config.settings import TrainingSettings
from concf.training.recipe import recipe as stages
from concf.training.recipe import search
from concf.training.recipe.recipe import BEHIND, Recipe
from concf.training.run import Run, make_model
from concf.training.train import train

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]


def begun(group: ProcessGroup = ALONE, **recipe: str) -> Recipe:
    """A recipe of which no stage is over."""
    settings = small(**recipe)
    return Recipe(Run(data(), settings, 3, make_model(data(), settings)), torch.device("cpu"), group)


def test_all_processes_decide_alike_whether_ease_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the whole log, where the shares of the processes are on both sides of the bound."""
    groups, users = [ProcessGroup(rank, 5) for rank in range(5)], data().train.shape[0]
    sizes = {len(range(users)[each.share(users)]) for each in groups}
    assert len(sizes) == 2
    for bound, votes in ((min(sizes), False), (min(data().train.shape), True)):
        monkeypatch.setattr(search, "CPU_EASE", bound)
        assert {"ease" in begun(each, budget="thorough").fixed for each in groups} == {votes}


@pytest.mark.parametrize(("share", "goes_on"), [(0.99, False), (1.01, True)])
def test_a_softmax_goes_on_if_it_is_not_far_behind_als_on_the_users_of_the_search(
    share: float, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, random = begun(), torch.Generator().manual_seed(0)
    item = torch.randn(data().train.shape[1], 8, generator=random)
    vectors = torch.from_numpy(data().train.toarray()) @ item, item
    recipe.searched = Validation(data(), recipe.run.metric, recipe.device, validated=data().validated[:9])
    figure = search.measured(Factors(*vectors), data().train, recipe.searched)
    assert 0 < figure < 1
    recipe.vectors["als-a"], recipe.figures["als-a"] = vectors, float(goes_on)  # of other users
    monkeypatch.setattr(search, "search_temperature", lambda *_: [(share * BEHIND * figure, 0.1, vectors)])
    monkeypatch.setattr(stages, "fit_softmax", lambda *_, **__: vectors)
    recipe._softmax("softmax-a")
    assert recipe.chosen["softmax-a"]["epochs"] == 1 + recipe.plan.softmax[0] * goes_on


def test_what_the_recipe_has_no_place_for_is_refused() -> None:
    for name, own in (("objectives", {}), ("encoder", print), ("teacher", np.zeros((48, 3), np.int32))):
        with pytest.raises(ConfigError, match=f"{name}: for Algorithm 1"):
            train(data(), small(), **{name: own})  # type: ignore[arg-type]
    n = data().train.shape[0]
    with pytest.raises(ConfigError, match=f"{n + 1} processes for {n} users"):
        train(data(), small(), group=ProcessGroup(0, n + 1), device="cpu")


@pytest.mark.parametrize(
    ("base", "changes", "match"),
    [
        ("strong", {"objectives": ["bpr", "cml"], "consensus": {"non_voting": ()}}, "the recipe has its own"),
        ("strong", {"recipe": {"budget": "huge"}}, "recipe.budget = 'huge'"),
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
    code, _, err = concf("train", tmp_path / "data", "--out", tmp_path / "run", "--preset", "reference", "--final")
    assert (code, "--final" in err, (tmp_path / "run").exists()) == (2, True, False)
    words = ["train", tmp_path / "data", "--out", tmp_path / "run", "--seed", 3, *sets, "--budget", "fast", "--final"]
    assert concf(*words)[0] == 0
    run = load_run(tmp_path / "run")
    assert run.settings.recipe is not None
    assert (run.settings.recipe.budget, run.learned) == ("fast", REFITS["everything"])
    code, _, err = concf("evaluate", tmp_path / "run")
    assert (code, "was refitted on its" in err) == (2, True)


def test_fit_for_production(tmp_path: Path) -> None:
    model = ConCF(seed=3, **SMALL).fit(data(), final=True)
    assert model.run.learned == REFITS["everything"]
    assert_same(model.run, trained(refit="everything"))
    model.save(tmp_path / "run")
    assert_same(ConCF.load(tmp_path / "run").run, model.run)
    with pytest.raises(ConfigError, match="Choose the preset strong"):
        ConCF("reference").fit(data(), final=True)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("bpr@0.1", "only weighted-squares, cosine-softmax take a value after @"),
        ("cosine-softmax@warm", "temperature = 'warm'"),
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
    model = ConCF(model={"dimensions": 8}, training={"metric": "recall@1"}, recipe={"budget": "thorough"})
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
    runs = [
        train(split, choose_settings("strong", settings | {"model": {"dimensions": 8}}), seed=seed) for seed in range(3)
    ]
    missed = [run for run in runs if run.best[R_CONSENSUS].validation == 0]
    assert missed
    for run in missed:
        assert torch.equal(*(torch.as_tensor(run.best[name].lists)[:, :1] for name in (CONSENSUS, R_CONSENSUS)))
