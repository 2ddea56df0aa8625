"""Stages of an update: carry a finished run over to a log that has grown.

    rerank    fit the re-ranker to how the old voters rank the new pairs, near its old weights (or keep these)
    refit     refit the voters on the whole log, from their old vectors
    final     compute the consensus for all users, and fine-tune the student

A refresh trains no voter. Its first stage, in place of `rerank` and `refit`, folds in the users with new pairs.

    fold-in   solve for the vectors of users whose pairs have changed, with item vectors as they are

Settings are not searched again. No voter has seen the new pairs, so the re-ranker can learn how the past predicts the
future, unlike from pairs held out at random. Known users and items start with their vectors, a new item with the mean
of the items that its users used, a new user with the mean of its items; sweeps of ALS then fit both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from concf.baselines.als import START, Pairs, UserSolver
from concf.consensus.fitting import Weights
from concf.data.parts import PARTS, TEST, TRAIN, VALID, origin
from concf.data.split import Split
from concf.errors import note
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation, sample
from concf.runs.fold_in import FoldedHead
from concf.runs.settings import CONSENSUS
from concf.runtime.settings import Settings
from concf.strong.recipe import Recipe
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT
from concf.strong.softmax import UserSoftmax

if TYPE_CHECKING:
    from concf.data.join import Joined  # which loads Polars

SWEEPS, EPOCHS, DISTILLED = 2, 2, (1, 1)  # of ALS, of the softmax, and of the student (ALS, consensus loss)
FEWEST = 100  # known users with new pairs to move the weights
Vectors = tuple[Tensor, Tensor]


class UpdateSettings(Settings):
    """Settings of an update."""

    hold: float = Field(0.0, ge=0, le=1, description="how far known vectors are held; 0: not at all, 1: they stay")
    rerank: Literal["refit", "carry"] = Field("refit", description="the re-ranker's weights: fitted anew, or as before")
    refresh: bool = Field(False, description="renew users, trends and lists; train neither voters nor weights")


class Update(Recipe):
    """Stages of an update, and what they start from.

    known: ([users], [items]) whether each was in the old log; fresh: [pairs] whether the run has not learned a pair
    """

    def __init__(self, run: StrongRun, settings: UpdateSettings) -> None:
        super().__init__(run)
        device = run.device
        self.update = settings
        self.validated_users = run.validated_users
        self.plan = self.plan._replace(sweeps=(0, SWEEPS), softmax=(0, EPOCHS), student=DISTILLED)
        self.voter_weights: dict[str, float] = {}
        self.known = tuple(torch.zeros(n, dtype=torch.bool, device=device) for n in self.shape)
        self.fresh = torch.zeros(len(run.data.interactions), dtype=torch.bool, device=device)
        self.stages = {"rerank": self._rerank} if settings.rerank == "refit" else {}
        self.stages |= {"refit": self._refit, "final": self._final}
        if settings.refresh:
            self.stages = {"fold-in": self._fold_in, "final": self._final}

    def carry(self, before: StrongRun, joined: Joined) -> None:
        """Carry over settings, weights and vectors of a finished run. In a refresh only the student has new items."""
        votes, self.run.fixed_voters = before.best[CONSENSUS].votes, before.fixed_voters
        self.chosen, self.validated_users = before.chosen, before.validated_users
        for record in before.history:
            self.metrics |= record.get("validation", {})
        self.metrics |= {name: best.validation for name, best in before.best.items()}
        names = [*before.heads, *before.fixed_voters]
        self.voter_weights = dict(zip(names, votes["voter_weights"].tolist(), strict=True))
        self.weights = Weights(votes["centre"].to(self.device), votes["weights"].to(self.device), torch.empty(0))
        old_rows = [torch.from_numpy(rows).to(self.device) for rows in (joined.users, joined.items)]
        self.known = tuple(rows >= 0 for rows in old_rows)
        self.fresh = torch.from_numpy(joined.fresh).to(self.device)
        random = torch.Generator().manual_seed(self._seed(6))
        for head in before.heads:
            factors = before.factors(head).to(self.device)
            user, item = (
                F.embedding(rows.clamp(min=0), table).where(known[:, None], 0)
                for rows, table, known in zip(old_rows, (factors.user, factors.item), self.known, strict=True)
            )
            self.vectors[head] = user, item
            if head == STUDENT or not self.update.refresh:
                self.vectors[head] = beside_neighbours(self.run.log, user, item, self.known, random)

    @property
    def fixed(self) -> list[str]:
        """Voters that the re-ranker was fitted with, whatever the size of the log is now."""
        return [name for name in self.run.fixed_voters if name in self.chosen]

    def _weights_of(self, voters: list[str]) -> list[float]:
        """Weights of the voters as training chose them: the validation metric of a day is too noisy."""
        return [self.voter_weights[name] for name in voters]

    def stage(self, number: int) -> dict[str, Any]:
        """Run one stage; the first record has what was carried over."""
        if number:
            return super().stage(number)
        carried = {"chosen": dict(self.chosen), "validation": dict(self.metrics)}
        carried |= {"validated_users": self.validated_users, "carried_validation": True}
        return carried | super().stage(number)

    def _rerank(self) -> dict[str, Any]:
        """Fit the re-ranker to the new pairs of known users and items, ranked by voters that have not seen them.

        Test pairs, old and new, are used neither here nor by a voter, unless the run learns from the test part.
        """
        data, fresh = self.run.data, self.fresh.cpu().numpy()
        of_user, of_item = (each.cpu().numpy() for each in self.known)
        known = of_user[data.interactions.user] & of_item[data.interactions.item]
        usable = np.isin(origin(data.parts), [PARTS[part] for part in {"train", "valid", *self.run.learned}])
        parts = np.where(usable, np.where(fresh, np.where(known, VALID, TEST), TRAIN), TEST).astype(np.uint8)
        past = Split(data.interactions, parts, data.recipe, weights=data.weights)
        if len(past.validated) < FEWEST:
            few = f"only {len(past.validated)} known users chose known items since (test pairs aside)"
            note(f"the re-ranker's weights are carried over: {few}, and it takes {FEWEST} to move them")
            return {}
        whole, validation = self.data, self.validation
        most = min(self.plan.fitted, self.settings.training.validated_users or self.plan.fitted)
        everyone = sample(past.validated, most, self.seed)
        self.data, self.validation = past, Validation(past, self.run.metric, self.device, validated=everyone)
        assert self.weights is not None
        self.near = self.weights.everyone
        super()._rerank()
        self._validate_student()
        del self._cache["lists"]
        self.data, self.validation = whole, validation
        return {"validation": dict(self.metrics), "validated_users": len(everyone), "carried_validation": False}

    def _fold_in(self) -> dict[str, Any]:
        """Solve for users with new pairs, or for all users if pairs were dropped; item vectors stay."""
        fresh, dropped = self.run.data.interactions.user[self.fresh.cpu().numpy()], self.run.updates[-1]["dropped"]
        users = np.arange(self.shape[0]) if dropped else np.unique(fresh).astype(np.int64)
        rows, every = torch.from_numpy(users).to(self.device), self._pairs(self.run.log)
        theirs = torch.isin(every.user, rows)
        pairs = Pairs(torch.searchsorted(rows, every.user[theirs]), *(each[theirs] for each in every[1:]))
        for head in self.vectors.keys() - {STUDENT}:
            user, item = self.vectors[head]
            if head in self.softmaxes:
                vectors = self._by_softmax(head, self.run.log[users])
            else:
                vectors = UserSolver(item, **self.chosen[head])(pairs, len(users))
            self.vectors[head] = user.index_copy(0, rows, vectors.to(user)), item
        return {}

    def _by_softmax(self, head: str, histories: csr_array) -> Tensor:
        """[n, d] vectors of users for histories [n, items]."""
        user, item = (each.cpu() for each in self.vectors[head])
        solve = UserSoftmax(item, self.chosen[head]["temperature"])
        return FoldedHead(Factors(user, item), lambda rows, _times: solve(rows))(histories).user

    def _refit(self) -> dict[str, Any]:
        """Refit the voters on the whole log, held to their old vectors."""
        before = dict(self.vectors)
        super()._refit()
        for head in before.keys() - {STUDENT}:
            self._hold(head, before[head])
        return {}

    def _final(self) -> dict[str, Any]:
        """Compute the consensus and the student, held to its old vectors."""
        before = self.vectors[STUDENT]
        record = super()._final()
        self._hold(STUDENT, before)
        return record

    def _hold(self, head: str, before: Vectors) -> None:
        """Move known vectors part of the way back, after alignment to the old basis, which ALS may have rotated."""
        if not self.update.hold:
            return
        rotated = aligned(self.vectors[head], before, self.known[1])
        user, item = (
            torch.where(known[:, None], torch.lerp(now, was, self.update.hold), now)
            for now, was, known in zip(rotated, before, self.known, strict=True)
        )
        self.vectors[head] = (F.normalize(user), F.normalize(item)) if head in self.softmaxes else (user, item)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next stages depend on."""
        return super().state_dict() | {
            "known": list(self.known), "fresh": self.fresh, "validated_users": self.validated_users,
            "voter_weights": self.voter_weights,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.known, self.fresh = tuple(state["known"]), state["fresh"]
        self.validated_users, self.voter_weights = state["validated_users"], state["voter_weights"]


def beside_neighbours(
    log: csr_array, user: Tensor, item: Tensor, known: tuple[Tensor, ...], random: torch.Generator
) -> Vectors:
    """Fill in the vectors of new users and items in [users, d], [items, d].

    A new item gets the mean, over its users, of the mean vector of the known items that they used; a short random
    vector if they used none. A new user gets the mean of its items.
    """
    old_users, old_items = (side.cpu().numpy() for side in known)
    vectors = item.cpu().numpy()
    from_known, has_known = _means(csr_array(log @ diags_array(old_items.astype(np.float32))), vectors)
    to_users = csr_array(log.T @ diags_array(has_known.astype(np.float32)))
    near, reached = _means(to_users, from_known)
    drawn = torch.randn(*item.shape, generator=random, dtype=item.dtype).mul_(START / item.shape[1] ** 0.5).numpy()
    vectors = np.where(old_items[:, None], vectors, np.where(reached[:, None], near, drawn))
    users = np.where(old_users[:, None], user.cpu().numpy(), _means(log, vectors)[0])
    return torch.from_numpy(users).to(user), torch.from_numpy(vectors).to(item)


def _means(weights: csr_array, vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """([n, d], [n]) weighted mean of each row's vectors, and whether the row has any."""
    total = np.asarray(weights.sum(1)).ravel()
    return (weights @ vectors) / np.where(total > 0, total, 1)[:, None], total > 0


def aligned(vectors: Vectors, before: Vectors, known: Tensor) -> Vectors:
    """Rotate the vectors so that known items are nearest to their old vectors (Procrustes); no score changes."""
    left, _, right = torch.linalg.svd((vectors[1][known].T @ before[1][known]).double())
    rotation = (left @ right).to(vectors[0])
    return vectors[0] @ rotation, vectors[1] @ rotation
