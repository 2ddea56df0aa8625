"""A consensus of voters from outside is a whole run: voted, re-ranked, distilled, resumed; and who cannot vote."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import implicit
import numpy as np
import polars as pl
import pytest
import torch
from implicit.nearest_neighbours import BM25Recommender
from scipy.sparse import csr_array, csr_matrix
from small_combine import K, combined, frame, vectors, voters
from small_recipe import CLI, LOG, SMALL, assert_same, data
from small_run import Killed, assert_same_end, die_after

from concf.baselines.ease import EASE
from concf.baselines.neighbours import RP3beta
from concf.consensus.voters import by_scores, moments_of_lists
from concf.data.prepare import prepare
from concf.data.reading.lists import read_lists
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import ScoreFunction
from concf.inference.export import export
from concf.inference.recommender import Recommender
from concf.models import load_run, train
from concf.report.gather import gather
from concf.report.page import page
from concf.runs.checkpoint import CARD, RunFolder
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.strong.combine import combine
from concf.strong.combine_stages import FIRST_SWEEPS, Combine, by_chance, first_hits, hits, note_leaks
from concf.strong.settings import STUDENT
from concf.strong.students import SOLVED_BY

pytestmark = [pytest.mark.filterwarnings("ignore:Method expects CSR input")]


# What votes


def test_moments_of_lists_are_those_of_the_whole_table() -> None:
    random = np.random.default_rng(0)
    n, n_items = 30, 12
    scores = torch.from_numpy(random.random((n, n_items)).astype(np.float32))
    listed = scores.topk(5, dim=1).indices
    values = scores.gather(1, listed)
    table = np.zeros((n, n_items))
    for user in range(n):
        for item, value in zip(listed[user].tolist(), values[user].tolist(), strict=True):
            table[user, item] = value
    mean, std, gap, unit = moments_of_lists(listed.int(), values, n_items).double().numpy()
    own = np.array(
        [table[table[:, i] > 0, i].mean() if table[:, i].any() else table[:, i].mean() for i in range(n_items)]
    )
    assert unit == pytest.approx(np.full(n_items, table.std()), rel=1e-5)
    assert mean == pytest.approx(table.mean(0) / table.std(), rel=1e-5)
    assert std == pytest.approx(np.maximum(table.std(0) / table.std(), 1e-3), rel=1e-4)
    assert gap == pytest.approx(np.maximum((own - table.mean(0)) / table.std(), 0.05), rel=1e-4)


def test_scores_vote_as_those_of_a_voter_of_ours() -> None:
    run, users = combined(), torch.arange(data().train.shape[0])
    expected = by_scores("ease", voters()["ease"], data().train, users, K)
    place = [*run.settings.heads, *run.settings.fixed_voters].index("ease")
    votes = run.best[CONSENSUS].votes
    assert votes["items"][place].equal(expected.lists)
    assert expected.of_items is not None
    assert votes["of_items"][1, :3].equal(expected.of_items[:3])


def test_lists_and_vectors_vote_as_they_are() -> None:
    run, items = combined(), combined().best[CONSENSUS].votes["items"]
    names = [*run.settings.heads, *run.settings.fixed_voters]
    assert names == ["svd", STUDENT, "walks", "ease"]
    listed = voters()["walks"].filter(pl.col("rank") <= K)
    ids = run.data.interactions.user_ids.values, run.data.interactions.item_ids.values
    for row in range(0, len(ids[0]), 5):
        mine = listed.filter(pl.col("user_id") == ids[0][row]).sort("rank")["item_id"].to_list()
        found = items[names.index("walks"), row]
        assert ids[1][found[found >= 0]].tolist() == mine
    assert items[0].tolist() == rank(vectors(), np.arange(len(ids[0])), K, seen=data().train).tolist()
    assert run.factors("svd").scores(torch.arange(3)).numpy() == pytest.approx(
        (vectors()[0][:3] @ vectors()[1].T).numpy(), abs=1e-5
    )


def test_a_bias_is_one_more_dimension_and_long_vectors_make_room() -> None:
    user, item = vectors(d=9)
    bias = torch.linspace(-1, 1, len(item))
    run = combine(data(), {"biased": (user, item, bias), "walks": voters()["walks"]}, settings=SMALL)
    assert run.settings.dimensions == 12  # 10 at least, in fours
    found = run.factors("biased").scores(torch.arange(4))
    assert found.numpy() == pytest.approx((user[:4] @ item.T + bias).numpy(), abs=1e-5)


def test_figures_are_those_of_the_voters_own_lists() -> None:
    record = next(record for record in combined().history if record["stage"] == "rerank")
    recorded = record["validation"]
    assert record["fusions"]["consensus"] == pytest.approx(recorded["consensus"])  # the sample has all users
    for name, voter in voters().items():
        lists = rank(RP3beta().fit(data().train) if name == "walks" else voter, data().validated, 5, seen=data().train)
        wanted = [set(data().valid[[user]].indices.tolist()) for user in data().validated.tolist()]
        shares = [len(mine & set(row)) / len(mine) for mine, row in zip(wanted, lists.tolist(), strict=True)]
        assert recorded[name] == pytest.approx(np.mean(shares))


# The run


def test_a_student_without_voters_of_ours_begins_with_als_of_the_log() -> None:
    stages = Combine(combined())
    als = stages.solver(data().train)
    start = als.start(stages._seed(1))
    expected = als.fit(start, **SOLVED_BY, sweeps=FIRST_SWEEPS)
    assert all(map(torch.equal, stages._start(), expected))


def test_the_stages_are_those_that_there_is_work_for() -> None:
    own = ["search", "als"]
    assert [record["stage"] for record in combined().history] == ["rerank", "student", "final"]
    assert [record["stage"] for record in combined(True, True).history] == [*own, "rerank", "student", "refit", "final"]
    assert combined().learned == ("train",)
    assert combined(refitted=True).learned == ("train", "valid")
    assert combined(True, True).rows() == ["als-a", "als-b", "svd", STUDENT, R_CONSENSUS, CONSENSUS]


def test_final_voters_take_the_place_of_the_first_and_weights_stay() -> None:
    first, then = combined(), combined(refitted=True)
    for name in ("weights", "centre"):
        assert first.best[CONSENSUS].votes[name].equal(then.best[CONSENSUS].votes[name])
    assert first.best[CONSENSUS].validation == then.best[CONSENSUS].validation
    expected = by_scores("ease", voters("train", "valid")["ease"], then.log, torch.arange(48), K)
    assert then.best[CONSENSUS].votes["items"][-1].equal(expected.lists)
    with pytest.raises(ConfigError, match="was refitted on its validation part"):
        then.evaluate(on="valid")


def test_it_is_recommended_from_explained_exported_and_reported(tmp_path: Path) -> None:
    run = combined(True, True)
    model = Recommender(run, frame="arrays")
    user = model.user_ids.values[[5]].tolist()[0]
    for by in run.rows():
        assert len(model.recommend(user, k=4, by=by)[0]) == 4
    items, scores = model.recommend(user, k=3)
    explanation = model.explain(user, items.tolist()[0])
    assert explanation["reranked"] == pytest.approx(scores[0], rel=1e-6)
    assert {each["head"] for each in explanation["heads"]} >= {"svd", "walks", "ease"}
    assert {each["voter"] for each in explanation["contributions"] or []} >= {"svd", "walks", "ease"}
    assert "walks" in page(gather(run, {"device": "cpu"}, examples=1))
    export(combined(), None, "npz", tmp_path / "vectors.npz")


def test_new_users_are_ranked_for_by_whoever_can() -> None:
    """Vectors are regressed on histories; lists know nobody new; where all are lists, the student ranks alone."""
    alone = combine(data(), {"walks": voters()["walks"]}, settings=SMALL)
    for run in (combined(), combined(True, True), alone):
        model = Recommender(run, frame="arrays")
        history = model.item_ids.values[[1, 4, 7]].tolist()
        for by in run.rows():
            items, scores = model.recommend(history=history, k=4, by=by)
            assert len(set(items.tolist()) - set(history)) == 4
            assert by == R_CONSENSUS or (scores[0] > scores[3] and (np.diff(scores) <= 0).all())
    rows = csr_array(data().train[:6])
    agreed = alone.fold_in.agree(rows)
    expected = rank(alone.fold_in.head(STUDENT, rows), np.arange(6), K, seen=rows)
    assert agreed.lists.tolist() == expected.tolist()
    silent = [*combined().settings.heads, *combined().settings.fixed_voters].index("walks")
    assert (combined().fold_in.agree(rows).votes["items"][silent] == -1).all()


def test_a_run_that_was_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    final = {**voters("train", "valid"), "svd": vectors(1)}
    options: dict[str, Any] = {"final_voters": final, "settings": SMALL, "seed": 3}
    whole = combine(data(), voters(), out=tmp_path / "whole", **options)
    assert_same(whole, combined(refitted=True))
    assert_same(whole, load_run(tmp_path / "whole"))
    for last in range(2):
        folder = tmp_path / f"killed-{last}"
        with pytest.raises(Killed):
            combine(data(), voters(), out=folder, watch=die_after(last), **options)
        train(data(), out=folder, resume=True)
        assert_same_end(folder, tmp_path / "whole")
    assert "Given from outside, not trained here: svd, walks, ease" in (tmp_path / "whole" / CARD).read_text()


def test_the_commands(tmp_path: Path, concf: CLI) -> None:
    data().save(tmp_path / "data")
    sets = [word for each in ("dimensions=8", "consensus.top_k=12", "consensus.shown=12",
                              "training.metric=recall@5") for word in ("--set", each)]  # fmt: skip
    for part, name in (("train", "learn.csv"), ("train,valid", "more.parquet")):
        assert concf("data", "write", tmp_path / "data", "--parts", part, "--out", tmp_path / name)[0] == 0
    assert len(pl.read_csv(tmp_path / "learn.csv")) == data().train.nnz
    assert len(pl.read_parquet(tmp_path / "more.parquet")) == data().train.nnz + data().valid.nnz
    log = data().train
    frame(RP3beta().fit(log), log).write_csv(tmp_path / "walks.csv")
    frame(EASE(regularisation=50.0).fit(log), log).write_parquet(tmp_path / "ease.parquet")
    words = ["--voter", f"walks={tmp_path / 'walks.csv'}", "--voter", f"ease={tmp_path / 'ease.parquet'}"]
    run = tmp_path / "run"
    code, out, err = concf("combine", tmp_path / "data", *words, "--out", run, *sets, "--json")
    assert code == 0, err
    assert [each["name"] for each in json.loads(out)["recommenders"]] == [STUDENT, R_CONSENSUS, CONSENSUS]
    assert list(json.loads(out)["voters"]) == ["walks", "ease"]
    assert len(RunFolder(run).description()["combine"]["voters"]["walks"]["sha256"]) == 64
    assert concf("evaluate", run, "--at", "5")[0] == 0
    notes = gather(load_run(run), {"device": "cpu"}, examples=1)["notes"]
    assert not any("one head" in each for each in notes)
    code, _, err = concf("update", run, tmp_path / "learn.csv", "--out", tmp_path / "next")
    assert (code, "know nothing of a newer log" in err) == (2, True)


# Libraries


def test_models_of_implicit_vote_by_their_vectors_or_their_lists() -> None:
    log = csr_matrix(data().train)
    models = {
        "als": implicit.als.AlternatingLeastSquares(factors=6, random_state=1, num_threads=1),
        "bpr": implicit.bpr.BayesianPersonalizedRanking(factors=6, random_state=1, num_threads=1),
        "bm25": BM25Recommender(K=10, num_threads=1),
    }
    for model in models.values():
        model.fit(log, show_progress=False)
    run = combine(data(), models, settings=SMALL)
    assert run.settings.given_vectors == ("als", "bpr")
    assert run.settings.given == ("bm25",)
    votes = run.best[CONSENSUS].votes["items"]
    names = [*run.settings.heads, *run.settings.fixed_voters]
    for name, model in models.items():
        for user in range(0, 48, 7):
            expected, scores = model.recommend(user, log[user], N=5, filter_already_liked_items=True)
            if np.diff(scores).all():
                assert votes[names.index(name), user, :5].tolist() == expected.tolist()


class Pipeline:
    """A pipeline of LensKit, by what `lenskit.batch.recommend` is called with and returns (2025.8)."""

    __module__ = "lenskit.pipeline._impl"


class Model:
    """A model of RecTools, by its `recommend` (0.19)."""

    __module__ = "rectools.models.ease"

    def recommend(self, users: Any, dataset: Any, k: int, filter_viewed: bool) -> Any:
        """The lists of users, without what they have used."""
        assert filter_viewed
        assert k > K
        return dataset.lists.filter(pl.col("user_id").is_in(users.tolist())).to_pandas()


def test_pipelines_of_lenskit_and_models_of_rectools_vote_by_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = voters()["walks"].with_columns(score=1 / pl.col("rank"))

    def recommend(pipeline: Any, queries: list[int], n: int | None = None, *, n_jobs: int | None = None) -> Any:
        assert isinstance(pipeline, Pipeline)
        assert (queries, n_jobs) == (data().interactions.user_ids.values.tolist(), 1)
        assert n is not None
        assert n > K
        return SimpleNamespace(to_df=lists.to_pandas)

    monkeypatch.setitem(sys.modules, "lenskit.batch", SimpleNamespace(recommend=recommend))
    dataset = SimpleNamespace(
        lists=lists, user_id_map=SimpleNamespace(external_ids=data().interactions.user_ids.values)
    )
    expected = combine(data(), {"mine": voters()["walks"], "svd": vectors()}, settings=SMALL)
    for voter in (Pipeline(), (Model(), dataset)):
        run = combine(data(), {"mine": voter, "svd": vectors()}, settings=SMALL)
        assert run.best[CONSENSUS].votes["items"].equal(expected.best[CONSENSUS].votes["items"])


# Mistakes


def test_mistakes_on_the_command_line(tmp_path: Path, concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data().save(tmp_path / "data")
    voters()["walks"].write_csv(tmp_path / "walks.csv")
    for words, message in (
        (["--voter", "als"], "expected NAME=FILE"),
        (["--voter", "als=a.csv", "--voter", "als=b.csv"], "each name once"),
        (["--voter", "als=walks.csv", "--final-voter", "als=walks.csv"], "is the voter itself"),
        (["--voter", "als=walks.csv", "--final-voter", "bm=walks.csv"], "the same names"),
        (["--voter", "rp3beta=walks.csv", "--with-own"], "another of that name"),
    ):
        code, _, err = concf("combine", "data", *words, "--out", "run")
        assert (code, message in err, (tmp_path / "run").exists()) == (2, True, False), err
    before = (tmp_path / "walks.csv").read_text()
    assert concf("data", "write", "data", "--parts", "train", "--out", "walks.csv")[0] == 2
    assert (tmp_path / "walks.csv").read_text() == before


@pytest.mark.parametrize(("voter", "message"), [
    (object(), "object cannot vote"),
    ((torch.ones(3, 2), torch.ones(4, 2)), "3 users and 4 items, and the log has 48 users and 40 items"),
    ((torch.full((48, 2), torch.nan), torch.ones(40, 2)), "not finite"),
    ((torch.zeros(48, 2), torch.rand(40, 2)), "zero"),
    ((torch.ones(48, 2), 1e25 * torch.rand(40, 2)), "exceed 1e.15"), (BM25Recommender(), "not fitted"),
    (lambda users: np.ones((len(users), 3)), r"expected scores \[48, 40\], found \[48, 3\]"),
    (lambda users: np.full((len(users), 40), np.nan), "not a number"),
    (lambda users: np.ones((len(users), 40)), "every score is the same"),
    (pl.DataFrame({"user_id": [0.5], "item_id": [1.5], "score": [1.0]}), "nothing in common with the log"),
])  # fmt: skip
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
    apart = prepare(LOG.draw(1), protocol="new-users")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"data": None}, "data: expected"),
        ({"voters": ["a.csv"]}, "voters: expected"),
        ({"voters": {}}, "no voter was given"),
        ({"voters": {"a@1": voters()["walks"]}}, "voter 'a@1': choose a name"),
        ({"final_voters": {"svd": voters()["walks"]}}, "only one has vectors"),
        ({"settings": {"objectives": ["bpr"], **SMALL}}, "unknown setting 'objectives' of strong"),
        ({"data": apart}, "holds out users .* for whom voters from outside have no lists"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            combine(**({"data": data(), "voters": {"svd": vectors()}, "settings": SMALL} | options))
    for settings, message in (({"given": ["walks"]}, "are for concf combine"), ({"own": False}, "leaves no voters")):
        with pytest.raises(ConfigError, match=message):
            train(data(), settings)


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
    for lists, message in ((hides, "fewer than by chance"), (knows, "validation items, and those of RP3beta")):
        with pytest.warns(ConcfWarning, match=message):
            note_leaks(split, users, {"mine": torch.from_numpy(lists)})
    note_leaks(split, users, {"mine": torch.from_numpy(honest)})  # a warning would be an error
    with pytest.warns(ConcfWarning, match="voter 'mine'.*fitted on the validation part too"):
        combine(split, {"mine": frame(EASE(regularisation=50.0).fit(both), both), "svd": vectors()}, settings=SMALL)
