"""An update makes a whole run of an old one and a new log: carried over, solved, served, updated again, resumed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from small_recipe import CLI, assert_same, small
from small_run import Killed, assert_same_end, die_after

from concf.baselines.als import ALS, Pairs
from concf.consensus import fitting
from concf.data.parts import TEST
from concf.data.prepare import split_of
from concf.data.simulate import DriftingSimulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.models import load_run, train
from concf.runs.checkpoint import CARD, RunFolder
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.strong import update_stages as stages
from concf.strong.softmax import UserSoftmax
from concf.strong.update import update
from concf.strong.update_stages import Update, UpdateSettings, beside_neighbours

pytestmark = [
    pytest.mark.filterwarnings("ignore:only .* of .* users are"),
    pytest.mark.filterwarnings("ignore:the re-ranker's weights are carried over"),
]
LOG = DriftingSimulation(users=70, items=60, events=2600, tastes=4, fashion=0.5).draw(1)
BASE, FIRST, SECOND = LOG[:1700], LOG[1700:2200], LOG[2200:]


@cache
def base(refit: str = "everything", budget: str = "default") -> Run:
    return train(split_of(BASE, 3, min_item=1), small(refit=refit, budget=budget), seed=3)


@cache
def updated() -> Run:
    return update(base(), FIRST)


def saved(run: Run, folder: Path) -> Path:
    model = ConCF(seed=run.seed)
    Recommender.__init__(model, run)
    model.save(folder)
    return folder


def checksums(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_new_users_and_items_join_and_the_old_run_stays() -> None:
    before = base().factors("als-a").user.clone()
    run = updated()
    assert torch.equal(base().factors("als-a").user, before)
    assert run.data.train.shape > base().data.train.shape
    assert run.finished
    assert [record["stage"] for record in run.history] == ["rerank", "refit", "final"]
    assert run.chosen == base().chosen
    newcomer = set(FIRST["user_id"].to_list()) - set(BASE["user_id"].to_list())
    lists = Recommender(run).recommend(sorted(newcomer), k=5)
    assert lists["user_id"].n_unique() == len(newcomer)


def test_voters_are_the_solution_of_one_sweep_from_where_they_were() -> None:
    """als-a by the literal steps: carried vectors, neighbours, one sweep over the whole log."""
    old, run = base(), updated()
    als = ALS(Pairs.observed(run.log, torch.device("cpu")), run.log.shape, 8)
    ids = run.data.interactions.item_ids.values.tolist()
    was = old.data.interactions.item_ids.values.tolist()
    item = torch.zeros(len(ids), 8)
    for row, each in enumerate(ids):
        if each in was:
            item[row] = old.factors("als-a").item[was.index(each)]
    known = torch.tensor([each in was for each in ids]), torch.tensor([each in was for each in ids])
    for row in (~known[1]).nonzero().flatten().tolist():
        users = run.log.T.tocsr()[[row]].indices
        means = [item[[i for i in run.log[[user]].indices if known[1][i]]].mean(0) for user in users]
        near = [mean for mean in means if mean.isfinite().all()]
        item[row] = torch.stack(near).mean(0)
    user, item = als.fit(item, **old.chosen["als-a"], sweeps=stages.SWEEPS)
    found = run.recommender("als-a")
    users = torch.arange(run.log.shape[0])
    assert torch.allclose(found.scores(users), user @ item.T, atol=2e-3)


def test_without_neighbours_a_new_item_begins_at_random() -> None:
    log = csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], np.float32))
    known = torch.tensor([True, False, False]), torch.tensor([True, True, False, False])
    item = torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]])
    user, found = beside_neighbours(log, torch.full((3, 2), 7.0), item, known, torch.Generator().manual_seed(0))
    assert found[:2].equal(item[:2])
    assert found[2].tolist() == [0, 1]  # its only user used item 1
    assert 0 < found[3].norm() < 1
    assert user[0].tolist() == [7, 7]
    assert user[1].tolist() == [0, 1]
    assert torch.allclose(user[2], found[3])


def test_known_vectors_are_held() -> None:
    old, moved = base(), []
    rows = np.searchsorted(updated().data.interactions.item_ids.values, old.data.interactions.item_ids.values)
    for run in (updated(), update(old, FIRST, hold=1.0)):
        now, was = (each.factors("student").item for each in (run, old))
        moved.append(float((now[rows] @ now[rows].T - was @ was.T).norm()))
    assert moved[1] < 1e-3 < moved[0]


def test_the_reranker_is_fitted_to_new_pairs_or_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "FEWEST", 5)
    carried, fitted = update(base(), FIRST, rerank="carry"), update(base(), FIRST, rerank="refit")
    weights = [run.best[CONSENSUS].votes["weights"] for run in (base(), carried, fitted)]
    assert weights[0].equal(weights[1])
    votes = [run.best[CONSENSUS].votes["voter_weights"] for run in (base(), carried, fitted)]
    assert votes[0].equal(votes[1])
    assert votes[0].equal(votes[2])  # by the windows of training; the metrics are of the new pairs
    moved = [float((weights[2] - weights[0]).norm())]
    for penalty in (1.0, 1e12):
        monkeypatch.setattr(fitting, "PENALTY_BEFORE", penalty)
        moved.append(float((update(base(), FIRST).best[CONSENSUS].votes["weights"] - weights[0]).norm()))
    assert moved[2] < 1e-6 < moved[0] < moved[1]  # the penalty draws to the weights of before
    assert [record["stage"] for record in carried.history] == ["refit", "final"]
    assert carried.best[CONSENSUS].validation == base().best[CONSENSUS].validation
    assert carried.validated_users == base().validated_users
    assert (base().carried_validation, carried.carried_validation, fitted.carried_validation) == (False, True, False)
    known = [set(BASE[column].to_list()) for column in ("user_id", "item_id")]
    pairs = set(FIRST.select("user_id", "item_id").iter_rows()) - set(BASE.select("user_id", "item_id").iter_rows())
    assert fitted.validated_users == len({user for user, item in pairs if user in known[0] and item in known[1]})
    monkeypatch.setattr(stages, "FEWEST", 1000)
    with pytest.warns(ConcfWarning, match=r"weights are carried over: only \d+ known users"):
        assert update(base(), FIRST).best[CONSENSUS].votes["weights"].equal(weights[0])


def test_a_refresh_folds_in_users_with_new_pairs_and_trains_no_voter() -> None:
    old = base(budget="thorough")
    run = update(old, FIRST, refresh=True)
    assert [record["stage"] for record in run.history] == ["fold-in", "final"]
    assert run.carried_validation
    users, items = (getattr(old.data.interactions, ids).positions(getattr(run.data.interactions, ids))
                    for ids in ("user_ids", "item_ids"))  # fmt: skip
    assert (items < 0).any()
    active = set(FIRST.join(BASE, on=["user_id", "item_id"], how="anti")["user_id"].to_list())
    names, fitted = run.data.interactions.user_ids.values.tolist(), set()
    for head in ("als-a", "als-b", "softmax-a"):
        now, was = run.factors(head), old.factors(head)
        assert torch.equal(now.item[items >= 0], was.item[items[items >= 0]])
        assert not now.item[items < 0].any()
        for row in range(0, len(names), 7):
            pairs_of = run.log[[row]].indices
            if names[row] not in active:
                assert torch.equal(now.user[row], was.user[users[row]])
            elif head == "softmax-a":
                alone = UserSoftmax(now.item, run.chosen[head]["temperature"])(run.log[[row]])
                assert torch.allclose(now.user[row], alone[0], atol=1e-4)
            else:  # the normal equations
                y, own = now.item.double(), now.item[pairs_of].double()
                a, b = (run.chosen[head][name] for name in ("unobserved", "penalty"))
                ridge = b * (len(pairs_of) + a * len(y)) * torch.eye(8, dtype=torch.float64)
                expected = torch.linalg.solve(a * y.T @ y + own.T @ own + ridge, own.sum(0))
                assert torch.allclose(now.user[row].double(), expected, atol=1e-3)
                fitted.add(row)
    assert len(fitted) > 3
    assert run.factors("student").item[items < 0].norm(dim=1).min() > 0
    assert run.best[CONSENSUS].votes["weights"].equal(old.best[CONSENSUS].votes["weights"])
    lists = Recommender(run).recommend(sorted(active), k=5)
    assert lists["user_id"].n_unique() == len(active)


def test_a_refresh_that_forgets_pairs_or_is_killed_is_whole(tmp_path: Path) -> None:
    since = float(np.quantile(BASE["timestamp"].to_numpy(), 0.2))
    whole = update(base(), FIRST, refresh=True, drop_before=since)
    assert whole.updates[-1]["dropped"] > 0
    assert not torch.equal(whole.factors("als-a").user[:5], base().factors("als-a").user[:5])
    with pytest.raises(Killed):
        update(base(), FIRST, refresh=True, drop_before=since, out=tmp_path / "cut", watch=die_after(0))
    assert_same(train(RunFolder(tmp_path / "cut").data(), out=tmp_path / "cut", resume=True), whole)


def test_an_update_is_better_than_the_run_that_was_left() -> None:
    """On a log where half the items are new, of the next rows of those who were there."""
    found = {name: Recommender(run) for name, run in (("left", base()), ("updated", updated()))}
    known = set(BASE["user_id"].to_list())
    after = SECOND.filter(pl.col("user_id").is_in(list(known))).join(
        pl.concat([BASE, FIRST]), on=["user_id", "item_id"], how="anti"
    )
    hits = {
        name: len(after.join(model.recommend(sorted(known), k=10), on=["user_id", "item_id"], how="semi"))
        for name, model in found.items()
    }
    assert hits["updated"] > hits["left"]


def test_an_updated_run_is_updated_again_from_its_folder(tmp_path: Path) -> None:
    first = update(base(), FIRST, out=tmp_path / "first")
    assert_same(first, load_run(tmp_path / "first"))
    second = update(load_run(tmp_path / "first"), SECOND, out=tmp_path / "second")
    assert [each["pairs"] for each in second.updates] == [each["pairs"] for each in first.updates] + [
        len(second.data.interactions) - len(first.data.interactions)
    ]
    description = RunFolder(tmp_path / "second").description()
    assert description["data"]["recipe"]["source"]["updates"] == second.updates
    assert "It was updated 2 times" in (tmp_path / "second" / CARD).read_text(encoding="utf-8")


def test_test_pairs_stay_unlearned_and_can_be_evaluated() -> None:
    run = update(base("validation"), FIRST)
    assert run.learned == ("train", "valid")
    assert run.log.multiply(run.data.test).nnz == 0
    assert set(run.evaluate(at=5)) == set(run.rows())
    final = update(base("validation"), FIRST, final=True)
    assert final.log.nnz == len(final.data.interactions)


@pytest.mark.parametrize("final", [False, True])
def test_the_reranker_sees_no_test_pair(final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as a pair to find nor as one that is known, unless the run learns from them."""
    monkeypatch.setattr(stages, "FEWEST", 5)
    used: list[Split] = []
    monkeypatch.setattr(stages, "Split", lambda *args, **more: used.append(Split(*args, **more)) or used[-1])
    run = update(base("validation"), FIRST, final=final)
    test = run.data.parts == TEST
    before = base("validation").data
    assert test.sum() > (before.parts == TEST).sum()  # some of both logs
    assert ((used[0].parts[test] == TEST).all(), (used[0].parts[test] < TEST).any()) == (not final, final)


