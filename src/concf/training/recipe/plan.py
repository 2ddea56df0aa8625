"""What a budget pays for, and how many users and places that comes to on a log."""

from __future__ import annotations

from typing import NamedTuple

from concf.consensus.reranker import TOP
from concf.data.split import Split
from concf.training.config.settings import ConCFSettings
from concf.training.run import RECIPE_USERS


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


def n_asked(shape: tuple[int, int], settings: ConCFSettings) -> int:
    """How many users the voters are asked for in the end, of a log [users, items]."""
    assert settings.recipe is not None
    users, items = shape
    paid = max(PLANS[settings.recipe.budget].cells // items, RECIPE_USERS)
    return min(users, settings.recipe.asked_users or paid)


def list_length(data: Split, settings: ConCFSettings) -> int:
    """Of a consensus list: what is recommended from it, when what a user holds out is taken out of it."""
    longest = int((data.valid.indptr[1:] - data.valid.indptr[:-1]).max())
    return int(min(max(settings.consensus.shown + 2 * longest, TOP), data.train.shape[1]))
