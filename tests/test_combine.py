"""A consensus of voters from outside is a whole run: voted, re-ranked, distilled, served, resumed."""

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
from small_recipe import CLI, SMALL, assert_same, data, trained
from small_run import Killed, assert_same_end, die_after
from small_service import Client, loaded

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.consensus.voters import by_lists, by_scores, moments_of_lists
from concf.errors import ConcfWarning, ConfigError
from concf.evaluation.ranking import rank
from concf.inference.explain import about
from concf.inference.export import export
from concf.inference.recommender import Recommender
from concf.model.baselines.ease import EASE
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.neighbours import RP3beta
from concf.model.scorers import ListFunction
from concf.report.gather import _notes, gather
from concf.report.page import page
from concf.training.checkpoint import CARD, RunFolder, load_run
from concf.training.combining.combine import combine
from concf.training.recipe.combine import FIRST_SWEEPS, Combine
from concf.training.recipe.recipe import STUDENT
from concf.training.recipe.students import SOLVED_BY
from concf.training.run import Run
from concf.training.train import train

pytestmark = [
    pytest.mark.usefixtures("on_one_thread"),
    pytest.mark.filterwarnings("ignore:Method expects CSR input"),
]


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
    voter = by_lists("mine", listed.int(), values, moments_of_lists(listed.int(), values, n_items))
    assert voter.listed is not None
    z_score = (table - table.mean(0)) / table.std(0)
    assert voter.listed[3, 1, 0].item() == pytest.approx(z_score[3, listed[3, 1]], rel=1e-4)


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
    assert run.keep("svd").factors()["svd"].scores(torch.arange(3)).numpy() == pytest.approx(
        (vectors()[0][:3] @ vectors()[1].T).numpy(), abs=1e-5
    )


def test_a_bias_is_one_more_dimension_and_long_vectors_make_room() -> None:
    user, item = vectors(d=9)
    bias = torch.linspace(-1, 1, len(item))
    run = combine(data(), {"biased": (user, item, bias), "walks": voters()["walks"]}, settings=SMALL)
    assert run.settings.model.dimensions == 12  # 10 at least, in fours
    found = run.keep("biased").factors()["biased"].scores(torch.arange(4))
    assert found.numpy() == pytest.approx((user[:4] @ item.T + bias).numpy(), abs=1e-5)


def test_figures_are_those_of_the_voters_own_lists() -> None:
    run = combined()
    recorded = next(record for record in run.history if record["stage"] == "rerank")["validation"]
    for name, voter in voters().items():
        lists = {"walks": RP3beta().fit(data().train)}.get(name, voter)
        held_out = data().valid
        shares = []
        for user in data().validated.tolist():
            wanted = set(held_out[[user]].indices.tolist())
            (listed,) = rank(lists, np.array([user]), 5, seen=data().train)
            shares.append(len(wanted & set(listed.tolist())) / len(wanted))
        assert recorded[name] == pytest.approx(np.mean(shares))


# The run


def test_the_stages_are_those_that_there_is_work_for() -> None:
    own = ["search", "als", "softmax-a"]
    assert [record["stage"] for record in combined().history] == ["rerank", "student", "final"]
    assert [record["stage"] for record in combined(True).history] == [*own, "rerank", "student", "final"]
    assert [record["stage"] for record in combined(True, True).history] == [*own, "rerank", "student", "refit", "final"]
    assert combined().learned == ("train",)
    assert combined(refitted=True).learned == ("train", "valid")
    assert combined(True).rows() == ["als-a", "als-b", "softmax-a", "svd", STUDENT, R_CONSENSUS, CONSENSUS]


def test_final_voters_take_the_place_of_the_first_and_weights_stay() -> None:
    first, then = combined(), combined(refitted=True)
    for name in ("weights", "centre"):
        assert first.best[CONSENSUS].votes[name].equal(then.best[CONSENSUS].votes[name])
    assert first.best[CONSENSUS].validation == then.best[CONSENSUS].validation
    expected = by_scores("ease", voters("train", "valid")["ease"], then.log, torch.arange(48), K)
    assert then.best[CONSENSUS].votes["items"][-1].equal(expected.lists)
    with pytest.raises(ConfigError, match="was refitted on its validation part"):
        then.evaluate(on="valid")
    assert then.evaluate(at=5).keys() == first.evaluate(at=5).keys()
    refitted = {**voters("train", "valid"), "svd": vectors(1)}
    final = combine(data(), voters(), final_voters=refitted, final=True, settings=SMALL)
    assert final.learned == ("train", "valid", "test")


