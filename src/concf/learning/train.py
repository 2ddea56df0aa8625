"""Algorithm 1: train the heads, let them agree, teach them what they agree on, keep the best."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.data.split import Split
from concf.errors import DataError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors, ListFunction
from concf.learning.balance import normalise, training_ratio, weight_gradient
from concf.learning.batches import Batch, Sampler
from concf.learning.branches import Branches
from concf.learning.consensus import Ranking, consensus
from concf.learning.settings import ConCFSettings
from concf.model.model import Model
from concf.model.objectives import OBJECTIVES

LONGEST = 200  # places of a consensus list; what a user holds out is taken out of it before it is scored


@dataclass
class Best:
    """A recommender at the epoch at which its validation was best."""

    validation: float = -1.0
    epoch: int = -1
    recommender: Factors | ListFunction | None = None


@dataclass
class Run:
    """What training left behind. best: head name, "consensus" (R + C) or "R-consensus" -> its best state."""

    settings: ConCFSettings
    best: dict[str, Best] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """The state of a run: model, weights of the heads, rankings, consensus."""

    def __init__(self, data: Split, settings: ConCFSettings, seed: int = 0, device: str = "cpu") -> None:
        self.data, self.settings, self.device = data, settings, torch.device(device)
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        objectives = {name: OBJECTIVES[name] for name in settings.objectives}
        made = settings.model
        self.model = Model(
            data.train, objectives, dimensions=made.dimensions, encoder=made.make_encoder(),
            sharing=made.sharing, spread=made.spread,
        ).to(self.device)  # fmt: skip
        self.names = self.model.names
        self.branches = Branches(self.model, objectives, data.train)
        self.sampler = Sampler(data.train)
        training, balance = settings.training, settings.balance
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
        )
        self.weights = torch.ones(len(self.names), device=self.device, dtype=self.model.user.dtype)  # lambda
        self.weight_optimiser = torch.optim.Adam([self.weights], lr=balance.learning_rate)
        self.initial = torch.zeros_like(self.weights)  # L^0
        self.histories: list[list[Ranking]] = [[] for _ in self.names]
        self.lesson: Tensor | None = None

    def step(self, batch: Batch, epoch: int) -> tuple[Tensor, Tensor]:
        """([heads], [heads]) the losses L_CF and L_CL of a batch, after the parameters and weights were updated."""
        copies = [self._copies() for _ in range(2)]  # for the own losses and for the lesson
        own = self.branches.own(*copies[0], batch)
        taught = torch.zeros_like(own)
        teaching = self.settings.consensus
        factor = self.weights if teaching.weight_range is None else self.weights.clamp(*teaching.weight_range)
        total = (self.weights * own).sum()
        if self.lesson is not None and teaching.weight > 0:
            names = [name for name in self.names if name not in teaching.untaught]
            taught = self.branches.taught(*copies[1], batch.user, self.lesson, teaching.length, names)
            total = total + teaching.weight * (factor * taught).sum()
        self.optimiser.zero_grad()
        torch.autograd.backward(total)
        gradients = [[_gradient(table) for table in pair] for pair in copies]  # [own, lesson][user, item]
        for parameter, parts in zip((self.model.user, self.model.item), zip(*gradients, strict=True), strict=True):
            parameter.grad = sum(parts, torch.zeros_like(parts[0])).sum_to_size(parameter.shape)
        if self.settings.balance.on and len(self.names) > 1:
            self._balance(own.detach(), gradients, epoch)
        self.optimiser.step()
        return own.detach(), taught.detach()

    def _copies(self) -> tuple[Tensor, Tensor]:
        """([heads, users, d], [heads, items, d]) the embeddings as leaves, one for each head."""
        heads = len(self.names)
        user, item = (
            table.detach().expand(heads, -1, -1).requires_grad_() for table in (self.model.user, self.model.item)
        )
        return user, item

    def _balance(self, own: Tensor, gradients: list[list[Tensor]], epoch: int) -> None:
        """One step on the weights (Eq. 15, 16); the model's gradients are only looked at."""
        balance = self.settings.balance
        weighted = self.weights * own
        if epoch < balance.settle or not self.initial.any():
            self.initial = weighted
        scale, slope = torch.zeros_like(own), torch.zeros_like(own)
        for side, share in ((0, 1.0), (1, balance.item_share)):
            mine = gradients[0][side].flatten(1)  # lambda_x g_CF
            whole = mine + gradients[1][side].flatten(1)
            norm = whole.norm(dim=1)
            scale += share * norm
            slope += share * (mine * whole).sum(1) / (self.weights * norm.clamp(min=1e-30))
        ratio = training_ratio(weighted, self.initial, balance.exponent)
        self.weights.grad = weight_gradient(scale, slope, ratio)
        self.weight_optimiser.step()
        total = balance.total if balance.total is not None else float(len(self.names))
        self.weights.copy_(normalise(self.weights, total, balance.floor))

    def epoch(self, epoch: int) -> dict[str, Any]:
        """One pass over the observed pairs; a loss that is not finite ends the run by name."""
        self.model.train()
        begin, own, taught = time.perf_counter(), torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        for batch in self.sampler.epoch(self.generator).to(self.device).split(self.settings.training.batch):
            losses = self.step(batch, epoch)
            own, taught = own + losses[0], taught + losses[1]
        for place, name in enumerate(self.names):
            if not torch.isfinite(own[place] + taught[place]):
                raise DataError(
                    f"the loss of head {name!r} is {own[place].item()} in epoch {epoch}; lower the learning rate"
                )
        return {
            "epoch": epoch,
            "loss": dict(zip(self.names, own.tolist(), strict=True)),
            "lesson": dict(zip(self.names, taught.tolist(), strict=True)),
            "weight": dict(zip(self.names, self.weights.tolist(), strict=True)),
            "seconds": time.perf_counter() - begin,
        }

    def agree(self) -> dict[str, Any]:
        """Rank, update the queue and the consensus; each recommender at this moment by name."""
        teaching = self.settings.consensus
        everyone = np.arange(self.model.n_users)
        factors = self.model.factors()
        kept = min(teaching.kept, self.model.n_items)
        for history, name in zip(self.histories, self.names, strict=True):
            lists = rank(factors[name], everyone, kept, seen=self.data.train, device=self.device)
            history.append(Ranking.of(torch.from_numpy(lists).to(self.device, torch.int64)))
            del history[: -teaching.window]
        agreed = {
            name: consensus(
                self.histories, LONGEST, places=teaching.places, temperature=teaching.temperature, steadiness=steadiness
            )
            for name, steadiness in (("consensus", teaching.steadiness), ("R-consensus", None))
        }
        if len(self.histories[0]) == teaching.window:
            wanted = agreed["consensus"][:, : teaching.length + teaching.tail]
            self.lesson = wanted[:, (wanted >= 0).all(0)]
        found: dict[str, Any] = dict(factors)
        return found | {name: _listed(lists.cpu().numpy()) for name, lists in agreed.items()}


