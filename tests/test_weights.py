"""Weights of interactions: weight 2 is the row twice, equal weights are none, an infinite half-life is none."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.sparse import csr_array
from small_recipe import CLI, LOG, data, small, trained

from concf.baselines.als import ALS, Pairs
from concf.baselines.neighbours import RP3beta, Walks
from concf.comparison.compare import compare
from concf.data.interactions import Interactions
from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.split import Split
from concf.data.weights import LEAST, UNWEIGHTED, Weighting
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.models import choose_settings, load_run, train
from concf.reference.batches import Batch, Sampler
from concf.reference.encoders import ENCODERS
from concf.reference.head_losses import HeadLosses
from concf.reference.model import Model
from concf.reference.objectives import choose
from concf.strong import softmax

CPU = torch.device("cpu")
DAY = 86_400
counts = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30)
ages = st.lists(st.integers(0, 3000 * DAY), min_size=2, max_size=30)


def log_of(count: list[float], time: list[int] | None = None) -> Interactions:
    """One user whose items have these counts and times."""
    frame = pl.DataFrame({"user_id": 0, "item_id": range(len(count)), "count": count})
    return read(frame if time is None else frame.with_columns(timestamp=pl.Series(time)))


def weights_of(weighting: Weighting, log: Interactions) -> NDArray[np.float32]:
    found = weighting(log, np.ones(len(log), bool))
    return np.ones(len(log), np.float32) if found is None else found


@given(counts)
def test_a_weight_is_a_function_of_the_count_over_its_mean(count: list[float]) -> None:
    assume(len(set(count)) > 1)
    for name, function in (("linear", np.asarray), ("log", np.log1p)):
        literal = function(np.array(count))
        found = weights_of(Weighting(function=name), log_of(count))  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.maximum(literal / (sum(literal) / len(count)), LEAST), rtol=1e-6)


@given(ages, st.floats(0.5, 1e4))
def test_an_interaction_counts_half_after_every_half_life(age: list[int], days: float) -> None:
    newest = 1_700_000_000
    found = weights_of(Weighting(half_life=f"{days:f}d"), log_of([1.0] * len(age), [newest - each for each in age]))
    literal = np.array([2.0 ** (-(each - min(age)) / (float(f"{days:f}") * DAY)) for each in age])
    np.testing.assert_allclose(found, np.maximum(literal / literal.mean(), LEAST), rtol=1e-5)


def test_the_unit_of_times_is_told_by_their_size() -> None:
    days = [0, 10, 300]
    found = []
    for ticks in (1, 10**3, 10**6, 10**9):
        log = log_of([1.0] * 3, [(1_600_000_000 + day * DAY) * ticks for day in days])
        found.append(weights_of(Weighting(half_life="2w"), log))
    found += [weights_of(Weighting(half_life=14), log_of([1.0] * 3, days))]  # type: ignore[arg-type]
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-6)
    with pytest.raises(DataError, match="times like 300 are not since 1970"):
        weights_of(Weighting(half_life="14d"), log_of([1.0] * 3, days))


@pytest.mark.parametrize("bad", ["0d", "nan", "90x", "", -1])
def test_a_half_life_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError, match="expected a duration above 0"):
        Weighting(half_life=bad)


def test_a_half_life_needs_times_and_counts_that_are_all_equal_are_noted() -> None:
    log = log_of([1.0, 2.0])
    with pytest.raises(DataError, match="needs times and the log has none"):
        weights_of(Weighting(half_life="90d"), log)
    with pytest.warns(ConcfWarning, match="every pair has 3"):
        weights_of(Weighting(function="log"), log_of([3.0, 3.0]))


COUNTED = LOG.draw(1).with_columns(count=(pl.int_range(pl.len()) * 7 % 5 + 1).cast(pl.Float64))


@cache
def counted() -> Split:
    return prepare(COUNTED, protocol="random")


def test_a_split_trains_on_weights_and_holds_out_as_before(tmp_path: Any) -> None:
    plain, weighted = counted(), counted().weighted(Weighting(function="log", half_life="60d"))
    assert plain.weighted(UNWEIGHTED) is plain
    assert (plain.train.data == 1).all()
    assert weighted.train.data.mean() == pytest.approx(1, rel=1e-5)
    assert len(np.unique(weighted.train.data)) > 20
    assert ((weighted.train > 0) != (plain.train > 0)).nnz == 0
    assert (weighted.valid != plain.valid).nnz == (weighted.test != plain.test).nnz == 0
    for on in ("valid", "test"):
        assert ((weighted.seen(on) > 0) != (plain.seen(on) > 0)).nnz == 0
    both = weighted.log(("train", "valid"))
    assert both.nnz == plain.train.nnz + plain.valid.nnz
    assert both.data.mean() == pytest.approx(1, rel=1e-5)
    assert weighted.hash == plain.hash
    assert weighted.with_seed(5).weights == weighted.weights
    plain.save(tmp_path / "data")
    loaded = Split.load(tmp_path / "data").weighted(weighted.weights)
    assert np.array_equal(loaded.train.data, weighted.train.data)


def doubled() -> tuple[csr_array, list[tuple[int, int]]]:
    """A log with weights 1, 2 and 3, and its pairs, each as often as it weighs."""
    random = np.random.default_rng(3)
    matrix = csr_array(random.integers(0, 4, (13, 9)).astype(np.float32) * (random.random((13, 9)) < 0.6))
    pairs = [(u, i) for u, i in zip(*matrix.nonzero(), strict=True) for _ in range(int(matrix[u, i]))]
    return matrix, [(int(u), int(i)) for u, i in pairs]


def test_weight_2_is_the_row_twice_for_als() -> None:
    matrix, pairs = doubled()
    user, item = torch.tensor(pairs).T
    ones = torch.ones(len(pairs), dtype=torch.float64)
    found = []
    for each in (Pairs.observed(matrix, CPU, torch.float64), Pairs(user, item, ones, ones)):
        als = ALS(each, matrix.shape, 5)
        vectors = als.fit(als.start(0), 0.05, 0.02, 3)
        found.append(vectors[0] @ vectors[1].T)
    assert torch.allclose(*found, atol=1e-9)


def test_weight_2_is_the_row_twice_for_the_softmax() -> None:
    matrix, pairs = doubled()
    random = torch.Generator().manual_seed(0)
    user, item = (torch.randn(n, 4, generator=random, dtype=torch.float64) for n in matrix.shape)
    users = torch.arange(len(user))
    once = Pairs.observed(matrix, CPU, torch.float64)
    row, items = torch.tensor(pairs).T
    ones = torch.ones(len(row), dtype=torch.float64)
    found = softmax.gradients(user, item, users, once.user, once.item, once.weight, 0.2)
    expected = softmax.gradients(user, item, users, row, items, ones, 0.2)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def literal_loss(name: str, s: torch.Tensor, weight: torch.Tensor) -> float:
    """L of all pairs with weights [users, items], a pair of weight w as w rows; item 0 is everyone's negative."""
    terms = s.logsumexp(1 if name == "multinomial" else 0, keepdim=True) - s
    return float((weight * terms * (weight > 0)).sum())


