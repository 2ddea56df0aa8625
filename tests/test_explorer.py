"""The explorer's data against `recommend`, `explain` and sorting in Python."""

from __future__ import annotations

import asyncio
import copy
from math import exp
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import polars as pl
import pytest
import torch
from pydantic import TypeAdapter
from scipy.sparse import csr_array
from small_run import SMALL

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.inference.recommender import Recommender
from concf.service.app import create_app
from concf.service.explorer.schemas import Facts, SearchResult, View
from concf.service.limits import Limits
from concf.service.loading import Served, Service
from concf.training.config.presets import choose_settings
from concf.training.run import Run
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

NON_VOTING = "cml"
LIVELY = (*SMALL, "model.initial_std=0.5", "consensus.kept=30")
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
HOSTILE = '<img src=x onerror="alert(1)">'


def trained(log: pl.DataFrame, *words: str) -> Run:
    torch.set_num_threads(1)
    return train(prepare(log, protocol="random"), choose_settings("reference", words=(*LIVELY, *words)))


class Api:
    """A service over runs, by name, and what it answers."""

    def __init__(self, runs: dict[str, Run], titles: dict[Any, str] | None = None, **limits: int) -> None:
        self.models = {name: Recommender(run, "arrays") for name, run in runs.items()}
        self.model = next(iter(self.models.values()))
        self.service = Service(
            lambda folder, version: Served(self.models[folder.name], folder, titles or {}, version),
            Path(next(iter(runs))), Limits(**limits),
        )  # fmt: skip
        self.app = create_app(self.service)

    def __call__(self, path: str, **body: Any) -> tuple[int, Any]:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.app), base_url="http://localhost"
            ) as client:
                return await (client.post(path, json=body) if body else client.get(path))

        answer = asyncio.run(ask())
        return answer.status_code, answer.json()

    def view(self, path: str, **body: Any) -> dict[str, Any]:
        status, answer = self(path, **body)
        assert status == 200, answer
        assert TypeAdapter(View).validate_python(answer) == answer  # the form that is documented, and no more
        return dict(answer)


def loaded(api: Api) -> Api:
    api.service.reload()
    return api


@pytest.fixture(scope="module")
def numbered() -> Api:
    """Integers that are no positions, one head non-voting, times."""
    log = LOG.select(user=pl.col("user_id") * 7 - 100, item=500 - pl.col("item_id") * 3, timestamp="timestamp")
    run = trained(log, f'consensus.non_voting=["{NON_VOTING}"]')
    return loaded(Api({"numbered": run}, {500: HOSTILE, 497: "Café Número Uno", 494: "A second cafe"}))


@pytest.fixture(scope="module")
def named() -> Api:
    words = {
        "user": [f"Zoë, {n}/%2F" for n in LOG["user_id"]],
        "item": [f"{'長' * (n % 7)}/{n}🎈" for n in LOG["item_id"]],
    }
    return loaded(Api({"named": trained(pl.DataFrame(words), "training.epochs=5", "objectives=bpr,cml,multinomial")}))


@pytest.fixture(scope="module")
def alone() -> Api:
    log = LOG.select(user="user_id", item="item_id")
    return loaded(Api({"alone": trained(log, "training.epochs=1", "objectives=bpr", "training.watch=bpr")}))


@pytest.fixture(params=["numbered", "named"])
def either(request: pytest.FixtureRequest) -> Api:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def users_of(api: Api) -> list[Any]:
    return list(api.model.user_ids.values.tolist())


def path_of(user: Any) -> str:
    return f"/explore/{quote(str(user), safe='')}"


def pairs(listed: dict[str, Any]) -> tuple[list[Any], list[float]]:
    assert [item["rank"] for item in listed["items"]] == list(range(1, len(listed["items"]) + 1))
    return [item["item"] for item in listed["items"]], [item["score"] for item in listed["items"]]


def recommended(api: Api, *words: Any, **options: Any) -> tuple[list[Any], Any]:
    ids, scores = api.model.recommend(*words, **options)
    there = scores > -np.inf
    return ids[there].tolist(), pytest.approx(scores[there].tolist(), abs=1e-5)


def parts(api: Api, user: Any) -> dict[str, set[Any]]:
    """The items of each part of the log."""
    data, place = api.model.run.data, users_of(api).index(user)
    mine, names = data.interactions.user == place, data.interactions.item_ids.values
    coded = {name: data.parts % 8 == code for code, name in enumerate(("training", "validation", "test"))}
    return {name: set(names[data.interactions.item[mine & rows]].tolist()) for name, rows in coded.items()}


def part_of(view: dict[str, Any]) -> dict[Any, str | None]:
    return {each["item"]: each["part"] for each in view["items"]}