def test_an_update_that_is_killed_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "FEWEST", 5)
    update(base(), FIRST, out=tmp_path / "whole", hold=0.2)
    in_memory = update(base(), FIRST, hold=0.2)  # which never reads a state
    for last in (0, 1):
        cut = tmp_path / f"cut-{last}"
        with pytest.raises(Killed):
            update(base(), FIRST, out=cut, hold=0.2, watch=die_after(last))
        assert_same(train(RunFolder(cut).data(), out=cut, resume=True), in_memory)
        assert_same_end(cut, tmp_path / "whole")


def test_the_command_says_what_it_did_and_the_new_run_is_whole(tmp_path: Path, concf: CLI) -> None:
    old = saved(base("validation"), tmp_path / "old")
    FIRST.rename({"user_id": "member"}).write_csv(tmp_path / "tuesday.csv")
    before = checksums(old)
    code, out, err = concf("update", old, tmp_path / "tuesday.csv", "--out", tmp_path / "new", "--user", "member")
    assert code == 0, err
    assert load_run(tmp_path / "new").carried_validation
    assert "from before the update" in out
    assert checksums(old) == before
    for command in ("evaluate", "recommend"):
        assert concf(command, tmp_path / "new")[0] == 0
    assert "at stage " in concf("export", tmp_path / "new", "--to", "npz", "--out", tmp_path / "vectors.npz")[1]
    words = ("update", old, tmp_path / "tuesday.csv", "--user", "member", "--refresh", "--out", tmp_path / "noon")
    assert concf(*words)[0] == 0
    assert RunFolder(tmp_path / "noon").description()["update"]["refresh"]


