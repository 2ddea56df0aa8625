"""Rules when recommending, against slow greedy loops in Python, and the laws that lists under rules obey."""

from __future__ import annotations

import warnings
from math import log, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from literal_lists import CONSENSUSES, Listed, Trained, numbered
from small_service import Client, loaded, run_folder

from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.recommender import Recommender
from concf.inference.rules import POOL, Rules
from concf.runs.checkpoint import RunFolder
from concf.service.loading import Loader

CONDITION = "category in (1, 2) and price < 20"


@pytest.fixture(scope="module")
def run() -> Trained:
    return numbered()


@pytest.fixture(scope="module")
def catalogue(run: Trained) -> pl.DataFrame:
    """Some items without a price, some without a category."""
    numbers = range(len(run.items))
    return pl.DataFrame(
        {
            "item": run.items,
            "category": [None if n % 9 == 8 else n % 4 for n in numbers],
            "price": [float("nan") if n % 11 == 10 else n * 1.5 for n in numbers],
            "name": [f"Item {n}" for n in numbers],
        }
    )


def listed(model: Recommender, rules: Rules, **options: Any) -> dict[Any, Listed]:
    found: dict[Any, Listed] = {}
    for row in model.recommend(frame="arrow", rules=rules, **options).to_pylist():
        found.setdefault(row["user_id"], []).append((row["item_id"], row["score"]))
    return found


def cosine(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True)) / sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def greedy(
    candidates: Listed, k: int, kinds: dict[Any, Any], most: int, diversity: float, penalty: float,
    vectors: dict[Any, list[float]], popularity: dict[Any, float],
) -> Listed:  # fmt: skip
    """One item after the other: the best by MMR among the first 10 k that may come, else the first behind them."""
    chosen: Listed = []
    first = candidates[: POOL * k]

    def may(item: Any) -> bool:
        same = [one for one, _ in chosen if kinds[one] is not None and kinds[one] == kinds[item]]
        return len(same) < most and item not in [one for one, _ in chosen]

    def value(rank: int, item: Any) -> float:
        near = max((cosine(vectors[item], vectors[one]) for one, _ in chosen), default=0.0)
        return (1 - diversity) * (1 - rank / len(first) - penalty * popularity[item]) - diversity * near

    while len(chosen) < k:
        values = [(value(rank, one[0]), -rank, one) for rank, one in enumerate(first) if may(one[0])]
        behind = [one for one in candidates[POOL * k :] if may(one[0])]
        if not values and not behind:
            break
        chosen.append(max(values)[2] if values else behind[0])
    return chosen


def literal(
    run: Trained, frame: pl.DataFrame, user: Any, k: int, by: str, where: Any, most: int, diversity: float,
    penalty: float,
) -> Listed:  # fmt: skip
    """The list of a user, slowly. where: of a row, whether the item may be shown"""
    model = Recommender(run.run)
    rows = {row["item"]: row for row in frame.iter_rows(named=True)}
    head = by if by in run.heads else run.run.best_head()
    vectors = dict(zip(run.items, model.ranker.factors(head).item.tolist(), strict=True))
    learned = (run.run.log.toarray() > 0).sum(0)
    used = dict(zip(run.run.data.interactions.item_ids.values.tolist(), learned.tolist(), strict=True))
    popularity = {item: log(1 + count) / log(1 + max(used.values())) for item, count in used.items()}
    kinds = {item: rows[item]["category"] for item in run.items}
    matching = [item for item in run.items if where(rows[item])]
    if by in CONSENSUSES:
        candidates = [one for one in run.expected(user, 12, by) if one[0] in matching]
    else:
        candidates = run.expected(user, len(run.items), by, matching)
    rest = [one for one in run.expected(user, len(run.items), by, matching) if one[0] not in dict(candidates)]
    own = (k, kinds, most, diversity, penalty, vectors, popularity)
    found = greedy(candidates, *own)
    if len(found) == k or not rest or by not in CONSENSUSES:
        return found
    return greedy(candidates + rest, *own)


