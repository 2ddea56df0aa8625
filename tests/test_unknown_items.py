"""Items that a run does not have are ignored and reported, or refused: in Python, on the command line, over HTTP."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from small_service import Client, loaded, run_folder

from concf.errors import ConcfWarning, DataError
from concf.inference.bulk import Part, write_lists
from concf.inference.recommender import Recommender
from concf.service.schemas import REPORTED, Lists

pytestmark = pytest.mark.usefixtures("on_one_thread")
CLI = Callable[..., tuple[int, str, str]]
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


@given(st.data())
def test_lists_of_items_are_worth_their_known_items(data: st.DataObject) -> None:
    model = model_of(data.draw(st.sampled_from(IDS)))
    items, users = model.item_ids.values.tolist(), model.user_ids.values.tolist()[:3]
    few = {user: [items[place] for place in data.draw(some_items)] for user in users}
    both = {user: mixed(data, each) for user, each in few.items()}
    name, by = data.draw(st.sampled_from(["items", "exclude"])), data.draw(st.sampled_from(["consensus", "bpr"]))
    for one, other in ((both, few), (both[users[0]], few[users[0]])):
        frame = model.recommend(users, 6, by=by, **{name: one})
        assert frame.equals(quietly(model.recommend, users, 6, by=by, **{name: other}))
        streamed = pl.concat([pl.from_arrow(table) for table in model.stream(users, 6, by=by, **{name: one})])  # type: ignore[misc]
        assert streamed.equals(frame)


@pytest.mark.parametrize("ids", IDS)
def test_what_is_ignored_is_told_once_with_its_number_and_some_names(ids: str) -> None:
    model = model_of(ids)
    a, b, c, *_ = model.item_ids.values.tolist()
    with pytest.warns(ConcfWarning) as notes:
        model.recommend(history={"n": [a, "no 1"], "m": ["no 2", "no 1", b], "o": [c]}, items=[a, b, "no 3"], k=3)
    assert [str(each.message) for each in notes] == [
        "history: 3 of 6 items are not in the log, or a filter left them out; they are ignored: 'no 1', 'no 2'",
        "items: 1 of 3 items are not in the log, or a filter left them out; they are ignored: 'no 3'",
    ]
    with pytest.warns(ConcfWarning, match=r"exclude: 9 of 9 .*: 'no 0', .*, 'no 4' and 4 more$"):
        model.recommend(exclude=[f"no {number}" for number in range(9)], k=3)
    with pytest.warns(ConcfWarning, match="history: 2 of 3 have no known item, and get the list of the average user"):
        model.recommend(history={"n": ["no 1"], "m": [a], "o": ["no 2"]})
    quietly(model.recommend, history={"n": [a], "o": []}, items=[a, b], exclude=[c])
    user = model.user_ids.values.tolist()[0]  # who has a log without a known history
    with pytest.warns(ConcfWarning) as notes:
        frame = model.recommend(user, history=["no 1"], k=3)
    assert len(notes) == 1
    assert frame.equals(model.recommend(user, history=[], k=3))


@pytest.mark.parametrize("ids", IDS)
def test_unknown_items_can_be_an_error(ids: str) -> None:
    model = model_of(ids)
    item, user = model.item_ids.values.tolist()[0], model.user_ids.values.tolist()[0]
    for stranger in STRANGE:
        words = f"no item is called {stranger!r} in the log"
        for options in ({"items": [item, stranger]}, {"exclude": {user: [stranger]}}, {"history": [item, stranger]},
                        {"history": {"n": [item], "m": [stranger]}}):  # fmt: skip
            (name, _), who = *options.items(), None if "history" in options else user
            with pytest.raises(DataError, match=f"^{name}: {re.escape(words)}"):
                model.recommend(who, unknown_items="error", **options)
            if who is not None:
                with pytest.raises(DataError, match=f"^{name}: {re.escape(words)}"):
                    model.stream(who, unknown_items="error", **options)  # before a table is asked for
        with pytest.raises(DataError, match=f"^items: {re.escape(words)}"):
            model.similar_items([item, stranger], unknown_items="error")


@pytest.mark.parametrize("ids", IDS)
def test_similar_items_of_several_and_of_one(ids: str) -> None:
    model = model_of(ids)
    a, b, *_ = model.item_ids.values.tolist()
    with pytest.warns(ConcfWarning, match=r"items: 2 of 4 items .*: 'x', 777777$"):
        frame = model.similar_items([a, "x", 777777, b], 4)
    assert frame.equals(quietly(model.similar_items, [a, b], 4))
    listed, scores = model.similar_items([a, "x", b], 4, frame="arrays")
    wanted, figures = model.similar_items([a, b], 4, frame="arrays")
    assert (listed.dtype, scores.dtype) == (wanted.dtype, figures.dtype)
    assert (listed[[0, 2]].tolist(), scores[[0, 2]].tolist()) == (wanted.tolist(), figures.tolist())
    assert (listed[1].tolist(), set(scores[1])) == ([-1 if ids == "integers" else None] * 4, {-np.inf})
    assert len(model.similar_items(["x"], 4)) == 0
    for policy in ("ignore", "error"):
        with pytest.raises(DataError, match="items: no item is called 'x' in the log"):
            model.similar_items("x", 4, unknown_items=policy)


def test_the_command_line_ignores_and_tells(concf: CLI, tmp_path: Path) -> None:
    model, folder = model_of("integers"), run_folder()
    (tmp_path / "some.txt").write_text("1\n2\nx\n999\n5\n")
    for words, note, options in (
        (["--items", tmp_path / "some.txt"], "items: 2 of 5 items", {"items": [1, 2, 5]}),
        (["--exclude", "1,many"], "exclude: 1 of 2 items", {"exclude": [1]}),
    ):
        for out in (["--json"], ["--out", tmp_path / "recs.parquet"]):
            code, out_text, err = concf("recommend", folder, "--users", "3,8", "-k", 5, *words, *out)
            assert code == 0
            assert err.startswith(f"note: {note} are not in the log, or a filter left them out; they are ignored: ")
            assert err.count("\n") == 1
            rows = pl.read_json(out_text.encode()) if out == ["--json"] else pl.read_parquet(tmp_path / "recs.parquet")
            wanted = model.recommend([3, 8], 5, **options)  # type: ignore[arg-type]
            assert rows["item_id"].to_list() == wanted["item_id"].to_list()
        code, out_text, err = concf("recommend", folder, "--users", "3,8", *words, "--unknown-items", "error")
        assert (code, out_text, "no item is called" in err) == (2, "", True)


def test_several_workers_ignore_and_tell_once(concf: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = run_folder(), tmp_path / "recs"
    monkeypatch.setattr("concf.inference.bulk.parts_of", lambda *_: [Part(0, 15), Part(15, 40)])
    words = ("recommend", folder, "-k", 5, "--items", "1,2,3,x", "--engine", "processes", "--workers", 1, "--out", out)
    code, _, err = concf(*words)
    assert (code, err.count("note: items: 1 of 4 items"), err.count("\n")) == (0, 1, 1)
    assert len(list(out.iterdir())) == 2
    wanted = model_of("integers").recommend(k=5, items=[1, 2, 3])
    assert pl.read_parquet(out)["item_id"].to_list() == wanted["item_id"].to_list()
    with pytest.raises(DataError, match="items: no item is called 'x'"):
        write_lists(folder, tmp_path / "none", engine="processes", items=[1, "x"], unknown_items="error")
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module", params=IDS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(loaded(run_folder(request.param))) as client:
        yield client


def posted(client: Client, **body: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConcfWarning)  # a service has nobody to warn
        answer = client.post("/recommend", body)
    assert answer.status_code == 200, answer.text
    TypeAdapter(Lists).validate_json(answer.content, strict=True)
    return json.loads(answer.content, object_hook=lambda fields: SimpleNamespace(**fields))


def test_a_history_with_unknown_items_is_answered(client: Client) -> None:
    a, b, c, *_ = client.service.model.recommender.item_ids.values.tolist()
    for by in ("consensus", "bpr"):
        wanted = posted(client, history=[a, b], by=by, exclude=[c])
        body = posted(client, history=[*STRANGE_IDS, a, "x", b], by=by, exclude=["y", c])
        assert wanted.unknown_items == wanted.lists[0].unknown_items == []
        assert (body.unknown_items, body.lists[0].unknown_items) == (["y"], STRANGE_IDS)
        assert body.lists[0].items == wanted.lists[0].items
        assert f"{len(STRANGE_IDS) + 1} unknown items were ignored" in str(body.note)
        assert "ignored" not in str(wanted.note)


def test_one_bad_history_fails_no_other(client: Client) -> None:
    model = client.service.model.recommender
    a, b, *_ = model.item_ids.values.tolist()
    user = str(model.user_ids.values.tolist()[0])
    good = posted(client, histories={"n": [a], "o": [], "p": [b], user: []}, k=4)
    body = posted(client, histories={"n": [a, "x"], "o": ["x", "y"], "p": [b], user: ["z"]}, k=4)
    assert [each.items for each in body.lists] == [each.items for each in good.lists]
    assert [each.unknown_items for each in body.lists] == [["x"], ["x", "y"], [], ["z"]]
    assert (body.unknown_items, "4 unknown items" in str(body.note)) == ([], True)
    for each in (body, good):
        assert "1 of 4 histories have no known item: the list of the average user" in str(each.note)


def test_lists_for_everyone_and_by_user_are_reported_apart(client: Client) -> None:
    model = client.service.model.recommender
    (one, two), items = model.user_ids.values.tolist()[:2], model.item_ids.values.tolist()
    wanted = posted(client, users=[one, two], by="bpr", items=items[:9], exclude={str(one): items[:4]})
    body = posted(
        client, users=[one, two], by="bpr", items=["x", *items[:9]], exclude={str(one): [*items[:4], "y", 5_000]}
    )
    assert [each.items for each in body.lists] == [each.items for each in wanted.lists]
    assert (body.unknown_items, [each.unknown_items for each in body.lists]) == (["x"], [["y", 5_000], []])
    assert posted(client, users=[one], items=["x"]).lists[0].items == []  # only what is not there may be shown


def test_so_many_are_named_and_no_more(client: Client) -> None:
    body = posted(client, history=[f"no {number}" for number in range(100)] * 2)
    assert body.lists[0].unknown_items == [f"no {number}" for number in range(REPORTED)]
    assert "100 unknown items were ignored" in str(body.note)
