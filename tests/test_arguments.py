"""Numbers of the wrong type or out of range are refused in words, in every public call that takes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import SMALL, small_data

import concf as library
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.bulk import write_lists
from concf.inference.recommender import Recommender
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.table import Candidate
from concf.runtime.arguments import LARGEST_SEED, check_count, check_cutoffs, check_seed
from concf.training.checkpoint import RunFolder
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")
NO_INTEGERS = [2.5, 5.0, "5", None, True, np.True_, [5], np.float64(5), float("nan"), 1j, b"5"]
NO_COUNTS = [*NO_INTEGERS, 0, -1, np.int64(0)]
NO_SEEDS = [*(each for each in NO_INTEGERS if each is not None), -1, LARGEST_SEED + 1, 2**70]
POPULAR = {"popular": Candidate(Popularity)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    room = tmp_path_factory.mktemp("run")
    data = Split.load(small_data(room / "data"))
    train(data, choose_settings("reference", words=(*SMALL, "training.epochs=1")), out=room / "run")
    RunFolder(room / "run").keep(data)
    return room / "run"


@pytest.fixture(scope="module")
def model(folder: Path) -> library.ConCF:
    return library.ConCF.load(folder)


@pytest.mark.parametrize("kind", [int, np.int8, np.uint64, np.int64])
def test_integers_of_every_kind_are_counts_and_seeds(kind: type) -> None:
    for check in (lambda value: check_count("k", value), check_seed):
        assert type(check(kind(7))) is int
        assert check(kind(7)) == 7
    assert (check_seed(0), check_seed(LARGEST_SEED)) == (0, LARGEST_SEED)
    assert check_cutoffs("at", [kind(9), 5, kind(5)]) == [9, 5]
    assert check_cutoffs("at", kind(9)) == check_cutoffs("at", np.array([9, 9])) == [9]


@pytest.mark.parametrize("k", NO_COUNTS, ids=repr)
def test_a_length_that_is_none_is_refused_everywhere(
    model: library.ConCF, folder: Path, tmp_path: Path, k: Any
) -> None:
    recommender, data = model, model.run.data
    asks: list[Callable[[], Any]] = [
        lambda: model.recommend(3, k), lambda: recommender.recommend(3, k), lambda: model.recommend(history=[1], k=k),
        lambda: recommender.stream([3], k), lambda: model.similar_items(1, k), lambda: model.similar_users(1, k),
        lambda: write_lists(folder, tmp_path / "recs", k=k, engine="processes"),
        lambda: library.rank(model.run.recommender("bpr"), np.array([0]), k),
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(ConfigError, match=r"^k = .*: expected an integer"):
            ask()
    for at in (k, [5, k], []):
        for measure in (model.run.evaluate, lambda at: library.evaluate(model.run.recommender("bpr"), data, at=at),
                        lambda at: library.compare(data, POPULAR, at=at, seeds=1)):  # fmt: skip
            if at == [5]:
                continue  # a list is several lengths
            with pytest.raises(ConfigError, match=r"^at = .*: expected"):
                measure(at=at)
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


def test_integers_of_numpy_are_taken(model: library.ConCF) -> None:
    assert model.recommend(3, np.int64(4)).equals(model.recommend(3, 4))  # type: ignore[arg-type]
    assert model.similar_items(1, np.uint8(4)).equals(model.similar_items(1, 4))  # type: ignore[arg-type]
    evaluations = model.run.evaluate(at=np.array([5, 9]))
    assert set(evaluations["bpr"].means()) == {"recall@5", "ndcg@5", "recall@9", "ndcg@9"}
    assert library.ConCF(seed=np.int32(4)).seed == 4  # type: ignore[arg-type]


def test_nobody_is_a_note_and_no_silence(model: library.ConCF, folder: Path, tmp_path: Path) -> None:
    recommender = Recommender.load(folder, frame="arrow")
    for nobody in ([], (), np.array([], np.int64)):
        with pytest.warns(ConcfWarning, match="no users were asked for: there is nothing to recommend"):
            assert recommender.recommend(nobody).num_rows == 0
        with pytest.warns(ConcfWarning, match="no users were asked for"):
            recommender.stream(nobody)
        with pytest.warns(ConcfWarning, match="no items were asked for: there is nothing to compare"):
            assert recommender.similar_items(nobody).num_rows == 0
        with pytest.warns(ConcfWarning, match="no users were asked for: there is nothing to compare"):
            assert model.similar_users(nobody).shape == (0, 4)
    with pytest.warns(ConcfWarning, match="no users were asked for"):
        recommender.recommend(history={})
    with pytest.warns(ConcfWarning, match="no users were asked for") as notes:
        write_lists(folder, tmp_path / "recs", [], engine="processes", workers=1)
    assert len(notes) == 1


def test_unknown_arguments_are_named_and_the_nearest_is_suggested(model: library.ConCF) -> None:
    for call, name in ((model.recommend, "recommend"), (model.stream, "stream")):
        with pytest.raises(ConfigError, match=f"{name}: unknown argument 'excludes'.* Did you mean exclude"):
            call(1, excludes=[3])
        with pytest.raises(ConfigError, match=f"{name}: unknown argument 'size'.* exclude"):  # of `blocks`
            call(1, size=3)


def test_bytes_are_no_ids(model: library.ConCF) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: model.recommend(b"1"), lambda: model.recommend([b"1"]), lambda: model.recommend(np.array([b"1"])),
        lambda: model.recommend(1, exclude=b"1"), lambda: model.recommend(1, items={b"1": [2]}),
        lambda: model.recommend(history={b"new": [1]}), lambda: model.similar_items(b"1"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DataError, match=r"b'(1|new)' is of type bytes.*Decode it"):
            call()


def test_an_empty_list_of_users_is_a_mistake(concf: Any, folder: Path) -> None:
    for users in ("", " , "):
        code, out, err = concf("recommend", folder, "--users", users)
        assert (code, out, "names no user" in err) == (2, "", True)


def test_nobody_is_a_note_on_the_command_line(concf: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nobody.txt").write_text("\n")
    for words in ([], ["--out", tmp_path / "recs.parquet"]):
        code, _, err = concf("recommend", folder, "--users", tmp_path / "nobody.txt", *words)
        assert (code, err) == (0, "note: no users were asked for: there is nothing to recommend\n")
