"""New users by each head's own objective, against literal minimisers, and by the re-ranker, against known users."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.sparse import csr_array
from small_recipe import data, small, trained
from torch import Tensor

from concf.baselines.als import Pairs, UserSolver
from concf.baselines.ease import EASE
from concf.baselines.factorisation import ALS, IALS, Popularity, PureSVD
from concf.baselines.neighbours import ItemKNN, RP3beta, UserKNN
from concf.consensus.voters import by_scores, first_items
from concf.errors import ConfigError
from concf.inference.lookup import NONE, History
from concf.inference.ranker import Ranker
from concf.inference.recommender import Recommender
from concf.models import choose_settings, train
from concf.runs.fold_in import FoldedHead
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.strong import fold_in as module
from concf.strong.fold_in import LISTED, StrongFoldIn, _OrAverage
from concf.strong.reranker import popularity_and_activity
from concf.strong.softmax import UserSoftmax
from concf.strong.students import LOWEST_TARGET, SOLVED_BY

CPU = torch.device("cpu")


def drawn(users: int, items: int, seed: int, share: float = 0.3) -> csr_array:
    used = np.random.default_rng(seed).random((users, items)) < share
    used[:, 0], used[1] = True, False  # every user but the second has something
    return csr_array(used.astype(np.float32))


def weighted(log: csr_array, seed: int) -> csr_array:
    weight = np.random.default_rng(seed).uniform(0.2, 3, log.nnz).astype(np.float32)
    return csr_array((weight, log.indices, log.indptr), log.shape)


def items_of(matrix: csr_array, row: int) -> list[int]:
    return np.flatnonzero(matrix.toarray()[row]).tolist()


def normal_equations(item: Tensor, pairs: list[tuple[int, float, float]], unobserved: float, penalty: float) -> Tensor:
    """[d] the minimum of sum w (t - x.y)^2 + a sum_all (x.y)^2 + b (sum w + a items) |x|^2, pair by pair."""
    y = item.double()
    system = penalty * (sum(weight for _, weight, _ in pairs) + unobserved * len(y)) * torch.eye(y.shape[1]).double()
    right = torch.zeros(y.shape[1], dtype=torch.float64)
    for each in y:
        system += unobserved * torch.outer(each, each)
    for place, weight, target in pairs:
        system += weight * torch.outer(y[place], y[place])
        right += weight * target * y[place]
    return torch.linalg.solve(system, right)


@pytest.mark.parametrize("factors", [3, 25])  # histories longer than the factors, and shorter
def test_a_history_is_the_solution_of_its_normal_equations(factors: int) -> None:
    unobserved, penalty = 0.01, 0.03
    item = torch.from_numpy(np.random.default_rng(1).normal(size=(20, factors)).astype(np.float32))
    new = drawn(9, 20, seed=2)
    found = UserSolver(item, unobserved, penalty)(Pairs.observed(new, CPU), 9)
    for row, vector in enumerate(found):
        pairs = [(place, 1.0, 1.0) for place in items_of(new, row)]
        expected = normal_equations(item, pairs, unobserved, penalty)
        assert vector.double() == pytest.approx(expected, abs=2e-4 * max(1, float(expected.abs().max())))
    alone = UserSolver(item, unobserved, penalty)(Pairs.observed(new[[4]], CPU), 1)
    assert alone[0] == pytest.approx(found[4], abs=1e-5)


def softmax_loss(x: np.ndarray, item: np.ndarray, used: list[int], temperature: float) -> float:
    """-sum_i log softmax(cos(x, .) / t)_i over the history, a loop over its items."""
    scores = [float(x @ y) / float(np.linalg.norm(x) * np.linalg.norm(y)) / temperature for y in item]
    normaliser = max(scores) + np.log(sum(np.exp(score - max(scores)) for score in scores))
    return sum(normaliser - scores[place] for place in used) / len(used)


def test_a_history_s_direction_minimises_its_softmax() -> None:
    temperature = 0.2
    item = np.random.default_rng(3).normal(size=(30, 5)).astype(np.float32)
    new = drawn(12, 30, seed=4, share=0.2)
    solver = UserSoftmax(torch.from_numpy(item), temperature)
    few, many, start = solver(new), solver(new, steps=60), solver(new, steps=0)
    assert torch.equal(few[1], torch.zeros(5))
    left, right = 0.0, 0.0
    for row in [row for row in range(12) if row != 1]:
        used = items_of(new, row)
        losses = [softmax_loss(each[row].double().numpy(), item, used, temperature) for each in (start, few, many)]
        best = min(
            minimize(softmax_loss, begin, (item.astype(np.float64), used, temperature), tol=1e-10).fun
            for begin in (start[row].double().numpy(), many[row].double().numpy())
        )
        assert many[row].norm() == pytest.approx(1, abs=1e-5)
        assert losses[2] == pytest.approx(best, abs=1e-3)
        left, right = left + losses[1] - best, right + losses[0] - best
    assert left < 0.3 * right  # after the few steps that are taken
    assert solver(new[[5]])[0] == pytest.approx(few[5], abs=1e-5)


KNOWN = [
    Popularity(), ItemKNN(neighbours=6, shrink=2.0), RP3beta(alpha=0.6, beta=0.3, neighbours=7), PureSVD(factors=4),
    EASE(regularisation=3.0), UserKNN(neighbours=100),
]  # fmt: skip


@pytest.mark.parametrize("shape", [(40, 15), (12, 30)], ids=["more users", "more items"])
@pytest.mark.parametrize("settings", KNOWN, ids=lambda each: type(each).__name__)
def test_a_baseline_scores_a_history_as_a_user_who_has_it(settings, shape: tuple[int, int]) -> None:
    order = np.random.default_rng(6).permutation(shape[0])
    for log in (drawn(*shape, seed=5), weighted(drawn(*shape, seed=5), seed=7)):
        fitted = settings.fit(log)
        found = settings.fold_in(fitted, log[order]).scores(torch.arange(shape[0])).numpy()
        expected = fitted.scores(torch.from_numpy(order)).numpy()
        compared = log[order].toarray() == 0 if isinstance(settings, UserKNN) else ...  # it adds a neighbour: itself
        assert found[compared] == pytest.approx(expected[compared], abs=2e-4)


def test_factor_models_solve_for_a_history_as_for_their_users() -> None:
    train, new = drawn(30, 14, seed=9), weighted(drawn(5, 14, seed=10), seed=11)
    als = ALS(factors=4, unobserved=0.1, penalty=0.02, sweeps=3)
    fitted = als.fit(train)
    ials = IALS(factors=4, alpha=20.0, regularisation=3.0)
    for row in range(5):
        weight = new.toarray()[row].astype(np.float64)
        used = items_of(new, row)
        expected = normal_equations(fitted.item, [(place, weight[place], 1.0) for place in used], 0.1, 0.02)
        assert als.fold_in(fitted, new).user[row].double() == pytest.approx(expected, abs=1e-4)
        y = fitted.item.double().numpy()
        confidence = np.where(weight > 0, 20.0 * weight, 1.0)
        system = sum(c * np.outer(each, each) for c, each in zip(confidence, y, strict=True)) + 3.0 * np.eye(4)
        right = 20.0 * weight @ y
        assert ials.fold_in(fitted, new).user[row].numpy() == pytest.approx(np.linalg.solve(system, right), abs=1e-4)


@pytest.fixture(scope="module")
def run() -> Run:
    return trained("thorough")


def test_a_known_user_s_vectors_and_history_give_the_list_of_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consensus, the features and how they are standardised are those of known users, to the last place."""

    def as_known(self: FoldedHead, *_histories: csr_array | None) -> object:
        return self.factors

    monkeypatch.setattr(FoldedHead, "__call__", as_known)
    agreed, best = run.fold_in.agree(run.log), run.best[CONSENSUS]
    assert torch.equal(agreed.votes["items"], best.votes["items"])
    assert torch.equal(agreed.plain, run.best[R_CONSENSUS].lists)
    assert agreed.votes["reranked"] == pytest.approx(best.votes["reranked"], abs=1e-4)
    same = (agreed.lists == best.lists).float().mean()
    assert same > 0.99  # but for ties of rounding


