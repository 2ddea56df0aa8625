"""What is served is what the library recommends: the short ways against the long ones, for everyone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from small_run import small_data
from small_service import SHOWN, Client, loaded, problem, run_folder, segment

from concf.data.split import Split
from concf.inference.lookup import place_of
from concf.inference.ranker import highest
from concf.inference.recommender import Recommender
from concf.model.scorers import Factors
from concf.service.schemas import Lists, SimilarItems, UserList
from concf.training.checkpoint import RunFolder
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")
KS = (1, 3, 10, SHOWN)
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


def triples(items: list[dict[str, Any]]) -> Listed:
    return [(each["item"], each["rank"], each["score"]) for each in items]


def assert_same(listed: Listed, wanted: Listed) -> None:
    assert [each[:2] for each in listed] == [each[:2] for each in wanted]
    assert [each[2] for each in listed] == pytest.approx([each[2] for each in wanted], rel=0, abs=1e-6)


def test_the_short_way_of_the_library_is_the_long_one(model: Recommender) -> None:
    for by in model.ranker.names:
        for k in KS:
            for place, user in list(enumerate(everyone(model)))[:: 1 if k == 10 else 13]:
                for viewed in (False, True):
                    ((items, scores),) = model.short(np.array([place]), [k], by, filter_viewed=not viewed)
                    rows = zip(model.item_ids.values[items].tolist(), range(1, k + 1), scores.tolist(), strict=False)
                    assert_same(list(rows), expected(model, user, k, by, filter_viewed=not viewed))


def test_more_places_than_items_are_left_empty(model: Recommender) -> None:
    ((items, _),) = model.short(np.array([0]), [1000], model.ranker.heads[0])
    assert len(items) == len(model.item_ids) - len(model.viewed[[0]].indices)


@given(st.data())
def test_thehighest_are_those_of_a_sort(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 90))
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, float(n)]), min_size=n, max_size=n))
    hidden = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    k = data.draw(st.integers(1, n + 3))
    scores: NDArray[np.float32] = np.array(values, np.float32)
    wanted = sorted(set(range(n)) - set(hidden), key=lambda place: (-values[place], place))[:k]
    items, best = highest(scores, k, np.array(hidden, np.int64))
    assert items.tolist() == wanted
    assert best.tolist() == [values[place] for place in wanted]


def test_a_non_voting_head_and_a_run_without_votes_score_as_the_library_says(model: Recommender) -> None:
    for non_voting, votes in ((("cml",), True), ((), False)):
        run = copy.copy(model.run)
        run.settings = run.settings.model_copy(
            update={"consensus": run.settings.consensus.model_copy(update={"non_voting": non_voting})}
        )
        run.best = {name: copy.copy(best) for name, best in run.best.items()}
        for best in run.best.values():
            best.votes = best.votes if votes else {}
        other = Recommender(run)
        for by in ("consensus", "R-consensus"):
            for place, user in enumerate(everyone(other)):
                ((items, scores),) = other.short(np.array([place]), [5], by)
                wanted = expected(other, user, 5, by)
                assert other.item_ids.values[items].tolist() == [each[0] for each in wanted]
                assert scores.tolist() == pytest.approx([each[2] for each in wanted], rel=0, abs=1e-6)


def test_an_id_is_found_where_it_stands_and_nowhere_else(model: Recommender) -> None:
    for place, user in enumerate(everyone(model)):
        assert place_of(model.user_ids, user) == place
        assert place_of(model.user_ids, str(user) if isinstance(user, int) else 5) == -1
    for stranger in (10**30, -1, 1.0, True, None, "", "zzz", chr(0x10FFFF), b"5", [1]):
        assert place_of(model.user_ids, stranger) == -1


def test_every_user_gets_what_the_library_recommends(client: Client, model: Recommender) -> None:
    for by in model.ranker.names:
        for k in KS:
            for user in everyone(model)[:: 1 if k == 10 and by in ("consensus", "bpr") else 9]:
                answer = client.get(f"/recommend/{segment(user)}?k={k}&by={by}")
                body = TypeAdapter(UserList).validate_json(answer.content, strict=True)
                assert (body["user"], body["by"], body["note"]) == (user, by, None)
                assert_same(triples(answer.json()["items"]), expected(model, user, k, by))


def test_what_changes_nothing_changes_no_byte(client: Client, model: Recommender) -> None:
    for user in everyone(model):
        answers = set()
        for way in ("?k=4", "?k=4&popular=true"):
            client.service.model.kept.clear()  # else the second answer is the first one
            answers.add(client.get(f"/recommend/{segment(user)}{way}").content)
        assert len(answers) == 1


def test_lists_that_are_kept_are_those_of_the_run_and_few(
    client: Client, model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.service.loading.KEPT_LISTS", 5)
    served, paths = client.service.model, [f"/recommend/{segment(user)}?k=3" for user in everyone(model)]
    served.kept.clear()
    first = [client.get(path).content for path in paths]
    assert len(served.kept) == 5
    assert [client.get(path).content for path in paths[::-1]] == first[::-1]
    assert len(served.kept) == 5
    monkeypatch.setattr("concf.service.loading.KEPT_BYTES", 10)
    served.kept.clear()
    assert [client.get(path).content for path in paths] == first
    assert not served.kept


def test_by_default_ten_places_of_the_consensus(client: Client, model: Recommender) -> None:
    user = everyone(model)[3]
    answer = client.get(f"/recommend/{segment(user)}").json()
    assert answer["by"] == "consensus"
    assert_same(triples(answer["items"]), expected(model, user, 10))


def test_requests_of_one_moment_get_each_its_own(client: Client, model: Recommender) -> None:
    client.service.model.kept.clear()
    requests = [(user, 1 + place % 9, by) for by in ("bpr", "cml") for place, user in enumerate(everyone(model))]
    answers = client.together([f"/recommend/{segment(user)}?k={k}&by={by}" for user, k, by in requests])
    for (user, k, by), answer in zip(requests, answers, strict=True):
        assert answer.json()["user"] == user
        assert_same(triples(answer.json()["items"]), expected(model, user, k, by))


def test_a_large_product_is_left_to_a_thread(
    client: Client, model: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.service.batching.IN_LOOP", 0)
    test_requests_of_one_moment_get_each_its_own(client, model)


def test_what_fails_while_many_wait_is_told_to_each(client: Client, model: Recommender, monkeypatch: Any) -> None:
    client.service.model.kept.clear()
    monkeypatch.setattr(model, "short", lambda *_: 1 / 0)
    answers = client.together([f"/recommend/{segment(user)}?by=bpr" for user in everyone(model)])
    assert {problem(answer) for answer in answers} == {(500, "internal")}


def test_what_was_used_is_shown_if_asked_for(client: Client, model: Recommender) -> None:
    for user in everyone(model)[::5]:
        answer = client.get(f"/recommend/{segment(user)}?by=bpr&viewed=true&k=30").json()
        assert_same(triples(answer["items"]), expected(model, user, 30, "bpr", filter_viewed=False))
        assert (len(answer["items"]), answer["note"]) == (len(model.item_ids), None)
        agreed = client.get(f"/recommend/{segment(user)}?viewed=true&k=30").json()
        assert_same(triples(agreed["items"]), expected(model, user, 30, filter_viewed=False))
        assert "by rank alone" in agreed["note"]


def test_a_batch_gets_what_the_library_recommends(client: Client, model: Recommender) -> None:
    users = everyone(model)[::2]
    few = model.item_ids.values[::3].tolist()
    for by in ("consensus", "R-consensus", "bpr"):
        for options in ({}, {"items": few}, {"exclude": few}, {"viewed": True}):
            answer = client.post("/recommend", {"users": users, "k": 5, "by": by} | options)
            body = TypeAdapter(Lists).validate_json(answer.content, strict=True)
            given = {name: value for name, value in options.items() if name != "viewed"}
            for user, mine in zip(users, body["lists"], strict=True):
                wanted = expected(model, user, 5, by, filter_viewed="viewed" not in options, **given)
                assert mine["user"] == user
                assert_same(triples(mine["items"]), wanted)
            assert (body["note"] is None) == (by == "bpr" or not {"items", "viewed"} & options.keys())


def test_lists_by_user_are_in_the_users_own_ids(client: Client, model: Recommender) -> None:
    one, two, *_ = users = everyone(model)[:3]
    allowed = {str(one): model.item_ids.values[:9].tolist(), str(two): model.item_ids.values[9:18].tolist()}
    answer = client.post("/recommend", {"users": users, "k": 9, "by": "bpr", "items": allowed}).json()["lists"]
    by_user = {one: allowed[str(one)], two: allowed[str(two)]}
    for user, mine in zip(users, answer, strict=True):
        assert_same(triples(mine["items"]), expected(model, user, 9, "bpr", items=by_user))
    assert answer[2]["items"] == []


def test_a_user_twice_gets_two_lists(client: Client, model: Recommender) -> None:
    one, two = everyone(model)[:2]
    lists = client.post("/recommend", {"users": [one, two, one], "k": 2}).json()["lists"]
    assert [each["user"] for each in lists] == [one, two, one]
    assert lists[0] == lists[2]


def test_histories_are_folded_in(client: Client, model: Recommender) -> None:
    items = model.item_ids.values.tolist()
    for history in ([], items[:1], items[5:12], items[3:4] * 3):
        for by in ("consensus", "bpr"):
            answer = client.post("/recommend", {"history": history, "k": 6, "by": by}).json()
            ids, scores = model.recommend(history=history, k=6, by=by, frame="arrays")
            (mine,) = answer["lists"]
            assert mine["user"] is None
            assert_same(triples(mine["items"]), list(zip(ids.tolist(), range(1, 7), scores.tolist(), strict=True)))
            assert ("by rank alone" in (answer["note"] or "")) == (by == "consensus")


def test_histories_by_name_and_of_users_of_the_log(client: Client, model: Recommender) -> None:
    items, known = model.item_ids.values.tolist(), everyone(model)[4]
    named = {"no one/else": items[:4], str(known): items[4:6]}
    answer = client.post("/recommend", {"histories": named, "k": 5}).json()
    ids, scores = model.recommend(history={"no one/else": items[:4], known: items[4:6]}, k=5, frame="arrays")
    assert [each["user"] for each in answer["lists"]] == ["no one/else", known]
    for place, mine in enumerate(answer["lists"]):
        assert_same(
            triples(mine["items"]), list(zip(ids[place].tolist(), range(1, 6), scores[place].tolist(), strict=True))
        )


def test_nobody_gets_nothing(client: Client) -> None:
    for body in ({"users": []}, {"histories": {}}, {"users": [], "by": "bpr"}, {"histories": {}, "by": "bpr"}):
        assert client.post("/recommend", body).json()["lists"] == []


def test_strangers_get_what_is_popular_if_asked_for(client: Client, model: Recommender) -> None:
    wanted = expected(model, "nobody", 7, unknown="popular")
    answer = client.get("/recommend/nobody?popular=true&k=7").json()
    assert (answer["user"], answer["by"]) == ("nobody", "popularity")
    assert_same(triples(answer["items"]), wanted)
    known = everyone(model)[0]
    both = client.post("/recommend", {"users": ["nobody", known, 10**25], "k": 7, "popular": True}).json()
    assert both["note"].startswith("2 of the users")
    assert_same(triples(both["lists"][0]["items"]), wanted)
    assert_same(triples(both["lists"][1]["items"]), expected(model, known, 7))
    assert both["lists"][2]["user"] == 10**25


def test_similar_items_are_the_librarys(client: Client, model: Recommender) -> None:
    for item in model.item_ids.values.tolist():
        for head in (None, "cml"):
            answer = client.get(f"/similar/{segment(item)}", params={"k": 4} | ({"head": head} if head else {}))
            body = TypeAdapter(SimilarItems).validate_json(answer.content, strict=True)
            ids, scores = model.similar_items(item, 4, head=head, frame="arrays")
            assert (body["item"], body["head"]) == (item, head or model.run.best_head())
            assert_same(
                triples(answer.json()["items"]), list(zip(ids.tolist(), range(1, 5), scores.tolist(), strict=True))
            )
    everything = client.get(f"/similar/{segment(item)}?k=200").json()["items"]
    assert len(everything) == len(model.item_ids) - 1


def test_explanations_are_the_librarys(client: Client, model: Recommender) -> None:
    for user in everyone(model)[::5]:
        for item in model.item_ids.values.tolist()[::3]:
            answer = client.get(f"/explain/{segment(user)}/{segment(item)}").json()
            assert answer == model.explain(user, item) | {"title": None}


def test_fixed_voters_and_a_re_ranker_are_explained_too(tmp_path: Path) -> None:
    words = ("consensus.every=1", "consensus.shown=9", "training.epochs=1", "training.metric=recall@5")
    data = Split.load(small_data(tmp_path / "data"))
    train(data, choose_settings("strong", words=(*words, "model.dimensions=8")), out=tmp_path / "run")
    RunFolder(tmp_path / "run").keep(data)
    with Client(loaded(tmp_path / "run")) as client:
        model = client.service.model.recommender
        for item in model.item_ids.values.tolist()[::5]:
            answer = client.get(f"/explain/3/{item}").json()
            assert answer == model.explain(3, item) | {"title": None}
            assert (answer["reranked"] is None) == (answer["rank"] is None)
            assert answer["heads"][-1]["score"] is None
        assert client.get("/explore/3").status_code == 200


def test_no_figure_that_json_lacks_is_ever_sent(client: Client, model: Recommender, monkeypatch: Any) -> None:
    huge = model.ranker.factors("bpr")
    user = huge.user.clone()
    user[0] = 3e38
    monkeypatch.setitem(model.ranker._cache, ("factors", "bpr"), Factors(user, huge.item * 10 + 100, huge.bias))
    first = everyone(model)[0]
    client.service.model.kept.clear()
    for way in ("", "&viewed=true"):
        assert client.get(f"/recommend/{segment(first)}?by=bpr{way}").json()["items"] == []
    assert client.post("/recommend", {"users": [first], "by": "bpr"}).json()["lists"][0]["items"] == []
    assert torch.isinf(model.ranker.factors("bpr").scores(torch.tensor([0]))).any()
