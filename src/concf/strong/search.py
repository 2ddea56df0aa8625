"""Hyper-parameter search for the voters, on the validation part of a log.

Hill climbing on a grid: from a first point to the best neighbour, until none is better. Every point is measured once,
on the same users; ties go to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS
from concf.baselines.neighbours import Walks
from concf.baselines.table import voters
from concf.consensus.voters import by_factors, first_items
from concf.data.split import Split
from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import top_k
from concf.evaluation.scorers import Factors, Offset
from concf.evaluation.validation import Validation
from concf.runtime.executors import in_blocks
from concf.strong.reranker import TOP
from concf.strong.settings import VALIDATED, StrongSettings
from concf.strong.softmax import fit_softmax

UNOBSERVED = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
STRENGTH = (0.25, 0.4, 0.7, 1.2, 2.0, 3.5, 6.0)  # of the penalty, see `als_settings`
FIRST = 3, 4  # first point: unobserved 0.01, strength 2
GROWTH = 0.45  # exponent by which the best penalty grows with the unobserved weight
ALPHA, BETA = voters()["rp3beta"].grid.values()
TEMPERATURE = (0.07, 0.12, 0.2)
WALKERS = 256  # users of a block
LEAST_VALUE = 0.1  # least absolute value of the largest coordinate of all item vectors
STABLE = 0.9  # share of a point's validation that it must keep after more sweeps
TRIED = 6  # best points that are checked for stability
FIRST_SWEEPS, MORE_SWEEPS = 3, 2  # sweeps of ALS that all points share, and further sweeps of each point


class Plan(NamedTuple):
    """Amounts of work of a budget.

    rounds:  rounds of the searches
    users:   most validated users that settings are compared on
    fitted:  most validated users that the re-ranker is fitted to and metrics are measured on
    earlier: windows before the validation part that the re-ranker is also fitted in, by time
    halved:  whether vectors have half of the dimensions
    neighbours: of an item, that RP3beta keeps
    sweeps:  sweeps of ALS with the chosen settings, and of a refit
    softmax: epochs of the softmax, and of a refit
    student: sweeps of ALS, and epochs of the consensus loss
    depth:   length of the consensus lists in the student's consensus loss
    cells:   most users x items for which the final consensus is computed
    """

    rounds: int
    users: int
    fitted: int
    earlier: int
    halved: bool
    neighbours: int
    sweeps: tuple[int, int]
    softmax: tuple[int, int]
    student: tuple[int, int]
    depth: int
    cells: int


PLANS = {
    "fast": Plan(2, 1024, 2048, 1, True, 200, (2, 2), (0, 0), (1, 2), 100, 1 << 35),
    "default": Plan(3, 2048, VALIDATED, 1, False, 500, (2, 3), (0, 0), (1, 2), 100, 1 << 37),
    "thorough": Plan(6, 2048, VALIDATED, 2, False, 500, (6, 4), (12, 6), (4, 12), 150, 1 << 39),
}


def n_consensus_users(shape: tuple[int, int], settings: StrongSettings) -> int:
    """Number of users for whom the consensus is computed, of a log [users, items]."""
    users, items = shape
    allowed = max(PLANS[settings.budget].cells // items, VALIDATED)
    return min(users, settings.consensus_users or allowed)


def list_length(data: Split, settings: StrongSettings) -> int:
    """Length of a stored consensus list: shown items plus held-out ones."""
    longest = int((data.valid.indptr[1:] - data.valid.indptr[:-1]).max())
    return int(min(max(settings.consensus.shown + 2 * longest, TOP), data.train.shape[1]))


class Point(NamedTuple):
    """Measured point of a grid. at: index on each axis; value: validation metric; state: item vectors for a fit."""

    at: tuple[int, ...]
    value: float
    state: Tensor | None = None


def climb(
    sizes: tuple[int, ...], start: tuple[int, ...], measure: Callable[[tuple[int, ...]], Point], rounds: int
) -> list[Point]:  # fmt: skip
    """Climb a grid of these sizes; returns all measured points, the best first.

    Each round measures the neighbours of the best point along every axis, and with two axes the diagonal where one
    goes up and the other down: two regularisers can replace each other.
    """
    axes = range(len(sizes))
    steps = [tuple(sign * (axis == other) for other in axes) for axis in axes for sign in (-1, 1)]
    if len(sizes) == 2:
        steps += [(-1, 1), (1, -1)]
    seen = {start: measure(start)}
    for _ in range(rounds):
        best = _best_first(seen)[0].at
        for index in [tuple(map(sum, zip(best, step, strict=True))) for step in steps]:
            if index not in seen and all(0 <= at < size for at, size in zip(index, sizes, strict=True)):
                seen[index] = measure(index)
        if _best_first(seen)[0].at == best:
            break
    return _best_first(seen)


def _best_first(seen: Mapping[tuple[int, ...], Point]) -> list[Point]:
    return sorted(seen.values(), key=lambda point: -point.value)


def search_als(als: ALS, seen: csr_array, validation: Validation, start: Tensor, rounds: int) -> list[Point]:
    """Search the penalty of ALS and then its unobserved weight, after the same number of sweeps at every point.

    seen: [local users, items] pairs that are not listed
    start: [items, d] initial vectors; all points share the first sweeps, with the settings of the first point
    state of a point: its item vectors; only the first TRIED points keep them
    """
    shared = als.fit(start, **als_settings(als, FIRST), sweeps=FIRST_SWEEPS)
    points: dict[tuple[int, ...], Point] = {}

    def value(at: tuple[int, int]) -> float:
        if at not in points:
            user, item = als.fit(shared, **als_settings(als, at), sweeps=MORE_SWEEPS)
            points[at] = Point(at, measured(Factors(user, item), seen, validation) if vivid(item) else 0.0, item)
            for worse in _best_first(points)[TRIED:]:
                points[worse.at] = worse._replace(state=None)
        return points[at].value

    (strength,) = climb((len(STRENGTH),), FIRST[1:], lambda at: Point(at, value((FIRST[0], at[0]))), rounds)[0].at
    climb((len(UNOBSERVED),), FIRST[:1], lambda at: Point(at, value((at[0], strength))), rounds)
    return _best_first(points)


def vivid(item: Tensor) -> bool:
    """Whether the item vectors [items, d] have not vanished, as they do sweep by sweep with too strong a penalty."""
    return bool(item.abs().max() > LEAST_VALUE)


def als_settings(als: ALS, at: tuple[int, ...]) -> dict[str, float]:
    """Return the settings at a point of `search_als`: the unobserved weight a, and the penalty

        b = s (a / 0.01)^GROWTH sqrt(users x items) / (sum of weights + a x users x items)

    The best strength s hardly depends on a, nor on the size of the log: 1 to 4 on eight logs. Rounded,
    for a sum may differ in its last digits with the number of processes.
    """
    unobserved, cells = UNOBSERVED[at[0]], als.n_users * als.shape[1]
    weights = als.pairs.weight.sum(dtype=torch.float64)
    als.group.all_reduce([weights])
    penalty = STRENGTH[at[1]] * (unobserved / 0.01) ** GROWTH * cells**0.5 / (float(weights) + unobserved * cells)
    return {"unobserved": unobserved, "penalty": float(f"{penalty:.3g}")}


def stable_points(
    als: ALS, points: Sequence[Point], seen: csr_array, validation: Validation, sweeps: int, wanted: int
) -> list[tuple[float, Point, tuple[Tensor, Tensor]]]:
    """Return points of `search_als` that stay good after more sweeps, with their validation and vectors then.

    The best comes first, then points with another unobserved weight: heads that differ more rank better together.

    With too strong a penalty, dimensions vanish one after the other: a model that is good after a few sweeps is useless
    after a few more. If too few points are stable, the best of the others follow.
    """
    stable, fallen = (list[tuple[float, Point, tuple[Tensor, Tensor]]]() for _ in range(2))
    for point in sorted(points[:TRIED], key=lambda point: point is not points[0] and point.at[0] == points[0].at[0]):
        assert point.state is not None
        vectors = als.fit(point.state, **als_settings(als, point.at), sweeps=sweeps)
        value = measured(Factors(*vectors), seen, validation) if vivid(vectors[1]) else 0.0
        (stable if value >= STABLE * point.value else fallen).append((value, point, vectors))
        if len(stable) == wanted:
            break
    fallen.sort(key=lambda entry: -entry[0])
    return (stable + fallen)[:wanted]


def measured(factors: Factors, seen: csr_array, validation: Validation) -> float:
    """Validation metric of a ranking by inner products. factors, seen: of local users"""
    return validation.of_its_users(by_factors("", factors, seen, validation.users, validation.depth).lists)


def search_walks(train: csr_array, seen: csr_array, validation: Validation, device: torch.device) -> dict[str, float]:
    """Search the settings of RP3beta: every beta with the first alpha, then only betas near the best.

    train: log of all users; seen: [local users, items] pairs that are not listed
    """
    tried: dict[tuple[float, float], float] = {}

    def measure(index: tuple[int, ...]) -> Point:
        alpha = ALPHA[index[0]]
        best = BETA.index(max(tried, key=tried.__getitem__)[1]) if tried else None
        near = BETA if best is None else BETA[max(best - 1, 0) : best + 2]
        lists = _walked_lists(Walks(train, alpha, device), seen, validation, near)
        metrics = {(alpha, beta): validation.of_its_users(listed) for beta, listed in lists.items()}
        tried.update(metrics)
        return Point(index, max(metrics.values()))

    climb((len(ALPHA),), (len(ALPHA) // 2,), measure, len(ALPHA))
    alpha, beta = max(tried, key=tried.__getitem__)
    return {"alpha": alpha, "beta": beta}


def _walked_lists(walks: Walks, seen: csr_array, validation: Validation, betas: Sequence[float]) -> dict[float, Tensor]:
    """Map each beta to lists [validated, depth] of unseen items for local users, all from the same walks."""
    users = validation.users

    def listed(block: Tensor) -> list[Tensor]:
        scores = walks(block + validation.first)
        used = torch.from_numpy(flat_cells(seen[block.cpu().numpy()])).to(scores.device)
        scores.view(-1).index_fill_(0, used, 0.0)
        return [top_k(walks.penalised(scores, beta), validation.depth)[1] for beta in betas]

    blocks = in_blocks(listed, torch.split(users, WALKERS), users.device)
    return {beta: torch.cat(lists) for beta, lists in zip(betas, zip(*blocks, strict=True), strict=True)}


def search_fixed(
    name: str, fit: Callable[[dict[str, float]], Any], seen: csr_array, validation: Validation, rounds: int
) -> dict[str, float]:
    """Search the settings of a fixed voter by the validation of its lists, from the middle of its grid.

    fit: settings -> voter, fitted to the log of all users; seen: [local users, items] pairs that are not listed
    """
    grid = voters()[name].grid

    def settings(index: tuple[int, ...]) -> dict[str, float]:
        return {setting: values[at] for (setting, values), at in zip(grid.items(), index, strict=True)}

    def measure(index: tuple[int, ...]) -> Point:
        lists = first_items(Offset(fit(settings(index)), validation.first), seen, validation.users, validation.depth)[0]
        return Point(index, validation.of_its_users(lists))

    sizes = tuple(map(len, grid.values()))
    return settings(climb(sizes, tuple((size - 1) // 2 for size in sizes), measure, rounds)[0].at)


def has_a_vote(name: str, shape: tuple[int, int], device: torch.device) -> bool:
    """Whether a fixed voter is affordable on a log of that shape; a given one always is."""
    vote = voters().get(name)
    if vote is None:
        return True
    size = shape[1] if vote.items else min(shape)
    return size <= vote.most[device.type != "cpu"]


def search_temperature(
    train: csr_array, seen: csr_array, validation: Validation, user: Tensor, item: Tensor, seed: int, wanted: int
) -> list[tuple[float, float, tuple[Tensor, Tensor]]]:  # fmt: skip
    """Train the softmax for an epoch at each temperature; returns the best (validation, temperature, vectors).

    train, seen, user: of local users; seen: pairs that are not listed; wanted: how many to return
    """
    tried: list[tuple[float, float, tuple[Tensor, Tensor]]] = []
    for temperature in TEMPERATURE:
        vectors = fit_softmax(train, user, item, temperature, 1, seed, validation.users, validation.group)
        tried.append((measured(Factors(*vectors), seen, validation), temperature, vectors))
        tried = sorted(tried, key=lambda entry: -entry[0])[:wanted]
    return tried
