"""Stages of a consensus of given voters: lists, scores and vectors of models that concf has not trained.

    search, als, softmax    concf's own voters, where they vote too
    rerank    fit the re-ranker, cross-fitted, as in `recipe.py`
    student   distil the consensus into one head
    refit     replace the voters by those that the caller fitted on more of the log, if any
    final     compute the consensus for all users, and distil it

A given voter with vectors is a head like any other. For one without, the first K items of every user are kept with
their scores, as votes and features need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from concf.consensus.fusion import Fusions
from concf.consensus.voters import Voter, by_factors, by_lists
from concf.data.split import Split
from concf.errors import note
from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation, sample
from concf.runs.settings import CONSENSUS
from concf.strong import students
from concf.strong.recipe import Recipe
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT

FUSED_USERS, FUSED_ITEMS = 1024, 100  # users, and length of the lists, that plain fusions are compared on
FIRST_SWEEPS = 5  # sweeps of ALS for the student's initial vectors, where concf's own voters do not vote
Vectors = tuple[Tensor, Tensor]
SIGMAS = 4.0  # standard deviations from the expected number of hits that show a leak
FEWEST = 10  # least expected hits by chance for which too few hits show a leak
LEAKED = "Was it fitted on the validation part too? Fit it on the training part alone"
TIMES = 2.0  # multiple of RP3beta's hits beyond which hits show a leak


class GivenLists(NamedTuple):
    """Voter without vectors. lists: [users, K] int32, -1 where shorter; scores: [users, K]; of_items: see `Voter`."""

    lists: Tensor
    scores: Tensor
    of_items: Tensor


Voters = Mapping[str, GivenLists | Vectors]  # by name


class Combine(Recipe):
    """Stages of a run with given voters.

    given: voter -> its lists; refitted: voters fitted on more of the log, if any;
    fused: plain fusion -> its validation metric; compared: users of that metric, and their rows among the validated
    """

    def __init__(self, run: StrongRun) -> None:
        super().__init__(run)
        self.given: dict[str, GivenLists] = {}
        self.refitted: Voters = {}
        self.fused: dict[str, float] = {}
        users = sample(self.validation.validated, FUSED_USERS, self.seed)
        few = Validation(self.data, run.metric, run.device, validated=users)
        self.compared = few, torch.searchsorted(self.validation.users, few.users)

    def take(self, given: Voters, refitted: Voters) -> None:
        """Set the voters."""
        self._adopt(given)
        self.refitted = refitted

    def _adopt(self, voters: Voters) -> None:
        for name, voter in voters.items():
            if isinstance(voter, GivenLists):
                self.given[name] = voter
            else:
                self.vectors[name] = voter

    def _voters(self, log: csr_array, users: Tensor) -> list[Voter]:
        """Make all voters: heads, own voters without vectors, and given ones, in the order of `run.fixed_voters`."""
        given = ((name, self.given[name]) for name in self.run.fixed_voters if name in self.given)
        lists = (by_lists(name, voter.lists[users], voter.scores[users], voter.of_items) for name, voter in given)
        return [*super()._voters(log, users), *lists]

    def _measure(self, voters: Sequence[Voter]) -> None:
        super()._measure(voters)
        foreign = [voter for voter in voters if voter.name in self.settings.foreign]
        few, rows = self.compared
        note_leaks(self.data, few.validated, {voter.name: voter.lists[rows] for voter in foreign})
        sampled = [
            replace(voter, lists=voter.lists[rows], listed=None if voter.listed is None else voter.listed[rows])
            for voter in voters
        ]
        fusions = Fusions(sampled, few.users, min(self.top_k, FUSED_ITEMS), self.shape[1])
        weights = fusions.fit([self.metrics[voter.name] for voter in voters], few.of_its_users, few.depth)
        lists = fusions.lists(weights, few.depth)
        self.fused = {name: few.of_its_users(ranked) for name, ranked in lists.items()}

    def _rerank(self) -> dict[str, Any]:
        record = super()._rerank()
        few, rows = self.compared
        fused = self.fused | {CONSENSUS: few.of_its_users(self._cross_fitted()[rows])}
        return record | {"fusions": fused}

    def _start(self) -> Vectors:
        """Initial vectors of the student; without concf's own voters by a few sweeps of ALS."""
        if "als-a" in self.vectors:
            return super()._start()
        als = self.solver(self.data.train)
        return als.fit(als.start(self._seed(1)), **students.SOLVED_BY, sweeps=FIRST_SWEEPS)

    def _refit(self) -> dict[str, Any]:
        self._adopt(self.refitted)
        self.refitted = {}
        return super()._refit()

    def _final(self) -> dict[str, Any]:
        """Compute the consensus; the student ranks for users for whom no voter lists anything."""
        record = super()._final()
        lists, plain, votes = self.agreed()
        unlisted = (lists < 0).all(1).nonzero()[:, 0]
        if len(unlisted):
            note(f"no voter lists anything for {len(unlisted):,} of {len(lists):,} users: the student ranks for them")
            users, student = self.consensus_users[unlisted], Factors(*self.vectors[STUDENT])
            ranked = by_factors(STUDENT, student, self.seen(self.run.log), users, lists.shape[1]).lists
            lists[unlisted], plain[unlisted] = ranked, ranked
            scores = -torch.arange(lists.shape[1], device=lists.device).to(votes["reranked"])
            votes["reranked"][unlisted] = scores.expand_as(ranked).masked_fill(ranked < 0, -torch.inf)
        return record

    def _finish(self) -> None:
        """Store all results in the run, with vectors padded by zeros to the longest."""
        for name, (user, item) in self.vectors.items():
            more = self.settings.dimensions - user.shape[1]
            self.vectors[name] = F.pad(user, (0, more)), F.pad(item, (0, more))
        super()._finish()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next stages depend on."""
        given, refitted = ({name: list(voter) for name, voter in each.items()} for each in (self.given, self.refitted))
        return super().state_dict() | {"given": given, "refitted": refitted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.given = {name: GivenLists(*parts) for name, parts in state["given"].items()}
        self.refitted = {
            name: GivenLists(*parts) if len(parts) == len(GivenLists._fields) else (parts[0], parts[1])
            for name, parts in state["refitted"].items()
        }


def note_leaks(data: Split, users: NDArray[np.int64], lists: Mapping[str, Tensor]) -> None:
    """Note voters whose lists [n, K] for users [n] show that they have seen the validation part."""
    held_out = data.valid[users]

    @cache
    def by_walks(k: int) -> int:
        return first_hits(rank(RP3beta().fit(data.train), users, k, seen=data.train), held_out)

    for name, listed in lists.items():
        items = listed.cpu().numpy()
        n_hits, expected = hits(items, held_out), by_chance(items, data.train[users], held_out)
        if expected >= FEWEST and n_hits < expected - SIGMAS * sqrt(expected):
            found = f"its lists hold {n_hits:,} held-out items, fewer than by chance ({expected:,.0f})"
            note(f"voter {name!r}: {found}, as if it left them out. {LEAKED}")
            continue
        first, others = first_hits(items, held_out), by_walks(items.shape[1])
        if first > TIMES * others + SIGMAS * sqrt(first):
            found = f"its first ranks hold {first:,} validation items, and those of RP3beta, fitted without them,"
            note(f"voter {name!r}: {found} {others:,}. {LEAKED}")


def hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """Number of listed items [n, K] that are held out [n, items]."""
    n_items = held_out.shape[1]
    cells = np.arange(len(items), dtype=np.int64)[:, None] * n_items + items
    return int(np.isin(cells[items >= 0], flat_cells(held_out)).sum())


def first_hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """Number of hits in the first m ranks, m the number of the user's held-out items."""
    beyond = np.arange(items.shape[1]) >= np.diff(held_out.indptr)[:, None]
    return hits(np.where(beyond, -1, items), held_out)


def by_chance(items: NDArray[np.int32], train: csr_array, held_out: csr_array) -> float:
    """Expected number of hits of lists [n, K] drawn at random from the items that each user has not used."""
    length, used, n_held_out = (items >= 0).sum(1), np.diff(train.indptr), np.diff(held_out.indptr)
    return float((length * n_held_out / np.maximum(train.shape[1] - used, 1)).sum())