@pytest.mark.parametrize("name", ["multinomial", "multinomial-users"])
def test_weight_2_is_the_row_twice_for_the_losses_of_algorithm_1(name: str) -> None:
    matrix, pairs = doubled()
    torch.manual_seed(0)
    objectives = choose((name,))
    model = Model(matrix, objectives, dimensions=4, encoder=ENCODERS["mf"]).double()
    losses = HeadLosses(model, objectives, matrix.astype(np.float64))
    users, items = torch.tensor(pairs).T
    every = torch.arange(matrix.shape[1])
    if name == "multinomial-users":  # its rows are items, of both kinds
        users, items = torch.cat([users, users[: len(every)]]), torch.cat([items, every])
    with torch.no_grad():
        found = losses.own(model.user, model.item, Batch(users, items, torch.zeros_like(items)))
        table = model.head(name).table
        scores = table(model.user[0]) if name == "multinomial" else table(model.item[0]).T
    weight = torch.from_numpy(matrix.toarray()).double()
    assert float(found) == pytest.approx(literal_loss(name, scores, weight), rel=1e-6)


def test_a_pair_comes_in_an_epoch_as_often_as_it_weighs() -> None:
    random = np.random.default_rng(0)
    weight = random.lognormal(0, 1, (20, 15)) * (random.random((20, 15)) < 0.5)
    weight[0, :2] = 0, 1
    others = weight.sum() - 1
    weight[0, 1] = 2 * others / ((weight > 0).sum() - 2)  # which is 2 when the mean is 1
    weight *= (weight > 0).sum() / weight.sum()
    assert weight[0, 1] == pytest.approx(2)
    sampler, epochs = Sampler(csr_array(weight)), 400
    mean = np.zeros_like(weight)
    for epoch in range(epochs):
        batch = sampler.epoch(7, epoch)
        assert len(batch) == (weight > 0).sum()
        times = np.zeros_like(weight)
        np.add.at(times, (batch.user.numpy(), batch.positive.numpy()), 1)
        assert (np.abs(times - weight) < 1 + 1e-9).all()
        assert times[0, 1] == 2
        assert not weight[batch.user.numpy(), batch.negative.numpy()].any()
        mean += times / epochs
    assert np.abs(mean - weight).max() < 0.1
    again = sampler.epoch(7, 3)
    assert all(torch.equal(getattr(again, name), getattr(sampler.epoch(7, 3), name)) for name in ("user", "negative"))