def test_with_a_half_life_a_known_history_has_the_votes_of_the_fit() -> None:
    changes = {"budget": "thorough", "weights": {"half_life": "20d"}}
    run = train(data(), choose_settings(small(), changes), seed=3)
    assert len(np.unique(run.log.data)) > 100
    assert run.settings.fixed_voters == ("rp3beta", "userknn", "ease")
    assert torch.equal(run.fold_in.agree(run.log).votes["items"][-3:], run.best[CONSENSUS].votes["items"][-3:])


def test_a_student_is_solved_towards_the_consensus_of_its_history(run: Run) -> None:
    new, chosen = drawn(4, run.log.shape[1], seed=11, share=0.15), run.fold_in.chosen["student"]
    lists, factors = run.fold_in.agree(new).lists, run.fold_in.heads["student"]
    found = run.fold_in.head("student", new).user
    for row in (0, 2, 3):
        pairs = [(place, 1.0, 1.0) for place in items_of(new, row)]
        length = min(LISTED, lists.shape[1])
        for rank, place in enumerate(lists[row, :LISTED].tolist()):
            target = 1 - (1 - LOWEST_TARGET) * np.log1p(rank) / np.log(length)
            pairs += [(place, chosen["listed"], float(target))] if place >= 0 else []
        expected = normal_equations(factors.item, pairs, **{name: chosen[name] for name in SOLVED_BY})
        assert found[row].double() == pytest.approx(expected, abs=1e-3)