def test_a_log_that_does_not_fit_ends_with_code_2_and_leaves_no_folder(tmp_path: Path, concf: CLI) -> None:
    old = saved(base(), tmp_path / "old")
    before = checksums(old)
    for log, word in ((FIRST.rename({"item_id": "thing"}), "no column for the item"), (BASE[-3:], "nothing new")):
        log.write_csv(tmp_path / "new.csv")
        code, _, err = concf("update", old, tmp_path / "new.csv", "--out", tmp_path / "new")
        assert (code, word in err, (tmp_path / "new").exists()) == (2, True, False), err
    assert checksums(old) == before


def test_only_finished_runs_of_the_recipe_are_updated(tmp_path: Path) -> None:
    data = split_of(BASE, 3, min_item=1)
    with pytest.raises(ConfigError, match="trained by Algorithm 1"):
        update(train(data, {"training": {"epochs": 1}}, preset="reference"), FIRST)
    with pytest.raises(Killed):
        train(data, small(), seed=3, out=tmp_path / "cut", watch=die_after(1))
    with pytest.raises(DataError, match="not finished"):
        update(load_run(tmp_path / "cut", data), FIRST)
    saved(base(), tmp_path / "old")
    wrong: list[dict[str, Any]] = [{"hold": 2}, {"rerank": "no"}, {"min_item": -5}, {"run": "old"}]
    for options in (*wrong, {"out": tmp_path / "old"}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}|holds a run already"):
            update(**{"run": base(), "log": FIRST} | options)


