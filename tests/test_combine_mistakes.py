"""Voters from outside that cannot vote, or were fitted on what they are validated on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from implicit.nearest_neighbours import BM25Recommender
from scipy.sparse import csr_array
from small_combine import K, combined, frame, vectors, voters
from small_recipe import CLI, LOG, SMALL, data

from concf.consensus.settings import CONSENSUS
from concf.data.prepare import prepare
from concf.data.reading.lists import read_lists
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.evaluation.ranking import rank
from concf.inference.recommender import Recommender
from concf.model.baselines.ease import EASE
from concf.model.scorers import ScoreFunction
from concf.training.combining.combine import combine
from concf.training.recipe.combine import by_chance, first_hits, hits, note_leaks
from concf.training.train import train
from concf.training.update import update

pytestmark = [
    pytest.mark.usefixtures("on_one_thread"),
    pytest.mark.filterwarnings("ignore:Method expects CSR input"),
]


# Mistakes


def test_mistakes_on_the_command_line(tmp_path: Path, concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data().save(tmp_path / "data")
    voters()["walks"].write_csv(tmp_path / "walks.csv")
    for words, message in (
        (["--voter", "als"], "expected NAME=FILE"),
        (["--voter", "als=a.csv", "--voter", "als=b.csv"], "each name once"),
        (["--voter", "als=nowhere.csv"], "nowhere.csv"),
        (["--voter", "als=walks.csv", "--final"], "--final"),
        (["--voter", "als=walks.csv", "--final-voter", "als=walks.csv"], "is the voter itself"),
        (["--voter", "als=walks.csv", "--final-voter", "bm=walks.csv"], "the same names"),
        (["--voter", "student=walks.csv"], "another of that name"),
        (["--voter", "a.b=walks.csv"], "choose a name"),
        (["--voter", "rp3beta=walks.csv", "--with-own"], "another of that name"),
    ):
        code, _, err = concf("combine", "data", *words, "--out", "run")
        assert (code, message in err, (tmp_path / "run").exists()) == (2, True, False), err
    for parts, out in (("tain", "x.csv"), ("train", "x.xls"), ("train", "walks.csv")):
        before = (tmp_path / "walks.csv").read_text()
        assert concf("data", "write", "data", "--parts", parts, "--out", out)[0] == 2
        assert ((tmp_path / "walks.csv").read_text(), (tmp_path / "x.csv").exists()) == (before, False)


class NoModel:
    pass


@pytest.mark.parametrize(
    ("voter", "message"),
    [
        (NoModel(), "NoModel cannot vote"),
        ((torch.ones(3, 2), torch.ones(4, 2)), "3 users and 4 items, and the log has 48 and 40"),
        ((torch.full((48, 2), torch.nan), torch.ones(40, 2)), "not finite"),
        ((torch.zeros(48, 2), torch.rand(40, 2)), "zero"),
        ((torch.ones(48, 2), 1e25 * torch.rand(40, 2)), "exceed 1e.15"),
        (BM25Recommender(), "not fitted"),
        (lambda users: np.ones((len(users), 3)), r"expected scores \[48, 40\], found \[48, 3\]"),
        (lambda users: np.full((len(users), 40), np.nan), "not a number"),
        (lambda users: np.ones((len(users), 40)), "every score is the same"),
        (pl.DataFrame({"user_id": [0], "item_id": [1]}), "no column of scores or ranks"),
        (pl.DataFrame({"user_id": [0.5], "item_id": [1.5], "score": [1.0]}), "nothing in common with the log"),
    ],
)
def test_what_cannot_vote_is_refused(voter: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        combine(data(), {"mine": voter}, settings=SMALL)


def test_ids_of_any_type_that_can_be_the_log_s_and_scores_of_any_size() -> None:
    walks = voters()["walks"].with_columns(score=-57e300 * pl.col("rank")).drop("rank")
    plain = walks.with_columns(score=pl.col("score") / 57e300)
    floats = plain.with_columns(pl.col("user_id", "item_id").cast(pl.Float64))
    names = plain.with_columns(pl.col("user_id", "item_id").cast(pl.String).cast(pl.Categorical))
    log, seen = data().interactions, data().train
    expected = read_lists(plain, "walks", log, seen, K)
    for each in (walks, floats, names):
        found = read_lists(each, "walks", log, seen, K)
        assert np.array_equal(found.items, expected.items)
        assert found.scores == pytest.approx(expected.scores, abs=1e-6)


def test_whom_nobody_lists_anything_for_the_student_ranks() -> None:
    few = voters()["walks"].filter(pl.col("user_id") < 3)
    with pytest.warns(ConcfWarning, match="no voter lists anything for 45 of 48 users"):
        run = combine(data(), {"few": few}, settings=SMALL)
    everyone = np.arange(48)
    lists = {name: rank(run.recommender(name), everyone, 5, seen=data().train) for name in (CONSENSUS, "student")}
    assert np.array_equal(lists[CONSENSUS][3:], lists["student"][3:])
    listed = Recommender(run).recommend([40], k=5)
    assert listed["score"].is_finite().all()
    assert listed["score"].is_sorted(descending=True)


def test_mistakes_in_python() -> None:
    wrong: list[dict[str, Any]] = [{"data": None}, {"voters": ["a.csv"]}, {"final_voters": ["x"]}, {"settings": "x"}]
    for each in wrong:
        with pytest.raises(ConfigError, match=f"{next(iter(each))}: expected"):
            combine(**({"data": data(), "voters": {"svd": vectors()}, "settings": SMALL} | each))
    with pytest.raises(ConfigError, match="is there twice at the time 1"):
        combine(data(), {"a@1": "x.csv", "a@01": "y.csv"})
    with pytest.raises(ConfigError, match="no voter was given"):
        combine(data(), {})
    with pytest.raises(ConfigError, match="voters from outside are for concf combine"):
        train(data(), {"recipe": {"given": ["walks"]}})
    with pytest.raises(ConfigError, match="own = false leaves nobody to vote"):
        train(data(), {"recipe": {"own": False}})
    with pytest.raises(ConfigError, match="one of the two has vectors and the other has none"):
        combine(data(), {"svd": vectors()}, final_voters={"svd": voters()["walks"]}, settings=SMALL)
    with pytest.raises(ConfigError, match="preset strong"):
        combine(data(), {"svd": vectors()}, settings={"recipe": None, **SMALL})
    apart = prepare(LOG.draw(1), protocol="new-users")
    with pytest.raises(ConfigError, match=r"holds out users .* for whom voters from outside have no lists"):
        combine(apart, {"svd": vectors()}, settings=SMALL)
    with pytest.raises(ConfigError, match="know nothing of a newer log"):
        update(combined(), pl.DataFrame({"user_id": [1], "item_id": [2]}))


def test_minus_infinity_is_the_last_place() -> None:
    scores = EASE(regularisation=50.0).fit(data().train)

    def without_first(users: np.ndarray[Any, Any]) -> Any:
        block = scores.scores(torch.from_numpy(users)).clone()
        block[:, 0] = -torch.inf
        return block

    run = combine(data(), {"some": ScoreFunction(without_first), "svd": vectors()}, settings=SMALL)
    votes = run.best[CONSENSUS].votes
    assert not (votes["items"][-1] == 0).any()
    assert votes["of_items"].isfinite().all()


# Leaks


def test_leaks_are_counted_as_by_hand() -> None:
    train = csr_array(np.array([[1, 0, 0, 0, 0], [0, 1, 1, 0, 0]], np.float32))
    valid = csr_array(np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.float32))
    lists = np.array([[1, 3, -1], [3, 0, 4]], np.int32)
    assert (hits(lists, valid), first_hits(lists, valid)) == (2, 1)
    assert by_chance(lists, train, valid) == pytest.approx(2 * 2 / 4 + 3 * 1 / 3)


def test_a_voter_that_was_fitted_on_validation_trips_the_alarm() -> None:
    """It leaves validation items out as used, or finds them far too well; an honest one does neither."""
    split = data()
    both = split.log(("train", "valid"))
    users = np.arange(48)
    honest = rank(EASE(regularisation=50.0).fit(split.train), users, K, seen=split.train)
    hides = rank(EASE(regularisation=50.0).fit(both), users, K, seen=both)
    knows = rank(EASE(regularisation=1.0).fit(both), users, K, seen=split.train)
    for lists, message in (
        (hides, "fewer than by chance"),
        (knows, "items of the validation part, those of RP3beta"),
    ):
        with pytest.warns(ConcfWarning, match=message):
            note_leaks(split, users, {"mine": torch.from_numpy(lists)})
    note_leaks(split, users, {"mine": torch.from_numpy(honest)})  # a warning would be an error
    with pytest.warns(ConcfWarning, match="voter 'mine'.*fitted on the validation part too"):
        combine(split, {"mine": frame(EASE(regularisation=50.0).fit(both), both), "svd": vectors()}, settings=SMALL)
