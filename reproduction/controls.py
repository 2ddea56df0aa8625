"""Consistency, separated from counting: the same rankings, voted in three ways, each with its temperatures tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from concf.consensus.consensus import by_votes, rank_importance
from concf.evaluation.evaluate import Evaluation
from concf.reference.settings import ConsensusSettings

TEMPERATURES = (5.0, 10.0, 20.0, 50.0, 100.0)  # T
CONSISTENCIES = (10.0, 30.0, 100.0)  # T_c
R, RC, COUNTED = "R", "R + C", "R + 1"  # ranks alone; with consistency; with 1 of every head that names the item


def voted(
    votes: Mapping[str, Tensor], kind: str, temperature: float, consistency_temperature: float, measured_at: float
) -> Tensor:
    """[heads, users, K] what each head gives each of its items. votes: of `RankingConsensus.votes`.

    measured_at: T_c of the consistencies C = exp(-std / T_c) in them, from which those at another T_c follow
    """
    items = votes["items"]
    ranks = torch.arange(items.shape[2], device=items.device, dtype=torch.float64)
    given = rank_importance(ranks, temperature).expand(items.shape)
    if kind == RC:
        given = given + votes["consistency"].double() ** (measured_at / consistency_temperature)
    elif kind == COUNTED:
        given = given + 1.0
    return given * votes["voter_weights"].to(items.device)[:, None, None]


def tuned(
    votes: Mapping[str, Tensor], settings: ConsensusSettings, n_items: int, length: int,
    validate: Callable[[Tensor], float], evaluate: Callable[[Tensor], Evaluation],
) -> dict[str, Any]:  # fmt: skip
    """Way to vote -> the temperatures that validation prefers, and the figures with them and with those of `settings`.

    validate, evaluate: of lists [users, length]
    """
    measured_at, found = settings.consistency_temperature, {}
    assert measured_at is not None
    items = votes["items"].where(votes["voter_weights"].to(votes["items"].device)[:, None, None] > 0, -1)

    def lists(kind: str, at: tuple[float, float]) -> Tensor:
        return by_votes(items, voted(votes, kind, *at, measured_at), n_items, length)

    for kind in (R, RC, COUNTED):
        figures = {at: validate(lists(kind, at)) for at in _grid(kind, measured_at)}
        best = max(figures, key=figures.__getitem__)
        evaluation, usual = evaluate(lists(kind, best)), lists(kind, (settings.temperature, measured_at))
        found[kind] = {
            "T": best[0], "T_c": best[1] if kind == RC else None, "validation": figures[best],
            "test": evaluation.means(), "groups": [group["recall@50"] for group in evaluation.by_activity()],
            "untuned": {"validation": validate(usual), "test": evaluate(usual).means()},
        }  # fmt: skip
    return found


def _grid(kind: str, measured_at: float) -> Iterator[tuple[float, float]]:
    return product(TEMPERATURES, CONSISTENCIES if kind == RC else (measured_at,))
