"""Times in the model strong: features against loops, the decision on another window, and runs of a log by time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.factorisation import PureSVD
from concf.baselines.sequences import SLIST, SequenceALS
from concf.baselines.table import timed_voters
from concf.data.parts import TRAIN, VALID, origin
from concf.data.prepare import prepare
from concf.data.simulate import DriftingSimulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.models import load_run, train
from concf.runs.fold_in import FoldedHead
from concf.runs.settings import CONSENSUS
from concf.strong.combine import combine
from concf.strong.decision import chosen, earlier_window
from concf.strong.features import LEAST_AGE, NEWEST, SHARES, TIME_FEATURES, Clock
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT, TIME
from concf.strong.update import update
from tests.small_recipe import CLI, assert_same

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"dimensions": 16, "budget": "fast", "training": {"metric": "ndcg@10"}}


def some_log(seed: int, ties: int = 6) -> tuple[csr_array, csr_array]:
    """[12, 15] and its times, of which many are equal; the last user and item have no pairs."""
    random = np.random.default_rng(seed)
    dense = random.random((12, 15)) < 0.4
    dense[-1], dense[:, -1] = False, False
    log = csr_array(dense.astype(np.float32))
    return log, csr_array((random.integers(0, ties, log.nnz).astype(float), log.indices, log.indptr), shape=log.shape)


def literal(log: csr_array, times: csr_array, direction: np.ndarray, now: float | None = None) -> np.ndarray:
    """[users, items, TIME_FEATURES] by loops over pairs."""
    pairs = {}
    for user in range(log.shape[0]):
        for at in range(log.indptr[user], log.indptr[user + 1]):
            pairs[user, int(log.indices[at])] = float(times.data[at])
    newest, oldest = max(pairs.values()), min(pairs.values())
    later = 0.0 if now is None else (now - newest) / (newest - oldest)
    age = {pair: later + (newest - time) / (newest - oldest) for pair, time in pairs.items()}
    n_users, n_items = log.shape
    idle = {user: np.log(LEAST_AGE + min(age[pair] for pair in pairs if pair[0] == user)) for user, _ in pairs}
    then = [np.log(np.exp(each) - later) for each in idle.values()]  # at the newest pair
    mean, std = np.mean(then), np.std(then)
    features = np.zeros((n_users, n_items, TIME_FEATURES))
    for item in range(n_items):
        own = [age[pair] for pair in pairs if pair[1] == item]
        row = []
        for share in SHARES:
            border = sorted(age.values())[max(1, round(share * len(age))) - 1]
            recent = sum(each <= border for each in age.values()) / len(age)
            row.append(np.log((sum(each <= border for each in own) + 1) / (recent * len(own) + 1)))
        row += [np.log(LEAST_AGE + (each(own) if own else 0.0)) for each in (min, max)]
        for user in range(n_users):
            mine = sorted({age[pair] for pair in pairs if pair[0] == user})
            bags: list[list[int]] = [[], []]
            for when in mine:
                of_set = [other for (owner, other), each in age.items() if owner == user and each == when]
                bags[0] += of_set if when == mine[0] else []
                bags[1] += of_set if len(bags[1]) < NEWEST else []
            near = [np.mean([direction[item] @ direction[other] for other in bag]) if bag else 0.0 for bag in bags]
            z = (idle.get(user, np.log(LEAST_AGE + 1 + later)) - mean) / std
            features[user, item] = [*row, *near, *(z * np.array([*row, *near]))]
    return features


@pytest.mark.parametrize("seed", range(3))
def test_features_of_time_are_those_of_the_loops(seed: int) -> None:
    log, times = some_log(seed)
    direction = np.random.default_rng(seed).standard_normal((15, 4)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    clock, users = Clock.of(log, times, CPU), torch.arange(12)
    items = torch.arange(15).expand(12, -1)
    found = clock(users, items, torch.from_numpy(direction))
    assert np.allclose(found.numpy(), literal(log, times, direction), atol=1e-5)
    for now in (5.0, 5.5, 40.0):  # the newest pair is of 5
        found_then = Clock.of(log, times, CPU, now)(users, items, torch.from_numpy(direction))
        assert np.allclose(found_then.numpy(), literal(log, times, direction, now), atol=1e-4)
        assert torch.equal(found_then, found) == (now == 5)
        folded = Clock.of(log, times, CPU, now).folded(log, times)(users, items, torch.from_numpy(direction))
        assert torch.allclose(folded[:11], found_then[:11], atol=1e-5)  # the last user has no pairs
    half = clock.local(slice(5, 12))(torch.arange(7), items[:7], torch.from_numpy(direction))
    assert torch.equal(half, found[5:])
    later = csr_array((times.data * 60 + 7e8, times.indices, times.indptr), shape=times.shape)  # another unit and start
    assert torch.allclose(Clock.of(log, later, CPU)(users, items, torch.from_numpy(direction)), found, atol=1e-5)
    order = np.random.default_rng(9).permutation(15)
    renamed = [csr_array(each.tocsc()[:, order].tocsr()) for each in (log, _ones_for_zeros(times))]
    there = Clock.of(renamed[0], _zeros_again(renamed[1]), CPU)(users, items, torch.from_numpy(direction[order]))
    assert torch.allclose(there, found[:, order], atol=1e-5)


def _ones_for_zeros(times: csr_array) -> csr_array:
    return csr_array((times.data + 1, times.indices, times.indptr), shape=times.shape)


def _zeros_again(times: csr_array) -> csr_array:
    times.sort_indices()
    return csr_array((times.data - 1, times.indices, times.indptr), shape=times.shape)


def test_a_history_is_one_set_of_an_active_user() -> None:
    log, times = some_log(1)
    direction = torch.nn.functional.normalize(torch.randn(15, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    clock = Clock.of(log, times, CPU)
    folded = clock.folded(log[:3])
    features = folded(torch.arange(3), torch.arange(15).expand(3, -1), direction)
    for user in range(3):
        near = direction @ direction[log.indices[log.indptr[user] : log.indptr[user + 1]]].mean(0)
        assert torch.allclose(features[user, :, 6], near, atol=1e-6)
        assert torch.equal(features[user, :, 6], features[user, :, 7])
    assert (folded.idleness == clock.idleness.min()).all()


def test_voters_that_know_times_fold_histories_in() -> None:
    log, times = some_log(2)
    item = torch.randn(15, 4, generator=torch.Generator().manual_seed(1))
    sequence = SequenceALS(memory=5.0)
    fitted = sequence.fit(log, times=times, item=item)
    equal = csr_array((np.ones(log.nnz), log.indices, log.indptr), shape=log.shape)
    as_set = SequenceALS(memory=5.0).fit(log, times=equal, item=item).user  # one set each, but another map
    histories = sequence.fold_in(fitted, log)
    assert fitted.map is not None
    assert torch.allclose(histories.user, torch.from_numpy(log @ item.numpy()) @ fitted.map, atol=1e-5)
    assert as_set.shape == histories.user.shape
    nothing = SequenceALS().fit(log, times=times, item=torch.zeros(15, 4))
    assert not nothing.user.any()
    assert torch.allclose(sequence.fold_in(fitted, log, times).user, fitted.user, atol=1e-5)  # as in the log
    slist = SLIST(memory=2.0)
    scores, users = slist.fit(log, times=times), torch.arange(11)
    assert torch.allclose(slist.fold_in(scores, log, times).scores(users), scores.scores(users), atol=1e-5)
    one_set = SLIST(memory=None).fit(log, times=times)
    assert torch.allclose(slist.fold_in(scores, log).scores(users), one_set.scores(users), atol=1e-5)


@pytest.mark.parametrize(("voters", "features", "both", "expected"), [
    (0.0, 0.0, 0.0, "none"), (0.02, -0.1, 0.02, "none"), (0.02, 0.03, 0.04, "none"),  # the error of a mean is 0.05
    (0.2, 0.02, 0.3, "both"), (0.02, 0.2, 0.15, "both"), (0.02, 0.03, 0.06, "both"), (0.2, -0.1, 0.04, "voters"),
    (-0.1, 0.2, 0.04, "features"), (0.2, 0.3, 0.25, "both"), (0.2, 0.3, 0.15, "both"), (0.3, 0.2, 0.08, "voters"),
])  # fmt: skip
def test_a_group_that_gains_more_than_its_error_is_taken(
    voters: float, features: float, both: float, expected: str
) -> None:
    noise, none = np.tile([-0.5, 0.5], 50), np.ones(100)
    means = {"voters": voters, "features": features, "both": both}
    shift = {"voters": noise, "features": -noise, "both": noise}
    assert chosen({name: none + mean + shift[name] for name, mean in means.items()}, none) == expected


@cache
def by_time() -> Split:
    return prepare(stream(), protocol="time", test=0.15)


@cache
def stream() -> pl.DataFrame:
    """A log whose popular items change."""
    return DriftingSimulation(users=400, items=150, events=12000).draw(4)


def test_every_earlier_window_is_before_the_one_after_it() -> None:
    data, times = by_time(), by_time().interactions.timestamp
    assert times is not None
    for _ in range(2):
        past = earlier_window(data)
        assert past is not None
        train, window = (times[origin(past.parts) == part] for part in (TRAIN, VALID))
        assert train.max() < window.min() <= window.max() < times[origin(data.parts) == VALID].min()
        assert np.isin(np.flatnonzero(origin(past.parts) < 2), np.flatnonzero(data.parts == TRAIN)).all()
        assert 1 <= len(window) / (origin(data.parts) == VALID).sum() <= 1.2
        data = past
    assert earlier_window(prepare(stream().head(400), protocol="time", test=0.3)) is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("time") / "run"
    train(by_time(), SMALL, seed=3, out=out)
    return out


def test_times_help_where_popularity_changes(whole: Path) -> None:
    run = load_run(whole, by_time())
    record = next(each for each in run.history if each["stage"] == "time")
    used = run.chosen["time"]
    assert used["voters"] or used["features"]
    assert all(gain > error for name, (gain, error) in record["gains"].items() if used.get(name))
    timed = {"recent-popularity", "als-decayed", "als-sequence"} if used["voters"] else set()
    assert set(timed_voters()) & set(run.fixed_voters) == timed
    blind = train(prepare(stream(), protocol="random"), SMALL, seed=3)
    assert "time" not in blind.chosen
    assert not set(timed_voters()) & set(blind.fixed_voters)


@cache
def walks() -> pl.DataFrame:
    """A log of users who go from an item to one of the next."""
    random, rows = np.random.default_rng(0), []
    for user in range(400):
        item, day = int(random.integers(120)), int(random.integers(100))
        for _ in range(25):
            item = (item + int(random.integers(1, 4))) % 120 if random.random() < 0.9 else int(random.integers(120))
            day += int(random.integers(1, 9))
            rows.append((user, item, 1_600_000_000 + 86_400 * day))
    return pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")


@cache
def ordered(budget: str = "fast") -> StrongRun:
    """A run that takes voters and features of time."""
    run = train(prepare(walks(), protocol="time", test=0.15), SMALL | {"budget": budget}, seed=4)
    assert isinstance(run, StrongRun)
    assert run.chosen["time"]["voters"] == run.chosen["time"]["features"] == 1.0
    return run


def as_known(self: FoldedHead, *_histories: csr_array | None) -> object:
    """A head whose users are those of the log."""
    return self.factors


def mostly_close(one: Tensor, other: Tensor) -> bool:
    """Whether scores [users, L] are equal up to rounding for all but 1 % of the users, who have a tie."""
    return bool(torch.isclose(one, other, atol=1e-3).all(1).float().mean() > 0.99)


def test_own_history_and_times_give_the_list_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ordered()
    monkeypatch.setattr(FoldedHead, "__call__", as_known)
    agreed, best = run.fold_in.agree(run.log, run.data.times(run.learned)), run.best[CONSENSUS]
    used = np.diff(run.log.indptr) > 0
    assert (agreed.votes["items"] == best.votes["items"])[:, used].float().mean() > 0.999  # but for ties of rounding
    assert mostly_close(agreed.votes["reranked"][used], best.votes["reranked"][used])
    as_sets = run.fold_in.agree(run.log)
    assert not torch.equal(as_sets.lists, agreed.lists)


def test_the_order_of_a_history_counts_where_times_are_used() -> None:
    model = Recommender(ordered(), "arrays")
    items = model.item_ids.values[[3, 40, 77, 110, 9, 55]].tolist()
    ids, scores = model.recommend(history=items, k=20)
    turned = model.recommend(history=items[::-1], k=20)
    assert ids.tolist() != turned[0].tolist()
    now = walks()["timestamp"].max()
    timed = [{"item": item, "time": now + place} for place, item in enumerate(items)]
    for same in (timed, timed[::-1], [*timed, timed[0]], {"new": iter(items)}):
        again = model.recommend(history=same, k=20)
        assert again[0].reshape(-1).tolist() == ids.tolist()
        assert np.allclose(again[1], scores)
    at_once = [{"item": item, "time": now + 1} for item in items]
    as_set = model.recommend(history=set(items), k=20)
    for same in (at_once, at_once[::-1]):
        assert model.recommend(history=same, k=20)[0].tolist() == as_set[0].tolist()
    assert model.recommend(history=set())[0].tolist() == model.recommend(history=[])[0].tolist()
    idle = model.recommend(history=[each | {"time": now - 200 * 86_400} for each in at_once], k=20)
    assert idle[0].tolist() != as_set[0].tolist()
    heavy = model.recommend(history=[{"item": items[0], "weight": 20.0}, *items[1:]], k=20)
    assert heavy[0].tolist() != ids.tolist()
    user = model.user_ids.values[[0]].tolist()[0]
    mine, other = (model.recommend(user, history=each, k=20) for each in (items, items[::-1]))
    assert mine[0].tolist() != other[0].tolist()
    blind = Recommender(train(prepare(walks(), protocol="random"), SMALL, seed=3), "arrays")
    for by in ("consensus", "student"):
        one, other = (blind.recommend(history=each, k=20, by=by) for each in (timed, items[::-1]))
        assert one[0].tolist() == other[0].tolist()


@pytest.mark.parametrize(("history", "word"), [
    ([{"item": 1, "time": "2024-01-01"}, 2], "some items have a time"), ([{"time": 3}], "expected an item"),
    ([{"item": 1, "weight": 0}], "from 1e-6"), ([{"item": 1, "weight": True}], "from 1e-6"),
    ([{"item": 1, "when": 3}], "expected an item"), ([{"item": 1, "time": "soon"}], "history: time 'soon'"),
    ([{"item": 1, "time": 7.0}], "like the newest"),
])  # fmt: skip
def test_histories_that_are_wrong_are_refused(history: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Recommender(ordered()).recommend(history=history)


def test_lists_at_a_later_time_are_those_of_the_reranker_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ordered()
    assert run.clock is not None
    newest, users = run.clock.now, torch.arange(run.log.shape[0])
    assert newest == run.data.times(run.learned).data.max()
    model = Recommender(run, "arrays")
    plain = model.recommend(k=20)
    assert model.recommend(k=20, at=newest)[0].tolist() == plain[0].tolist()
    clock = run.clock_at(newest + 90 * 86_400)
    lists, scores = run.reranked_at(clock, users)
    ids = model.item_ids.values
    user = model.user_ids.values[[4]].tolist()[0]
    found = model.recommend([user], k=5, at=newest + 90 * 86_400, rules=Rules(filter_viewed=True))
    shown = [item for item in lists[4].tolist() if item not in model.viewed[[4]].indices][:5]
    assert found[0][0].tolist() == ids[shown].tolist()
    later = datetime.fromtimestamp(newest, UTC) + timedelta(days=90)
    assert model.recommend([user], k=5, at=later)[0].tolist() == found[0].tolist()
    assert (model.recommend(k=20, at=later)[0] != plain[0]).any()
    kept = model.ranker.as_of(clock.now)  # the last one alone
    assert model.ranker.as_of(clock.now) is kept
    assert model.ranker.as_of(clock.now + 1)._later is None
    used, history = np.diff(run.log.indptr) > 0, ids[:4].tolist()
    assert (model.recommend(history=history, at=later)[1] != model.recommend(history=history)[1]).any()
    monkeypatch.setattr(FoldedHead, "__call__", as_known)
    agreed = run.fold_in.as_of(clock).agree(run.log, run.data.times(run.learned))
    assert mostly_close(agreed.votes["reranked"][used], scores[used])
    assert (agreed.lists == lists)[used].float().mean() > 0.99  # but for ties of rounding


def test_a_time_that_is_too_early_or_without_effect_is_said() -> None:
    model = Recommender(ordered())
    with pytest.raises(ConfigError, match="earlier than the newest event that the run has learned"):
        model.recommend(k=3, at="1999-01-01")
    for when in (float("nan"), "inf", True, "tomorrow"):
        with pytest.raises(ConfigError, match=r"at=.*expected a date"):
            model.recommend(k=3, at=when)
    newest = walks()["timestamp"].max()
    with pytest.warns(ConcfWarning, match="no effect, since student knows no time"):
        model.recommend(k=3, by="student", at=newest)
    for log in (walks(), walks().drop("timestamp")):
        blind = Recommender(train(prepare(log, protocol="random"), SMALL, seed=3))
        with pytest.warns(ConcfWarning, match="no effect, since the run uses no ages"):
            assert blind.recommend(k=3, at=newest).equals(blind.recommend(k=3))


def test_the_command_takes_a_time(whole: Path, concf: CLI, tmp_path: Path) -> None:
    by_time().save(tmp_path / "data")
    words = ("recommend", whole, "--data", tmp_path / "data", "--users", "3", "--json")
    _, now, _ = concf(*words)
    code, later, err = concf(*words, "--at", "2090-01-31")
    assert (code, err) == (0, "")
    assert [row["score"] for row in json.loads(now)] != [row["score"] for row in json.loads(later)]
    code, _, err = concf(*words, "--at", "1999-01-31")
    assert (code, "--at 1999-01-31: earlier than the newest event" in err) == (2, True)


def test_a_run_by_time_serves_histories_and_explains(whole: Path) -> None:
    model = Recommender(load_run(whole, by_time()))
    assert len(model.recommend(history=model.item_ids.values[:4].tolist(), k=5)) == 5
    user = model.user_ids.values[0]
    first = model.recommend(user, k=1, by="consensus")["item_id"][0]
    assert model.explain(user, first)


def test_vectors_from_outside_vote_beside_own_voters_that_know_times(whole: Path) -> None:
    run = combine(by_time(), {"svd": PureSVD(factors=4).fit(by_time().train)}, settings=SMALL | {"own": True}, seed=3)
    decided = load_run(whole, by_time()).chosen[TIME]  # by own voters
    assert (run.heads, run.chosen[TIME]) == (["als-a", "svd", STUDENT], decided)


@pytest.mark.parametrize("last", ["als", "time", "rerank"])
def test_a_run_by_time_that_is_killed_has_the_same_end(last: str, tmp_path: Path, whole: Path) -> None:
    class Killed(Exception):
        """A run ends here."""

    def watch(record: dict[str, Any]) -> None:
        if record["stage"] == last:
            raise Killed

    with pytest.raises(Killed):
        train(by_time(), SMALL, seed=3, out=tmp_path / "run", watch=watch)
    assert_same(train(by_time(), out=tmp_path / "run", resume=True), load_run(whole, by_time()))


def test_an_update_keeps_what_was_decided(whole: Path) -> None:
    run = load_run(whole, by_time())
    assert isinstance(run, StrongRun)
    newest = stream()["timestamp"].max()
    newer = (
        stream()
        .sample(fraction=0.1, seed=1)
        .with_columns(timestamp=pl.lit(newest + 1000), item_id=pl.col("item_id").shuffle(seed=2))
    )
    updated = update(run, newer)
    assert updated.chosen["time"] == run.chosen["time"]
    assert updated.fixed_voters == run.fixed_voters
    assert updated.clock is not None or not run.chosen["time"]["features"]


def test_a_refresh_renews_the_clock_and_what_is_popular() -> None:
    newest = walks()["timestamp"].max()
    newer = pl.DataFrame({"user_id": range(300), "item_id": [999] * 300, "timestamp": [newest + 86_400] * 300})
    run = update(ordered(), newer, refresh=True, final=True)
    assert run.clock is not None
    assert run.clock.now == newest + 86_400
    item = int(run.data.interactions.item_ids.values.tolist().index(999))
    votes = dict(zip([*run.heads, *run.fixed_voters], run.best[CONSENSUS].votes["items"], strict=True))
    assert (votes["recent-popularity"][300:] == item).any(1).all()
    assert not any((votes[head] == item)[:, :10].any() for head in run.voters)
    assert run.fixed_voters == ordered().fixed_voters