def test_every_step_of_a_walk_is_its_weighted_chance_to_the_power_alpha() -> None:
    (matrix, _), alpha = doubled(), 0.4
    users, weight = torch.arange(matrix.shape[0]), matrix.toarray().astype(np.float64)
    from_user, from_item = (weight / weight.sum(1, keepdims=True)) ** alpha, (weight / weight.sum(0)).T ** alpha
    into = from_item @ from_user / weight.sum(0) ** 0.3
    walks = Walks(matrix, alpha, CPU)
    np.testing.assert_allclose(walks.penalised(walks(users), 0.3), from_user @ into, rtol=1e-5)
    np.fill_diagonal(into, 0)
    settings = RP3beta(alpha=alpha, beta=0.3, neighbours=50)
    fitted = settings.fit(matrix)
    np.testing.assert_allclose(fitted.scores(users), from_user @ into, rtol=1e-5)
    np.testing.assert_allclose(
        settings.fold_in(fitted, matrix[::2]).scores(users[:7]), (from_user @ into)[::2], rtol=1e-5
    )


REFERENCE = choose_settings("reference", {"model": {"dimensions": 8}, "training": {"epochs": 2, "metric": "recall@5"}})


@pytest.mark.filterwarnings("ignore:weights by the count")
def test_equal_counts_and_an_infinite_half_life_are_no_weights_and_a_row_twice_is_a_count_of_2() -> None:
    same = dataclasses.replace(data().interactions, count=np.full(len(data().interactions), 3.0))
    split = dataclasses.replace(data(), interactions=same).weighted(Weighting(function="linear", half_life="inf"))
    assert (split.log(("train", "valid")).data == 1).all()
    repeated = COUNTED.select(pl.all().exclude("count").repeat_by(pl.col("count").cast(pl.Int64)).explode())
    twice, counts = (
        each.weighted(Weighting(function="linear")) for each in (prepare(repeated, protocol="random"), counted())
    )
    assert np.array_equal(twice.train.data, counts.train.data)
    assert twice.hash == counts.hash


