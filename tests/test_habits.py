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
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.sparse import coo_array

import concf as library
from concf.data.simulate import Simulation
from concf.errors import ConfigError, DataError
from concf.training.config.presets import PRESETS, choose_settings

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
IDS = {user: UUID(int=user + (7 << 64)) for user in set(USERS)}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.set_num_threads(1)
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
    assert given.get_params()["consensus__weight"] == 0.5
    assert given.get_params()["training__epochs"] == PRESETS["released"].training.epochs
    for each in (given, Model(), model):
        copied = clone(each)
        assert (copied.settings, copied.seed, copied.device) == (each.settings, each.seed, each.device)
        assert copied._ranker is None
        assert Model(**each.get_params(deep=False)).settings == each.settings


def test_parameters_are_set_for_the_next_fit() -> None:
    own = {"weight": 0.5}
    model = Model("released", consensus=own)
    assert model.set_params(seed=4, consensus__window=7, training__epochs=3) is model
    assert model.settings == choose_settings(
        "released", {"consensus": {"weight": 0.5, "window": 7}, "training": {"epochs": 3}}
    )
    assert (model.seed, own) == (4, {"weight": 0.5})
    assert model.set_params(preset="paper", consensus={}).settings.consensus == PRESETS["paper"].consensus
    for wrong in ({"consensus__wieght": 1}, {"wieght": 1}, {"consensus": {"wieght": 1}}, {"seed": -1}):
        before = model.get_params()
        with pytest.raises(ConfigError, match=r"unknown|seed"):
            model.set_params(**wrong)
        assert model.get_params() == before


def test_a_model_from_a_preset_is_that_of_the_constructor() -> None:
    made = Model.from_preset("reference", seed=2, consensus={"weight": 0.1})
    assert made.get_params() == Model("reference", seed=2, consensus={"weight": 0.1}).get_params()
    with pytest.raises(ConfigError, match="unknown preset 'refrence'; choose from paper"):
        Model.from_preset("refrence")


def test_its_text_says_what_differs_and_what_it_knows(model: Model, tmp_path: Path) -> None:
    assert repr(Model()) == "ConCF()  # not fitted"
    assert repr(Model("released", seed=3)) == "ConCF(preset='released', seed=3)  # not fitted"
    log = model.run.data.interactions
    fitted = f"fitted to {log.n_users} users, {log.n_items} items and {len(log)} pairs"
    assert repr(model).endswith(f"consensus={TINY['consensus']})  # {fitted}")
    model.save(tmp_path / "run")
    loaded = Model.load(tmp_path / "run")
    assert repr(loaded).startswith("ConCF(preset='reference', objectives=('bpr', 'cml'), model={'dimensions': 4}")
    assert clone(loaded).settings == model.settings


def test_a_fitted_model_is_not_pickled_and_parameters_are(model: Model) -> None:
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ConfigError, match=r"not pickled, since .* Use model.save\(folder\) and ConCF.load"):
            way(model)
    twin = copy.copy(model)
    twin.set_params(seed=7)
    assert (twin.seed, model.seed, twin.run is model.run) == (7, 0, True)
    again = pickle.loads(pickle.dumps(clone(model)))  # noqa: S301
    assert again.get_params() == clone(model).get_params()


