"""What is served is what the library recommends: the short ways against the long ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from small_service import SHOWN, Client, loaded, problem, run_folder, segment

from concf.evaluation.scorers import Factors
from concf.inference.ranker import highest
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.service.schemas import Lists, UserList

Listed = list[tuple[Any, int, float]]


@pytest.fixture(scope="module", params=["integers", "text"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(loaded(run_folder(request.param))) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: Client) -> Recommender:
    return client.service.model.recommender


def everyone(model: Recommender) -> list[Any]:
    return list(model.user_ids.values.tolist())


def expected(model: Recommender, user: Any, k: int, by: str | None = None, **options: Any) -> Listed:
    frame = model.recommend([user], k, by=by, frame="polars", **options)
    return list(frame.select("item_id", "rank", "score").iter_rows())


def ranked(ids: Any, scores: Any) -> Listed:
    return list(zip(ids.tolist(), range(1, len(ids) + 1), scores.tolist(), strict=True))


def assert_same(items: list[dict[str, Any]], wanted: Listed) -> None:
    assert [(each["item"], each["rank"]) for each in items] == [each[:2] for each in wanted]
    assert [each["score"] for each in items] == pytest.approx([each[2] for each in wanted], rel=0, abs=1e-6)


@given(st.data())
def test_the_highest_are_those_of_a_sort(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 90))
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, float(n)]), min_size=n, max_size=n))
    hidden = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    k = data.draw(st.integers(1, n + 3))
    scores: NDArray[np.float32] = np.array(values, np.float32)
    wanted = sorted(set(range(n)) - set(hidden), key=lambda place: (-values[place], place))[:k]
    items, best = highest(scores, k, np.array(hidden, np.int64))
    assert items.tolist() == wanted
    assert best.tolist() == [values[place] for place in wanted]


def test_an_id_is_found_where_it_stands_and_nowhere_else(model: Recommender) -> None:
    for place, user in enumerate(everyone(model)):
        assert model.user_ids.place(user) == place
        assert model.user_ids.place(str(user) if isinstance(user, int) else 5) == -1
    for stranger in (10**30, -1, 1.0, True, None, "", "zzz", chr(0x10FFFF), b"5", [1]):
        assert model.user_ids.place(stranger) == -1


def test_every_user_gets_what_the_library_recommends(client: Client, model: Recommender) -> None:
    for by in model.ranker.names:
        for k, some in ((10, slice(None, None, 4)), (SHOWN, slice(5, 7))):
            for user in everyone(model)[some]:
                answer = client.get(f"/recommend/{segment(user)}?k={k}&by={by}")
                body = TypeAdapter(UserList).validate_json(answer.content, strict=True)
                assert (body["user"], body["by"], body["note"]) == (user, by, None)
                assert_same(answer.json()["items"], expected(model, user, k, by))
    usual = client.get(f"/recommend/{segment(user)}").json()
    assert usual == client.get(f"/recommend/{segment(user)}?k=10&by=consensus&popular=true").json()


def test_what_is_not_stored_yet_is_computed(client: Client, model: Recommender) -> None:
    stored = client.service.pool.lists
    assert stored.keys() == {str(user) for user in everyone(model)}
    for user in everyone(model)[::5]:
        answer = stored.pop(str(user))
        assert client.get(f"/recommend/{segment(user)}").content == answer
        stored[str(user)] = answer
    asked = f"/recommend/{segment(user)}?k=3"
    first = client.get(asked).content
    assert client.service.pool.recent[str(user), b"k=3"] == first == client.get(asked).content


def test_a_batch_gets_what_the_library_recommends(client: Client, model: Recommender) -> None:
    users = [*everyone(model)[::6], everyone(model)[0]]
    few = model.item_ids.values[::3].tolist()
    for by in ("consensus", "bpr"):
        for options in ({}, {"items": few}, {"exclude": few}, {"viewed": True}):
            answer = client.post("/recommend", {"users": users, "k": 5, "by": by} | options)
            body = TypeAdapter(Lists).validate_json(answer.content, strict=True)
            given = {name: value for name, value in options.items() if name != "viewed"}
            for user, mine in zip(users, body["lists"], strict=True):
                wanted = expected(model, user, 5, by, rules=Rules(filter_viewed="viewed" not in options), **given)
                assert mine["user"] == user
                assert_same(mine["items"], wanted)  # type: ignore[arg-type]
            assert (body["note"] is None) == (by == "bpr" or not {"items", "viewed"} & options.keys())
    for empty in ({"users": []}, {"histories": {}}, {"users": [], "by": "bpr"}):
        assert client.post("/recommend", empty).json()["lists"] == []


def test_lists_by_user_are_in_the_users_own_ids(client: Client, model: Recommender) -> None:
    one, two, *_ = users = everyone(model)[:3]
    allowed = {str(one): model.item_ids.values[:9].tolist(), str(two): model.item_ids.values[9:18].tolist()}
    answer = client.post("/recommend", {"users": users, "k": 9, "by": "bpr", "items": allowed}).json()["lists"]
    by_user = {one: allowed[str(one)], two: allowed[str(two)]}
    for user, mine in zip(users, answer, strict=True):
        assert_same(mine["items"], expected(model, user, 9, "bpr", items=by_user))
    assert answer[2]["items"] == []


def test_histories_are_folded_in(client: Client, model: Recommender) -> None:
    items, known = model.item_ids.values.tolist(), everyone(model)[4]
    for history in ([], items[5:12], items[3:4] * 3):
        for by in ("consensus", "bpr"):
            answer = client.post("/recommend", {"history": history, "k": 6, "by": by}).json()
            (mine,) = answer["lists"]
            assert mine["user"] is None
            assert_same(mine["items"], ranked(*model.recommend(history=history, k=6, by=by, frame="arrays")))
            assert ("by rank alone" in (answer["note"] or "")) == (by == "consensus")
    named = {"no one/else": items[:4], str(known): items[4:6]}
    answer = client.post("/recommend", {"histories": named, "k": 5}).json()
    ids, scores = model.recommend(history={"no one/else": items[:4], known: items[4:6]}, k=5, frame="arrays")
    assert [each["user"] for each in answer["lists"]] == ["no one/else", known]
    assert "have no known item" not in answer["note"]
    for place, mine in enumerate(answer["lists"]):
        assert_same(mine["items"], ranked(ids[place], scores[place]))


def test_a_history_has_an_order_and_may_have_times_and_weights(client: Client, model: Recommender) -> None:
    items = model.item_ids.values[[5, 0, 9]].tolist()
    events = [{"item": item, "time": None, "weight": 1 + place} for place, item in enumerate(items)]
    for history in (items[::-1], events):
        wanted = ranked(*model.recommend(history=history, k=4))
        for body in ({"history": history}, {"histories": {"new": history}}):
            assert_same(client.post("/recommend", body | {"k": 4}).json()["lists"][0]["items"], wanted)
        view = client.post("/explore", {"history": history, "k": 4}).json()
        assert [each["item"] for each in view["history"]] == [
            each if history is not events else each["item"]
            for each in history  # type: ignore[index]
        ]
    for event, part in (
        ({"item": items[0], "weight": 0}, "weight"), ({"time": 3}, "item"),
        ({"item": items[0], "when": 3}, "when"), ({"item": True}, "item"), (True, ""),
    ):  # fmt: skip
        answer = client.post("/recommend", {"history": [items[1], event]})
        assert problem(answer) == (422, "bad_request")
        assert answer.json()["where"] == f"body.history.1.{part}".rstrip(".")
    mixed = [items[0], {"item": items[1], "time": "2024-05-01"}]
    for path in ("/recommend", "/explore"):
        assert problem(client.post(path, {"history": mixed})) == (409, "refused_rule")


def test_strangers_get_what_is_popular_if_asked_for(client: Client, model: Recommender) -> None:
    wanted = expected(model, "nobody", 7, rules=Rules(unknown="popular"))
    answer = client.get("/recommend/nobody?popular=true&k=7").json()
    assert (answer["user"], "popular items" in answer["note"]) == ("nobody", True)
    assert_same(answer["items"], wanted)
    known = everyone(model)[0]
    both = client.post("/recommend", {"users": ["nobody", known, 10**25], "k": 7, "popular": True}).json()
    assert both["note"].startswith("2 of the users")
    assert_same(both["lists"][0]["items"], wanted)
    assert_same(both["lists"][1]["items"], expected(model, known, 7))
    assert both["lists"][2]["user"] == 10**25


def test_similar_items_and_explanations_are_the_librarys(client: Client, model: Recommender) -> None:
    for item in model.item_ids.values.tolist()[::3]:
        for head in (None, "cml"):
            answer = client.get(f"/similar/{segment(item)}", params={"k": 4} | ({"head": head} if head else {}))
            body = answer.json()
            assert (body["item"], body["head"]) == (item, head or model.run.best_head())
            assert_same(answer.json()["items"], ranked(*model.similar_items(item, 4, head=head, frame="arrays")))
        for user in everyone(model)[::9]:
            answer = client.get(f"/explain/{segment(user)}", params={"item": item})
            assert answer.json() == model.explain(user, item) | {"title": None}
    assert len(client.get(f"/similar/{segment(item)}?k=200").json()["items"]) == len(model.item_ids) - 1


def test_no_figure_that_json_lacks_is_ever_sent(client: Client, model: Recommender, monkeypatch: Any) -> None:
    huge = model.ranker.factors("bpr")
    user = huge.user.clone()
    user[0] = 3e38
    monkeypatch.setitem(model.ranker._cache, ("factors", "bpr"), Factors(user, huge.item * 10 + 100, huge.bias))
    first = everyone(model)[0]
    for way in ("", "&viewed=true"):
        assert client.get(f"/recommend/{segment(first)}?by=bpr{way}").json()["items"] == []
    assert client.post("/recommend", {"users": [first], "by": "bpr"}).json()["lists"][0]["items"] == []
    assert torch.isinf(model.ranker.factors("bpr").scores(torch.tensor([0]))).any()
