"""Hyper-parameter search for the voters, on the validation part of a log.

A search walks over a grid from its middle to the best of the neighbours, until none is better. Every point is measured
once, on the same users; of equals the first stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS
from concf.baselines.neighbours import Walks
from concf.baselines.table import VOTERS, voter
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
PENALTY = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
MIDDLE = 3, 4  # where a search begins: unobserved 0.01, penalty 0.01
ALPHA, BETA = VOTERS["rp3beta"].grid.values()
TEMPERATURE = (0.07, 0.12, 0.2)
WALKERS = 256  # users who walk together
STEADY = 0.9  # of a point's validation: below it after more sweeps, the point is passed over
TRIED = 6  # points that are looked at for those that stay
FIRST_SWEEPS, MORE_SWEEPS = 3, 2  # of ALS that all points share, and of each


class Plan(NamedTuple):
    """What a budget pays for.

    rounds:  of the searches with few factors, and with all
    users:   validated ones whom settings are compared on, at most
    sweeps:  of ALS once its settings are chosen, and of a refit
    softmax: epochs of the softmax, and of a refit
    student: sweeps of least squares, and epochs of the consensus loss
    places:  of a consensus list that the student is regressed on, and that the consensus loss looks at
    cells:   users x items that the voters are asked about in the end, at most
    """

    rounds: tuple[int, int]
    users: int
    sweeps: tuple[int, int]
    softmax: tuple[int, int]
    student: tuple[int, int]
    places: tuple[int, int]
    cells: int


PLANS = {
    "fast": Plan((2, 1), 1024, (2, 2), (0, 0), (1, 2), (64, 100), 1 << 35),
    "default": Plan((3, 3), 2048, (2, 2), (3, 2), (2, 2), (64, 100), 1 << 37),
    "thorough": Plan((6, 6), 2048, (6, 4), (12, 6), (4, 12), (100, 150), 1 << 39),
}


def n_consensus_users(shape: tuple[int, int], settings: StrongSettings) -> int:
    """Number of users for whom the consensus is computed, of a log [users, items]."""
    users, items = shape
    paid = max(PLANS[settings.budget].cells // items, VALIDATED)
    return min(users, settings.consensus_users or paid)


def list_length(data: Split, settings: StrongSettings) -> int:
    """Length of a stored consensus list: shown items plus held-out ones."""
    longest = int((data.valid.indptr[1:] - data.valid.indptr[:-1]).max())
    return int(min(max(settings.consensus.shown + 2 * longest, TOP), data.train.shape[1]))


class Point(NamedTuple):
    """A point of a grid that was measured. state: what a fit may go on from."""

    place: tuple[int, ...]
    value: float
    state: Tensor | None = None


def climb(
    sizes: tuple[int, ...], start: tuple[int, ...], measure: Callable[[tuple[int, ...]], Point], rounds: int,
    beam: int = 1,
) -> list[Point]:  # fmt: skip
    """All points that were measured, the best first. sizes: of the grid; beam: how many are climbed from at a time.

    At most so many rounds; each measures the neighbours of the best along every axis, and with two axes those where one
    goes up and the other down: what two settings hold back together, either may. Only the first TRIED keep their state.
    """
    steps = [
        tuple(sign * (axis == here) for here in range(len(sizes))) for axis in range(len(sizes)) for sign in (-1, 1)
    ]
    if len(sizes) == 2:
        steps += [(-1, 1), (1, -1)]
    seen: dict[tuple[int, ...], Point] = {}

    def look_at(place: tuple[int, ...]) -> None:
        seen[place] = measure(place)
        for point in _best_first(seen)[TRIED:]:
            seen[point.place] = point._replace(state=None)

    look_at(start)
    for _ in range(rounds):
        best = [point.place for point in _best_first(seen)[:beam]]
        beside = [tuple(at + step for at, step in zip(place, each, strict=True)) for place in best for each in steps]
        inside = [place for place in beside if all(0 <= at < size for at, size in zip(place, sizes, strict=True))]
        for place in inside:
            if place not in seen:
                look_at(place)
        if [point.place for point in _best_first(seen)[:beam]] == best:
            break
    return _best_first(seen)


def _best_first(seen: Mapping[tuple[int, ...], Point]) -> list[Point]:
    return sorted(seen.values(), key=lambda point: -point.value)


def search_als(
    als: ALS, seen: csr_array, validation: Validation, start: Tensor, place: tuple[int, int], rounds: int
) -> list[Point]:  # fmt: skip
    """Unobserved weight and penalty by the validation of what ALS comes to, after the same sweeps at every point.

    seen: [own users, items] what is not listed
    start: [items, d] the items of the first point, whose first sweeps all points share; state of a point: its items
    """
    _, shared = als.fit(start, UNOBSERVED[place[0]], PENALTY[place[1]], FIRST_SWEEPS)

    def measure(place: tuple[int, ...]) -> Point:
        user, item = als.fit(shared, UNOBSERVED[place[0]], PENALTY[place[1]], MORE_SWEEPS)
        return Point(place, measured(Factors(user, item), seen, validation), item)

    return climb((len(UNOBSERVED), len(PENALTY)), place, measure, rounds, beam=2)


def als_settings(point: Point) -> dict[str, float]:
    """What a point of `search_als` stands for."""
    return {"unobserved": UNOBSERVED[point.place[0]], "penalty": PENALTY[point.place[1]]}


def steady_points(
    als: ALS, points: Sequence[Point], seen: csr_array, validation: Validation, sweeps: int, wanted: int = 2
) -> list[tuple[Point, tuple[Tensor, Tensor]]]:
    """The first points of `search_als`, with their vectors after more sweeps; those that fall by them are passed over.

    Where the penalty is too strong, factors vanish one after the other: what was good after a few sweeps is nothing
    after a few more. If too few of the first ones stay steady, the best of the others come in too.
    """
    steady: list[tuple[Point, tuple[Tensor, Tensor]]] = []
    fallen: list[tuple[float, Point, tuple[Tensor, Tensor]]] = []
    for point in points[:TRIED]:
        assert point.state is not None
        vectors = als.fit(point.state, **als_settings(point), sweeps=sweeps)
        value = measured(Factors(*vectors), seen, validation)
        if value >= STEADY * point.value:
            steady.append((point, vectors))
        else:
            fallen.append((value, point, vectors))
        if len(steady) == wanted:
            break
    fallen.sort(key=lambda each: -each[0])
    return (steady + [each[1:] for each in fallen])[:wanted]


def measured(factors: Factors, seen: csr_array, validation: Validation) -> float:
    """The validation of what is ranked by inner products. factors, seen: of the process's own users"""
    return validation.of_its_users(by_factors("", factors, seen, validation.users, validation.depth).lists)