class OnlyArrow:
    """What any library may have that knows Arrow: nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def histories() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for user, item in zip(USERS, ITEMS, strict=True):
        found.setdefault(user, []).append(item)
    return found


FORMS: dict[str, Callable[[], Any]] = {
    "pyarrow": LOG.to_arrow,
    "a class with the Arrow stream alone": lambda: OnlyArrow(LOG.to_arrow()),
    "lazy polars": LOG.lazy,
    "list of tuples": lambda: list(zip(USERS, ITEMS, strict=True)),
    "list of lists": lambda: [list(pair) for pair in zip(USERS, ITEMS, strict=True)],
    "list of tuples of numpy's": lambda: list(zip(LOG["user_id"].to_numpy(), LOG["item_id"].to_numpy(), strict=True)),
    "histories": histories,
    "histories of arrays": lambda: {user: np.array(items) for user, items in histories().items()},
    "dense": lambda: coo_array((np.ones(len(LOG)), (USERS, ITEMS))).toarray(),
    "dense, of whole numbers": lambda: coo_array((np.ones(len(LOG), int), (USERS, ITEMS))).toarray(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_in_any_form_is_the_same_log(form: str) -> None:
    found, expected = library.read(FORMS[form]()), library.read(LOG)
    assert found.fingerprint().digest() == expected.fingerprint().digest()
    assert found.count.tolist() == expected.count.tolist()


@pytest.mark.parametrize("form", ["a class with the Arrow stream alone", "list of tuples", "histories", "dense"])
def test_a_model_learns_from_it(model: Model, form: str) -> None:
    found = Model("reference", **TINY).fit(FORMS[form]())
    assert found.recommend(k=5).equals(model.recommend(k=5))
    new = library.prepare(FORMS[form](), protocol="random", valid=0.2, dislikes=[(USERS[0], ITEMS[0])])
    assert new.interactions.dislikes is not None


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


BAD: list[tuple[Any, str]] = [
    ([], "the list is empty; expected tuples"),
    ([("a",)], r"row 0 of the list is .* expected tuples of one length: \(user, item\)"),
    ([("a", 1), ("a", 1, 2)], "row 1 of the list is"),
    ([("a", 1), None], "row 1 of the list is 'None'"),
    ([("a", 1), ("a", "b")], "some ids are integers and others text"),
    ([(1.5, 2)], "1.5 is no id; expected integers or text"),
    ([(True, 2)], "True is no id"),
    ([("a", 1, 1.7e9), ("b", 1, 1.7e9)], r"looks like a time .* Give \(user, item, 1, time\)"),
    ([("a", 1, -1)], "not a count"),
    ([("a", 1), (None, 1)], "no user id"),
    ({}, "the dictionary has no items"),
    ({"alice": []}, "the dictionary has no items"),
    ({"alice": "abc"}, "the history of 'alice' is 'abc'; expected a list of items"),
    ({"alice": 5}, "expected a list of items"),
    ({"user_id": [1], "item_id": [2]}, "as if they were columns"),
    (np.ones((9, 2)), r"may be the rows of a log, or a matrix of 2 items. Give rows as \(array"),
    (np.ones(9), r"an array of shape \(9,\)"),
    (np.array([["a", "b", "c", "d"]]), "expected numbers"),
    (np.full((4, 5), np.nan), "not a count"),
    (np.zeros((4, 5)), "contains no interactions"),
    (pa.table({"user": [b"abc"], "item": [1]}), "no user id"),
    (object(), r"cannot read interactions from object; expected a file, .* or a dictionary \{user: \[items\]\}"),
]


@pytest.mark.parametrize(("log", "message"), BAD, ids=[str(place) for place in range(len(BAD))])
def test_a_mistake_in_it_is_said(log: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        library.read(log)


def test_training_on_what_is_not_split_says_what_to_do() -> None:
    wrong: Any = LOG
    with pytest.raises(ConfigError, match=r"expected a Split, found DataFrame. .* concf.prepare\(log\)"):
        library.train(wrong)


def as_parquet(folder: Path, users: list[UUID]) -> Path:
    table = pa.table({"user": pa.array([each.bytes for each in users], pa.uuid()), "item": ITEMS})
    pq.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


def as_csv(folder: Path, users: list[UUID]) -> Path:
    pl.DataFrame({"user": list(map(str, users)), "item": ITEMS}).write_csv(folder / "log.csv")
    return folder / "log.csv"


WITH_UUIDS: dict[str, Callable[[Path, list[UUID]], Any]] = {
    "tuples": lambda _, users: list(zip(users, ITEMS, strict=True)),
    "two lists": lambda _, users: (users, ITEMS),
    "polars": lambda _, users: pl.DataFrame({"user": users, "item": ITEMS}),
    "pandas": lambda _, users: pd.DataFrame({"user": users, "item": ITEMS}),
    "arrow": lambda _, users: pa.table({"user": pa.array([each.bytes for each in users], pa.uuid()), "item": ITEMS}),
    "parquet": as_parquet,
    "csv": as_csv,
}


@pytest.mark.parametrize("form", WITH_UUIDS)
def test_uuids_are_their_text(form: str, tmp_path: Path) -> None:
    read = library.read(WITH_UUIDS[form](tmp_path, [IDS[user] for user in USERS]))
    assert read.user_ids.values.tolist() == sorted(map(str, IDS.values()))
    assert read.item_ids.are_integers
    assert len(read) == len(library.read(LOG))


def test_uuids_are_asked_for_as_they_were_given() -> None:
    by_user = [(IDS[user], UUID(int=item)) for user, item in zip(USERS, ITEMS, strict=True)]
    model, one = Model("reference", **TINY).fit(by_user), IDS[USERS[0]]
    some = [UUID(int=ITEMS[0]), UUID(int=ITEMS[1])]
    for given, text in ((one, str(one)), ([one], [str(one)])):
        assert model.recommend(given, k=4).equals(model.recommend(text, k=4))
    assert model.recommend(one, k=4)["user_id"].unique().to_list() == [str(one)]
    assert model.recommend(history={one: some}, k=4).equals(model.recommend(history={str(one): map(str, some)}, k=4))
    assert set(model.recommend(one, items={one: some}, filter_viewed=False)["item_id"]) <= set(map(str, some))
    assert model.similar_items(some[0], k=2).equals(model.similar_items(str(some[0]), k=2))
    assert model.explain(one, some[0])["user"] == one
    catalogue = pa.table({"item": pa.array([each.bytes for each in some], pa.uuid()), "kind": ["new", "old"]})
    assert set(model.recommend(one, where="kind = 'new'", catalogue=catalogue, filter_viewed=False)["item_id"]) <= {
        str(some[0])
    }