def train(data: Split, settings: ConCFSettings | None = None, *, seed: int = 0, device: str = "cpu") -> Run:
    """Train on the training part; keep every head and the consensus at the epoch of its best validation."""
    settings = settings or ConCFSettings()
    trainer, run = Trainer(data, settings, seed, device), Run(settings)
    metric, _, n = settings.training.metric.partition("@")
    for epoch in range(settings.training.epochs):
        record = trainer.epoch(epoch)
        if epoch % settings.consensus.every == 0 or epoch == settings.training.epochs - 1:
            recommenders = trainer.agree()
            record["validation"] = {}
            for name, recommender in recommenders.items():
                result = evaluate(recommender, data, on="valid", at=[int(n)], metrics=[metric], device=device)
                value = record["validation"][name] = result.means()[settings.training.metric]
                best = run.best.setdefault(name, Best())
                if value > best.validation:
                    best.validation, best.epoch, best.recommender = value, epoch, recommender
            since = epoch - max(run.best["consensus"].epoch, settings.consensus.every * (settings.consensus.window - 1))
            if since >= settings.training.patience and trainer.lesson is not None:
                run.history.append(record)
                break
        run.history.append(record)
    return run


def _gradient(table: Tensor) -> Tensor:
    return torch.zeros_like(table) if table.grad is None else table.grad


def _listed(lists: NDArray[np.int64]) -> ListFunction:
    return ListFunction(lambda users, _length: lists[users])