def test_plain_fusions_are_measured_beside() -> None:
    """Reciprocal ranks by loops, on the users that the consensus is measured on too."""
    run = combined()
    fused = next(record["fusions"] for record in run.history if "fusions" in record)
    assert list(fused) == ["reciprocal ranks", "Borda", "CombSUM", "CombMNZ", "weighted", "greedy", CONSENSUS]
    assert fused[CONSENSUS] == run.best[CONSENSUS].validation  # of so few users all are looked at
    votes, shares = run.best[CONSENSUS].votes["items"].tolist(), []
    for user in data().validated.tolist():
        total: dict[int, float] = {}
        for voter in (0, 2, 3):  # 1 is the student
            for place, item in enumerate(votes[voter][user], 1):
                total[item] = total.get(item, 0) + (1 / (60 + place) if item >= 0 else -9)
        best = sorted(total, key=lambda item: -total[item])[:5]
        wanted = data().valid[[user]].indices.tolist()
        shares.append(len(set(best) & set(wanted)) / len(wanted))
    assert fused["reciprocal ranks"] == pytest.approx(np.mean(shares), abs=0.02)  # some are equal


def test_a_report_of_lists_alone_says_that_there_is_a_consensus() -> None:
    run = combine(data(), {"walks": voters()["walks"]}, settings=SMALL)
    assert not any("one head" in note for note in _notes(run, has_test=True))


def test_a_student_may_learn_within_groups_of_popularity() -> None:
    """The consensus is the same, and the student another; one group is the default."""
    plain = combined()
    runs = [
        combine(data(), voters(), settings=SMALL | {"recipe": {"popularity_groups": groups}}, seed=3)
        for groups in (1, 3)
    ]
    assert all(run.best[CONSENSUS].lists.equal(plain.best[CONSENSUS].lists) for run in runs)
    items = [run.model.item[run.model.names.index(STUDENT)] for run in (plain, *runs)]
    assert torch.equal(items[0], items[1])
    assert not torch.allclose(items[0], items[2])


def test_a_refit_that_the_voters_do_not_allow_is_noted() -> None:
    settings = SMALL | {"recipe": {"refit": "everything", "budget": "fast"}}
    with pytest.warns(ConcfWarning, match=r"recipe\.refit=everything: not used. It follows from final voters .*: none"):
        run = combine(data(), voters(), settings=settings, seed=3)
    assert run.settings.recipe is not None
    assert run.settings.recipe.refit == "none"


def test_a_student_without_voters_of_ours_begins_with_als_of_the_log() -> None:
    stages = Combine(combined(), torch.device("cpu"))
    als = stages._solver(data().train)
    start = als.start(stages._seed(1))
    _, item = als.fit(start, **SOLVED_BY, sweeps=FIRST_SWEEPS)
    assert stages._start().equal(item)


def test_the_student_ranks_as_the_consensus_rather_than_as_the_log() -> None:
    """It shares more of its list with the consensus than a factor model of the log alone does."""
    run, users = combined(), np.arange(48)
    agreed = rank(run.recommender(CONSENSUS), users, 5, seen=data().train)

    def shared(name: str, of: Run) -> float:
        lists = rank(of.recommender(name), users, 5, seen=data().train)
        return sum(len(set(a) & set(b)) for a, b in zip(lists.tolist(), agreed.tolist(), strict=True)) / agreed.size

    assert shared(STUDENT, run) > 0.7
    assert shared(STUDENT, run) > shared("als-a", trained(refit="none"))


def test_it_is_recommended_from_explained_exported_and_reported(tmp_path: Path) -> None:
    for with_own in (False, True):
        run = combined(with_own)
        model = Recommender(run, frame="arrays")
        user = model.user_ids.values[[5]].tolist()[0]
        for by in run.rows():
            assert len(model.recommend(user, k=4, by=by)[0]) == 4
        items, scores = model.recommend(user, k=3)
        explanation = model.explain(user, items.tolist()[0])
        assert explanation["reranked"] == pytest.approx(scores[0], rel=1e-6)
        voting = {each["head"] for each in explanation["heads"]}
        assert voting >= {"svd", "walks", "ease"}
        assert {each["voter"] for each in explanation["contributions"] or []} >= {"svd", "walks", "ease"}
        shown = page(gather(run, {"device": "cpu"}, examples=1))
        assert all(name in shown for name in ("walks", "svd", "plain fusions beside the consensus"))
    export(combined(), None, "npz", tmp_path / "vectors.npz")
    assert about(combined(), "svd") == "given, with vectors"
    assert {each["name"]: each["objective"] for each in combined().summary()["recommenders"]}["svd"] == "given"


def test_it_is_served_and_explored_by_the_voters_own_names(tmp_path: Path) -> None:
    """With vectors, and where all voters are lists."""
    lists = {"walks": voters()["walks"], "ease-lists": frame(EASE(regularisation=50.0).fit(data().train), data().train)}
    for name, chosen in (("both", voters()), ("lists", lists)):
        combine(data(), chosen, settings=SMALL, seed=3, out=tmp_path / name)
        with Client(loaded(tmp_path / name)) as client:
            model = client.service.model.recommender
            for item in model.item_ids.values.tolist()[::9]:
                assert client.get(f"/explain/3/{item}").json() == model.explain(3, item) | {"title": None}
            view = client.get("/explore/3").json()
            assert {each["by"] for each in view["lists"]} == {*chosen, STUDENT}
            history = {"history": model.item_ids.values[:3].tolist(), "k": 3}
            answer = client.post("/explore", history).json()
            assert len(answer["consensus"]["items"]) == 3
            assert client.get("/recommend/3?k=5&viewed=true").status_code == 200
        few = model.item_ids.values[:9].tolist()
        assert set(model.recommend(3, k=4, items=few, by=CONSENSUS, frame="arrays")[0].tolist()) <= set(few)


