"""Why an item has its rank in the list of a consensus."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import torch

from concf.consensus.settings import CONSENSUS
from concf.errors import ConfigError, DataError
from concf.inference.lookup import Id
from concf.inference.ranker import Ranker
from concf.inference.votes import Vote


class Explanation(TypedDict):
    """Why an item has its rank in a user's consensus list.

    rank:       in the list of the consensus, from 1; None if the list does not have the item
    importance: the mean of the votes (Eq. 12)
    reranked:   the re-ranker's score, by which the list is then ordered; None without a re-ranker, and where the list
                does not have the item
    used_in_training: whether the user has used the item in the parts that the run has learned from
    heads:      the vote of each head and fixed voter, see `concf.inference.votes.Vote`
    """

    user: Id
    item: Id
    rank: int | None
    importance: float
    reranked: float | None
    used_in_training: bool
    heads: list[Vote]


def explain(ranker: Ranker, row: int, index: int, user: Id, item: Id) -> Explanation:
    """The votes for an item and what came of them. row, index: the positions of the user and of the item."""
    best = ranker.run.best.get(CONSENSUS)
    if best is None:
        raise ConfigError("a run of one head has no consensus to explain")
    votes = ranker.votes(CONSENSUS)
    if votes is None:
        raise DataError("this run kept no votes; train it again with this version to explain its consensus")
    seen = ranker.run.log[[row]].indices
    used, heads = bool(index in seen), votes.cast(row, index)
    for vote in heads:
        if vote["head"] in ranker.voters:
            scores = ranker.voters[vote["head"]].scores(torch.tensor([row]))[0].numpy()
            own = scores[index]
            scores[seen] = -np.inf
            ahead = (scores > own) | ((scores == own) & (np.arange(len(scores)) < index))
            vote["score"], vote["rank"] = float(own), vote["rank"] or int(ahead.sum()) + 1
        vote["rank"] = None if used else vote["rank"]
    worth = float(votes.worth(row, np.array([index], np.int32))[0])
    listed = [] if best.lists is None else best.lists[row].tolist()
    return {
        "user": user,
        "item": item,
        "rank": listed.index(index) + 1 if index in listed else None,
        "importance": sum(vote["vote"] for vote in heads) / len(heads),
        "reranked": None if votes.reranked is None or worth == -np.inf else worth,
        "used_in_training": used,
        "heads": heads,
    }