def votes_of(view: dict[str, Any]) -> dict[Any, list[dict[str, Any]]]:
    votes = {each["item"]: each["votes"] for each in view["items"]}
    assert len(votes) == len(view["items"])  # each item once
    assert votes.keys() == {item["item"] for each in (*view["lists"], view["consensus"]) for item in each["items"]}
    return votes


@pytest.mark.parametrize("k", [1, 5, 12])
def test_the_lists_of_a_user_are_those_that_are_recommended(either: Api, k: int) -> None:
    heads = either.model.ranker.heads
    for user in users_of(either)[::4]:
        view = either.view(f"{path_of(user)}?k={k}")
        assert view["user"] == user
        assert [each["by"] for each in view["lists"]] == heads
        for listed in (*view["lists"], view["consensus"]):
            assert pairs(listed) == recommended(either, user, k, by=listed["by"])
        assert set(part_of(view).values()) == {None}


def test_held_out_items_can_be_listed_with_the_part_that_has_them(either: Api) -> None:
    found: set[str | None] = set()
    for user in users_of(either)[::3]:
        by_part = parts(either, user)
        learned, part = by_part["training"], {item: name for name, items in by_part.items() for item in items}
        view = either.view(f"{path_of(user)}?k=8&held_out=true")
        assert {item["item"]: item["part"] for item in view["history"]} == part
        best = either.model.run.best["consensus"].lists
        assert best is not None
        stored = best[users_of(either).index(user)].tolist()[:8]  # without what was trained on
        assert pairs(view["consensus"])[0] == [either.model.item_ids.values[place] for place in stored]
        for listed in (*view["lists"], view["consensus"]):
            if listed is not view["consensus"]:
                free = {"filter_viewed": False, "exclude": sorted(learned)}
                assert pairs(listed) == recommended(either, user, 8, by=listed["by"], **free)
        assert part_of(view) == {item: part.get(item) for item in part_of(view)}
        found |= set(part_of(view).values())
    assert found == {"validation", "test", None}  # what was learned from is never listed


@pytest.mark.parametrize("held_out", [False, True])
def test_the_votes_are_those_that_explain_gives(either: Api, held_out: bool) -> None:
    voted = without = 0
    for user in users_of(either)[::4]:
        view = either.view(f"{path_of(user)}?k=12&held_out={held_out}")
        for item, votes in votes_of(view).items():
            heads = either.model.explain(user, item)["heads"]
            assert votes == [
                {name: each[name] for name in ("head", "rank", "R", "C", "vote")} | {"score": None} for each in heads
            ]
            voted += sum(each["vote"] > 0 for each in votes)
            without += sum(each["vote"] == 0 for each in votes)
        for item in view["consensus"]["items"]:
            mean = np.mean([each["vote"] for each in votes_of(view)[item["item"]]])
            assert item["score"] == pytest.approx(mean, abs=1e-5)
    assert voted
    assert without
    assert NON_VOTING in either.model.run.settings.consensus.non_voting or "named" in either.models


@pytest.mark.parametrize("k", [3, 12])  # fewer and more than the places that vote
def test_a_history_is_folded_in_and_voted_on_by_rank(either: Api, k: int) -> None:
    model, chosen = either.model, either.model.run.settings.consensus
    items = model.item_ids.values.tolist()
    assert 3 < chosen.top_k < 12
    for history in ([items[3]], items[4:9], [], [items[0], items[0], items[2]]):
        view = either.view("/explore", history=history, k=k)
        assert view["user"] is None
        assert "rank alone" in view["note"]
        assert [item["item"] for item in view["history"]] == list(dict.fromkeys(history))
        for listed in view["lists"]:
            assert pairs(listed) == recommended(either, history=history, k=k, by=listed["by"])
        assert view["consensus"]["by"] == "R-consensus"
        assert pairs(view["consensus"]) == recommended(either, history=history, k=k, by="consensus")
        votes, orders = votes_of(view), folded_orders(either, history)
        for item, mine in votes.items():
            assert [each["head"] for each in mine] == list(orders)
            for each in mine:
                rank = orders[each["head"]].index(item)
                earned = exp(-rank / chosen.temperature) if rank < max(chosen.top_k, k) else 0.0
                assert (each["rank"], each["C"]) == (rank + 1, 0.0)
                assert each["R"] == each["vote"] == pytest.approx(earned, abs=1e-6)
        for item in view["consensus"]["items"]:
            mean = np.mean([each["vote"] for each in votes_of(view)[item["item"]]])
            assert item["score"] == pytest.approx(mean, abs=1e-5)


