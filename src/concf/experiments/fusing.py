"""Plain fusions of the baselines of a comparison: what a re-ranker has to be better than."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.table import Baseline
from concf.consensus.fusion import FUSIONS, Fusions
from concf.consensus.voters import Voter, by_factors, by_lists
from concf.data.split import Split
from concf.evaluation.scorers import Factors, ListFunction
from concf.evaluation.validation import Validation, sample
from concf.experiments.contenders import Several
from concf.strong.combine_stages import GivenLists

VOTES = 200  # items of a model that vote, or as many as are evaluated
USERS, BLOCK = 2048, 1024  # validated ones whom weights are chosen on, at most; users that are fused at a time


class FusedLists(NamedTuple):
    """Fusion -> its lists, and its validation figure from before a refit."""

    lists: dict[str, ListFunction]
    figures: dict[str, float]


@dataclass(frozen=True)
class Fused(Several):
    """A plain fusion of baselines. tune_on: the validation figure that chooses its weights; longest: list evaluated."""

    fusion: str
    voters: Mapping[str, Baseline]
    tune_on: str
    longest: int

    @property
    def training(self) -> str:
        """One for all fusions."""
        return "fusions"

    @property
    def refits(self) -> bool:
        """The baselines, not the weights."""
        return True

    def model_dump(self) -> dict[str, Any]:
        """The settings of the baselines."""
        return {"fuses": {name: each.model_dump() for name, each in self.voters.items()}, "tune_on": self.tune_on}

    def train(self, split: Split, refit: bool) -> FusedLists:
        """All fusions. Weights are chosen for baselines that were fitted on training pairs, whatever comes after."""
        before = self._fitted(split, split.train)
        weights = before.weights(self.tune_on)
        lists, validation = before.fused(weights), Validation(split, self.tune_on, torch.device("cpu"))
        figures = {name: validation(each) for name, each in lists.items()}
        if refit:
            lists = self._fitted(split, split.log(("train", "valid"))).fused(weights)
        return FusedLists({name: listed(each) for name, each in lists.items()}, figures)

    def _fitted(self, split: Split, log: csr_array) -> Voters:
        models = {name: each.fit(log, seed=split.recipe.seed) for name, each in self.voters.items()}
        return Voters(models, split, log, max(self.longest, VOTES))

    def recommender(self, trained: FusedLists, _: Split) -> ListFunction:
        """Its lists."""
        return trained.lists[self.fusion]

    def validation(self, trained: FusedLists, metric: str) -> float | None:
        """From before the refit."""
        return trained.figures[self.fusion] if metric == self.tune_on else None


class Voters:
    """Models fitted on a log of the split: by the first k items that users have not used of it."""

    def __init__(
        self, models: Mapping[str, Any], split: Split, log: csr_array, k: int = VOTES,
        device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        from concf.strong.given_voters import as_voter  # which reads frames: not needed to compare others

        self.split, self.k = split, min(k, log.shape[1])
        self.seen = log if split.disliked is None else csr_array(log + split.disliked)
        self.longest = self.k + int(np.diff(split.valid.indptr).max())  # what is held out may be taken out of a list
        self.device = torch.device(device)
        self.made = {name: as_voter(name, each, split, self.seen, self.k, self.device) for name, each in models.items()}

    def voter(self, name: str, users: Tensor) -> Voter:
        """For users [n]."""
        made = self.made[name]
        if isinstance(made, GivenLists):
            return by_lists(name, made.lists[users], made.scores[users], made.of_items)
        return by_factors(name, Factors(*made), self.seen, users, self.k)

    def fusions(self, users: Tensor) -> Fusions:
        """Of users [n]."""
        return Fusions([self.voter(name, users) for name in self.made], users, self.k, self.seen.shape[1])

    def weights(self, metric: str) -> dict[str, Tensor]:
        """Fusion -> the weights [voters] that it takes from validation."""
        some = sample(self.split.validated, USERS, self.split.recipe.seed)
        few = Validation(self.split, metric, self.device, validated=some)
        alone = [few.of_its_users(self.voter(name, few.users).lists) for name in self.made]
        return self.fusions(few.users).fit(alone, few.of_its_users, few.depth)

    def fused(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fusion -> its lists [users, L] of everyone."""
        everyone = torch.arange(self.seen.shape[0], device=self.device)
        blocks = [self.fusions(users).lists(weights, self.longest) for users in torch.split(everyone, BLOCK)]
        return {name: torch.cat([block[name] for block in blocks]).cpu() for name in FUSIONS}


def fusions(voters: Mapping[str, Baseline], tune_on: str, longest: int) -> dict[str, Fused]:
    """The plain fusions of baselines, by name."""
    return {f"fusion:{name}": Fused(name, voters, tune_on, longest) for name in FUSIONS}


def listed(lists: Tensor) -> ListFunction:
    """What recommends by lists [users, L] of everyone."""
    found = lists.numpy()
    return ListFunction(lambda users, _length: found[users])
