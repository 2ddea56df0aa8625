"""What is recommended, and why: against sorting and adding in Python loops, from the rankings that training made."""

from __future__ import annotations

import json
from typing import Any

import literal_lists
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from literal_lists import CONSENSUSES, LOG, NON_VOTING, Listed, Trained, trained

from concf.errors import ConfigError, DataError
from concf.inference import ranker as ranking
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules


@pytest.fixture(scope="module")
def numbered() -> Trained:
    return literal_lists.numbered()


@pytest.fixture(scope="module")
def named() -> Trained:
    words = {"user": [f"Zoë {n}" for n in LOG["user_id"]], "item": [f"{'長' * (n % 7)}/{n}🎈" for n in LOG["item_id"]]}
    return trained(pl.DataFrame(words), "training.epochs=3", "objectives=bpr,cml,multinomial")


@pytest.fixture(scope="module")
def alone() -> Trained:
    log = LOG.select(user="user_id", item="item_id")
    return trained(log, "training.epochs=1", "objectives=bpr", "consensus.non_voting=[]")


@pytest.fixture(params=["numbered", "named"])
def either(request: pytest.FixtureRequest) -> Trained:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def by_user(table: pa.Table) -> dict[Any, Listed]:
    found: dict[Any, Listed] = {}
    for row in table.to_pylist():
        found.setdefault(row["user_id"], []).append((row["item_id"], row["score"]))
        assert row["rank"] == len(found[row["user_id"]])
    return found


def assert_same(found: dict[Any, Listed], expected: dict[Any, Listed]) -> None:
    assert found.keys() == {user for user, listed in expected.items() if listed}
    for user, listed in found.items():
        assert [item for item, _ in listed] == [item for item, _ in expected[user]], user
        assert [score for _, score in listed] == pytest.approx([score for _, score in expected[user]], abs=1e-5)


def test_everyones_lists_by_everyone_who_ranks(numbered: Trained) -> None:
    either = numbered
    model = Recommender(either.run, "arrow")
    assert model.default == "consensus"
    assert either.run.best["consensus"].epoch > 0  # there is a window to be steady over
    for by in [*either.heads, *CONSENSUSES]:
        for filter_viewed in (True, False) if by in CONSENSUSES else (True,):
            found = by_user(model.recommend(k=6, by=by, rules=Rules(filter_viewed=filter_viewed)))
            expected = {user: either.expected(user, 6, by, filter_viewed=filter_viewed) for user in either.users}
            assert_same(found, expected)
            again = {
                (user, item) for user, listed in found.items() for item, _ in listed if item in either.viewed[user]
            }
            learned = {(user, item) for user, item in again if either.learned(user, item)}
            assert bool(again) is bool(learned) is not filter_viewed
    assert model.recommend(k=6) == model.recommend(k=6, by="consensus")