def test_unknown_items_of_a_history_are_ignored_and_reported(either: Api) -> None:
    items = either.model.item_ids.values.tolist()
    for known in (items[3:6], []):
        plain = either.view("/explore", history=known, k=4)
        view = either.view("/explore", history=["nothing", *known, 10**30], k=4)
        assert (plain["unknown_items"], view["unknown_items"]) == ([], ["nothing", 10**30])
        assert view["note"].endswith("2 unknown items were ignored (not in the log, or left out by a filter)")
        assert view | {"note": plain["note"], "unknown_items": []} == plain


def folded_orders(api: Api, history: list[Any]) -> dict[str, list[Any]]:
    """Voter -> all items but the history's, in its order: by sorting the scores of the folded-in vector."""
    ranker, names = api.model.ranker, api.model.item_ids.values.tolist()
    row = np.zeros((1, len(names)), np.float32)
    row[0, [names.index(item) for item in history]] = 1
    orders = {}
    for name in ranker.voters:
        scores = api.model.run.fold_in.head(name, csr_array(row), voting=True).scores(torch.tensor([0]))[0].tolist()
        order = sorted((place for place in range(len(names)) if not row[0, place]), key=lambda at: (-scores[at], at))
        orders[name] = [names[place] for place in order]
    return orders


def test_one_head_has_no_consensus(alone: Api) -> None:
    for view in (alone.view("/explore/3?k=4"), alone.view("/explore", history=[1, 2])):
        assert view["consensus"] is None
        assert view["note"] is None
        assert all(item["votes"] == [] and item["contributions"] is None for item in view["items"])
        assert [each["by"] for each in view["lists"]] == ["bpr"]
    assert pairs(alone.view("/explore/3?k=4")["lists"][0]) == recommended(alone, 3, 4)
    _, facts = alone("/run")
    assert (facts["has_consensus"], facts["voters"], facts["default"]) == (False, [], "bpr")


def test_a_run_that_kept_no_votes_says_so(numbered: Api) -> None:
    run = copy.copy(numbered.model.run)
    run.best = {name: copy.copy(best) for name, best in run.best.items()}
    for best in run.best.values():
        best.votes = {}
    bare = loaded(Api({"bare": run}))
    view = bare.view(f"/explore/{users_of(bare)[0]}")
    assert "no stored votes" in view["note"]
    assert all(item["votes"] == [] for item in view["items"])
    assert pairs(view["consensus"])[0] == pairs(numbered.view(f"/explore/{users_of(bare)[0]}")["consensus"])[0]


def test_a_consensus_has_as_many_places_as_it_keeps(numbered: Api) -> None:
    shown = numbered.model.run.settings.consensus.shown
    view = numbered.view(f"/explore/{users_of(numbered)[0]}?k={shown + 5}")
    assert 0 < len(view["consensus"]["items"]) <= shown
    assert len(view["lists"][0]["items"]) > 0


def test_a_history_is_told_the_newest_first(numbered: Api) -> None:
    times: dict[tuple[Any, Any], int] = {}
    for user, item, at in LOG.select("user_id", "item_id", "timestamp").iter_rows():
        key = (user * 7 - 100, 500 - item * 3)
        times[key] = min(at, times.get(key, at))
    for user in users_of(numbered)[::5]:
        times_shown = [times[user, item["item"]] for item in numbered.view(f"/explore/{user}")["history"]]
        assert times_shown == sorted(times_shown, reverse=True)


def test_facts(numbered: Api) -> None:
    _, answer = numbered("/run")
    run, data = numbered.model.run, numbered.model.run.data.interactions
    assert TypeAdapter(Facts).validate_python(answer) == answer
    assert (answer["users"], answer["items"], answer["interactions"]) == (data.n_users, data.n_items, len(data))
    assert answer["heads"] == list(run.model.names)
    assert answer["voters"] == [name for name in answer["heads"] if name != NON_VOTING]
    assert answer["validation"] == {name: run.best[name].validation for name in run.rows()}
    assert (answer["reranked"], answer["cross_fitted"], answer["learned"]) == ([], [], ["training"])
    assert (answer["compared"], set(answer["about"].values())) == (None, {""})  # these heads are called as they are
    assert answer["limits"] == {"k": 200, "history": 10_000}
    assert (answer["user_ids"], answer["titles"], answer["has_consensus"]) == ("integers", True, True)
    assert (answer["consistency_temperature"], answer["temperature"], answer["top_k"]) == (100.0, 10.0, 8)


def test_titles_go_with_items_as_they_are(numbered: Api) -> None:
    item = numbered("/items?q=500")[1][0]
    assert (item["id"], item["title"]) == (500, HOSTILE)
    view = numbered.view("/explore", history=[500, 497], k=5)
    assert [item["title"] for item in view["history"]] == [HOSTILE, "Café Número Uno"]


