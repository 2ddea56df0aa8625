"""`ConCF` as Python programs expect an estimator to be: parameters, clone, repr, pickle, and logs in any form."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import coo_array

import concf as library
from concf.data.simulate import Simulation
from concf.errors import ConfigError, DataError
from concf.models import PRESETS, choose_settings

Model = library.ConCF
TINY: dict[str, Any] = {
    "device": "cpu",
    "objectives": ["bpr", "cml"],
    "model": {"dimensions": 4},
    "training": {"epochs": 1, "metric": "recall@5"},
    "consensus": {"every": 1, "window": 2, "shown": 9},
}
LOG = Simulation(users=30, items=25, events=600, tastes=4).draw(1).select("user_id", "item_id")
USERS, ITEMS = LOG["user_id"].to_list(), LOG["item_id"].to_list()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("reference", **TINY).fit(LOG)


def clone(estimator: Any) -> Any:
    """As scikit-learn's: parameters are copied, and the constructor has to keep the very objects."""
    params = {name: copy.deepcopy(value) for name, value in estimator.get_params(deep=False).items()}
    made = type(estimator)(**params)
    assert all(value is params[name] for name, value in made.get_params(deep=False).items())
    assert made.get_params(deep=False).keys() == params.keys()
    return made


def test_parameters_are_those_of_the_constructor(model: Model) -> None:
    given = Model("released", seed=np.int64(3), consensus={"weight": 0.5})
    assert given.get_params(deep=False) == {
        "preset": "released", "seed": 3, "device": None, "consensus": {"weight": 0.5},
    }  # fmt: skip
    for each in (given, Model(), model):
        copied = clone(each)
        assert (copied.settings, copied.seed, copied.device) == (each.settings, each.seed, each.device)
        assert copied._ranker is None
        assert Model(**each.get_params(deep=False)).settings == each.settings


def test_parameters_are_set_for_the_next_fit() -> None:
    own = {"weight": 0.5}
    model = Model("released", consensus=own)
    assert model.set_params(seed=4, training={"epochs": 3}) is model
    assert model.settings == choose_settings("released", {"consensus": {"weight": 0.5}, "training": {"epochs": 3}})
    assert (model.seed, own) == (4, {"weight": 0.5})
    assert model.set_params(preset="paper", consensus={}).settings.consensus == PRESETS["paper"].consensus
    for wrong in ({"wieght": 1}, {"consensus": {"wieght": 1}}, {"seed": -1}):
        before = model.get_params()
        with pytest.raises(ConfigError, match=r"unknown|seed"):
            model.set_params(**wrong)
        assert model.get_params() == before


def test_a_fitted_model_is_not_pickled_and_parameters_are(model: Model) -> None:
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ConfigError, match=r"not pickled: .* Use model.save\(folder\) and ConCF.load"):
            way(model)
    twin = copy.copy(model)
    twin.set_params(seed=7)
    assert (twin.seed, model.seed, twin.run is model.run) == (7, 0, True)
    again = pickle.loads(pickle.dumps(clone(model)))  # noqa: S301
    assert again.get_params() == clone(model).get_params()


MATRIX = coo_array((np.ones(len(LOG)), (USERS, ITEMS)))
FORMS: dict[str, Callable[[], Any]] = {
    "pyarrow": LOG.to_arrow,
    "lazy polars": LOG.lazy,
    "pandas": LOG.to_pandas,
    "list of tuples": lambda: list(zip(USERS, ITEMS, strict=True)),
    "coo": lambda: MATRIX,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_in_any_form_is_the_same_log(form: str) -> None:
    found, expected = library.read(FORMS[form]()), library.read(LOG)
    assert found.fingerprint().digest() == expected.fingerprint().digest()
    assert found.count.tolist() == expected.count.tolist()


def test_further_values_of_a_tuple_are_counts_and_times() -> None:
    pairs = [("u", "a"), ("u", "b"), ("v", "a")]
    assert library.read([(*pair, 2.5) for pair in pairs]).count.tolist() == [2.5] * 3
    assert library.read([("u", "a", 2), ("u", "b", 1e9)]).count.tolist() == [2, 1e9]
    day = datetime(2024, 5, 3)
    for time in (day, "2024-05-03"):
        read = library.read([(*pair, time) for pair in pairs])
        assert (read.timestamp is not None, read.count.tolist()) == (True, [1.0] * 3)
        assert read.timestamp.tolist() == [1714694400000000] * 3
    both = library.read([(*pair, 3, 1_700_000_000) for pair in pairs])
    assert (both.count.tolist(), both.timestamp.tolist()) == ([3.0] * 3, [1_700_000_000] * 3)


BAD: dict[str, Any] = {
    "nothing": [], "one value": [("a",)], "two lengths": [("a", 1), ("a", 1, 2)], "no tuple": [("a", 1), None],
    "ids of two kinds": [("a", 1), ("a", "b")], "a fraction as id": [(1.5, 2)], "a truth as id": [(True, 2)],
    "a time as count": [("a", 1, 1.7e9), ("b", 1, 1.7e9)], "no id": [(None, 1)],
    "histories": {"alice": ["a"]}, "a dense matrix": np.ones((9, 5)),
    "bytes": pa.table({"user": [b"abc"], "item": [1]}), "any object": object(), "a column": pl.Series([1]),
    "a pair of arrays": (np.array([1, 2]), np.array([3, 4])),
    "a frame of UUIDs": pl.DataFrame({"user_id": [UUID(int=1)], "item_id": [1]}),
    "no row": pl.DataFrame({"user_id": [1], "item_id": [2], "count": [0]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_in_it_is_an_error_of_the_data(kind: str) -> None:
    with pytest.raises(DataError):
        library.read(BAD[kind])


def test_uuids_are_their_text_and_asked_for_as_they_were_given(tmp_path: Path) -> None:
    ids = [UUID(int=user + (7 << 64)) for user in USERS]
    table = pa.table({"user": pa.array([each.bytes for each in ids], pa.uuid()), "item": ITEMS})
    pq.write_table(table, tmp_path / "log.parquet")
    for log in (table, tmp_path / "log.parquet"):
        read = library.read(log)
        assert read.user_ids.values.tolist() == sorted(set(map(str, ids)))
        assert (read.item_ids.are_integers, len(read)) == (True, len(library.read(LOG)))
    model, one = Model("reference", **TINY).fit(list(zip(ids, ITEMS, strict=True))), ids[0]
    for given, text in ((one, str(one)), ([one], [str(one)])):
        assert model.recommend(given, k=4).equals(model.recommend(text, k=4))
    assert model.recommend(one, k=4)["user_id"].unique().to_list() == [str(one)]
    assert model.explain(one, ITEMS[0])["user"] == one
