"""The explorer's data against `recommend`, `explain` and sorting in Python; its files load nothing from elsewhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from small_run import SMALL
from small_service import Client, LocalPool, LocalService, problem, segment

from concf.data.ids import Ids
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.models import choose_settings, train
from concf.runs.run import Run
from concf.service.explorer.search import Search
from concf.service.loading import Loader, Served

NON_VOTING = "cml"
LIVELY = (*SMALL, "model.initial_std=0.5", "training.epochs=5")
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
HOSTILE = '<img src=x onerror="alert(1)">'


def trained(log: pl.DataFrame, *words: str) -> Run:
    return train(prepare(log, protocol="random"), choose_settings("reference", words=(*LIVELY, *words)))


class InMemory(LocalPool):
    """A run that has no folder."""

    def __init__(self, served: Served, *words: Any) -> None:
        super().__init__(*words)
        self.load = lambda: served  # type: ignore[method-assign]


class Api(Client):
    """A service over a run in memory."""

    def __init__(self, run: Run, titles: dict[Any, str] | None = None) -> None:
        self.model = Recommender(run, "arrays")
        served = Served(self.model, Path("run"), titles or {})
        service = LocalService(Loader(), Path("run"), make=partial(InMemory, served))
        super().__init__(service.load())

    def view(self, path: str, **body: Any) -> dict[str, Any]:
        return dict((self.post(path, body) if body else self.get(path)).json())


@pytest.fixture(scope="module")
def numbered() -> Iterator[Api]:
    """Integers that are no positions, one head non-voting, times."""
    log = LOG.select(user=pl.col("user_id") * 7 - 100, item=500 - pl.col("item_id") * 3, timestamp="timestamp")
    run = trained(log, f'consensus.non_voting=["{NON_VOTING}"]')
    titles = {500: HOSTILE, 497: "Café Número Uno", 494: "A second cafe"}
    with Api(run, titles) as api:
        yield api


@pytest.fixture(scope="module")
def named() -> Iterator[Api]:
    words = {
        "user": [f"Zoë, {n}/%2F" for n in LOG["user_id"]],
        "item": [f"{'長' * (n % 7)}/{n}🎈" for n in LOG["item_id"]],
    }
    with Api(trained(pl.DataFrame(words), "objectives=bpr,cml,multinomial")) as api:
        yield api


@pytest.fixture(params=["numbered", "named"])
def either(request: pytest.FixtureRequest) -> Api:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def users_of(api: Api) -> list[Any]:
    return list(api.model.user_ids.values.tolist())


def path_of(user: Any) -> str:
    return f"/explore/{segment(user)}"


def pairs(listed: dict[str, Any]) -> tuple[list[Any], list[float]]:
    assert [item["rank"] for item in listed["items"]] == list(range(1, len(listed["items"]) + 1))
    return [item["item"] for item in listed["items"]], [item["score"] for item in listed["items"]]


def recommended(api: Api, *words: Any, **options: Any) -> tuple[list[Any], Any]:
    ids, scores = api.model.recommend(*words, **options)
    there = scores > -np.inf
    return ids[there].tolist(), pytest.approx(scores[there].tolist(), abs=1e-5)


def parts(api: Api, user: Any) -> dict[Any, str]:
    """Item -> the part of the log that has it."""
    data, place = api.model.run.data, users_of(api).index(user)
    mine, names = data.interactions.user == place, ("training", "validation", "test")
    items = data.interactions.item_ids.values[data.interactions.item[mine]].tolist()
    return {item: names[code] for item, code in zip(items, data.parts[mine] % 8, strict=True) if code < 3}


def part_of(view: dict[str, Any]) -> dict[Any, str | None]:
    return {each["item"]: each["part"] for each in view["items"]}


def votes_of(view: dict[str, Any]) -> dict[Any, list[dict[str, Any]]]:
    votes = {each["item"]: each["votes"] for each in view["items"]}
    assert len(votes) == len(view["items"])  # each item once
    assert votes.keys() == {item["item"] for each in (*view["lists"], view["consensus"]) for item in each["items"]}
    return votes


def assert_means_of_votes(view: dict[str, Any]) -> None:
    for item in view["consensus"]["items"]:
        mean = np.mean([each["vote"] for each in votes_of(view)[item["item"]]])
        assert item["score"] == pytest.approx(mean, abs=1e-5)


def test_the_lists_of_a_user_are_those_that_are_recommended(either: Api) -> None:
    for k in (1, 12):
        for user in users_of(either)[::9]:
            view = either.view(f"{path_of(user)}?k={k}")
            assert view["user"] == user
            assert [each["by"] for each in view["lists"]] == either.model.ranker.heads
            for listed in (*view["lists"], view["consensus"]):
                assert pairs(listed) == recommended(either, user, k, by=listed["by"])
            assert set(part_of(view).values()) == {None}
    shown = either.model.run.settings.consensus.shown
    view = either.view(f"{path_of(user)}?k={shown + 5}")
    assert 0 < len(view["consensus"]["items"]) <= shown  # as many as it keeps


def test_held_out_items_can_be_listed_with_the_part_that_has_them(either: Api) -> None:
    found: set[str | None] = set()
    for user in users_of(either)[::6]:
        part = parts(either, user)
        view = either.view(f"{path_of(user)}?k=8&held_out=true")
        assert {item["item"]: item["part"] for item in view["history"]} == part
        best = either.model.run.best["consensus"].lists
        assert best is not None
        stored = best[users_of(either).index(user)].tolist()[:8]  # without what was trained on
        assert pairs(view["consensus"])[0] == [either.model.item_ids.values[place] for place in stored]
        free = {
            "rules": Rules(filter_viewed=False),
            "exclude": sorted(item for item in part if part[item] == "training"),
        }
        for listed in view["lists"]:
            assert pairs(listed) == recommended(either, user, 8, by=listed["by"], **free)
        assert part_of(view) == {item: part.get(item) for item in part_of(view)}
        found |= set(part_of(view).values())
    assert found == {"validation", "test", None}  # what was learned from is never listed


@pytest.mark.parametrize("held_out", [False, True])
def test_the_votes_are_those_that_explain_gives(either: Api, held_out: bool) -> None:
    cast = set()
    for user in users_of(either)[::9]:
        view = either.view(f"{path_of(user)}?k=12&held_out={held_out}")
        for item, votes in votes_of(view).items():
            heads = either.model.explain(user, item)["heads"]
            assert votes == [
                {name: each[name] for name in ("head", "rank", "R", "C", "vote")} | {"score": None} for each in heads
            ]
            cast |= {each["vote"] > 0 for each in votes}
        assert_means_of_votes(view)
    assert cast == {True, False}


@pytest.mark.parametrize("k", [3, 12])  # fewer and more than the places that vote
def test_a_history_is_folded_in_and_voted_on_by_rank(either: Api, k: int) -> None:
    model, chosen = either.model, either.model.run.settings.consensus
    items = model.item_ids.values.tolist()
    assert 3 < chosen.top_k < 12
    for history in (items[4:8], [], [items[0], items[0], items[2]]):
        view = either.view("/explore", history=history, k=k)
        assert view["user"] is None
        assert "rank alone" in view["note"]
        assert [item["item"] for item in view["history"]] == list(dict.fromkeys(history))
        for listed in view["lists"]:
            assert pairs(listed) == recommended(either, history=history, k=k, by=listed["by"])
        assert view["consensus"]["by"] == "R-consensus"
        assert pairs(view["consensus"]) == recommended(either, history=history, k=k, by="consensus")
        orders = folded_orders(either, history)
        for item, mine in votes_of(view).items():
            assert [each["head"] for each in mine] == list(orders)
            for each in mine:
                rank = orders[each["head"]].index(item)
                earned = exp(-rank / chosen.temperature) if rank < max(chosen.top_k, k) else 0.0
                assert (each["rank"], each["C"]) == (rank + 1, 0.0)
                assert each["R"] == each["vote"] == pytest.approx(earned, abs=1e-6)
        assert_means_of_votes(view)
    with_unknown = either.view("/explore", history=["nothing", *history, 10**30], k=k)
    assert with_unknown["unknown_items"] == ["nothing", 10**30]
    assert with_unknown | {"note": view["note"], "unknown_items": []} == view


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


def test_a_wrong_question_is_refused(numbered: Api) -> None:
    assert problem(numbered.get("/explore/x")) == (404, "unknown_user")
    assert {problem(numbered.get(path)) for path in ("/explore/-100?k=201", "/users?limit=0")} == {(422, "bad_request")}
    assert problem(numbered.post("/explore", {"history": [500] * 10_001})) == (422, "bad_request")


def test_one_head_has_no_consensus() -> None:
    log = LOG.select(user="user_id", item="item_id")
    with Api(trained(log, "training.epochs=1", "objectives=bpr")) as alone:
        for view in (alone.view("/explore", history=[1, 2]), alone.view("/explore/3?k=4")):
            assert (view["consensus"], view["note"]) == (None, None)
            assert all(item["votes"] == [] and item["contributions"] is None for item in view["items"])
            assert [each["by"] for each in view["lists"]] == ["bpr"]
        assert pairs(view["lists"][0]) == recommended(alone, 3, 4)
        facts = alone.get("/run").json()
        assert (facts["has_consensus"], facts["voters"]) == (False, [])


def test_a_history_is_told_the_newest_first_with_titles(numbered: Api) -> None:
    times: dict[tuple[Any, Any], int] = {}
    for user, item, at in LOG.select("user_id", "item_id", "timestamp").iter_rows():
        key = (user * 7 - 100, 500 - item * 3)
        times[key] = min(at, times.get(key, at))
    for user in users_of(numbered)[::9]:
        times_shown = [times[user, item["item"]] for item in numbered.view(f"/explore/{user}")["history"]]
        assert times_shown == sorted(times_shown, reverse=True)
    view = numbered.view("/explore", history=[500, 497], k=5)
    assert [item["title"] for item in view["history"]] == [HOSTILE, "Café Número Uno"]


def test_facts(numbered: Api) -> None:
    answer = numbered.get("/run").json()
    run, data = numbered.model.run, numbered.model.run.data.interactions
    assert (answer["users"], answer["items"], answer["interactions"]) == (data.n_users, data.n_items, len(data))
    assert answer["heads"] == run.heads
    assert answer["voters"] == [name for name in answer["heads"] if name != NON_VOTING]
    assert answer["validation"] == {name: run.best[name].validation for name in run.rows()}
    assert (answer["reranked"], answer["cross_fitted"], answer["learned"]) == ([], [], ["training"])
    assert (answer["item_ids"], answer["has_consensus"]) == ("integers", True)
    assert (answer["consistency_temperature"], answer["top_k"]) == (100.0, 8)


def test_searches(numbered: Api, named: Api) -> None:
    found = numbered.get("/items?q=CAFE").json()
    assert {each["id"] for each in found} == {497, 494}
    used = [each["uses"] for each in numbered.get("/items").json()]
    assert used == sorted(used, reverse=True)
    users = {each["id"] for each in named.get("/users", params={"q": "zoe, 1", "limit": 100}).json()}
    assert users == {user for user in users_of(named) if user.startswith("Zoë, 1")}
    drawn = {each["id"] for each in named.get("/users?random=true&limit=7").json()}
    assert (len(drawn), drawn <= set(users_of(named))) == (7, True)


def simple(text: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFKD", text) if unicodedata.category(sign)[0] != "M").lower()


WORDS = st.text(st.sampled_from("abAB1é -/\n"), max_size=5)
ROWS = st.tuples(WORDS.filter(bool), st.none() | WORDS, st.integers(0, 3))  # id, title, weight


@given(st.lists(ROWS, min_size=1, max_size=12, unique_by=lambda row: row[0]), WORDS, st.integers(1, 15))
def test_a_search_finds_what_a_loop_finds(rows: list[tuple[str, str | None, int]], query: str, limit: int) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    weight = np.array([row[2] for row in rows])
    search = Search(Ids(np.array([row[0] for row in rows], object)), weight, [row[1] for row in rows])
    text = simple(query.strip().replace("\n", " "))
    words = re.findall(r"[^\W_]+", text)
    ids = [simple(row[0]).replace("\n", " ") for row in rows]
    titles = [re.findall(r"[^\W_]+", simple(row[1] or "")) for row in rows]

    def order(place: int) -> tuple[Any, ...]:
        titled = bool(words) and all(any(each.startswith(word) for each in titles[place]) for word in words)
        begins = ids[place].startswith(text) or titled
        exact = ids[place] == text
        return (not begins, not exact, -weight[place]) if begins else (True,)

    may = [place for place in range(len(rows)) if not text or not order(place)[0] or text in ids[place]]
    expected = sorted(may, key=order if text else lambda place: -weight[place])[:limit]
    assert search.find(query, limit).tolist() == expected


def test_the_page_loads_only_its_own_files_and_reads_no_data_as_markup() -> None:
    assets = (files("concf.service.explorer") / "assets").iterdir()
    texts = {each.name: each.read_text(encoding="utf-8") for each in assets}
    for name, text in texts.items():
        loads = re.findall(r"""(?:src|href)="([^"#]+)"|from "\./([^"]+)"|\burl\(([^)]+)\)""", text)
        for path in (first or second or third for first, second, third in loads):
            assert path in ("./", "openapi.json") or path in texts, (name, path)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|DOMParser", text), name
        if name.endswith(".html"):  # the policy of the service forbids what is written into the page
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), name
