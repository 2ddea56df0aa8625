"""Numbers of the wrong type or out of range are refused in words, in every public call that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_service import run_folder

import concf as library
from concf.baselines.factorisation import Popularity
from concf.baselines.table import Candidate
from concf.data.simulate import Simulation
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.bulk import write_lists
from concf.inference.recommender import Recommender
from concf.models import train
from concf.runtime.arguments import LARGEST_SEED, check_count, check_cutoffs, check_seed

NO_INTEGERS = [2.5, "5", None, True, float("nan")]
NO_COUNTS = [*NO_INTEGERS, 0, -1]
NO_SEEDS = [*(each for each in NO_INTEGERS if each is not None), -1, LARGEST_SEED + 1, 2**70]
POPULAR = {"popular": Candidate(Popularity)}


@pytest.fixture(scope="module")
def model() -> library.ConCF:
    return library.ConCF.load(run_folder())


@pytest.mark.parametrize("kind", [int, np.int8, np.uint64, np.int64])
def test_integers_of_every_kind_are_counts_and_seeds(kind: type) -> None:
    for check in (lambda value: check_count("k", value), check_seed):
        assert type(check(kind(7))) is int
        assert check(kind(7)) == 7
    assert (check_seed(0), check_seed(LARGEST_SEED)) == (0, LARGEST_SEED)
    assert check_cutoffs("at", [kind(9), 5, kind(5)]) == [9, 5]
    assert check_cutoffs("at", kind(9)) == check_cutoffs("at", np.array([9, 9])) == [9]


@pytest.mark.parametrize("k", NO_COUNTS, ids=repr)
def test_a_length_that_is_none_is_refused_everywhere(model: library.ConCF, tmp_path: Path, k: Any) -> None:
    data = model.run.data
    asks: list[Callable[[], Any]] = [
        lambda: model.recommend(3, k), lambda: model.recommend(history=[1], k=k), lambda: model.stream([3], k),
        lambda: model.similar_items(1, k),
        lambda: write_lists(run_folder(), tmp_path / "recs", k=k, engine="processes"),
        lambda: library.rank(model.run.recommender("bpr"), np.array([0]), k),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(ConfigError, match=r"^k = .*: expected an integer"):
            ask()
    for at in (k, [5, k], []):
        with pytest.raises(ConfigError, match=r"^at = .*: expected"):
            model.run.evaluate(at=at)
    with pytest.raises(ConfigError, match=r"^seeds = .*: expected an integer"):
        library.compare(data, POPULAR, seeds=k)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", NO_SEEDS, ids=repr)
def test_a_seed_that_is_none_is_refused_everywhere(model: library.ConCF, tmp_path: Path, seed: Any) -> None:
    data, out = model.run.data, tmp_path / "out"
    asks: list[Callable[[], Any]] = [
        lambda: library.ConCF(seed=seed), lambda: train(data, seed=seed, out=out),
        lambda: library.prepare("demo", seed=seed, out=out),
        lambda: data.with_seed(seed), lambda: Simulation().draw(seed),
        lambda: library.evaluate(model.run.recommender("bpr"), data, at=5).interval("recall@5", seed=seed),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(ConfigError, match=r"^seed = .*: expected an integer"):
            ask()
    assert not list(tmp_path.iterdir())


def test_nobody_is_a_note_and_no_silence(model: library.ConCF) -> None:
    recommender = Recommender.load(run_folder(), frame="arrow")
    with pytest.warns(ConcfWarning, match="users is empty"):
        assert recommender.recommend([]).num_rows == 0
    with pytest.warns(ConcfWarning, match="items is empty"):
        assert recommender.similar_items(np.array([], np.int64)).num_rows == 0


def test_bytes_are_no_ids(model: library.ConCF) -> None:
    asked: list[dict[str, Any]] = [{"users": [b"1"]}, {"users": 1, "exclude": b"1"}, {"history": {b"new": [1]}}]
    for options in asked:
        with pytest.raises(DataError, match=r"is of type bytes.*Decode it"):
            model.recommend(**options)
