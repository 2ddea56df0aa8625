"""`ConCF` as Python programs expect an estimator to be: parameters, repr, pickle, and logs in any form."""

from __future__ import annotations

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
from concf.models import choose_settings

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


def test_parameters_are_those_of_the_settings(model: Model) -> None:
    given = Model("released", seed=np.int64(3), consensus={"weight": 0.5})
    assert (given.settings, given.seed) == (choose_settings("released", {"consensus": {"weight": 0.5}}), 3)
    assert repr(given) == "ConCF('released', seed=3, consensus.weight=0.5)  # not fitted"
    log = model.run.data.interactions
    assert repr(model).endswith(f"# fitted to 30 users, {log.n_items} items and {len(log)} pairs")
    for wrong in ({"wieght": 1}, {"consensus": {"wieght": 1}}, {"seed": -1}):
        with pytest.raises(ConfigError, match=r"unknown|seed"):
            Model("released", **wrong)  # type: ignore[arg-type]


def test_a_model_is_not_pickled(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"not pickled: .* Use model.save\(folder\) and ConCF.load"):
        pickle.dumps(model)


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
