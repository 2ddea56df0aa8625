"""Which pairs of a log are learned, who is left without any, and which head is shipped."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_recipe import assert_same, small
from test_time_protocol import by_pair

from concf.data.parts import TEST, UNEVALUATED, origin
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.inference.recommender import Recommender
from concf.models import choose_settings, train
from concf.runs.model_card import model_card
from concf.runs.run import Run


def stream(seed: int = 1, newcomers: int = 8) -> pl.DataFrame:
    """A log by time; some users and items begin in its last tenth, and some in the tenth before."""
    log = Simulation(users=60, items=40, events=1500, tastes=4).draw(seed).sort("timestamp")
    cuts = [int(log["timestamp"].quantile(share)) for share in (0.8, 0.9)]
    late = [
        (1000 * (at + 1) + new, 1000 * (at + 1) if item == 0 else item, cut + 1 + item)
        for at, cut in enumerate(cuts)
        for new in range(newcomers)
        for item in (0, 1 + new, 11 + new)
    ]
    late += [(1000 + new, 20 + new, cuts[1] + 1 + new) for new in range(newcomers)]  # who are tested, too
    return pl.concat([log, pl.DataFrame(late, log.schema, orient="row")])


@cache
def by_time(preset: str, refit: str | None = None) -> Run:
    settings = small(budget="fast", refit=refit) if refit else choose_settings(preset, FEW_EPOCHS)
    return train(prepare(stream(), protocol="time"), settings, seed=3)


FEW_EPOCHS: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"every": 2, "window": 2, "top_k": 12, "length": 4, "shown": 10},
    "training": {"epochs": 3, "batch": 256, "metric": "recall@5"},
}


@pytest.mark.parametrize("protocol", ["released", "random", "time", "new-items"])
def test_every_pair_outside_the_test_part_is_refitted_and_every_pair_of_the_log_in_the_end(protocol: str) -> None:
    sparse = Simulation(users=90, items=150, events=1400, tastes=4).draw(1)
    split = prepare(sparse, protocol=protocol)
    assert (split.parts >= UNEVALUATED).any() or protocol not in ("random", "leave-last", "time")
    test = origin(split.parts) == TEST
    refit, final = split.log(("train", "valid")), split.log(("train", "valid", "test"))
    assert refit.nnz == (~test).sum()
    assert refit.multiply(split.interactions.matrix(test)).nnz == 0
    assert (final != split.interactions.matrix()).nnz == 0


@pytest.mark.parametrize("refit", ["validation", "everything"])
def test_a_run_by_time_learns_the_newest_users(refit: str) -> None:
    run = by_time("strong", refit)
    cold = run.data.interactions.user_ids.values[run.unlearned]
    assert set(cold) == (set(range(2000, 2008)) if refit == "validation" else set())
    assert any("learned pair" in note for note in run.notes) == (refit == "validation")
    assert run.log.nnz == (origin(run.data.parts) < len(run.learned)).sum()


def test_a_run_that_learns_everything_chooses_on_the_newest_window(monkeypatch: pytest.MonkeyPatch) -> None:
    data, split = by_time("strong", "everything").data, prepare(stream(), protocol="time")
    assert (data.train != split.log(["train", "valid"])).nnz == (data.valid != split.test).nnz == data.test.nnz == 0
    assert data.hash == split.hash
    assert "was validated on, and learned" in model_card(by_time("strong", "everything"))
    monkeypatch.setattr("concf.data.split.FEW_USERS", 300)
    for how in ({"test": 0.02, "valid": 0.3}, {"protocol": "random"}, {"protocol": "leave-last"}):
        assert (other := prepare(stream(), **{"protocol": "time"} | how)).newest is other
    assert (by_time("strong", "validation").data.valid != split.valid).nnz == 0


@pytest.mark.parametrize("preset", ["strong", "reference"])
def test_popular_items_are_recommended_to_users_without_a_learned_pair(preset: str) -> None:
    run = by_time(preset, "validation" if preset == "strong" else None)
    model, log = Recommender(run, frame="arrays"), run.log.toarray() > 0
    popular = sorted(range(log.shape[1]), key=lambda item: (-log[:, item].sum(), item))
    cold = np.flatnonzero(~log.any(1))
    assert len(cold) >= 8
    for by in run.rows():
        for user in cold[:3]:
            used = set(np.flatnonzero(model.viewed[[user]].toarray()))
            ids, _ = model.recommend(int(model.user_ids.values[user]), k=5, by=by)
            free = [item for item in popular if item not in used][:5]
            assert ids.tolist() == model.item_ids.values[free].tolist(), by
    assert f"{len(cold)} users have no learned pair" in " ".join(run.notes)
    assert f"{len(cold)} users have no learned pair" in model_card(run)
    assert run.notes == run.summary()["notes"]


def test_validation_does_not_depend_on_what_comes_after_the_test_cut() -> None:
    """Two logs that are equal before the cut: the same users validate, the same pairs are refitted, to the same end."""
    log = stream(newcomers=0)
    cut = int(log["timestamp"].quantile(0.85))
    after = log.filter(pl.col("timestamp") >= cut)
    other = after.with_columns(pl.col("user_id").reverse(), pl.col("item_id").shuffle(seed=3)).filter(
        pl.int_range(pl.len()) % 3 > 0
    )
    before = log.filter(pl.col("timestamp") < cut)
    cuts = {"valid_from": int(log["timestamp"].quantile(0.7)), "test_from": cut}
    splits = [prepare(pl.concat([before, later]), protocol="time", **cuts) for later in (after, other)]
    first, second = splits
    tested = [{pair for pair, part in by_pair(split).items() if part == TEST} for split in splits]
    assert tested[0] != tested[1]
    assert first.evaluated.tolist() != second.evaluated.tolist()
    for name in ("train", "valid"):
        assert (first.part(name) != second.part(name)).nnz == 0
    assert (first.log(("train", "valid")) != second.log(("train", "valid"))).nnz == 0
    assert_same(*(train(split, small(budget="fast", refit="validation"), seed=3) for split in splits))


@pytest.mark.parametrize(("student", "shipped"), [(0.2941, "student"), (0.2939, "als-a")])
def test_the_student_is_shipped_if_it_is_within_two_percent_of_the_best_head(student: float, shipped: str) -> None:
    run = by_time("strong", "validation")
    before = {name: best.validation for name, best in run.best.items()}
    try:
        for name, figure in {"als-a": 0.3, "student": student}.items():
            run.best[name].validation = figure
        assert run.best_head() == run.summary()["best_head"] == shipped
        assert ("more than 2 %" in run.why_best_head()) == (shipped == "als-a")
        assert run.why_best_head() in model_card(run)
    finally:
        for name, figure in before.items():
            run.best[name].validation = figure


def test_a_run_that_has_measured_nothing_has_a_summary() -> None:
    run = by_time("strong", "validation")
    assert type(run)(run.data, run.settings, 0, run.device).summary()["why_best_head"] == "no head was measured yet"
