"""Dislikes: observed zeros with a weight, masked with the history, and never recommended."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from small_recipe import CLI, LOG, SMALL, small

from concf.baselines.als import ALS, Pairs
from concf.baselines.ease import EASE
from concf.data.interactions import Interactions
from concf.data.parts import TRAIN
from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.validation import Validation
from concf.inference.estimator import ConCF
from concf.inference.rules import Rules
from concf.strong.combine import combine
from concf.strong.recipe import Recipe
from concf.strong.run import StrongRun

RATED = (
    LOG.draw(1)
    .unique(["user_id", "item_id"], maintain_order=True)
    .with_columns(rating=pl.int_range(pl.len()) * 7 % 5 + 1)
)


def named(log: Interactions) -> set[tuple[Any, Any]]:
    """The dislikes by their ids."""
    assert log.dislikes is not None
    users, items = log.user_ids.values[log.dislikes.user], log.item_ids.values[log.dislikes.item]
    return set(zip(users.tolist(), items.tolist(), strict=True))


def liked(log: Interactions) -> set[tuple[Any, Any]]:
    return set(zip(log.user_ids.values[log.user].tolist(), log.item_ids.values[log.item].tolist(), strict=True))


ROWS = pl.DataFrame({
    "user": ["a", "a", "a", "b", "b", "c", "c"], "item": ["x", "y", "z", "x", "y", "x", "only"],
    "stars": [5, 2, 3, 1, 4, 1, 1], "time": [1, 2, 3, 4, 5, 6, 7],
})  # fmt: skip


def test_rows_below_the_bound_are_dislikes_of_known_users_and_items(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    ROWS.write_csv(path)
    for source in (path, ROWS):
        log = read(source, Reading(dislike_below=3))
        assert liked(log) == {("a", "x"), ("a", "z"), ("b", "y")}
        assert named(log) == {("a", "y"), ("b", "x")}  # c likes nothing, nobody likes `only`
        assert log.statistics()["dislikes"] == 2
    both = read(ROWS, Reading(dislike_below=2, min_rating=4))
    assert (liked(both), named(both)) == ({("a", "x"), ("b", "y")}, {("b", "x")})
    twice = pl.concat([ROWS, pl.DataFrame({"user": "a", "item": "y", "stars": 5, "time": 9})], how="vertical_relaxed")
    assert named(read(twice, Reading(dislike_below=3))) == {("b", "x")}  # another row says that a likes y
    none = read(ROWS.filter(pl.col("stars") > 2), Reading(dislike_below=3))
    assert (none.dislikes, "dislikes" in none.statistics()) == (None, False)


@cache
def rated(**options: Any) -> Split:
    return prepare(RATED, protocol="random", dislike_below=2, **options)


def test_dislikes_outlive_filters_and_folders(tmp_path: Path) -> None:
    whole, fewer = rated(), prepare(RATED, protocol="random", dislike_below=2, min_item=18)
    assert 0 < len(named(fewer.interactions)) < len(named(whole.interactions))
    users, items = (set(each.values.tolist()) for each in (fewer.interactions.user_ids, fewer.interactions.item_ids))
    assert named(fewer.interactions) == {(u, i) for u, i in named(whole.interactions) if u in users and i in items}
    fewer.save(tmp_path / "data")
    loaded = Split.load(tmp_path / "data")
    assert named(loaded.interactions) == named(fewer.interactions)
    assert (loaded.disliked != fewer.disliked).nnz == 0
    (tmp_path / "data" / "disliked_item.npy").unlink()
    with pytest.raises(DataError, match=r"disliked_item.npy is missing"):
        Split.load(tmp_path / "data")


@pytest.mark.parametrize("protocol", ["time", "leave-last"])
def test_a_split_by_time_knows_no_dislike_of_the_future(protocol: str) -> None:
    split = prepare(RATED.with_columns(pl.col("timestamp") // 1_000_000), protocol=protocol, dislike_below=2)
    log = split.interactions
    assert log.dislikes is not None
    assert split.disliked is not None
    held_out, known = split.parts != TRAIN, split.disliked.toarray() > 0
    for u, i, time in zip(*log.dislikes, strict=True):  # type: ignore[arg-type]
        rows = held_out & ((log.user == u) | (protocol == "time"))
        assert known[u, i] == (not rows.any() or time < log.timestamp[rows].min())  # type: ignore[index]
    assert 0 < split.disliked.nnz < len(log.dislikes.user)


def test_evaluation_and_training_mask_dislikes() -> None:
    split = rated()
    for on in ("valid", "test"):
        assert split.disliked is not None
        assert (split.seen(on) > 0).multiply(split.disliked).nnz == split.disliked.nnz
        assert split.seen(on).nnz == split.train.nnz + split.disliked.nnz + (split.valid.nnz if on == "test" else 0)
    assert prepare(RATED.drop("rating"), protocol="random").disliked is None


def test_als_fits_dislikes_as_zeros_with_their_weight() -> None:
    split = rated()
    assert split.disliked is not None
    for weight in (1.0, 5.0):
        settings = small().model_copy(update={"weights": small().weights.model_copy(update={"dislike": weight})})
        recipe = Recipe(StrongRun(split, settings, 0, torch.device("cpu")))
        pairs = recipe._pairs(split.train)
        found = {(int(u), int(i)): (float(w), float(t)) for u, i, w, t in zip(*pairs, strict=True)}
        expected = {(int(u), int(i)): (1.0, 1.0) for u, i in zip(*split.train.nonzero(), strict=True)}
        expected |= {(int(u), int(i)): (weight, 0.0) for u, i in zip(*split.disliked.nonzero(), strict=True)}
        assert found == expected
    scores = []
    for some in (pairs, Pairs.observed(split.train, torch.device("cpu"))):
        als = ALS(some, split.train.shape, 8)
        user, item = als.fit(als.start(0), 0.05, 0.01, 4)
        scores.append((user @ item.T)[torch.from_numpy(split.disliked.toarray() > 0)].mean())
    assert scores[0] < 0.5 * scores[1]


@pytest.mark.parametrize("preset", ["strong", "reference"])
def test_a_dislike_is_never_recommended(preset: str) -> None:
    changes: dict[str, Any] = SMALL if preset == "strong" else {
        "model": {"dimensions": 8}, "training": {"epochs": 2, "metric": "recall@5"}, "consensus": {"shown": 12},
    }  # fmt: skip
    model, dislikes = ConCF(preset, seed=3, **changes).fit(rated()), named(rated().interactions)
    assert len(dislikes) > 100
    for name in model.run.rows():
        for viewed in (True, False):
            k = 12 if name in ("consensus", "R-consensus") else 40
            lists = model.recommend(None, k=k, by=name, rules=Rules(filter_viewed=viewed))
            assert not dislikes & set(lists.select("user_id", "item_id").rows()), (name, viewed)
    user, item = min(dislikes)
    history = [int(model.run.data.interactions.item_ids.values[0])]
    assert item not in model.recommend(user, k=40, history=history, by=model.run.best_head())["item_id"].to_list()


def test_a_combined_run_lists_no_dislikes() -> None:
    split = rated()
    run = combine(split, {"ease": EASE(regularisation=50.0).fit(split.train)}, settings=SMALL, seed=3)
    for user, items in enumerate(run.best["consensus"].lists.tolist()):
        assert not {item for item in items if item >= 0} & set(split.disliked[[user]].indices.tolist())


def test_what_makes_no_sense_is_refused(tmp_path: Path, concf: CLI) -> None:
    given_parts: dict[str, Any] = {"protocol": "given", "valid": 0.1, "test": RATED}
    for log, options in ((RATED, {"dislikes": RATED}), (RATED.drop("rating"), {}), (RATED, given_parts)):
        with pytest.raises((ConfigError, DataError), match="dislike_below="):
            prepare(log, dislike_below=2, **options)
    RATED.write_csv(tmp_path / "log.csv")
    words = ("prepare", tmp_path / "log.csv", "--out", tmp_path / "data", "--json", "--dislike-below")
    assert concf(*words, 4, "--min-rating", 2)[0] == 2  # a row cannot be both
    assert not (tmp_path / "data").exists()
    code, out, err = concf(*words, 2)
    assert code == 0, err
    assert json.loads(out)["dislikes"] == len(named(Split.load(tmp_path / "data").interactions)) > 0


def test_a_search_measures_lists_without_dislikes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every voter, as the lists that are recommended."""
    split, settings, listed = rated(), small(budget="thorough"), []
    disliked, figure = torch.from_numpy(split.disliked.toarray()), Validation.of_its_users  # type: ignore[union-attr]

    def measure(self: Validation, lists: torch.Tensor) -> float:
        listed.append(disliked[self.users].gather(1, lists.long()).sum())
        return figure(self, lists)

    monkeypatch.setattr(Validation, "of_its_users", measure)
    recipe = Recipe(StrongRun(split, settings, 0, torch.device("cpu")))
    for number in range(3):  # search, als, softmax-a
        recipe.stage(number)
    assert {"rp3beta", "userknn", "ease", "als-b", "softmax-a"} <= recipe.chosen.keys()
    assert sum(listed) == 0