def test_allow_and_deny_lists_for_everyone_and_by_user(numbered: Trained) -> None:
    either = numbered
    model, rng = Recommender(either.run, "arrow"), np.random.default_rng(0)

    def some(share: float) -> list[Any]:
        return [item for item in either.items if rng.random() < share]

    for by in ("bpr", NON_VOTING, *CONSENSUSES):
        for kind in (0, 1, 2, 4, 8):
            allow: Any = [None, some(0.4), {user: some(0.4) for user in either.users[5:]}][kind % 3]
            deny: Any = [some(0.2), {user: some(0.5) for user in either.users[:20]}, ()][kind // 3]
            k, filter_viewed = int(rng.integers(1, 9)), kind != 4
            rules = Rules(filter_viewed=filter_viewed)
            found = by_user(model.recommend(k=k, by=by, items=allow, exclude=deny, rules=rules))
            expected = {
                user: either.expected(
                    user, k, by, allow.get(user, ()) if isinstance(allow, dict) else allow,
                    deny.get(user, ()) if isinstance(deny, dict) else deny, filter_viewed,
                )
                for user in either.users
            }  # fmt: skip
            assert_same(found, expected)


def test_one_at_a_time_all_at_once_and_in_blocks(named: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    either = named
    model, users = Recommender(either.run, "arrow"), either.users
    mapped = {user: either.items[place % 7 :] for place, user in enumerate(users) if place % 3}
    asks: list[dict[str, Any]] = [{"by": by, "k": 5} for by in ("bpr", "consensus")]
    asks += [{"items": mapped}, {"exclude": {users[0]: either.items}}]  # a block with nothing to show
    for ask in asks:
        whole = model.recommend(users, **ask)
        assert whole.schema.field("user_id").type == pa.string()
        singles = pa.concat_tables([model.recommend(user, **ask) for user in users])
        assert pa.concat_tables(list(model.stream(users, **ask))) == whole == model.recommend(None, **ask)
        monkeypatch.setattr(ranking, "CELLS", 1)
        assert model.ranker.block() == 1
        blocks = model.recommend(users, **ask)
        assert sum(table.num_rows for table in model.stream(users, **ask)) == whole.num_rows
        monkeypatch.undo()
        assert blocks.schema == whole.schema == singles.schema
        for found in (blocks, singles):
            assert_same(by_user(found), by_user(whole))
    backwards = by_user(model.recommend(np.array(users[::-1]), 4))
    assert list(backwards) == users[::-1]
    for column in (pl.Series(users), pd.Series(users), pa.array(users), pa.chunked_array([users]), tuple(users)):
        assert model.recommend(column, 4) == model.recommend(users, 4)
    assert_same(backwards, by_user(model.recommend(users, 4)))


def test_longer_lists_than_there_are_items(either: Trained) -> None:
    model, text = Recommender(either.run), isinstance(either.users[0], str)
    ids, scores = model.recommend(either.users[:5], 100, by="bpr", frame="arrays")
    assert (ids.shape, scores.shape, scores.dtype) == ((5, 100), (5, 100), np.dtype(np.float32))
    assert ids.dtype == (object if text else np.int64)
    for place, user in enumerate(either.users[:5]):
        there = 30 - len(either.viewed[user])
        assert ids[place, :there].tolist() == [item for item, _ in either.expected(user, 100, "bpr")]
        assert ids[place, there:].tolist() == [None if text else -1] * (100 - there)
        assert (np.isfinite(scores[place]) == (np.arange(100) < there)).all()
    one, figures = model.recommend(either.users[2], 100, by="bpr", frame="arrays")
    assert (one.tolist(), figures.shape) == (ids[2].tolist(), (100,))


def test_frames_of_every_library_hold_the_same(either: Trained) -> None:
    kinds = {"polars": pl.DataFrame, "pandas": pd.DataFrame, "arrow": pa.Table}
    for users in (either.users, either.users[4], []):
        for options in ({}, {"items": either.items[:3]}, {"by": "bpr"}):
            found = {name: Recommender(either.run, name).recommend(users, 3, **options) for name in kinds}  # type: ignore[arg-type]
            assert all(isinstance(found[name], kind) for name, kind in kinds.items())
            rows = [found["polars"].to_dicts(), found["pandas"].to_dict("records"), found["arrow"].to_pylist()]
            assert rows[0] == rows[1] == rows[2]
            assert list(found["polars"].columns) == ["user_id", "item_id", "score", "rank"]
            text = isinstance(either.users[0], str)
            assert found["polars"].dtypes == [*[pl.String if text else pl.Int64] * 2, pl.Float32, pl.Int32]
    with pytest.raises(ConfigError, match="choose from polars, pandas, arrow, arrays"):
        Recommender(either.run).recommend(either.users[0], frame="spark")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rules = .price < 2.: expected concf\.Rules.* found str"):
        Recommender(either.run).recommend(either.users[0], rules="price < 2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"recommend\(\) got an unexpected keyword argument 'rule'"):
        Recommender(either.run).recommend(either.users[0], rule=1)  # type: ignore[call-arg]


def test_strangers_are_named_or_get_what_is_used_most(numbered: Trained, named: Trained) -> None:
    model = Recommender(numbered.run, "arrow")
    for stranger in (7, "-100", 1.0, True, None, 2**70):
        with pytest.raises(DataError, match=f"no user is called {stranger!r}"):
            model.recommend([-100, stranger])
    with pytest.raises(DataError, match="no user is called -100"):
        Recommender(named.run).recommend([-100])
    used = (numbered.run.log.toarray() > 0).sum(0)  # of what was learned, no held-out item
    count = dict(zip(model.item_ids.values.tolist(), used.tolist(), strict=True))
    order = sorted(numbered.items, key=lambda item: (-count[item], item))
    popular = Rules(unknown="popular")
    found = by_user(model.recommend([7, -100, 8], 40, by="bpr", rules=popular, exclude={8: order[:4]}))
    assert found[7] == [(item, count[item]) for item in order]
    assert found[8] == [(item, count[item]) for item in order[4:]]
    assert_same({-100: found[-100]}, {-100: numbered.expected(-100, 40, "bpr")})
    few = by_user(model.recommend([7], 4, rules=popular, items=order[5:8]))
    assert few[7] == [(item, count[item]) for item in order[5:8]]
    for users in ([-100, "new"], [2**70]):  # no column holds both
        with pytest.raises(DataError, match="integers of 64 bits or text"):
            model.recommend(users, rules=popular)


def test_one_head_alone(alone: Trained) -> None:
    model = Recommender(alone.run, "arrow")
    assert model.default == "bpr"
    assert_same(by_user(model.recommend(k=25)), {user: alone.expected(user, 25, "bpr") for user in alone.users})
    with pytest.raises(ConfigError, match="unknown recommender 'consensus'; choose from bpr"):
        model.recommend(by="consensus")
    with pytest.raises(ConfigError, match="one head has no consensus to explain"):
        model.explain(0, 0)


def test_an_explanation_adds_up(numbered: Trained) -> None:
    either = numbered
    model, epoch = Recommender(either.run, "arrow"), either.run.best["consensus"].epoch
    train_part, seen = either.run.data.train.toarray() > 0, {True: 0, False: 0}
    for place, user in list(enumerate(either.users))[::4]:
        listed = dict(by_user(model.recommend(user, 12))[user])
        kept = either.kept(user)
        for at, item in enumerate(either.items):
            found, votes = model.explain(user, item), either.votes(user, item)
            json.dumps(found, allow_nan=False, default=int)
            assert [each["head"] for each in found["heads"]] == either.voters  # the non-voting one is not asked
            total = sum(each["vote"] for each in found["heads"])
            assert found["importance"] == pytest.approx(total / len(either.voters), abs=1e-12)
            assert found["importance"] == pytest.approx(either.importance(user, item), abs=1e-6)
            assert found["rank"] == (kept.index(item) + 1 if item in kept else None)
            if item in listed:
                assert found["importance"] == pytest.approx(listed[item], abs=1e-6)
            assert found["used_in_training"] == train_part[place, at]
            seen[bool(train_part[place, at])] += 1
            for each in found["heads"]:
                rank, importance, consistent = votes.get(each["head"], (None, 0.0, 0.0))
                order = either.voted[epoch][either.heads.index(each["head"])][place]
                assert each["rank"] == (None if train_part[place, at] else order.index(item) + 1)
                assert rank is None or each["rank"] == rank + 1
                assert (each["R"], each["C"]) == pytest.approx((importance, consistent), abs=1e-6)
                assert each["vote"] == each["R"] + each["C"]
                factors = either.vectors[epoch][each["head"]]
                assert each["score"] == pytest.approx(either.score(factors, user, item), abs=1e-5)
    assert min(seen.values()) > 10
