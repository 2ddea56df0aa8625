"""The votes that made a consensus, as its run kept them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict  # which the service's documents need before Python 3.12

from concf.consensus.consensus import rank_importance
from concf.consensus.settings import CONSENSUS
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run


class Vote(TypedDict):
    """How one voter ranked an item for a user.

    head:  the voter: a head, or a fixed voter
    rank:  from 1, training items left out; None for a training item, and outside a fixed voter's first K
    R, C:  importance of the rank (Eq. 10) and consistency (Eq. 11); 0 outside the first K
    vote:  (R + C) times the voter's weight
    score: the head's own score of the item; None for a fixed voter, and where it is not asked for
    """

    head: str
    rank: int | None
    R: float
    C: float
    vote: float
    score: float | None


def votes_of(run: Run, by: str) -> dict[str, Tensor]:
    """The votes that a run kept of a consensus; where it kept none of the R-consensus, they are the other's."""
    return run.best[by].votes or run.best[CONSENSUS].votes


class Votes:
    """The first K items of each voter, how consistently it ranked them, and the voter's weight.

    Made of what a run kept of a consensus (`RankingConsensus.votes`), or has come to for some histories, and its lists.

    names:         the voters: heads, then fixed voters
    items:         [voters, users, K] positions, best first, -1 where a list is shorter
    earned:        [K] R (Eq. 10)
    consistency:   [voters, users, K] C (Eq. 11); 0 for the R-consensus
    voter_weights: [voters], 1 on average
    reranked:      [users, L] the consensus lists and the re-ranker's scores, if there is a re-ranker
    weights:       ([F], [F]) the mean of each of the re-ranker's features, and its weight, float64
    """

    def __init__(self, votes: Mapping[str, Tensor], lists: Tensor | None, settings: ConCFSettings, by: str) -> None:
        chosen, everyone = settings.consensus, [*settings.heads, *settings.fixed_voters]
        voting = [row for row, name in enumerate(everyone) if name not in chosen.non_voting]
        rows = voting if len(voting) < len(votes["items"]) else slice(None)  # all of them: no copy
        items = votes["items"][rows].cpu()
        consistency = torch.zeros(1).expand(items.shape)
        if by == CONSENSUS and "consistency" in votes:
            consistency = votes["consistency"][rows].cpu()
        weights = votes["voter_weights"].cpu()[voting].numpy() if "voter_weights" in votes else np.ones(len(voting))
        earned = rank_importance(torch.arange(items.shape[2]).double(), chosen.temperature)
        self.names = [everyone[row] for row in voting]
        self.items: NDArray[np.int32] = items.numpy()
        self.earned: NDArray[np.float64] = earned.numpy()
        self.consistency: NDArray[np.float32] = consistency.numpy()
        self.voter_weights: NDArray[np.float64] = weights / weights.mean()
        self.reranked: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        if by == CONSENSUS and "reranked" in votes and lists is not None:
            self.reranked = lists.cpu().numpy(), votes["reranked"].cpu().numpy()
        self.weights: tuple[Tensor, Tensor] | None = None
        if self.reranked is not None and "weights" in votes:
            self.weights = votes["centre"].cpu().double(), votes["weights"].cpu().double()

    def worth(self, user: int, items: NDArray[np.int32]) -> NDArray[np.float32]:
        """[k] the score of items [k] for a user: the mean vote, I (Eq. 12), or the re-ranker's score (-inf: none)."""
        if self.reranked is not None:
            listed, scores = (each[user] for each in self.reranked)
            same = listed == items[:, None]
            return np.where(same.any(1), scores[same.argmax(1)], -np.inf).astype(np.float32)
        listed = self.items[:, user]  # [voters, K]
        votes = self.voter_weights[:, None] * (self.earned + self.consistency[:, user])
        item, vote = np.divmod(np.flatnonzero(listed == items[:, None, None]), listed.size)
        total = np.bincount(item, votes.ravel()[vote], minlength=len(items))
        return np.asarray(total / len(listed), np.float32)

    def cast(self, user: int, item: int) -> list[Vote]:
        """The vote of each voter for an item, without the head's score; rank is None outside its first K items."""
        votes: list[Vote] = []
        for voter, name in enumerate(self.names):
            rank = next(iter(np.flatnonzero(self.items[voter, user] == item).tolist()), None)
            r, c = (
                (0.0, 0.0) if rank is None else (float(self.earned[rank]), float(self.consistency[voter, user, rank]))
            )
            vote = float(self.voter_weights[voter]) * (r + c)
            votes.append(
                {"head": name, "rank": rank if rank is None else rank + 1, "R": r, "C": c, "vote": vote, "score": None}
            )
        return votes