@pytest.mark.parametrize("by", ["bpr", "consensus"])
@pytest.mark.parametrize(("k", "where", "most", "diversity", "penalty"), [
    (6, True, 30, 0.0, 0.0), (8, False, 2, 0.0, 0.0), (5, False, 30, 0.5, 0.0), (4, False, 30, 0.0, 0.7),
    (3, True, 2, 0.3, 0.4), (2, False, 30, 1.0, 0.0),
])  # fmt: skip
def test_lists_are_those_of_slow_loops(
    run: Trained, catalogue: pl.DataFrame, by: str, k: int, where: bool, most: int, diversity: float, penalty: float
) -> None:
    def holds(row: dict[str, Any]) -> bool:
        return not where or (row["category"] in (1, 2) and row["price"] < 20)

    options: dict[str, Any] = {"catalogue": catalogue, "diversity": diversity, "popularity_penalty": penalty}
    options |= {"where": CONDITION} if where else {}
    options |= {"at_most": {"category": most}} if most < 30 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConcfWarning)
        found = listed(Recommender(run.run), Rules(**options), k=k, by=by)
    for user in run.users[::3]:
        expected = literal(run, catalogue, user, k, by, holds, most, diversity, penalty)
        mine = found.get(user, [])
        assert [item for item, _ in mine] == [item for item, _ in expected], user
        if by not in CONSENSUSES:
            assert [score for _, score in mine] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_without_rules_nothing_changes_to_the_bit(run: Trained, catalogue: pl.DataFrame) -> None:
    model = Recommender(run.run, "arrow")
    some = run.items[::2]
    for by in ("bpr", "consensus"):
        for more in ({}, {"items": some}, {"history": some[:4]}):
            plain = model.recommend(k=3, by=by, **more)  # type: ignore[arg-type]
            for rules in (
                {"where": None, "at_most": None, "diversity": 0, "popularity_penalty": 0.0, "catalogue": None},
                {"where": "price is null or price >= 0", "at_most": {"category": 99, "name": 1}},
            ):
                chosen = Rules(**({"catalogue": catalogue} | rules))  # type: ignore[arg-type]
                assert model.recommend(k=3, by=by, rules=chosen, **more) == plain  # type: ignore[arg-type]


def test_lists_are_full_whenever_they_can_be(run: Trained, catalogue: pl.DataFrame) -> None:
    model, rows = Recommender(run.run), catalogue.to_dicts()
    users = [*run.users, 10**9]  # and somebody whom the log does not have
    for k in (4, 12):
        for most in (1, 30):
            rules = Rules(catalogue, "price < 40", {"category": most}, diversity=0.4, unknown="popular")
            for by in ("bpr", *CONSENSUSES):
                found = listed(model, rules, users=users, k=k, by=by)
                for user in users:
                    may = [r for r in rows if r["price"] < 40 and r["item"] not in run.viewed.get(user, ())]
                    kinds = [row["category"] for row in may]
                    full = sum(min(most, kinds.count(kind)) for kind in set(kinds) - {None}) + kinds.count(None)
                    mine = [item for item, _ in found.get(user, [])]
                    assert len(mine) == len(set(mine)) == min(k, full), (user, by, k, most)
                    assert set(mine) <= {row["item"] for row in may}


