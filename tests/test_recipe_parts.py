"""The parts of the recipe, each against its formula written out: search, walks, softmax, student."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS, Pairs
from concf.baselines.neighbours import Walks
from concf.consensus.listwise import listwise
from concf.strong import search, softmax, students
from concf.strong.search import Point, climb

pytestmark = pytest.mark.usefixtures("on_one_thread")

CPU = torch.device("cpu")


def drawn(seed: int, users: int = 14, items: int = 11, share: float = 0.3) -> csr_array:
    """A log in which the last user and the last item have nothing."""
    used = np.random.default_rng(seed).random((users, items)) < share
    used[-1], used[:, -1] = False, False
    return csr_array(used.astype(np.float32))


def vectors(seed: int, *sizes: int, dimensions: int = 4) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dimensions, generator=random, dtype=torch.float64) for size in sizes]


def measured(function: Callable[..., float]) -> tuple[list[tuple[int, ...]], Callable[[tuple[int, ...]], Point]]:
    places: list[tuple[int, ...]] = []

    def measure(place: tuple[int, ...]) -> Point:
        places.append(place)
        return Point(place, function(*place))

    return places, measure


@given(
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)), top=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    start=st.tuples(st.integers(0, 6), st.integers(0, 6)), slope=st.floats(0.1, 10),
)  # fmt: skip
def test_a_search_finds_the_top_of_a_hill_and_measures_no_point_twice(
    sizes: tuple[int, int], top: tuple[int, int], start: tuple[int, int], slope: float
) -> None:
    def hill(x: int, y: int) -> float:
        return -abs(x - top[0]) - slope * abs(y - top[1])

    places, measure = measured(hill)
    begin = (min(start[0], sizes[0] - 1), min(start[1], sizes[1] - 1))
    points = climb(sizes, begin, measure, sum(sizes))
    assert points[0].value == max(hill(x, y) for x in range(sizes[0]) for y in range(sizes[1]))
    assert len(set(places)) == len(places) == len(points)
    assert [each.value for each in points] == sorted((each.value for each in points), reverse=True)
    assert all(0 <= x < sizes[0] and 0 <= y < sizes[1] for x, y in places)


def literal_walks(train: csr_array, alpha: float, beta: float) -> np.ndarray:
    """sum over j, v of (P_uj P_jv P_vi)^alpha / |U_i|^beta."""
    used = train.toarray() > 0
    n_users, n_items = used.shape
    scores = np.zeros((n_users, n_items))
    for u in range(n_users):
        for j in np.flatnonzero(used[u]):
            for v in np.flatnonzero(used[:, j]):
                for i in np.flatnonzero(used[v]):
                    path = 1 / used[u].sum() / used[:, j].sum() / used[v].sum()
                    scores[u, i] += path**alpha / used[:, i].sum() ** beta
    return scores


@pytest.mark.parametrize(("alpha", "beta"), [(0.4, -0.3), (0.7, 0.2)])
def test_walks_are_those_of_the_formula(alpha: float, beta: float) -> None:
    train = drawn(2)
    walks = Walks(train, alpha, CPU)
    scores = walks.penalised(walks(torch.arange(14)), beta)
    assert scores.numpy() == pytest.approx(literal_walks(train, alpha, beta), rel=1e-5)
    some = torch.tensor([9, 3])
    assert torch.equal(walks.penalised(walks(some), beta), scores[some])


@pytest.mark.parametrize(("rounds", "best", "measured"), [(0, 2, 1), (1, 3, 3), (9, 4, 5)])
def test_a_climb_ends_where_no_neighbour_is_better_or_with_its_rounds(rounds: int, best: int, measured: int) -> None:
    values = [0.0, 0.1, 0.5, 0.6, 0.7, 0.2, 1.0]
    points = climb((7,), (2,), lambda place: Point(place, values[place[0]]), rounds)
    assert points[0].at == (best,)
    assert len(points) == measured
    assert [point.value for point in points] == sorted((point.value for point in points), reverse=True)


def test_als_is_searched_along_its_penalty_and_then_its_unobserved_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[int, int]] = []

    def fit(start: Any, unobserved: int, penalty: int, sweeps: int) -> tuple[Any, Tensor]:
        places.append((unobserved, penalty))
        return (unobserved, penalty), torch.ones(1)

    monkeypatch.setattr(search, "als_settings", lambda als, at: {"unobserved": at[0], "penalty": at[1]})
    monkeypatch.setattr(
        search, "measured", lambda factors, *rest: 9 - abs(factors.user[0] - 2) - abs(factors.user[1] - 5)
    )
    points = search.search_als(cast("ALS", SimpleNamespace(fit=fit)), drawn(1), cast("Any", None), torch.ones(1), 9)
    assert places == [search.FIRST, (3, 4), (3, 3), (3, 5), (3, 6), (2, 5), (4, 5), (1, 5)]
    assert [point.at for point in points[:2]] == [(2, 5), (3, 5)]
    assert [point.state is not None for point in points] == [True] * search.TRIED + [False]
    both = search.stable_points(cast("ALS", SimpleNamespace(fit=fit)), points, drawn(1), cast("Any", None), 1, 2)
    assert [point.at for _, point, _ in both] == [(2, 5), (3, 5)]
    level = [Point(at, 1.0, torch.ones(1)) for at in ((3, 4), (3, 5), (2, 4))]
    both = search.stable_points(cast("ALS", SimpleNamespace(fit=fit)), level, drawn(1), cast("Any", None), 1, 2)
    assert [point.at for _, point, _ in both] == [(3, 4), (2, 4)]  # another unobserved weight comes first


def test_the_penalty_of_a_point_follows_from_its_strength_and_the_log() -> None:
    train = drawn(2)
    als, cells = ALS(Pairs.observed(train * 0.5, CPU), train.shape, 3), train.shape[0] * train.shape[1]
    for index, (unobserved, strength) in {(0, 1): (0.0003, 0.4), search.FIRST: (0.01, 2.0), (6, 6): (0.3, 6.0)}.items():
        growth = (unobserved / 0.01) ** 0.45
        penalty = strength * growth * sqrt(cells) / (0.5 * train.nnz + unobserved * cells)
        assert search.als_settings(als, index) == {
            "unobserved": unobserved,
            "penalty": pytest.approx(penalty, rel=0.005),
        }


@pytest.mark.parametrize(("slope", "top"), [(-1, 0), (1, 4)])
def test_the_search_of_rp3beta_follows_beta_by_a_step_with_every_alpha(
    slope: int, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figure(place: tuple[float, float]) -> float:
        alpha, beta = search.ALPHA.index(place[0]), search.BETA.index(place[1])
        return -abs(alpha - top) - 10 * abs(beta - 5 - slope * (alpha - 2))

    monkeypatch.setattr(search, "Walks", lambda _train, alpha, _device: alpha)
    monkeypatch.setattr(search, "_walked_lists", lambda alpha, _s, _v, betas: {beta: (alpha, beta) for beta in betas})
    validation = cast("Any", SimpleNamespace(of_its_users=figure))
    found = search.search_walks(drawn(1), drawn(1), validation, CPU)
    assert found == {"alpha": search.ALPHA[top], "beta": search.BETA[5 + slope * (top - 2)]}


def softmax_loss(
    user: Tensor, item: Tensor, pairs: list[tuple[int, int]], temperature: float, weight: Tensor | None = None
) -> Tensor:
    """The (weighted) mean over pairs of -log softmax(cos(x_u, .) / t)_i."""
    losses = []
    for u, i in pairs:
        cosines = torch.stack([user[u] @ each / (user[u].norm() * each.norm()) for each in item])
        losses.append(-torch.log_softmax(cosines / temperature, 0)[i])
    weight = torch.ones(len(pairs), dtype=user.dtype) if weight is None else weight
    return torch.stack(losses) @ weight / weight.sum()


@pytest.mark.parametrize("cells", [25, 1 << 20])
def test_the_gradient_of_the_softmax_is_that_of_its_loss(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "CPU_CELLS", cells)
    train = drawn(4)
    user, item = (each.requires_grad_() for each in vectors(1, *train.shape))
    users = torch.tensor([7, 2, 11])
    row = torch.repeat_interleave(torch.arange(3), torch.from_numpy(np.diff(train.indptr))[users])
    items = torch.from_numpy(train[users.numpy()].indices).long()
    weight = torch.linspace(0.1, 3, len(row), dtype=user.dtype)
    with torch.no_grad():
        slopes = softmax.gradients(user, item, users, row, items, weight, 0.2)
    pairs = list(zip(users[row].tolist(), items.tolist(), strict=True))
    expected = torch.autograd.grad(softmax_loss(user, item, pairs, 0.2, weight), [user, item])
    for found, wanted in zip(slopes, expected, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_an_epoch_of_one_batch_is_a_step_of_adam_on_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    train, (user, item) = drawn(4), vectors(1, 14, 11)
    start = [(each / each.norm(dim=1, keepdim=True) * softmax.LENGTH).requires_grad_() for each in (user, item)]
    pairs = list(zip(*map(np.ndarray.tolist, train.nonzero()), strict=True))
    optimiser = torch.optim.Adam(start, lr=softmax.LEARNING_RATE)
    softmax_loss(start[0], start[1], pairs, 0.1).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    for users in (None, torch.arange(14)):  # those without pairs have nothing to learn from
        found = softmax.fit_softmax(train, user, item, 0.1, 1, 5, users)
        for mine, theirs in zip(found, start, strict=True):
            assert torch.allclose(mine, torch.nn.functional.normalize(theirs.detach()), atol=1e-9)
    monkeypatch.setattr(softmax, "FEWEST_USERS", 2)
    several = softmax.fit_softmax(train, user, item, 0.1, 3, 5)
    assert softmax_loss(*several, pairs, 0.1) < softmax_loss(user, item, pairs, 0.1)


LISTS = torch.tensor([[3, 8, 0, 5], [1, 2, -1, -1], [-1, -1, -1, -1]], dtype=torch.int32)
LISTED_USERS = torch.tensor([4, 0, 9])


def listed_pairs(weight: float, length: int) -> list[tuple[int, int, float, float]]:
    """(user, item, weight, target) of the lists: the first has target 1, the last the lowest, by its logarithm."""
    pairs = []
    for user, items in zip(LISTED_USERS.tolist(), LISTS[:, :length].tolist(), strict=True):
        for place, item in enumerate(items):
            if item >= 0:
                target = 1 - (1 - students.LOWEST_TARGET) * log(1 + place) / log(len(items))
                pairs.append((user, item, weight, target))
    return pairs


@pytest.mark.parametrize(
    ("length", "settings"), [(150, students.USUAL), (3, {"unobserved": 0.1, "penalty": 0.02, "listed": 0.5})]
)
def test_a_student_is_solved_from_log_and_lists_as_any_other_log(
    length: int, settings: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(students, "LENGTH", length)
    train, (start, item) = drawn(6), vectors(2, 14, 11)
    observed = Pairs.observed(train, CPU, torch.float64)
    user, solved = students.solve_student(observed, LISTED_USERS, LISTS, (start, item), 3, settings)
    everything = [(u, i, 1.0, 1.0) for u, i in zip(*map(np.ndarray.tolist, train.nonzero()), strict=True)]
    columns = list(zip(*everything, *listed_pairs(settings["listed"], length), strict=True))
    pairs = Pairs(*map(torch.tensor, columns[:2]), *(torch.tensor(each, dtype=torch.float64) for each in columns[2:]))
    als = ALS(pairs, train.shape, 4)
    solved_by = {name: settings[name] for name in students.SOLVED_BY}
    users, expected = als.fit_users(als.fit((start, item), **solved_by, sweeps=3), **solved_by)
    assert torch.allclose(user @ solved.T, users @ expected.T, atol=1e-9)


def test_closer_settings_leave_the_mean_user_the_penalty_of_als() -> None:
    als, log = {"unobserved": 0.2, "penalty": 0.05}, drawn(6)
    users, items = log.shape
    found = students.closer(als, log)
    before = [als["penalty"] * (sum(row) + 0.2 * items) for row in log.toarray().tolist()]
    listed = found["listed"] * items  # there are fewer than the lists are long
    after = [found["penalty"] * (sum(row) + listed + 0.2 * items) for row in log.toarray().tolist()]
    assert sum(after) / users == pytest.approx(sum(before) / users, rel=1e-6)
    assert found["unobserved"] == 0.2


def test_slopes_of_teaching_are_those_of_the_consensus_loss() -> None:
    user, item = (each.requires_grad_() for each in vectors(5, 14, 11))
    scores = (user[LISTED_USERS, None] * item[LISTS.clamp(min=0).long()]).sum(-1)
    scores = (students.SCALE * scores).masked_fill(LISTS < 0, -torch.inf)
    places = len(LISTED_USERS) * students.TAUGHT
    expected = torch.autograd.grad(
        listwise(scores, LISTS.shape[1], torch.ones(3, dtype=torch.float64)) / places, [user, item]
    )
    found = students.gradients(user.detach(), item.detach(), LISTED_USERS, LISTS.long())
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_a_softmax_without_anyone_to_learn_from_stays_where_it_is() -> None:
    log = drawn(0)
    user, item = vectors(3, *log.shape)
    nobody = torch.tensor([log.shape[0] - 1])  # who has nothing
    found = softmax.fit_softmax(log, user, item, 0.2, 1, 0, nobody)
    for mine, before in zip(found, (user, item), strict=True):
        assert torch.equal(mine, torch.nn.functional.normalize(before))
