"""Grids: the search for the best point, and `compare --grid`, whose nonsense is refused before anything is fitted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from small_run import CLI

from concf.baselines.ease import EASE
from concf.comparison.compare import Point, compare, search
from concf.comparison.measure import Fit
from concf.comparison.models import named_models, with_grid
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train

QUICK = {
    "training.epochs": [2], "training.metric": ["recall@20"], "consensus.every": [1], "consensus.window": [2],
    "training.batch": [512], "balance.on": [False],
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Split:
    return prepare(Simulation(users=80, items=60, events=2500).draw(2), protocol="random")


def test_the_best_points_of_baseline_preset_and_objective_are_tested(
    data: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Any] = []
    usual = Fit.__call__
    monkeypatch.setattr(Fit, "__call__", lambda self, job: fits.append(job) or usual(self, job))
    grid = {
        "ease": {"regularisation": [1, 100, 10_000]},
        "reference": {"model.dimensions": [4, 16], "consensus.weight": [0.005, 0.1]} | QUICK,
        "concf:bpr": {"model": {"dimensions": [4, 16]}} | QUICK,
    }
    result = compare(data, grid=grid, seeds=1, metrics=["recall@20"])
    found = {each["model"]: each for each in result.as_dict()["models"]}
    assert found.keys() == {"ease", "concf:reference consensus", "concf:reference head", "concf:bpr"}
    best = {
        value: evaluate(EASE(regularisation=value).fit(data.train), data, on="valid", at=20).means()["recall@20"]
        for value in (1.0, 100.0, 10_000.0)
    }
    assert found["ease"]["settings"]["regularisation"] == max(best, key=lambda value: best[value])
    assert found["ease"]["validation"] == max(best.values())

    chosen = found["concf:bpr"]["settings"]
    alone = choose_settings(
        "reference", single="bpr",
        words=[f"{name}={json.dumps(chosen[name])}" for name in ("model.dimensions", *QUICK)],
    )  # fmt: skip
    run = train(data, alone, seed=data.recipe.seed)
    assert found["concf:bpr"]["validation"] == run.best["bpr"].validation
    presets = [job for job in fits if job[0][0].startswith("concf:reference")]
    assert len([job for job in presets if job[0][3] == "valid"]) == 4  # consensus and head come of one training
    assert {name for job in presets for name, *_ in job} == {"concf:reference consensus", "concf:reference head"}


def climb(sizes: list[int], function: Callable[[Point], float]) -> tuple[Point, float, list[list[Point]]]:
    """The best point, its score, and the points of each round."""
    steps, rounds = search(sizes), []
    points = next(steps)
    while True:
        rounds.append(points)
        try:
            points = steps.send([function(point) for point in points])
        except StopIteration as end:
            return *end.value, rounds


def test_a_small_grid_is_measured_whole_and_the_first_of_equals_is_best() -> None:
    best, score, rounds = climb([3, 4], lambda point: -((point[0] - 1) ** 2))
    assert (best, score) == ((1, 0), 0)
    assert rounds == [list(product(range(3), range(4)))]
    assert climb([], lambda point: 7.0) == ((), 7.0, [[()]])


def test_a_large_grid_is_climbed_from_its_middle_by_one_setting_and_by_two() -> None:
    best, score, rounds = climb([9, 9], lambda point: -((point[0] - 6) ** 2) - (point[1] - 4) ** 2)
    assert (best, score) == ((6, 4), 0)
    by_one = [[(4, 4)], [(3, 4), (5, 4)], [(6, 4)], [(7, 4)], [(6, 3), (6, 5)]]
    assert rounds == [*by_one, [(5, 3), (5, 5), (7, 3), (7, 5)]]
    ridge = climb([9, 9, 2], lambda point: -10.0 * (point[0] - point[1]) ** 2 + point[0] + point[1])
    assert ridge[:2] == ((8, 8, 0), 16)  # along which no single setting leads


def test_where_a_climb_ends_no_neighbour_is_better_and_nothing_was_measured_twice() -> None:
    drawn, sizes = random.Random(0), [5, 1, 6, 4]
    values = {point: drawn.choice([0.1, 0.2, 0.3, 0.4, 0.5]) for point in product(*map(range, sizes))}
    best, score, rounds = climb(sizes, values.__getitem__)
    measured = [point for points in rounds for point in points]
    assert len(measured) == len(set(measured)) < len(values)
    assert score == values[best] == max(values[point] for point in measured)
    for steps in product((-1, 0, 1), repeat=4):
        if sum(map(abs, steps)) <= 2:
            assert values.get(tuple(at + step for at, step in zip(best, steps, strict=True)), 0.0) <= score


def test_every_point_is_measured_and_own_candidates_and_named_models_take_part() -> None:
    searched = with_grid(named_models(["popularity", "ease"]), {"ease": {"regularisation": list(range(1, 201))}})
    assert list(searched) == ["popularity", "ease"]
    assert searched["ease"].every_point
    assert len(list(searched["ease"].settings())) == 200
    (cml,) = with_grid({}, {"cml": {"losses.margin": [0.5, 1.0]}}).values()
    assert [each.settings().losses.margin for each in cml.settings()] == [0.5, 1.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("grid", "message"), [
    ({"magic": {"a": [1]}}, "unknown model 'magic'"),
    ({"ease": {"strength": [1]}}, r"ease: strength: .*; its settings are regularisation"),
    ({"ease": {"regularisation": [-1]}}, "ease: regularisation"),
    ({"ease": {"regularisation": 100}}, "expected a list"),
    ({"reference": {"consensus.wait": [1]}}, "reference: unknown setting 'consensus.wait'"),
    ({"reference": {"weights.function": ["log"]}}, "whole comparison"),
    ({"strong": {"dimensions": [8, 16], "training.metric": ["ndcg@10"]}}, "validates by ndcg@10"),
])  # fmt: skip
def test_nonsense_is_refused_before_anything_is_fitted(data: Split, grid: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(data, grid=grid, seeds=1)


def test_a_file_is_read_and_the_chosen_values_are_shown(data: Split, concf: CLI, tmp_path: Path) -> None:
    data.save(tmp_path / "data")
    (tmp_path / "grid.toml").write_text("[ease]\nregularisation = [100, 300]\n", encoding="utf-8")
    words = ("compare", tmp_path / "data", "--grid", tmp_path / "grid.toml", "--seeds", 1, "--json")
    code, out, err = concf(*words)
    assert code == 0, err
    (ease,) = json.loads(out)["models"]
    assert (ease["model"], ease["at_grid_edge"]) == ("ease", ["regularisation"])
    assert f"regularisation {ease['settings']['regularisation']:g}*" in concf(*words[:-1])[1]
    (tmp_path / "grid.toml").write_text("[", encoding="utf-8")
    assert (concf(*words)[0], "cannot be read as TOML" in concf(*words)[2]) == (2, True)
