"""Models of a comparison: baselines, runs of ConCF (by consensus or by the best head), plain fusions of baselines.

One training of ConCF, or one fit of the fused baselines, yields several models; it uses the validation part by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ConfigDict
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.table import BASELINES, Baseline, Candidate, candidate
from concf.consensus.consensus import CONSENSUS
from concf.consensus.fusion import FUSIONS, Fusions
from concf.consensus.voters import Voter, by_factors, by_lists
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.scorers import Factors, ListFunction
from concf.evaluation.validation import Validation, sample
from concf.models import DEFAULT_OF_ONE, PRESETS, choose_settings
from concf.reference.objectives import OBJECTIVES, kind_of
from concf.runs.settings import RunSettings
from concf.runtime.settings import Settings, flat, nested
from concf.strong.combine_stages import GivenLists

PREFIX = "concf:"
VOTES = 200  # length of a voter's list, unless longer lists are evaluated
USERS, BLOCK = 2048, 1024  # validated users that the fusion weights are chosen on; users that are fused at a time


class Trained(Settings):
    """A run of a preset that recommends by its consensus, or by the head with the best validation metric.

    Further names are settings that differ from the preset, such as `consensus.weight`; `single` is an objective that is
    trained alone.
    """

    model_config = ConfigDict(extra="allow")

    preset: str
    ship: Literal["consensus", "head"]

    @property
    def training(self) -> str:
        """Name of the training: equal for models of one run."""
        return f"{self.preset} {self.model_extra}" if self.model_extra else self.preset

    def settings(self, **changes: Any) -> RunSettings:
        """Settings of the run. changes: nested, take precedence."""
        own = dict(self.model_extra or {})
        single = own.pop("single", None)
        return choose_settings(self.preset, nested(own | flat(changes)), single=single)

    @property
    def refits(self) -> bool:
        """Whether the run refits itself, after it has measured its validation metric."""
        return self.settings().kind == "strong"

    def train(self, split: Split, refit: bool) -> Any:
        """Train on a split, with early stopping on its validation part.

        For tests on new users, a refit uses all pairs of the training users, as a baseline's fit does.
        """
        from concf.models import train

        changes: dict[str, Any] = {"weights": split.weights.model_dump()}
        if self.refits:
            changes["refit"] = "validation" if refit or split.has_new_users else "none"
        return train(split, self.settings(**changes), seed=split.recipe.seed)

    def recommender(self, run: Any, split: Split) -> Any:
        """Scorer of the evaluated users."""
        return run.recommender(self._shipped(run), split.history if split.has_new_users else None)

    def validation(self, run: Any, metric: str) -> float | None:
        """Validation metric from before the refit; None if the run was validated by another one."""
        return float(run.best[self._shipped(run)].validation) if run.metric == metric else None

    def _shipped(self, run: Any) -> str:
        return CONSENSUS if self.ship == "consensus" else str(run.best_head())


@dataclass(frozen=True)
class Fused:
    """A plain fusion of baselines. tune_on: validation metric that chooses its weights; longest: list evaluated."""

    fusion: str
    voters: Mapping[str, Baseline]
    tune_on: str
    longest: int
    training = "fusions"  # one for all of them
    refits = True  # the baselines, not the weights

    def model_dump(self) -> dict[str, Any]:
        """Settings of the baselines."""
        return {"fuses": {name: each.model_dump() for name, each in self.voters.items()}, "tune_on": self.tune_on}

    def train(self, split: Split, refit: bool) -> dict[str, tuple[ListFunction, float]]:
        """Fusion -> its lists and its validation metric; weights and metric come from before a refit."""
        before = self._fit(split, split.train)
        weights = before.weights(self.tune_on)
        lists, validation = before.fused(weights), Validation(split, self.tune_on, torch.device("cpu"))
        scores = {name: validation(each) for name, each in lists.items()}
        if refit:
            lists = self._fit(split, split.log(("train", "valid"))).fused(weights)
        return {name: (listed(each), scores[name]) for name, each in lists.items()}

    def _fit(self, split: Split, log: csr_array) -> Voters:
        models = {name: each.fit(log, seed=split.recipe.seed) for name, each in self.voters.items()}
        return Voters(models, split, log, max(self.longest, VOTES))

    def recommender(self, trained: dict[str, tuple[ListFunction, float]], _: Split) -> ListFunction:
        """Lists of this fusion."""
        return trained[self.fusion][0]

    def validation(self, trained: dict[str, tuple[ListFunction, float]], metric: str) -> float | None:
        """Validation metric from before the refit; None if the weights were chosen by another one."""
        return trained[self.fusion][1] if metric == self.tune_on else None


OfATraining = Trained | Fused  # models of which one training yields several
Model = Baseline | OfATraining


class Voters:
    """Models fitted on a log of the split, each by its first k unseen items."""

    def __init__(
        self, models: Mapping[str, Any], split: Split, log: csr_array, k: int = VOTES,
        device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        from concf.strong.given_voters import as_voter  # reads frames: only fusions need it

        self.split, self.k = split, min(k, log.shape[1])
        self.seen = log if split.disliked is None else csr_array(log + split.disliked)
        self.longest = self.k + int(np.diff(split.valid.indptr).max())  # validation items may be taken out of a list
        self.device = torch.device(device)
        self.made = {name: as_voter(name, each, split, self.seen, self.k, self.device) for name, each in models.items()}

    def lists(self, users: Tensor) -> list[Voter]:
        """Lists and scores of each model for users [n]."""
        return [
            by_lists(name, made.lists[users], made.scores[users], made.of_items)
            if isinstance(made, GivenLists)
            else by_factors(name, Factors(*made), self.seen, users, self.k)
            for name, made in self.made.items()
        ]

    def weights(self, metric: str) -> dict[str, Tensor]:
        """Fusion -> its weights [voters], chosen on a sample of the validated users."""
        sampled = sample(self.split.validated, USERS, self.split.recipe.seed)
        validation = Validation(self.split, metric, self.device, validated=sampled)
        voters, measure = self.lists(validation.users), validation.of_its_users
        fusions = Fusions(voters, validation.users, self.k, self.seen.shape[1])
        return fusions.fit([measure(voter.lists) for voter in voters], measure, validation.depth)

    def fused(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fusion -> the lists [users, L] of all users."""
        users = torch.arange(self.seen.shape[0], device=self.device)
        blocks = [
            Fusions(self.lists(block), block, self.k, self.seen.shape[1]).lists(weights, self.longest)
            for block in torch.split(users, BLOCK)
        ]
        return {name: torch.cat([block[name] for block in blocks]).cpu() for name in FUSIONS}


