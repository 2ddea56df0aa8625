"""New items by their attributes: the map against a literal regression, what lists they join, and what says nothing."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from small_catalogue import ITEMS, NEW, catalogue, log, noise, trained
from small_recipe import CLI

from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.new_items import PENALTIES, SHRINKAGE, FeatureMap, features_of
from concf.inference.ranker import Ranker, evaluate_new
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.inference.titles import Catalogue
from concf.models import load_run

pytestmark = pytest.mark.filterwarnings("ignore::concf.errors.ConcfWarning")
ARRAYS = np.random.default_rng(2)


def with_items(frame: Any = None) -> Recommender:
    return Recommender(trained()).add_items(catalogue() if frame is None else frame)


def rows(model: Recommender, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = model.recommend(frame="arrow", **options).to_pylist()
    return found


def test_map_is_a_literal_ridge_regression() -> None:
    """The normal equations of rows that are weighted by the root of their trust; the intercept has no penalty."""
    x, v, trust = ARRAYS.random((30, 4)), ARRAYS.random((30, 3)), ARRAYS.random(30)
    trust[25:] = 0
    learned = FeatureMap(csr_array(x), trust, trust, 0.7, 0.0)
    root = np.sqrt(trust)[:, None]
    design = np.column_stack([x, np.ones(30)]) * root
    penalised = np.vstack([design, np.sqrt(0.7) * np.eye(4, 5)])
    solution = np.linalg.lstsq(penalised, np.vstack([v * root, np.zeros((4, 3))]), rcond=None)[0]
    assert learned.vectors(v) == pytest.approx(np.column_stack([x, np.ones(30)]) @ solution)


def test_penalty_is_the_one_that_predicts_held_out_items_best() -> None:
    x = ARRAYS.normal(size=(60, 5))
    v = x @ ARRAYS.normal(size=(5, 2)) + ARRAYS.normal(size=(60, 2))
    trust = np.ones(60)
    learned = FeatureMap.learn(csr_array(x), trust, trust, [v])
    assert learned is not None
    fold, errors = np.random.default_rng(0).permutation(60) % 5, []
    for penalty in PENALTIES:
        error = 0.0
        for f in range(5):
            some = np.where(fold == f, 0.0, 1.0)
            predicted = FeatureMap(csr_array(x), some, some, penalty, 0.0).vectors(v)
            error += sum(float(((v[i] - predicted[i]) ** 2).sum()) for i in range(60) if fold[i] == f)
        errors.append(error)
    assert learned.penalty == PENALTIES[int(np.argmin(errors))]
    mean = sum(float(((v[i] - v[fold != fold[i]].mean(0)) ** 2).sum()) for i in range(60))
    assert learned.explained == pytest.approx(1 - min(errors) / mean)


def test_vectors_move_from_the_map_to_the_items_own_with_their_users() -> None:
    model, plain = with_items(), Recommender(trained())
    new = model.ranker.new
    assert new is not None
    uses = np.bincount(trained().log.indices, minlength=ITEMS)
    for head in model.ranker.heads:
        own, item = plain.ranker.factors(head).item.double().numpy(), model.ranker.factors(head).item.numpy()
        said = new.map.vectors(own)
        for i in range(ITEMS):
            share = uses[i] / (uses[i] + SHRINKAGE)
            assert item[i] == pytest.approx(share * own[i] + (1 - share) * said[i], abs=1e-5)
        assert item[ITEMS:] == pytest.approx(said[ITEMS:], abs=1e-5)


def test_new_items_are_recommended_to_those_who_like_their_kind() -> None:
    model = with_items()
    assert len(model.item_ids) == ITEMS + NEW
    for by in model.ranker.names:
        found = [row for row in rows(model, k=10, by=by) if row["item_id"] >= ITEMS]
        assert len(found) > 20, by
        assert np.mean([row["item_id"] % 4 == row["user_id"] % 4 for row in found]) > 0.9
    assert {row["similar_id"] % 4 for row in model.similar_items(ITEMS, 5).to_dicts()} == {0}


def test_new_items_are_recommended_to_histories_and_may_be_in_them() -> None:
    model = with_items()
    for history in ([1, 5, 9, 13], [1, 5, 9, ITEMS + 1]):
        items = [row["item_id"] for row in rows(model, k=14, history=history)]
        assert any(item >= ITEMS and item % 4 == 1 for item in items)
        assert not set(items) & set(history)


def test_new_items_come_at_the_rank_that_the_best_head_gives_them() -> None:
    model, plain = with_items(), Recommender(trained())
    for by in ("consensus", "R-consensus"):
        for user in range(0, 60, 7):
            head = [row["item_id"] for row in rows(model, users=[user], k=8, by=trained().best_head())]
            agreed = iter([row["item_id"] for row in rows(plain, users=[user], k=8, by=by)])
            found = rows(model, users=[user], k=8, by=by)
            assert [row["item_id"] for row in found] == [item if item >= ITEMS else next(agreed) for item in head]
            scores = [row["score"] for row in found]
            assert scores == sorted(scores, reverse=True)
            for kind in (True, False) if by == "consensus" else ():  # held-out items of the log lie between
                items = [row["item_id"] for row in found if (row["item_id"] >= ITEMS) == kind]
                ranks = [model.explain(user, item)["rank"] for item in items]
                assert all(one < two for one, two in pairwise(ranks))  # type: ignore[operator]


def test_attributes_that_say_nothing_change_nothing() -> None:
    plain = Recommender(trained())
    with pytest.warns(ConcfWarning, match="8 new items are left out"):
        model = Recommender(trained()).add_items(noise())
    assert len(model.item_ids) == ITEMS
    for by in model.ranker.names:
        assert rows(model, k=10, by=by) == rows(plain, k=10, by=by)


def test_a_catalogue_without_new_items_leaves_the_consensus_as_it_is() -> None:
    model, plain = with_items(frame=catalogue(ITEMS)), Recommender(trained())
    assert rows(model, k=10) == rows(plain, k=10)


def test_rules_see_new_items() -> None:
    model, frame = with_items(), catalogue()
    found = rows(model, k=3, by="student", rules=Rules(frame, f"item >= {ITEMS} and kind = 'jazz'"))
    assert {row["item_id"] for row in found} == {ITEMS + 1, ITEMS + 5}
    assert not [row for row in rows(model, k=10, exclude=list(range(ITEMS, ITEMS + NEW))) if row["item_id"] >= ITEMS]
    assert {row["item_id"] for row in rows(model, k=3, items=[ITEMS + 2])} == {ITEMS + 2}


def test_items_without_a_row_keep_their_vectors_and_odd_ones_are_ignored() -> None:
    frame = catalogue().filter(pl.col("item") % 5 != 0).with_columns(pl.col("item").cast(pl.String))
    odd = pl.DataFrame({"item": ["x", None], "kind": ["jazz", "jazz"], "title": ["", ""], "price": [1.0, float("inf")]})
    with pytest.warns(ConcfWarning, match="attributes for"):
        model = with_items(frame=pl.concat([frame, odd]))
    plain = Recommender(trained())
    assert len(model.item_ids) == ITEMS + sum(n % 5 != 0 for n in range(ITEMS, ITEMS + NEW))
    own = model.ranker.factors("student").item[:ITEMS:5]
    assert own.numpy() == pytest.approx(plain.ranker.factors("student").item[::5].numpy())
    assert torch.isfinite(model.ranker.factors("student").item).all()


def test_features_are_numbers_categories_and_words() -> None:
    day = pl.Series(["2020-01-01", "2020-01-03", None, "2020-01-02"]).str.to_date()
    frame = pl.DataFrame(
        {
            "name": ["Red wine", "red  Beer", "", None],
            "tags": [["a", "b"], ["a"], [], None],
            "on": [True, False, True, True],
            "price": [1.0, 3.0, None, float("inf")],
            "same": [5.0, 5.0, 5.0, 5.0],
            "day": day,
        }
    )
    features = features_of(frame, np.array([True, True, True, False])).toarray()
    on, price, since = features[:, 0], features[:, 1], features[:, 2]
    assert price.tolist() == [-1, 1, 0, 0]
    assert since.tolist() == [-1, 1, 0, 0]
    assert on[0] == on[2] == on[3] > 0 > on[1]
    words = [[1, 1, 1], [1, 1, 0], [0, 0, 1], [0, 0, 1]]  # red, a, true: in two trained items
    assert features[:, 3:].tolist() == words


def test_bad_catalogues_are_refused() -> None:
    for frame, message in (
        (pl.DataFrame({"name": ["a"]}), "no column for the item"),
        (pl.DataFrame({"item": [900], "kind": ["jazz"]}), "none of its items is in the log"),
        (pl.DataFrame({"item": [70, 70, 2], "kind": ["a", "b", "a"]}), "1 items have rows that differ"),
        (5, "expected a file or a frame"),
        ("nowhere.csv", "nowhere.csv"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            Recommender(trained()).add_items(frame)
    assert len(with_items().add_items(catalogue(ITEMS + 1)).item_ids) == ITEMS + 1  # another begins from the log again


def test_new_items_are_measured_as_items_that_were_held_out() -> None:
    run = trained("strong", "new-items")
    figures = evaluate_new(Recommender(run).add_items(catalogue()).ranker, at=[3], metrics=["recall"])
    with pytest.warns(ConcfWarning, match="metrics are at chance level"):
        without = run.evaluate(at=[3], metrics=["recall"])
    new = np.flatnonzero(run.data.candidates("test"))  # type: ignore[arg-type]
    for name in run.rows():
        assert set(np.unique(figures[name].lists)) <= {-1, *new.tolist()}
        assert figures[name].means()["recall@3"] > without[name].means()["recall@3"] + 0.2


def test_command_line(concf: CLI, tmp_path: Path) -> None:
    log().write_csv(tmp_path / "log.csv")
    catalogue().write_parquet(tmp_path / "items.parquet")
    small = ["--set", "dimensions=8", "--set", "training.metric=recall@5"]
    run, data = str(tmp_path / "run"), str(tmp_path / "data")
    words = ["--protocol", "new-items", "--test", "0.2", "--out", data]
    assert concf("prepare", tmp_path / "log.csv", *words)[0] == concf("train", data, "--out", run, *small)[0] == 0
    items = ["--catalogue", str(tmp_path / "items.parquet")]
    code, out, _ = concf("evaluate", run, *items, "--at", "3", "--json")
    assert code == 0
    figures = {each["name"]: each["means"]["recall@3"] for each in json.loads(out)["recommenders"]}
    assert figures["student"] > 0.3
    code, out, _ = concf("recommend", run, *items, "--new-items", "--users", "1,2", "--json")
    assert code == 0
    assert any(row["item_id"] >= ITEMS for row in json.loads(out))
    parts = ["--engine", "processes", "--workers", "1", "--out", str(tmp_path / "lists")]
    assert concf("recommend", run, *items, "--new-items", *parts)[0] == 0
    assert concf("recommend", run, *items, "--new-items", "--out", str(tmp_path / "one.parquet"))[0] == 0
    assert pl.read_parquet(tmp_path / "lists").equals(pl.read_parquet(tmp_path / "one.parquet"))
    code, out, _ = concf("export", run, *items, "--to", "npz", "--out", str(tmp_path / "vectors.npz"), "--json")
    assert (code, json.loads(out)["new_items"] > 0) == (0, True)
    ranker = Ranker(load_run(run), items=Catalogue(tmp_path / "items.parquet"))
    with np.load(tmp_path / "vectors.npz") as file:
        assert file["item_ids"].tolist() == ranker.item_ids.values.tolist()
        assert np.array_equal(file["item_vectors"], ranker.vectors("student")[1])
    code, _, error = concf("recommend", run, "--new-items")
    assert (code, "--catalogue" in error) == (2, True)