def test_the_order_of_rows_and_the_kind_of_file_do_not_matter(
    run: Trained, catalogue: pl.DataFrame, tmp_path: Path
) -> None:
    model = Recommender(run.run, "arrow")
    rules: dict[str, Any] = {"where": "price < 33 and name <> 'Item 4'", "at_most": {"category": 2}, "diversity": 0.3}
    expected = model.recommend(rules=Rules(catalogue, **rules))
    catalogue.sample(fraction=1, shuffle=True, seed=3).write_csv(tmp_path / "items.csv")
    catalogue.reverse().write_csv(tmp_path / "items.tsv", separator="\t")
    catalogue.write_parquet(tmp_path / "items.parquet")
    catalogue.with_columns(pl.col("price").fill_nan(None)).write_ndjson(tmp_path / "items.jsonl")
    frames = (catalogue.to_arrow(), pd.DataFrame(catalogue.to_dict(as_series=False)), pl.concat([catalogue, catalogue]))
    for one in (*tmp_path.iterdir(), *frames):
        assert model.recommend(rules=Rules(one, **rules)) == expected


def test_dates_are_compared_alike_in_text_and_in_columns_of_dates(
    run: Trained, catalogue: pl.DataFrame, tmp_path: Path
) -> None:
    model = Recommender(run.run, "arrow")
    day = pl.date(2024, 1, 1) + pl.duration(days=pl.int_range(pl.len()))
    frame = catalogue.with_columns(day=day, at=day.cast(pl.Datetime("us")) + pl.duration(hours=9))
    frame.with_columns(pl.col("day", "at").dt.to_string("iso:strict")).write_csv(tmp_path / "items.csv")
    frame.write_parquet(tmp_path / "items.parquet")
    frame.with_columns(pl.col("at").dt.replace_time_zone("Asia/Tokyo")).write_parquet(tmp_path / "zoned.parquet")
    for condition in ("day between '2024-01-03' and '2024-01-08'", "at < '2024-01-09T10:00:00' and price > 3"):
        csv, parquet, zoned = (
            model.recommend(rules=Rules(tmp_path / name, where=condition), k=3)
            for name in ("items.csv", "items.parquet", "zoned.parquet")
        )
        assert csv == parquet == zoned
    with pytest.raises(ConfigError, match="is a column of Date"):
        model.recommend(rules=Rules(tmp_path / "items.parquet", where="day > '2024-02-30'"))