def listed(lists: Tensor) -> ListFunction:
    """Recommender that returns stored lists [users, L]."""
    stored = lists.numpy()
    return ListFunction(lambda users, _length: stored[users])


def named_models(names: list[str]) -> dict[str, Candidate]:
    """Candidates by name; `concf:strong` and other presets take part twice, by consensus and by head.

    `concf:bpr` and other objectives are trained alone, by the preset reference.
    """
    if not names:
        raise ConfigError(f"no model was named; choose from {', '.join([*BASELINES, f'{PREFIX}strong'])}")
    models: dict[str, Candidate] = {}
    for name in names:
        chosen = name.removeprefix(PREFIX)
        if chosen == name:
            models[name] = candidate(name)
        elif chosen in PRESETS:
            for ship in ("consensus", "head"):
                models[f"{name} {ship}"] = Candidate(Trained, {"preset": (chosen,), "ship": (ship,)})
        elif kind_of(chosen) in OBJECTIVES:
            alone = {"preset": (DEFAULT_OF_ONE,), "ship": ("head",), "single": (chosen,)}
            models[name] = Candidate(Trained, alone)
        else:
            known = f"{', '.join(PRESETS)}, or an objective, {', '.join(OBJECTIVES)}"
            raise ConfigError(f"unknown model {chosen!r}; choose from {', '.join(BASELINES)}, a preset, {known}")
    return models
