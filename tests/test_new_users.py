"""Protocol `new-users`: users who are held out altogether, in prepared data, training, evaluation and comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from math import floor, log2
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError
from scipy.sparse import csr_array
from small_recipe import CLI, LOG, small

from concf.comparison.compare import compare
from concf.data.parts import HISTORY, TEST, TRAIN, UNEVALUATED, VALID
from concf.data.prepare import prepare
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.inference.recommender import Recommender
from concf.models import choose_settings, load_run, train
from concf.report.gather import gather
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS

SHARES: dict[str, Any] = {"valid": 0.25, "test": 0.25, "target_share": 0.3}


def split(seed: int = 2, **shares: float) -> Split:
    return prepare(LOG.draw(1), protocol="new-users", seed=seed, **(SHARES | shares))


def by_user(data: Split) -> dict[int, dict[int, set[int]]]:
    """User -> part -> items, in plain loops."""
    found: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    log = data.interactions
    for user, item, part in zip(log.user.tolist(), log.item.tolist(), data.parts.tolist(), strict=True):
        found[user][part].add(item)
    return found


def test_a_user_trains_validates_or_tests_and_a_share_of_the_held_out_ones_items_is_the_target() -> None:
    data = split()
    users, kinds = by_user(data), defaultdict(list)
    trained = {item for parts in users.values() for item in parts.get(TRAIN, ())}
    for user, parts in users.items():
        held = {part for part in parts if part < UNEVALUATED}
        assert held in ({TRAIN}, {HISTORY, VALID}, {HISTORY, TEST}, set())
        kinds[TRAIN if TRAIN in held else VALID if VALID in held else TEST].append(user)
        wanted = parts.get(VALID, set()) | parts.get(TEST, set())
        if wanted and max(parts) < UNEVALUATED:
            assert len(wanted) == max(1, floor(0.3 * (len(wanted) + len(parts[HISTORY]))))
        assert wanted | parts.get(HISTORY, set()) <= trained
    eligible = sum(len(set().union(*parts.values())) >= 2 for parts in users.values())
    assert len(kinds[TEST]) == len(kinds[VALID]) == floor(0.25 * eligible)
    assert data.evaluated.tolist() == sorted(kinds[TEST])
    assert data.validated.tolist() == sorted(kinds[VALID])
    assert not set(np.flatnonzero(np.diff(data.train.indptr))) & {*kinds[TEST], *kinds[VALID]}
    assert data.seen("test").nnz == data.history.nnz == data.counts()["history"] > 0


def test_users_with_one_item_train_and_items_that_nobody_trains_on_are_not_evaluated() -> None:
    pairs = [(1, 1), (10, 1), (10, 9), *((user, item) for user in range(2, 10) for item in (1, 2))]
    log = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    held_out = 0
    for seed in range(12):
        users = by_user(prepare(log, protocol="new-users", valid=0.25, test=0.25, seed=seed))
        assert users[0] == {TRAIN: {0}}
        assert set().union(*users[9].values()) == {0, 2}
        assert users[9].keys() == {TRAIN} or min(users[9]) > UNEVALUATED
        held_out += TRAIN not in users[9]
    assert 0 < held_out < 12
    with pytest.raises(DataError, match=r"leaves no user .* Change what is held out"):
        prepare(log.filter(pl.col("user") < 3), protocol="new-users")


def test_what_is_trained_on_are_the_users_who_train_with_items_of_their_own_to_validate(tmp_path: Path) -> None:
    data = split()
    known, users = data.known, by_user(data)
    names = data.interactions.user_ids.values
    for row, name in enumerate(known.interactions.user_ids.values.tolist()):
        mine = by_user(known)[row]
        assert mine[TRAIN] | mine[VALID] == users[names.tolist().index(name)][TRAIN]
        assert not mine[TRAIN] & mine[VALID]
    assert known.known is known
    assert known.train.shape[1] == data.train.shape[1]
    assert (known.hash, known.test.nnz) == (data.hash, 0)
    known.save(tmp_path / "kept")
    again = Split.load(tmp_path / "kept")
    assert again.hash == data.hash
    assert np.array_equal(again.known.parts, known.parts)
    assert again.recipe.protocol.model_dump() == {"name": "new-users", **SHARES}
    plain = prepare(LOG.draw(1), protocol="random")
    assert plain.known is plain


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="leave nothing to train on"):
        split(valid=0.5, test=0.5)
    with pytest.raises(ValidationError, match="target_share"):
        split(target_share=1.0)
    with pytest.raises(ConfigError, match="'random' has no target_share="):
        prepare(LOG.draw(1), protocol="random", target_share=0.2)
    with pytest.raises(ConfigError, match="never trained on"):
        train(split(), small(refit="everything"))


@pytest.fixture(scope="module")
def run() -> Run:
    return train(split(), small(), seed=3)


def test_figures_are_those_of_the_lists_that_histories_get(run: Run) -> None:
    """Recall and NDCG of what `recommend(history=...)` gives, counted by hand."""
    data, model = split(), Recommender(run)
    ids = data.interactions.item_ids.values
    for on, users in (("valid", data.validated), ("test", data.evaluated)):
        found = run.evaluate(on=on, at=5)  # type: ignore[arg-type]
        for name in (CONSENSUS, "student"):
            recalls, gains = [], []
            for user in users.tolist():
                history = ids[data.history[[user]].indices].tolist()
                wanted = set(ids[data.part(on)[[user]].indices].tolist())
                listed = model.recommend(history=history, k=5, by=name, frame="arrays")[0].tolist()
                assert not set(listed) & set(history)
                hits = [item in wanted for item in listed]
                recalls.append(sum(hits) / min(5, len(wanted)))
                ideal = sum(1 / log2(place + 2) for place in range(min(5, len(wanted))))
                gains.append(sum(hit / log2(place + 2) for place, hit in enumerate(hits)) / ideal)
            assert found[name].means() == pytest.approx({"recall@5": np.mean(recalls), "ndcg@5": np.mean(gains)})
            assert found[name].activity.tolist() == np.diff(data.history.indptr)[users].tolist()


def test_held_out_users_are_in_nothing_that_was_learned(run: Run) -> None:
    data, model = split(), Recommender(run)
    stranger = data.interactions.user_ids.values[data.evaluated[0]]
    assert run.log.nnz == data.train.nnz
    assert (
        run.log.shape[0] == len(model.user_ids) == data.interactions.n_users - len(data.evaluated) - len(data.validated)
    )
    with pytest.raises(DataError, match="no user is called"):
        model.recommend([stranger.item()])
    assert run.summary()["tested_users"] == len(data.evaluated)


def test_a_run_is_kept_evaluated_and_reported(run: Run, tmp_path: Path, concf: CLI) -> None:
    options = ["--protocol", "new-users", "--valid", "0.25", "--test", "0.25", "--target-share", "0.3", "--seed", "2"]
    LOG.draw(1).write_csv(tmp_path / "log.csv")
    code, out, _ = concf("prepare", str(tmp_path / "log.csv"), *options, "--out", str(tmp_path / "data"), "--json")
    assert (code, json.loads(out)["split_hash"]) == (0, split().hash)
    train(Split.load(tmp_path / "data"), small(), seed=3, out=tmp_path / "run")
    expected = {name: each.means() for name, each in run.evaluate(at=5).items()}
    for on in ("test", "valid"):
        code, out, _ = concf("evaluate", str(tmp_path / "run"), "--on", on, "--at", "5", "--json")
        found = {each["name"]: each["means"] for each in json.loads(out)["recommenders"]}
        assert (code, list(found)) == (0, run.rows())
        assert on == "valid" or all(found[name] == pytest.approx(expected[name]) for name in found)
    page = gather(load_run(tmp_path / "run"), json.loads((tmp_path / "run" / "run.json").read_text()))
    assert page["recommenders"][0]["test"]["recall@50"] is not None


def test_algorithm_1_is_evaluated_on_histories_too() -> None:
    words = ("training.epochs=3", "model.dimensions=8", "consensus.every=1", "consensus.window=2", "consensus.shown=12",
             "training.metric=recall@5", "objectives=bpr,multinomial", "consensus.top_k=12")  # fmt: skip
    run = train(split(), choose_settings("reference", words=words))
    found, model, data = run.evaluate(at=5), Recommender(run), split()
    ids = data.interactions.item_ids.values
    for name in run.rows():
        for user, listed in zip(data.evaluated[:6], found[name].lists[:6], strict=True):
            history = ids[data.history[[user]].indices].tolist()
            again = model.recommend(history=history, k=5, by=name, frame="arrays")[0]
            assert ids[listed].tolist() == again.tolist()


def test_a_comparison_tunes_on_the_validation_users_and_tests_on_the_others() -> None:
    data = split()
    result = compare(data, ["popularity", "ease"], seeds=1, metrics=["recall@5", "ndcg@5"])
    ease = next(each for each in result.entrants if each.name == "ease")
    assert not any(each.refitted for each in result.entrants)
    train_rows = data.train[np.diff(data.train.indptr) > 0].toarray()

    def recall(regularisation: float, part: csr_array, users: Any) -> float:
        gram = np.linalg.inv(train_rows.T @ train_rows + regularisation * np.eye(train_rows.shape[1]))
        weights = np.eye(len(gram)) - gram / np.diag(gram)
        hits = []
        for user in users:
            scores = data.history[[user]].toarray()[0] @ weights
            scores[data.history[[user]].indices] = -np.inf
            wanted = set(part[[user]].indices.tolist())
            hits.append(len(wanted & set(np.argsort(-scores, kind="stable")[:5].tolist())) / min(5, len(wanted)))
        return float(np.mean(hits))

    chosen = float(ease.settings["regularisation"])
    assert ease.validation == pytest.approx(recall(chosen, data.valid, data.validated), abs=1e-6)
    assert ease.mean("recall@5") == pytest.approx(recall(chosen, data.test, data.evaluated), abs=1e-6)
