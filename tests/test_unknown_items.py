"""Items that a run does not have are ignored and reported: in Python, on the command line, over HTTP."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from small_run import CLI
from small_service import Client, loaded, run_folder

from concf.errors import ConcfWarning, DataError
from concf.inference.recommender import Recommender
from concf.service.schemas import Lists

STRANGE: list[Any] = [999, "x", -7, 2**70, None, 1.0, True, float("nan"), (1, 2)]
STRANGE_IDS = [999, "x", -7, 10**30, "", "名"]  # what JSON has
IDS = ("integers", "text")
some_items = st.lists(st.integers(0, 29), max_size=8)
strangers = st.lists(st.sampled_from(STRANGE), max_size=4)


@cache
def model_of(ids: str) -> Recommender:
    return Recommender.load(run_folder(ids), frame="polars")


def quietly(ask: Callable[..., Any], *words: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConcfWarning)
        return ask(*words, **options)


def mixed(data: st.DataObject, known: list[Any]) -> list[Any]:
    """Known items, in their order, among unknown ones."""
    both = [*known, *data.draw(strangers)]
    order = data.draw(st.permutations(range(len(both))))
    return [both[place] for place in order]


@settings(max_examples=20)
@given(st.data())
def test_a_history_is_worth_its_known_items(data: st.DataObject) -> None:
    model = model_of(data.draw(st.sampled_from(IDS)))
    items, by = model.item_ids.values.tolist(), data.draw(st.sampled_from(["consensus", "R-consensus", "bpr", "cml"]))
    few = [[items[place] for place in data.draw(some_items)] for _ in range(4)]
    given_ones = [mixed(data, each) for each in few]
    names = [f"new {number}" for number in range(3)]
    histories, known = (dict(zip(names, each, strict=False)) for each in (given_ones, few))
    for one, other in ((given_ones[0], few[0]), (histories, known)):
        for name in (None, "exclude", "items"):
            lists: dict[str, Any] = {} if name is None else {name: given_ones[3]}
            clean: dict[str, Any] = {} if name is None else {name: few[3]}
            frame = model.recommend(history=one, k=6, by=by, **lists)
            assert frame.equals(quietly(model.recommend, history=other, k=6, by=by, **clean))


def test_similar_items_of_several_and_of_one() -> None:
    model = model_of("integers")
    a, b, *_ = model.item_ids.values.tolist()
    with pytest.warns(ConcfWarning, match="items: 2 of 4 items"):
        frame = model.similar_items([a, "x", 777777, b], 4)
    assert frame.equals(quietly(model.similar_items, [a, b], 4))
    listed, scores = model.similar_items([a, "x", b], 4, frame="arrays")
    assert (listed[1].tolist(), set(scores[1])) == ([-1] * 4, {-np.inf})
    with pytest.raises(DataError, match="items: no item is called 'x'"):
        model.similar_items("x", 4)


def test_the_command_line_ignores_and_tells(concf: CLI) -> None:
    words = ("recommend", run_folder(), "--users", "3,8", "-k", 5, "--exclude", "1,many", "--json")
    code, out, err = concf(*words)
    assert (code, err.count("\n"), err.startswith("note: exclude: 1 of 2 items are unknown")) == (0, 1, True)
    wanted = model_of("integers").recommend([3, 8], 5, exclude=[1])
    assert pl.read_json(out.encode())["item_id"].to_list() == wanted["item_id"].to_list()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(loaded(run_folder("text"))) as client:
        yield client


def posted(client: Client, **body: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConcfWarning)  # a service has nobody to warn
        answer = client.post("/recommend", body)
    assert answer.status_code == 200, answer.text
    TypeAdapter(Lists).validate_json(answer.content, strict=True)
    return json.loads(answer.content, object_hook=lambda fields: SimpleNamespace(**fields))


def test_one_bad_history_fails_no_other(client: Client) -> None:
    model = client.service.model.recommender
    a, b, c, *_ = model.item_ids.values.tolist()
    user = str(model.user_ids.values.tolist()[0])
    good = posted(client, histories={"n": [a], "o": [], "p": [b], user: []}, k=4, exclude=[c])
    body = posted(client, histories={"n": [a, "x"], "o": STRANGE_IDS, "p": [b], user: ["z"]}, k=4, exclude=["y", c])
    assert [each.items for each in body.lists] == [each.items for each in good.lists]
    assert [each.unknown_items for each in body.lists] == [["x"], STRANGE_IDS, [], ["z"]]
    assert (good.unknown_items, body.unknown_items) == ([], ["y"])
    assert "exclude: 1 of 2 items are unknown" in str(body.note)
    assert posted(client, users=[user], items=["x"]).lists[0].items == []  # only what is not there may be shown