def test_searches(numbered: Api, named: Api) -> None:
    def items(words: str, limit: int = 20) -> list[Any]:
        status, answer = numbered(f"/items?q={quote(words)}&limit={limit}")
        assert status == 200
        assert TypeAdapter(list[SearchResult]).validate_python(answer) == answer
        return [each["id"] for each in answer]

    assert set(items("CAFE")) == {497, 494}
    assert items("uno caf") == items("número") == [497]
    assert items("cafe uno second") == []
    assert items("onerror img") == [500]
    assert items("49")[:2] != []
    assert {str(item)[:2] for item in items("49", 3)} == {"49"}
    assert 449 in items("49")  # within an id, after those that begin so
    assert items("449")[0] == 449
    used = [each["uses"] for each in numbered("/items")[1]]
    assert used == sorted(used, reverse=True)
    _, answer = named(f"/users?q={quote('zoe, 1')}&limit=100")
    assert TypeAdapter(list[SearchResult]).validate_python(answer) == answer
    assert {each["id"] for each in answer} == {user for user in users_of(named) if user.startswith("Zoë, 1")}
    drawn = [each["id"] for each in named("/users?random=true&limit=7")[1]]
    assert len(set(drawn)) == 7 <= len(users_of(named))
    assert set(drawn) <= set(users_of(named))


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "where"),
    [
        ("/explore/77777", {}, 404, "unknown_user", "path.user"),
        ("/explore/nobody", {}, 404, "unknown_user", "path.user"),
        ("/explore/", {}, 404, "unknown_user", "path.user"),
        ("/explore/-100?k=0", {}, 422, "bad_request", "query.k"),
        ("/explore/-100?k=31", {}, 422, "bad_request", "query.k"),
        ("/explore/-100?k=x", {}, 422, "bad_request", "query.k"),
        ("/explore/-100?compared=true", {}, 404, "not_found", "compared"),
        ("/explore", {"history": [500], "compared": True}, 404, "not_found", "compared"),
        ("/similar-users/nobody", {}, 404, "unknown_user", "path.user"),
        ("/similar-users/-100?k=31", {}, 422, "bad_request", "query.k"),
        ("/explore", {"history": [500, 3], "unknown_items": "error"}, 404, "unknown_item", "body.history.1"),
        ("/explore", {"history": ["500"], "unknown_items": "error"}, 404, "unknown_item", "body.history.0"),
        ("/explore", {"history": [10**30], "unknown_items": "error"}, 404, "unknown_item", "body.history.0"),
        ("/explore", {"history": [500], "unknown_items": "raise"}, 422, "bad_request", "body.unknown_items"),
        ("/explore", {"history": [500] * 5}, 413, "too_large", "body.history"),
        ("/explore", {"history": [500], "k": 31}, 422, "bad_request", "body.k"),
        ("/explore", {"history": [500], "k": 0}, 422, "bad_request", "body.k"),
        ("/explore", {"history": [True]}, 422, "bad_request", None),
        ("/explore", {"history": 500}, 422, "bad_request", "body.history"),
        ("/explore", {"k": 5}, 422, "bad_request", "body.history"),
        ("/explore", {"history": [], "user": 3}, 422, "bad_request", "body.user"),
        ("/users?limit=0", {}, 422, "bad_request", "query.limit"),
        ("/items?limit=1000", {}, 422, "bad_request", "query.limit"),
        (f"/items?q={'x' * 1001}", {}, 422, "bad_request", "query.q"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_answered_in_words(
    numbered: Api, path: str, body: dict[str, Any], status: int, kind: str, where: str | None
) -> None:
    strict = loaded(Api({"numbered": numbered.model.run}, k=30, history=4))
    code, answer = strict(path, **body)
    assert (code, answer["kind"]) == (status, kind)
    assert answer["detail"]
    assert where is None or answer["where"] == where


def test_before_a_run_is_there_nothing_is_known(numbered: Api) -> None:
    early = Api({"numbered": numbered.model.run})
    for path in ("/run", "/users", "/items", "/explore/3"):
        status, answer = early(path)
        assert (status, answer["kind"]) == (503, "not_ready")


def test_another_run_takes_the_place_of_the_first(numbered: Api, alone: Api) -> None:
    both = loaded(Api({"numbered": numbered.model.run, "alone": alone.model.run}))
    assert both("/run")[1]["name"] == "numbered"
    assert both("/users?q=-100&limit=1")[1][0]["id"] == -100
    both.service.reload(Path("alone"))
    assert both("/run")[1]["heads"] == ["bpr"]
    assert both("/users?q=-100&limit=1")[1] == []