@pytest.mark.parametrize(("rules", "message"), [
    ({"where": "price < -5"}, "no item of the log matches"),
    ({"where": "colour = 3"}, "no column is called 'colour'"), ({"where": "price + 1"}, "true or false"),
    ({"where": r"name = E'\' || lpad(name, 10000000000, '"}, "is not allowed"),
    ({"where": "\"a'b\" = 1 or lpad(name, 10000000000, 'x') = 'x'"}, "unknown function lpad"),
    ({"where": "lpad/**/(name, 10000000000, 'x') = 'x'"}, "is not allowed"),
    ({"where": "price = (SELECT 1)"}, "Expected a condition"),
    ({"where": '"^p.*$" < 3'}, "no column|expected one condition"),
    ({"where": " or ".join(["price < 1"] * 900)}, "at most 1000 characters"),
    ({"where": "name = '\ud800'"}, "Expected a condition"),
    ({"where": "price < 3", "catalogue": None}, "need catalogue="),
    ({"at_most": {"category": 0}}, "expected an integer of 1 or more"),
    ({"diversity": float("nan")}, "expected a number from 0"),
])  # fmt: skip
def test_rules_that_make_no_sense(run: Trained, catalogue: pl.DataFrame, rules: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recommender(run.run).stream(rules=Rules(**({"catalogue": catalogue} | rules)))


def test_nested_columns(run: Trained, catalogue: pl.DataFrame) -> None:
    nested = catalogue.with_columns(tags=pl.concat_list("name"))
    with pytest.raises(ConfigError, match="holds List"):
        Recommender(run.run).recommend(rules=Rules(nested, at_most={"tags": 1}))
    either = "array_contains(tags, 'Item 3') or (\"name\" = 'it''s;')"
    found = listed(Recommender(run.run), Rules(nested, where=either, filter_viewed=False), users=run.users[0], k=1)
    assert found[run.users[0]][0][0] == run.items[3]


def test_missing_and_unknown_items_are_counted(run: Trained, catalogue: pl.DataFrame) -> None:
    strangers = pl.DataFrame({"item": [10**6, 10**6 + 1, None], "category": 1, "price": 1.0, "name": "x"})
    few = pl.concat([catalogue.with_columns(pl.col("category").cast(pl.Int32))[5:], strangers], how="vertical_relaxed")
    model = Recommender(run.run)
    with pytest.warns(ConcfWarning, match="attributes for 25 of the 30 items of the log; 3 others are not in it"):
        found = listed(model, Rules(few, where="price < 60", filter_viewed=False), k=30, by="bpr")
    expected = {row["item"] for row in catalogue[5:].iter_rows(named=True) if row["price"] < 60}
    assert all({item for item, _ in mine} == expected for mine in found.values())
    with pytest.raises(DataError, match="none of the 3 items"):
        model.recommend(rules=Rules(strangers, where="price < 60"))


def test_the_command_line_writes_what_python_gives(
    concf: Any, run: Trained, catalogue: pl.DataFrame, tmp_path: Path
) -> None:
    home = RunFolder(tmp_path / "run")
    home.keep(run.run.data)
    home.begin(run.run)
    home.save(run.run)
    catalogue.write_csv(tmp_path / "items.csv")
    words = ["recommend", tmp_path / "run", "-k", 4, "--catalogue", tmp_path / "items.csv"]
    rules = ["--where", "price < 33", "--at-most", "category=2", "--at-most", "name=1", "--diversity", 0.3,
             "--popularity-penalty", 0.2]  # fmt: skip
    chosen = Rules(catalogue, "price < 33", {"category": 2, "name": 1}, diversity=0.3, popularity_penalty=0.2)
    expected = Recommender.load(tmp_path / "run").recommend(k=4, rules=chosen)
    assert concf(*words, *rules, "--out", tmp_path / "recs.parquet")[::2] == (0, "")
    assert pl.read_parquet(tmp_path / "recs.parquet").equals(expected)
    for wrong, message in (
        (["--where", "price < -1"], "--where price < -1: no item of the log matches"),
        (["--at-most", "category"], "--at-most category: expected a column and a number"),
    ):
        code, _, err = concf(*words, *wrong, "--out", tmp_path / "recs.parquet")
        assert (code, message in err) == (2, True), err
    assert pl.read_parquet(tmp_path / "recs.parquet").equals(expected)


def test_the_service_answers_what_python_gives(tmp_path: Path) -> None:
    numbers = range(30)
    frame = pl.DataFrame({"item": numbers, "title": "x", "kind": [n % 4 for n in numbers], "price": numbers})
    frame.write_csv(tmp_path / "items.csv")
    rules: dict[str, Any] = {"where": "price < 22", "at_most": {"kind": 2}, "diversity": 0.3, "popularity_penalty": 0.5}
    with Client(loaded(run_folder(), loader=Loader(catalogue=tmp_path / "items.csv"))) as client:
        model = client.service.model.recommender
        for body, options in (
            ({"users": [1, 5], "k": 4}, {"users": [1, 5], "k": 4}),
            ({"history": [1, 2], "k": 4, "by": "bpr"}, {"history": [1, 2], "k": 4, "by": "bpr"}),
        ):
            found = client.post("/recommend", body | rules).json()["lists"]
            wanted = model.recommend(**options, rules=Rules(frame, **rules), frame="polars")
            assert [item["item"] for each in found for item in each["items"]] == wanted["item_id"].to_list()
        few = client.post("/recommend", {"users": [1], "k": 4, "where": "price < 2"}).json()
        assert "2 items match: lists are shorter than k = 4" in few["note"]
        for wrong, status in (({"where": "colour = 3"}, 409), ({"where": "x" * 1001}, 422), ({"diversity": 2}, 422)):
            assert client.post("/recommend", {"users": [1]} | wrong).status_code == status
