"""What a log needs: the settings of its voters, chosen on its own validation part by a small search.

A search walks over a grid from its middle to the best of the neighbours, until none is better. Every point is measured
once, on the same users; of equals the first stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.voters import by_factors, by_scores
from concf.evaluation.validation import Validation
from concf.model.als import ALS
from concf.model.scorers import Factors
from concf.model.walks import Walks
from concf.training.recipe.softmax import fit_softmax

UNOBSERVED = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
PENALTY = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
ALPHA, BETA = (0.4, 0.5, 0.6, 0.7, 0.8), (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
TEMPERATURE = (0.04, 0.055, 0.075, 0.1, 0.14, 0.19, 0.26)
FIRST_SWEEPS, MORE_SWEEPS = 3, 2  # of ALS before its settings are compared, and of each point


class Point(NamedTuple):
    """A point of a grid that was measured. state: what its neighbours may begin from."""

    place: tuple[int, ...]
    value: float
    state: Tensor | None = None


def climb(
    sizes: tuple[int, ...],
    start: tuple[int, ...],
    measure: Callable[[tuple[int, ...], Point | None], Point],
    rounds: int,
) -> list[Point]:
    """All points that were measured, the best first. sizes: of the grid.

    At most so many rounds; each measures the neighbours of the best along every axis.
    """
    best = measure(start, None)
    seen = {start: best}
    for _ in range(rounds):
        beside = [
            tuple(at + step * (axis == here) for here, at in enumerate(best.place))
            for axis in range(len(sizes))
            for step in (-1, 1)
        ]
        inside = [place for place in beside if all(0 <= at < size for at, size in zip(place, sizes, strict=True))]
        for place in inside:
            if place not in seen:
                seen[place] = measure(place, best)
        new = max(seen.values(), key=lambda point: point.value)
        if new.place == best.place:
            break
        best = new
    return sorted(seen.values(), key=lambda point: -point.value)


def search_als(
    als: ALS, train: csr_array, validation: Validation, start: Tensor, place: tuple[int, int], rounds: int
) -> list[Point]:
    """Unobserved weight and penalty by the validation of what ALS comes to; a point begins from its neighbour's items.

    start: [items, d] the items of the first point; state of a point: its items
    """

    def measure(place: tuple[int, ...], beside: Point | None) -> Point:
        begin, sweeps = (start, FIRST_SWEEPS) if beside is None else (beside.state, MORE_SWEEPS)
        assert begin is not None
        user, item = als.fit(begin, UNOBSERVED[place[0]], PENALTY[place[1]], sweeps)
        voter = by_factors("als", Factors(user, item), train, validation.users, validation.depth)
        return Point(place, validation.of_its_users(voter.lists), item)

    return climb((len(UNOBSERVED), len(PENALTY)), place, measure, rounds)


def search_walks(train: csr_array, validation: Validation, device: torch.device, rounds: int) -> list[Point]:
    """Alpha and beta of RP3beta."""
    walks: dict[int, Walks] = {}

    def measure(place: tuple[int, ...], beside: Point | None) -> Point:  # noqa: ARG001
        walk = walks.setdefault(place[0], Walks(train, ALPHA[place[0]], device))
        voter = by_scores("rp3beta", walk.scorer(BETA[place[1]]), train, validation.users, validation.depth)
        return Point(place, validation.of_its_users(voter.lists))

    return climb((len(ALPHA), len(BETA)), (2, 4), measure, rounds)


def search_temperature(
    train: csr_array, validation: Validation, user: Tensor, item: Tensor, epochs: int, seed: int
) -> list[Point]:
    """The temperature of the softmax, learned by few users in few epochs."""

    def measure(place: tuple[int, ...], beside: Point | None) -> Point:  # noqa: ARG001
        vectors = fit_softmax(train, user, item, TEMPERATURE[place[0]], epochs, seed, validation.users)
        voter = by_factors("softmax", Factors(*vectors), train, validation.users, validation.depth)
        return Point(place, validation.of_its_users(voter.lists))

    return climb((len(TEMPERATURE),), (3,), measure, len(TEMPERATURE))