def search_walks(train: csr_array, seen: csr_array, validation: Validation, device: torch.device) -> dict[str, float]:
    """The settings of RP3beta with the best validation: every beta with the first alpha, then those near the best.

    train: of all users; seen: [own users, items] what is not listed
    """
    tried: dict[tuple[float, float], float] = {}

    def measure(place: tuple[int, ...]) -> Point:
        alpha = ALPHA[place[0]]
        best = BETA.index(max(tried, key=lambda each: tried[each])[1]) if tried else None
        near = BETA if best is None else BETA[max(best - 1, 0) : best + 2]
        lists = _walked_lists(Walks(train, alpha, device), seen, validation, near)
        figures = {(alpha, beta): validation.of_its_users(listed) for beta, listed in lists.items()}
        tried.update(figures)
        return Point(place, max(figures.values()))

    climb((len(ALPHA),), (len(ALPHA) // 2,), measure, len(ALPHA))
    alpha, beta = max(tried, key=lambda each: tried[each])
    return {"alpha": alpha, "beta": beta}


def _walked_lists(walks: Walks, seen: csr_array, validation: Validation, betas: Sequence[float]) -> dict[float, Tensor]:
    """beta -> [validated, depth] the best items that are not seen, all from the same walks; of its own users."""
    users = validation.users

    def listed(mine: Tensor) -> list[Tensor]:
        scores = walks(mine + validation.first)
        used = torch.from_numpy(flat_cells(seen[mine.cpu().numpy()])).to(scores.device)
        scores.view(-1).index_fill_(0, used, 0.0)
        return [top_k(walks.held_back(scores, beta), validation.depth)[1] for beta in betas]

    blocks = in_blocks(listed, torch.split(users, WALKERS), users.device)
    return {beta: torch.cat(lists) for beta, lists in zip(betas, zip(*blocks, strict=True), strict=True)}


def search_fixed(
    name: str, train: csr_array, seen: csr_array, validation: Validation, device: torch.device, rounds: int
) -> dict[str, float]:
    """The settings of a fixed voter by the validation of its lists, from the middle of its grid.

    train: of all users; seen: [own users, items] what is not listed
    """
    grid = VOTERS[name].grid

    def settings(place: tuple[int, ...]) -> dict[str, float]:
        return {setting: values[at] for (setting, values), at in zip(grid.items(), place, strict=True)}

    def measure(place: tuple[int, ...]) -> Point:
        fitted = voter(name, settings(place)).fit(train, device=device, group=validation.group)
        lists = first_items(Offset(fitted, validation.first), seen, validation.users, validation.depth)[0]
        return Point(place, validation.of_its_users(lists))

    sizes = tuple(map(len, grid.values()))
    return settings(climb(sizes, tuple((size - 1) // 2 for size in sizes), measure, rounds)[0].place)


def has_a_vote(name: str, shape: tuple[int, int], device: torch.device) -> bool:
    """Whether a fixed voter pays on such a log; a given one always votes."""
    on_cpu, on_gpu = VOTERS[name].most if name in VOTERS else (inf, inf)
    return min(shape) <= (on_cpu if device.type == "cpu" else on_gpu)


def search_temperature(
    train: csr_array, seen: csr_array, validation: Validation, user: Tensor, item: Tensor, seed: int, wanted: int
) -> list[tuple[float, float, tuple[Tensor, Tensor]]]:  # fmt: skip
    """(validation, temperature, vectors) of the softmax after an epoch of the users of `validation`, best first.

    train, seen, user: of the process's own users; seen: what is not listed; wanted: how many
    """
    tried: list[tuple[float, float, tuple[Tensor, Tensor]]] = []
    for temperature in TEMPERATURE:
        vectors = fit_softmax(train, user, item, temperature, 1, seed, validation.users, validation.group)
        tried.append((measured(Factors(*vectors), seen, validation), temperature, vectors))
        tried = sorted(tried, key=lambda each: -each[0])[:wanted]
    return tried