def test_a_history_has_the_list_that_it_has_among_others(run: Run) -> None:
    ranker, new = Ranker(run), drawn(5, run.log.shape[1], seed=17, share=0.15)
    used = np.split(new.indices.astype(np.int64), new.indptr[1:-1])
    for name in run.rows():
        together = ranker.of_histories([History.of(own) for own in used], 8, name, used)
        for own, (items, scores) in zip(used, together, strict=True):
            ((listed, values),) = ranker.of_histories([History.of(own)], 8, name, [own])
            assert listed.tolist() == items.tolist(), name
            assert values == pytest.approx(scores, abs=1e-4)


def test_settings_of_a_head_are_those_that_training_chose(run: Run) -> None:
    new = drawn(4, run.log.shape[1], seed=12, share=0.15)
    for name in ("als-a", "als-b"):
        chosen, factors = run.chosen[name], run.fold_in.heads[name]
        pairs = [(place, 1.0, 1.0) for place in items_of(new, 3)]
        expected = normal_equations(factors.item, pairs, chosen["unobserved"], chosen["penalty"])
        assert run.fold_in.head(name, new).user[3].double() == pytest.approx(expected, abs=1e-3)
    softmax, known = run.fold_in.head("softmax-a", new), run.fold_in.heads["softmax-a"]
    directions = UserSoftmax(known.item, run.chosen["softmax-a"]["temperature"])(new)
    assert F.normalize(softmax.user[[0, 2, 3]]) == pytest.approx(directions[[0, 2, 3]], abs=1e-5)
    assert softmax.user[[0, 2, 3]].norm(dim=1) == pytest.approx(known.user.norm(dim=1)[:3], rel=1e-4)