@pytest.mark.parametrize("preset", ["strong", "reference"])
def test_weights_change_the_lists(preset: str) -> None:
    settings = small() if preset == "strong" else REFERENCE
    run = train(counted(), choose_settings(settings, {"weights": {"function": "linear"}}), seed=3)
    plain = trained() if preset == "strong" else train(counted(), settings, seed=3)
    users = torch.arange(counted().train.shape[0])
    for name in run.heads:
        assert not torch.equal(*(each.recommender(name).scores(users) for each in (run, plain))), name
    assert not torch.equal(*(torch.as_tensor(each.best["consensus"].lists) for each in (run, plain)))


WEIGHED = LOG.draw(1).with_columns(weight=pl.int_range(pl.len()) % 4 + 0.5)
SETS = [word for name in ("dimensions=8", "training.metric=recall@5") for word in ("--set", name)]
SETS += [word for name in ("top_k", "shown") for word in ("--set", f"consensus.{name}=12")]
FAST = ("--budget", "fast", *SETS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    WEIGHED.write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def test_a_run_knows_its_weights_and_is_loaded_with_them(log: Path, tmp_path: Path, concf: CLI) -> None:
    words = ("--weights", "log", "--half-life", "60d")
    code, _, err = concf("train", log, *words, *FAST, "--out", tmp_path / "run")
    assert code == 0, err
    run, settings = load_run(tmp_path / "run"), Weighting(function="log", half_life="60d")
    assert run.settings.weights == run.data.weights == settings
    assert len(np.unique(run.log.data)) > 20
    other = train(run.data.weighted(UNWEIGHTED), run.settings, seed=0)  # the settings decide
    assert other.data.weights == settings


def test_a_rating_may_be_the_weight(log: Path) -> None:
    rated = WEIGHED.rename({"weight": "rating"})
    found = read(rated, Reading(count="rating", min_rating=2, dislike_below=1))
    plain = read(WEIGHED.filter(pl.col("weight") >= 2))
    assert np.array_equal(found.count, plain.count)
    assert found.dislikes is not None
    assert np.array_equal(read(rated, Reading(count="rating")).count, read(log).count)
    with pytest.raises(ConfigError, match="cannot be user and count at once"):
        read(rated, Reading(count="user_id"))


def test_a_comparison_weighs_every_model(tmp_path: Path) -> None:
    data = prepare(WEIGHED, protocol="random")
    options: dict[str, Any] = {"seeds": 1, "metrics": ["recall@5", "ndcg@5"], "log": tmp_path / "cells.jsonl"}
    models = ("popularity", "ease")
    plain = compare(data, models, **options)
    weighted = compare(data.weighted(Weighting(half_life="20d")), models, **options)
    figures = [
        {each.name: each.per_user["recall@5"].tolist() for each in found.entrants} for found in (plain, weighted)
    ]
    assert all(figures[0][name] != figures[1][name] for name in models)
    assert compare(data, models, **options).entrants[0].tests == plain.entrants[0].tests  # cells of both are kept apart


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none_is_refused(bad: float) -> None:
    for log in (WEIGHED.with_columns(weight=pl.lit(bad)), csr_array(np.array([[1, bad], [0, 2]]))):
        with pytest.raises(DataError, match="not a count"):
            read(log)
    with pytest.raises(DataError, match="not a time"):
        read(WEIGHED.with_columns(timestamp=pl.lit(np.inf)))


def test_weight_2_is_an_item_twice_for_the_softmax_of_a_history() -> None:
    matrix, pairs = doubled()
    row, items = np.array(pairs).T
    ends = np.searchsorted(row, np.arange(matrix.shape[0] + 1))
    twice = csr_array((np.ones(len(items), np.float32), items, ends), matrix.shape)
    solver = softmax.UserSoftmax(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), 0.3)
    assert torch.allclose(solver(matrix), solver(twice), atol=1e-5)