def test_the_estimator_is_updated_in_place(tmp_path: Path) -> None:
    model = ConCF.load(saved(base(), tmp_path / "old"))
    with pytest.raises(DataError, match="nothing new"):
        model.update(BASE[-3:])
    assert model.run.updates == []
    assert model.update(FIRST, out=tmp_path / "new") is model
    assert_same(model.run, load_run(tmp_path / "new"))
    assert len(model.recommend([int(FIRST["user_id"][-1])], k=3)) == 3


@pytest.mark.parametrize("hold", [0.5, 1.0])
def test_the_basis_that_a_refit_comes_to_changes_nothing_that_is_held(hold: float) -> None:
    """The vectors are held part of the way, all known ones with hold = 1, however they were turned before."""
    random = torch.Generator().manual_seed(1)
    before, now = ([torch.randn(n, 4, generator=random, dtype=torch.float64) for n in (9, 12)] for _ in range(2))
    turn = torch.linalg.qr(torch.randn(4, 4, generator=random, dtype=torch.float64)).Q
    known = torch.arange(9) < 7, torch.arange(12) < 10
    held = []
    for vectors in ((now[0], now[1]), (now[0] @ turn, now[1] @ turn)):
        recipe: Any = SimpleNamespace(vectors={"als-a": vectors}, known=known, softmaxes=[])
        recipe.update = UpdateSettings(hold=hold)
        Update._hold(recipe, "als-a", (before[0], before[1]))
        held.append(recipe.vectors["als-a"])
    for one, other, was, old in zip(*held, before, known, strict=True):
        assert torch.allclose(one, other)
        assert torch.equal(one[old], was[old]) == (hold == 1)
    assert torch.allclose(held[0][0][7:] @ held[0][1][10:].T, now[0][7:] @ now[1][10:].T)  # new ones move freely
