"""`concf.ConCF`: the same log in any form gives the same lists, and the folder it leaves is a run like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_run import CLI

import concf as library
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.evaluation.scorers import Factors

Model = library.ConCF
TINY: dict[str, Any] = {
    "objectives": ["bpr", "cml", "multinomial"],
    "model": {"dimensions": 8, "initial_std": 0.5},
    "training": {"epochs": 2, "metric": "recall@5"},
    "consensus": {"every": 1, "window": 2, "shown": 15},
}
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1).select("user_id", "item_id")


def tiny(**settings: Any) -> Model:
    return Model("reference", **(TINY | {"device": "cpu"} | settings))


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny().fit(LOG)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["pandas", "split"])
def test_the_same_log_in_another_form_gives_the_same_lists(model: Model, form: str) -> None:
    divided: dict[str, Any] = {"protocol": "random", "valid": 0.1, "test": 0.1, "at_least": 1, "min_item": 5}
    found = tiny().fit(LOG.to_pandas() if form == "pandas" else prepare(LOG, **divided))
    assert found.run.data.hash == model.run.data.hash
    assert type(found.recommend(k=7)).__module__.partition(".")[0] == ("pandas" if form == "pandas" else "polars")
    assert found.recommend(k=7, frame="polars").equals(model.recommend(k=7))


def test_a_list_may_be_asked_to_be_longer_than_the_catalogue() -> None:
    wide = tiny(consensus=TINY["consensus"] | {"shown": 40}).fit(LOG)
    assert wide.recommend(k=99).equals(wide.recommend(k=40))


def test_a_folder_with_data_is_refused_and_left(model: Model, concf: CLI, tmp_path: Path) -> None:
    prepare(LOG.head(500), protocol="random", out=tmp_path / "data")  # a run on other data would find these first
    LOG.write_csv(tmp_path / "data" / "log.csv")
    before = files(tmp_path)
    for ask in (lambda: model.save(tmp_path), lambda: tiny().fit(LOG, out=tmp_path)):
        with pytest.raises(ConfigError, match="left alone"):
            ask()
    assert concf("train", tmp_path / "data" / "log.csv", "--out", tmp_path)[0] == 2
    assert files(tmp_path) == before


def test_a_tenth_is_held_out_to_stop_by_and_rare_items_are_left_out(model: Model) -> None:
    data = model.run.data
    assert (data.recipe.protocol.name, data.recipe.protocol.valid, data.recipe.protocol.test) == ("random", 0.1, 0.1)
    sizes = data.interactions.per_user()[data.evaluated]
    assert data.counts()["test"] == data.counts()["valid"] == np.maximum(sizes // 10, 1).sum()
    rare = pl.concat([LOG, pl.DataFrame({"user_id": [0, 1, 2, 3], "item_id": [77] * 4})])
    assert 77 not in tiny().fit(rare).item_ids.values
    assert 77 in tiny().fit(rare, min_item=4).item_ids.values


def test_before_anything_was_learned_it_says_what_to_do(tmp_path: Path) -> None:
    model = tiny()
    asks: list[Callable[[], Any]] = [model.recommend, model.item_factors, lambda: model.save(tmp_path / "run")]
    for ask in asks:
        with pytest.raises(ConfigError, match="nothing was learned yet"):
            ask()
    assert not (tmp_path / "run").exists()


def assert_says_the_same(found: Model, model: Model) -> None:
    for by in model.ranker.names:
        assert found.recommend(k=9, by=by).equals(model.recommend(k=9, by=by))
    items = model.item_ids.values
    few, new = {"items": items[::2], "k": 6}, {"history": items[:3], "k": 6}
    assert found.recommend(**few).equals(model.recommend(**few))
    assert found.recommend(**new).equals(model.recommend(**new))
    assert found.explain(3, items[4]) == model.explain(3, items[4])
    assert np.array_equal(found.user_factors(), model.user_factors())
    assert (found.settings, found.seed) == (model.settings, model.seed)
    assert found.run.history == model.run.history
    assert found.run.summary() == model.run.summary()


def test_saved_moved_and_loaded_it_says_the_same(concf: CLI, model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "one")
    before = files(tmp_path / "one")
    assert not [name for name in before if name.endswith((".pkl", ".pt", ".pickle"))]
    moved = Path(shutil.move(tmp_path / "one", tmp_path / "two"))
    found = Model.load(moved)
    assert_says_the_same(found, model)
    code, out, err = concf("evaluate", moved, "--at", 5, "--metrics", "recall", "--json")
    assert (code, err) == (0, "")
    expected = {name: each.means() for name, each in model.run.evaluate(at=[5], metrics=["recall"]).items()}
    assert {row["name"]: row["means"] for row in json.loads(out)["recommenders"]} == expected
    code, out, err = concf("recommend", moved, "--users", "3,8", "--json")
    assert (code, json.loads(out)) == (0, model.recommend([3, 8]).to_dicts())
    assert concf("train", "--resume", "--out", moved)[0] == 0  # finished: nothing is left to do
    assert files(moved).keys() == before.keys()
    assert isinstance(Model.load(moved, frame="pandas").recommend(3).to_dict("records"), list)


def test_similar_items(model: Model) -> None:
    ids = model.item_ids.values.tolist()
    for head in (None, "bpr"):
        scorer = model.run.recommender(head or model.run.best_head())
        assert isinstance(scorer, Factors)
        unit = torch.nn.functional.normalize(scorer.item.double(), dim=1)
        cosines = (unit @ unit.T).numpy()
        assert model.similar_items([], 4, head=head).shape == (0, 4)
        for asked, k in ((ids[7], 4), (ids[::5], 100)):
            for (one,), group in model.similar_items(asked, k, head=head).group_by("item_id", maintain_order=True):
                row = ids.index(one)
                others = np.delete(np.argsort(-cosines[row]), np.argsort(-cosines[row]).tolist().index(row))[:k]
                near = [ids.index(each) for each in group["similar_id"].to_list()]
                assert len({*near, row}) == len(others) + 1
                for listed in (near, others):  # equal but for rounding, they may change places
                    assert group["score"].to_list() == pytest.approx(cosines[row, listed], abs=1e-5)
                assert group["rank"].to_list() == list(range(1, len(others) + 1))
    with pytest.raises(ConfigError, match=r"no head is called 'consensus'.*choose from bpr, cml"):
        model.similar_items(ids[0], head="consensus")
    with pytest.raises(ConfigError, match="k = 0"):
        model.similar_items(ids[0], 0)
