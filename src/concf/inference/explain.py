"""Why an item has its rank in the list of a consensus; what the voters are, in words."""

from __future__ import annotations

import numpy as np
import torch
from typing_extensions import TypedDict  # which the service's documents need before Python 3.12

from concf.consensus.consensus import CONSENSUS, NOTHING
from concf.errors import ConfigError, DataError
from concf.inference.lookup import Id
from concf.inference.ranker import Ranker
from concf.inference.votes import Kind, Vote, similarity_shares, speakers
from concf.runs.run import Run
from concf.runtime.text_tables import settings_line
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT

KINDS = {
    "als": "least squares",
    "softmax": "softmax over all items",
    "rp3beta": "random walks",
    STUDENT: "distilled from the consensus",
}


class Contribution(TypedDict):
    """By how much something lifts an item above the mean of the user's candidates, see `concf.inference.votes`.

    voter: None for the item's popularity; kind: rank, score, similarity or popularity
    """

    voter: str | None
    kind: Kind
    value: float


class Because(TypedDict):
    """An item that the user has used. share: of the similarity between the history and the explained item"""

    item: int | str
    share: float


class Explanation(TypedDict):
    """Why an item has its rank in a user's consensus list.

    rank:       in the list of the consensus, from 1; None if the list does not have the item
    importance: the mean of the votes (Eq. 12)
    reranked:   the re-ranker's score, by which the list is then ordered; None without a re-ranker, where the list does
                not have the item, and where the voters were not asked for the user, whose list is the student's
    used_in_training: whether the user has used the item in the parts that the run has learned from
    heads:      the vote of each head and fixed voter, see `concf.inference.votes.Vote`
    contributions: what the re-ranker's score is made of; None where there is none, or the run kept no weights
    because:    up to three items of the user that the item is most similar to, by the voters' vectors
    """

    user: Id
    item: Id
    rank: int | None
    importance: float
    reranked: float | None
    used_in_training: bool
    heads: list[Vote]
    contributions: list[Contribution] | None
    because: list[Because]


def explain(ranker: Ranker, row: int, index: int, user: Id, item: Id) -> Explanation:
    """The votes for an item and what came of them. row, index: the positions of the user and of the item."""
    best = ranker.run.best.get(CONSENSUS)
    if best is None:
        raise ConfigError("a run of one head has no consensus to explain")
    votes = ranker.votes(CONSENSUS)
    if votes is None:
        raise DataError("this run kept no votes; train it again with this version to explain its consensus")
    seen, ids = ranker.run.log[[row]].indices, ranker.run.data.interactions.item_ids.values
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
    contributions = ranker.contributions
    terms = None if contributions is None else contributions.of_user(row).get(index)
    (places,) = speakers(similarity_shares(ranker.voters.values(), seen, np.array([index])))
    listed = [] if best.lists is None else best.lists[row].tolist()
    if ranker.new is not None or listed[:1] == [NOTHING]:  # new items are woven in, or nobody was asked
        shown = ranker.run.settings.consensus.shown
        listed = ranker.short(np.array([row]), [shown], CONSENSUS, [seen])[0][0].tolist()
    return {
        "user": user,
        "item": item,
        "rank": listed.index(index) + 1 if index in listed else None,
        "importance": sum(vote["vote"] for vote in heads) / len(heads),
        "reranked": None if votes.reranked is None or worth == -np.inf else worth,
        "used_in_training": used,
        "heads": heads,
        "contributions": None if contributions is None or terms is None else [
            {"voter": group.voter, "kind": group.kind, "value": float(value)}
            for group, value in zip(contributions.groups, terms, strict=True)
        ],
        "because": [{"item": ids[seen[[place]]].tolist()[0], "share": share} for place, share in places],
    }  # fmt: skip


def about(run: Run, name: str) -> str:
    """What a head or fixed voter is, in a few words; empty where its name says it."""
    if not isinstance(run, StrongRun):
        objective = run.objective(name)
        return "" if objective in (None, name) else str(objective)
    if name in run.settings.foreign:
        return "given, with vectors" if name in run.settings.given_vectors else "given, as lists"
    kind, chosen = KINDS[name if name in KINDS else name.rpartition("-")[0]], run.chosen.get(name, {})
    return f"{kind}, {settings_line(chosen)}" if chosen else kind


def cross_fitted(run: Run) -> list[str]:
    """Whose validation figure is of users whom its re-ranker, or that of its teacher, was not fitted on."""
    return [] if not isinstance(run, StrongRun) else [name for name in (STUDENT, CONSENSUS) if name in run.best]
