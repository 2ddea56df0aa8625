"""The stages of a consensus of voters from outside: lists, scores and vectors of models that concf has not trained.

    search, als, softmax    of concf's own voters, where they join
    rerank    how much each voter is to be believed, cross-fitted, as in `recipe.py`
    student   one head that ranks as the consensus does
    refit     where the caller gives voters that were fitted on more of the log, they take the place of the first
    final     the consensus for everyone, and its student

A voter with vectors is a head like any other. Of one without, the first K items of every user are held with their
scores: all that its votes and features need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.neighbours import RP3beta
from concf.consensus.consensus import CONSENSUS
from concf.consensus.fusion import Fusions
from concf.consensus.voters import Voter, by_factors, by_lists
from concf.data.split import Split
from concf.errors import note
from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation, sample
from concf.strong import students
from concf.strong.recipe import Recipe
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT

FUSED_USERS, FUSED_ITEMS = 1024, 100  # that plain fusions are compared on, and of each voter's list
FIRST_SWEEPS = 5  # of ALS, where no voter of ours is there for the student to begin with
Vectors = tuple[Tensor, Tensor]
SIGMAS = 4.0  # how far from what is expected
FEWEST = 10  # hits by chance, where none is a sign
TIMES = 2.0  # as many hits as RP3beta has


class GivenLists(NamedTuple):
    """A voter without vectors. lists: [users, K] int32, -1 where shorter; scores: [users, K]; of_items: see `Voter`."""

    lists: Tensor
    scores: Tensor
    of_items: Tensor


class Voters(NamedTuple):
    """Voters from outside by name, and the consistency [users, K] of those that were given at several times."""

    by_name: Mapping[str, GivenLists | Vectors]
    consistency: Mapping[str, Tensor]


NO_VOTERS = Voters({}, {})


class Combine(Recipe):
    """The stages, and the voters from outside.

    given: voter -> what it lists; consistency: voter -> [users, K]; refitted: voters that were fitted on more, if any;
    fused: plain fusion -> its validation figure; compared: the users that it is of, and their rows among the validated
    """

    def __init__(self, run: StrongRun) -> None:
        super().__init__(run)
        self.given: dict[str, GivenLists] = {}
        self.consistency: dict[str, Tensor] = {}
        self.refitted = NO_VOTERS
        self.fused: dict[str, float] = {}
        some = sample(self.validation.validated, FUSED_USERS, self.seed)
        few = Validation(self.data, run.metric, run.device, validated=some)
        self.compared = few, torch.searchsorted(self.validation.users, few.users)

    def take(self, given: Voters, refitted: Voters) -> None:
        """Begin with these voters."""
        self._adopt(given)
        self.refitted = refitted

    def _adopt(self, voters: Voters) -> None:
        self.consistency |= voters.consistency
        for name, voter in voters.by_name.items():
            if isinstance(voter, GivenLists):
                self.given[name] = voter
            else:
                self.vectors[name] = voter

    def _voters(self, log: csr_array, users: Tensor) -> list[Voter]:
        """Everyone who votes: heads, own voters without vectors, and those from outside, as `fixed_voters` has them."""
        given = ((name, self.given[name]) for name in self.settings.fixed_voters if name in self.given)
        voters = [
            *super()._voters(log, users),
            *(by_lists(name, each.lists[users], each.scores[users], each.of_items) for name, each in given),
        ]
        return [
            replace(voter, consistency=self.consistency[voter.name][users]) if voter.name in self.consistency else voter
            for voter in voters
        ]

    def _measure(self, voters: list[Voter]) -> None:
        super()._measure(voters)
        foreign = [voter for voter in voters if voter.name in self.settings.foreign]
        few, rows = self.compared
        note_leaks(self.data, few.validated, {voter.name: voter.lists[rows] for voter in foreign})
        self.fused = self._fuse(voters)

    def _fuse(self, voters: list[Voter]) -> dict[str, float]:
        """Plain fusion -> its validation figure, of some users."""
        few, rows = self.compared
        some = [
            replace(voter, lists=voter.lists[rows], listed=None if voter.listed is None else voter.listed[rows])
            for voter in voters
        ]
        fusions = Fusions(some, few.users, min(self.top_k, FUSED_ITEMS), self.shape[1])
        weights = fusions.fit([self.figures[voter.name] for voter in voters], few.of_its_users, few.depth)
        lists = fusions.lists(weights, few.depth)
        return {name: few.of_its_users(each) for name, each in lists.items()}

    def _rerank(self) -> dict[str, Any]:
        record = super()._rerank()
        figures = {name: self.figures[name] for name in self.settings.given_vectors}
        few, rows = self.compared
        fused = self.fused | {CONSENSUS: few.of_its_users(self._cross_fitted()[rows])}
        return record | {"validation": figures | record["validation"], "fusions": fused}

    def _start(self) -> Tensor:
        """[items, d] of ALS on the log, where no voter of ours has some."""
        if "als-a" in self.vectors:
            return super()._start()
        als = self._solver(self.data.train)
        return als.fit(als.start(self._seed(1)), **students.SOLVED_BY, sweeps=FIRST_SWEEPS)[1]

    def _refit(self) -> dict[str, Any]:
        self._adopt(self.refitted)
        self.refitted = NO_VOTERS
        return super()._refit()

    def _final(self) -> dict[str, Any]:
        """Where no voter lists anything, the student ranks: whoever asks for the consensus of anyone has a list."""
        record = super()._final()
        lists, plain, votes = self.agreed()
        nobody = (lists < 0).all(1).nonzero()[:, 0]
        if len(nobody):
            note(f"no voter lists anything for {len(nobody):,} of {len(lists):,} users: the student ranks for them")
            seen = self._seen(self.run.log)
            users, student = self.consensus_users[nobody], Factors(*self.vectors[STUDENT])
            ranked = by_factors(STUDENT, student, seen, users, lists.shape[1]).lists
            lists[nobody], plain[nobody] = ranked, ranked
            places = torch.arange(lists.shape[1], device=lists.device)
            votes["reranked"][nobody] = (
                (-places.to(votes["reranked"])).expand_as(ranked).masked_fill(ranked < 0, -torch.inf)
            )
        return record

    def _finish(self) -> None:
        """Hand everything over; vectors are as long as the longest, and zeros change no score."""
        for name, (user, item) in self.vectors.items():
            more = self.factors - user.shape[1]
            self.vectors[name] = F.pad(user, (0, more)), F.pad(item, (0, more))
        super()._finish()

    def state_dict(self) -> dict[str, Any]:
        """What the next stages depend on."""
        now = _packed(Voters(self.given, self.consistency))
        return super().state_dict() | {"given": now, "refitted": _packed(self.refitted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._adopt(_unpacked(state["given"]))
        self.refitted = _unpacked(state["refitted"])


def _packed(voters: Voters) -> dict[str, Any]:
    return {"voters": {name: list(each) for name, each in voters.by_name.items()}, "steady": dict(voters.consistency)}


def _unpacked(state: Mapping[str, Any]) -> Voters:
    found: dict[str, GivenLists | Vectors] = {}
    for name, parts in state["voters"].items():
        found[name] = GivenLists(*parts) if len(parts) == len(GivenLists._fields) else (parts[0], parts[1])
    return Voters(found, state["steady"])


def note_leaks(data: Split, users: NDArray[np.int64], lists: Mapping[str, Tensor]) -> None:
    """Warn of voters by their lists [n, K] of users [n]."""
    held_out = data.valid[users]

    @cache
    def by_walks(k: int) -> int:
        return first_hits(rank(RP3beta().fit(data.train), users, k, seen=data.train), held_out)

    for name, listed in lists.items():
        items = listed.cpu().numpy()
        found, expected = hits(items, held_out), by_chance(items, data.train[users], held_out)
        if expected >= FEWEST and found < expected - SIGMAS * sqrt(expected):
            note(
                f"voter {name!r}: its lists hold {found:,} held-out items, fewer than by chance ({expected:,.0f}). "
                "Was it fitted on the validation part too, whose items it leaves out? Fit it on the training part alone"
            )
            continue
        first, others = first_hits(items, held_out), by_walks(items.shape[1])
        if first > TIMES * others + SIGMAS * sqrt(first):
            note(
                f"voter {name!r}: its first places have {first:,} items of the validation part, those of RP3beta, "
                f"which has not seen it, {others:,}. Was it fitted on the validation part too? Fit it on the training "
                "part alone"
            )


def hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """How many of the listed items [n, K] users hold out [n, items]."""
    n_items = held_out.shape[1]
    cells = np.arange(len(items), dtype=np.int64)[:, None] * n_items + items
    return int(np.isin(cells[items >= 0], flat_cells(held_out)).sum())


def first_hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """The same in as many first places as a user holds out items."""
    beyond = np.arange(items.shape[1]) >= np.diff(held_out.indptr)[:, None]
    return hits(np.where(beyond, -1, items), held_out)


def by_chance(items: NDArray[np.int32], train: csr_array, held_out: csr_array) -> float:
    """How many it would be if every list [n, K] were drawn at random from what its user has not used."""
    length, used, wanted = (items >= 0).sum(1), np.diff(train.indptr), np.diff(held_out.indptr)
    return float((length * wanted / np.maximum(train.shape[1] - used, 1)).sum())
