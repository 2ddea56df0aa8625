"""Run of Algorithm 1: the multi-branch model, and the best state of each branch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from concf.data.split import Split
from concf.evaluation.scorers import Factors
from concf.reference.model import Model
from concf.reference.objectives import choose
from concf.reference.settings import ReferenceSettings
from concf.runs.fold_in import FoldIn
from concf.runs.run import Best, Run, as_tensors
from concf.runs.settings import CONSENSUS
from concf.runtime.settings import named


class ReferenceRun(Run):
    """Run of Algorithm 1. model: the current state of all branches; `keep` returns the best state of one."""

    unit: ClassVar[Literal["epochs", "stages"]] = "epochs"
    settings: ReferenceSettings

    def __init__(
        self, data: Split, settings: ReferenceSettings, seed: int, device: torch.device, model: Model | None = None
    ) -> None:
        super().__init__(data, settings, seed, device)
        self.model = make_model(data, settings, seed).to(device) if model is None else model

    def notice(
        self, epoch: int, validation: dict[str, float], lists: dict[str, Tensor],
        votes: Callable[[], dict[str, Tensor]], whole: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:  # fmt: skip
        """Store every head and consensus whose validation is at least its best. whole: gathers lists of all users."""
        for name, value in validation.items():
            best = self.best.setdefault(name, Best())
            if value >= best.validation:
                best.rose = epoch if value > best.validation else best.rose
                best.validation, best.epoch = value, epoch
                if name in self.heads:
                    best.state = _state(self.model.keep(name))
                    continue
                best.state = _state(self.model) if name == CONSENSUS else {}
                best.lists = whole(lists[name])
                cast = votes()
                best.votes = {part: cast[part] for part in cast if name == CONSENSUS or part != "consistency"}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the run keeps, except its history."""
        return super().state_dict() | {"model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.model.load_state_dict(as_tensors(state["model"], self.device))

    def objective(self, name: str) -> str | None:
        """Objective of a head, as the settings name it; None for a consensus."""
        return dict(map(named, self.settings.objectives)).get(name)

    def method(self) -> str:
        """Describe the training in a sentence."""
        chosen = self.settings
        if not chosen.several:
            return f"One head alone, at most {chosen.training.epochs} epochs."
        return (
            f"Algorithm 1: at most {chosen.training.epochs} epochs; a consensus every {chosen.consensus.every}, taught "
            f"with weight {chosen.consensus.weight:g}; heads are {'' if chosen.balances else 'not '}balanced."
        )

    @property
    def at_most(self) -> int:
        """Most epochs of the training."""
        return self.settings.training.epochs

    def keep(self, head: str) -> Model:
        """Single-branch model of a head at its best epoch."""
        best, alone = self._best(head), self.model.keep(head)
        if best.state:
            alone.load_state_dict(best.state)
        return alone

    def factors(self, head: str) -> Factors:
        """Vectors of a head at its best epoch."""
        return self.keep(head).factors()[head]

    @cached_property
    def voters(self) -> dict[str, Factors]:
        """Voting heads at the best epoch of the consensus, on the CPU."""
        best, model = self.best[CONSENSUS], deepcopy(self.model)
        if best.state:
            model.load_state_dict(best.state)
        voting = set(self.heads) - set(self.settings.non_voting)
        return {name: factors.to("cpu") for name, factors in model.factors().items() if name in voting}

    @cached_property
    def fold_in(self) -> FoldIn:
        """The heads and the consensus for histories of new users, by regression."""
        heads = {name: self.factors(name).to("cpu") for name in self.heads}
        several = CONSENSUS in self.best
        votes = self.best[CONSENSUS].votes if several else {}
        return FoldIn(self.log, self.settings, heads, self.voters if several else {}, votes)


def make_model(data: Split, settings: ReferenceSettings, seed: int = 0) -> Model:
    """Make the initial model, drawn on the CPU: the same on every device."""
    made = settings.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(
            data.train, choose(settings.objectives, settings.losses, settings.form), dimensions=made.dimensions,
            encoder=made.make_encoder(), sharing=made.sharing, initial_std=made.initial_std,
        )  # fmt: skip


def _state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