def test_activity_is_standardised_by_the_users_of_the_log_and_none_is_beyond_theirs(run: Run) -> None:
    new = drawn(5, run.log.shape[1], seed=13)  # and among them nobody's history
    logs = np.log(np.maximum(np.diff(run.log.indptr), 1))
    expected = (np.log(np.maximum(np.diff(new.indptr), 1)).clip(logs.min(), logs.max()) - logs.mean()) / logs.std()
    users = [each.user[:5] for each in run.voters.values()]
    context = run.fold_in.context.folded(new, users)
    assert context.activity == pytest.approx(expected, abs=1e-5)
    assert context.popularity == pytest.approx(popularity_and_activity(run.log)[0], abs=1e-5)


def test_nobody_s_history_is_the_average_user_s_whoever_ranks(run: Run) -> None:
    empty, ranker = csr_array((1, run.log.shape[1]), dtype=np.float32), Ranker(run)
    for name, factors in run.fold_in.heads.items():
        assert run.fold_in.head(name, empty).user[0] == pytest.approx(factors.user.mean(0), abs=1e-6)
    voted = run.fold_in.agree(empty).votes["items"]
    walks = RP3beta(**run.chosen["rp3beta"]).fit(run.log).scores(torch.arange(run.log.shape[0]))
    order = walks.double().mean(0).sort(descending=True, stable=True).indices
    place = [*run.settings.heads, *run.settings.fixed_voters].index("rp3beta")
    assert set(voted[place, 0, :8].tolist()) == set(order[:8].tolist())
    ((items, scores),) = ranker.of_histories([History.of(NONE)], 5, CONSENSUS, [NONE])
    assert len(items) == 5
    assert (np.diff(scores) <= 0).all()


def test_every_surface_gives_the_re_ranked_list_of_a_history(run: Run) -> None:
    model, new = Recommender(run), np.array([3, 8, 21, 30])
    ids = model.item_ids.values
    agreed = run.fold_in.agree(*model.ranker.rows_of([History.of(new)]))
    assert agreed.votes["reranked"].shape == agreed.lists.shape
    for by, lists in ((CONSENSUS, agreed.lists), (R_CONSENSUS, agreed.plain)):
        found = model.recommend(history=ids[new].tolist(), k=7, by=by)
        assert isinstance(found, pl.DataFrame)
        assert found["item_id"].to_list() == ids[lists[0, :7].numpy()].tolist()
    found = model.recommend(history=ids[new].tolist(), k=7, frame="arrays")
    assert found[1] == pytest.approx(agreed.votes["reranked"][0, :7].numpy(), abs=1e-5)
    several = model.recommend(history={"a": ids[new].tolist(), "b": ids[:3].tolist()}, k=7, frame="arrays")
    assert several[0][0].tolist() == found[0].tolist()
    with pytest.raises(ConfigError, match="the consensus keeps 12 items"):
        model.recommend(history=ids[new].tolist(), k=13)


def test_voters_that_rank_in_one_pass_vote_as_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_in, new, k = run.fold_in, drawn(7, run.log.shape[1], seed=19, share=0.15), 12
    assert isinstance(fold_in, StrongFoldIn)
    monkeypatch.setattr(module, "BLOCK", 3 * run.log.shape[1] * len(run.fold_in.voters))  # a few at a time
    users, heads = torch.arange(7), {name: fold_in.head(name, new) for name in fold_in.voters}
    voters = fold_in._votes(heads, new, None, k)
    for voter, (name, factors) in zip(voters, heads.items(), strict=False):
        lists, _ = first_items(factors, new, users, k)
        assert (voter.name, voter.lists.tolist()) == (name, lists.tolist())
    for voter, (name, (scorer, of_items)) in zip(voters[len(heads) :], fold_in.fixed.items(), strict=True):
        assert scorer is not None
        alone = by_scores(name, _OrAverage(scorer(new), new, of_items), new, users, k, of_items)
        assert voter.lists.tolist() == alone.lists.tolist()
        assert voter.listed == pytest.approx(alone.listed, abs=1e-5)