def test_new_users_are_ranked_for_by_whoever_can() -> None:
    """Vectors are regressed on histories; lists know nobody new; where all are lists, the student ranks alone."""
    alone = combine(data(), {"walks": voters()["walks"]}, settings=SMALL)
    for run in (combined(), combined(True), alone):
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
    for last in range(3):
        folder = tmp_path / f"killed-{last}"
        with pytest.raises(Killed):
            combine(data(), voters(), out=folder, watch=die_after(last), **options)
        train(data(), out=folder, resume=True)
        assert_same_end(folder, tmp_path / "whole")
    description = RunFolder(tmp_path / "whole").description()["combine"]
    assert description["voters"]["walks"]["name"] == "DataFrame"
    assert "Given from outside, not trained here: svd, walks, ease" in (tmp_path / "whole" / CARD).read_text()


def test_the_commands(tmp_path: Path, concf: CLI) -> None:
    data().save(tmp_path / "data")
    sets = [word for each in ("model.dimensions=8", "consensus.top_k=12", "consensus.kept=12", "consensus.shown=12",
                              "training.metric=recall@5") for word in ("--set", each)]  # fmt: skip
    for part, name in (("train", "learn.csv"), ("train,valid", "more.parquet")):
        code, out, _ = concf("data", "write", tmp_path / "data", "--parts", part, "--out", tmp_path / name)
        assert (code, f"pairs of {part}" in out) == (0, True)
    written = pl.read_csv(tmp_path / "learn.csv")
    assert written.columns[:3] == ["user_id", "item_id", "count"]
    assert len(written) == data().train.nnz
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
    code, out, _ = concf("combine", tmp_path / "data", *words, "--out", tmp_path / "again", *sets)
    assert "Voters without vectors: walks 0." in out
    assert "Plain fusions beside the consensus, of some users: reciprocal ranks 0." in out
    assert len(RunFolder(run).description()["combine"]["voters"]["walks"]["sha256"]) == 64
    assert concf("evaluate", run, "--at", "5")[0] == 0
    code, _, err = concf("update", run, tmp_path / "learn.csv", "--out", tmp_path / "next")
    assert (code, "voters from outside (walks, ease) know nothing of a newer log" in err) == (2, True)
    code, _, err = concf("combine", tmp_path / "data", *words, "--out", run, *sets)
    assert (code, "holds a run already" in err) == (2, True)


# Libraries


def test_models_of_implicit_vote_by_their_vectors_or_their_lists() -> None:
    log = csr_matrix(data().train)
    models = {
        "als": implicit.als.AlternatingLeastSquares(factors=6, random_state=1, num_threads=1),
        "bpr": implicit.bpr.BayesianPersonalizedRanking(factors=6, random_state=1, num_threads=1),
        "lmf": implicit.lmf.LogisticMatrixFactorization(factors=6, random_state=1, num_threads=1),
        "bm25": BM25Recommender(K=10, num_threads=1),
    }
    for model in models.values():
        model.fit(log, show_progress=False)
    run = combine(data(), models, settings=SMALL)
    assert run.settings.recipe is not None
    assert run.settings.recipe.given_vectors == ("als", "bpr", "lmf")
    assert run.settings.recipe.given == ("bm25",)
    votes = run.best[CONSENSUS].votes["items"]
    names = [*run.settings.heads, *run.settings.fixed_voters]
    for name, model in models.items():
        for user in range(0, 48, 7):
            expected, scores = model.recommend(user, log[user], N=5, filter_already_liked_items=True)
            if np.diff(scores).all():
                assert votes[names.index(name), user, :5].tolist() == expected.tolist()


def test_popularity_votes_and_lists_of_positions_do_not() -> None:
    run = combine(data(), {"popular": Popularity().fit(data().train), "svd": vectors()}, settings=SMALL)
    assert run.finished
    with pytest.raises(ConfigError, match="give its lists as a frame"):
        combine(data(), {"mine": ListFunction(lambda users, k: np.zeros((len(users), k)))}, settings=SMALL)


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
    for voter in (Pipeline(), (Model(), dataset)):
        run = combine(data(), {"mine": voter, "svd": vectors()}, settings=SMALL)
        expected = combine(data(), {"mine": voters()["walks"], "svd": vectors()}, settings=SMALL)
        assert run.best[CONSENSUS].votes["items"].equal(expected.best[CONSENSUS].votes["items"])
