"""The votes that made a consensus, as its run kept them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.consensus.consensus import rank_importance
from concf.consensus.settings import CONSENSUS
from concf.training.run import Run


class Votes:
    """Which items each voter named, at which place, how consistently, and how much its voter weight counts.

    names:      the voters: heads, then fixed voters
    items:      [voters, users, K], best first, -1 at an empty place
    earned:     [K] R (Eq. 10)
    consistency: [voters, users, K] C (Eq. 11); 0 for the R-consensus
    voter_weights:     [voters], 1 on average
    reranked:     the lists [users, L] and what a re-ranker gives each of their places, if there is one: the lists'
    order
    """

    def __init__(self, run: Run, by: str) -> None:
        votes, chosen = run.best[by].votes, run.settings.consensus
        everyone = [*run.model.names, *chosen.fixed_names]
        voting = [place for place, name in enumerate(everyone) if name not in chosen.non_voting]
        here = voting if len(voting) < len(votes["items"]) else slice(None)  # all of them: no copy
        items = votes["items"][here].cpu()
        consistency = votes["consistency"][here].cpu() if by == CONSENSUS else torch.zeros(1).expand(items.shape)
        voter_weights = (
            votes["voter_weights"].cpu()[voting].numpy() if "voter_weights" in votes else np.ones(len(voting))
        )
        self.names = [everyone[place] for place in voting]
        self.items: NDArray[np.int32] = items.numpy()
        self.earned: NDArray[np.float64] = rank_importance(
            torch.arange(items.shape[2]).double(), chosen.temperature
        ).numpy()
        self.consistency: NDArray[np.float32] = consistency.numpy()
        self.voter_weights: NDArray[np.float64] = voter_weights / voter_weights.mean()
        self.reranked: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        lists = run.best[by].lists
        if "reranked" in votes and lists is not None:
            self.reranked = lists.cpu().numpy(), votes["reranked"].cpu().numpy()

    def worth(self, user: int, items: NDArray[np.int32]) -> NDArray[np.float32]:
        """[k] I (Eq. 12) of items [k] to one user: the mean of the votes, or the re-ranker's score (-inf: none)."""
        if self.reranked is not None:
            listed, given = (each[user] for each in self.reranked)
            here = listed == items[:, None]
            return np.where(here.any(1), given[here.argmax(1)], -np.inf).astype(np.float32)
        named = self.items[:, user]  # [voters, K]
        cast = self.voter_weights[:, None] * (self.earned + self.consistency[:, user])
        item, vote = np.divmod(np.flatnonzero(named == items[:, None, None]), named.size)
        total = np.bincount(item, cast.ravel()[vote], minlength=len(items))
        return np.asarray(total / len(named), np.float32)

    def worths(self, users: NDArray[np.int64], items: Tensor, n_items: int) -> Tensor:
        """[b, k] the same of items [b, k] to several users, -1 at an empty place."""
        if self.reranked is not None:
            listed, given = (torch.from_numpy(each[users]) for each in self.reranked)
            known = torch.full((len(users), n_items + 1), -torch.inf)
            known.scatter_(1, listed.long().where(listed >= 0, n_items), given.float())
            return known.gather(1, items.where(items >= 0, n_items))
        table = torch.zeros(len(users), n_items + 1, dtype=torch.float64)
        for voter_weight, named, steady in zip(self.voter_weights, self.items, self.consistency, strict=True):
            mine = torch.from_numpy(named[users]).long()
            cast = torch.from_numpy(voter_weight * (self.earned + steady[users]))
            table.scatter_add_(1, mine.where(mine >= 0, n_items), cast)
        return table.gather(1, items.clamp(min=0)) / len(self.names)

    def cast(self, user: int, item: int) -> list[dict[str, Any]]:
        """Of each voter the rank that it gave the item (from 0, None outside its first K places), R, C and its vote."""
        told = []
        for name, voter_weight, named, steady in zip(
            self.names, self.voter_weights, self.items, self.consistency, strict=True
        ):
            at = np.flatnonzero(named[user] == item).tolist()
            rank = at[0] if at else None
            earned, sure = (float(self.earned[rank]), float(steady[user, rank])) if at else (0.0, 0.0)
            told.append(
                {"head": name, "rank": rank, "R": earned, "C": sure, "vote": float(voter_weight) * (earned + sure)}
            )
        return told
