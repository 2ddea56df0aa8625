"""ConCF written out slowly: one pair, one user, one head at a time, with dense matrices and plain autograd.

It shares with the fast code its parameters at the start and the batches, and nothing else. Every setting that the
presets differ in is read here too, from the paper's page.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import exp
from statistics import pstdev

import torch
from literal_branch import Branch, Lists
from scipy.sparse import csr_array
from torch import Tensor

from concf.reference.balance import EXPONENT, FLOOR, LEARNING_RATE
from concf.reference.model import Model
from concf.runs.settings import RunSettings

STEPS = 2**40  # a vote is a whole number of steps of 2^-40
Triples = tuple[list[int], list[int], list[int]]  # users, items they used, items they did not


def listed(lists: Tensor) -> list[list[int]]:
    """Without the empty places, which come last."""
    rows = lists.tolist()
    assert all(sorted(row, key=lambda item: item < 0) == row for row in rows)
    return [[item for item in row if item >= 0] for row in rows]


@cache
def spread(ranks: tuple[float, ...]) -> float:
    """The population standard deviation."""
    return pstdev(ranks)


@torch.no_grad()
def adam(parameter: Tensor, gradient: Tensor, state: dict, rate: float, decay: float = 0.0) -> None:
    """Kingma and Ba, 2015, with L2 regularisation, in place."""
    gradient = gradient + decay * parameter
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
    first, second = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
    parameter -= rate * first / (second.sqrt() + 1e-8)


class LiteralConCF:
    """Algorithm 1 on a model of its own."""

    def __init__(self, model: Model, settings: RunSettings, train: csr_array) -> None:
        self.model, self.settings, self.train = model, settings, train
        self.weights = torch.ones(len(model.names))
        self.states: dict[object, dict] = {}
        self.initial: Tensor | None = None
        self.rankings: dict[int, list[Lists]] = {}  # epoch -> one for each head
        self.consensus_target: Lists | None = None

    def head_losses(self) -> list[Branch]:
        return [Branch(self.model, name, self.train, self.settings) for name in self.model.names]

    def teaches(self, epoch: int) -> bool:
        """Line 6 of Algorithm 1, and the other two readings of it."""
        chosen = self.settings.consensus
        if self.consensus_target is None or chosen.weight == 0:
            return False
        if self.settings.form.begins == "full-window":
            return len(self.rankings) >= (chosen.window or 5)
        return epoch >= (chosen.window or 5) * chosen.every + (self.settings.form.begins == "after-warm-up")

    def epoch(self, epoch: int, batches: Iterable[Triples]) -> dict[str, list[float]]:
        """The means over the batches of losses and gradient scales, and the weights at the end."""
        reports = [self.step(epoch, *batch) for batch in batches]
        own, taught, scale = torch.stack(reports).mean(0).tolist()
        return {"loss": own, "consensus_loss": taught, "gradient": scale, "weight": self.weights.tolist()}

    def step(self, epoch: int, users: list[int], positives: list[int], negatives: list[int]) -> Tensor:
        """[3, heads] L_CF, L_CL and G, after the step."""
        chosen, training = self.settings.consensus, self.settings.training
        weights = self.weights.clone().requires_grad_()
        own, taught, totals = [], [], []
        for branch, weight in zip(self.head_losses(), weights.unbind(), strict=True):
            own.append(branch.own_loss(users, positives, negatives))
            listens = self.teaches(epoch) and branch.name != "multinomial-users"
            taught.append(branch.consensus_loss_loss(users, self.consensus_target) if listens else torch.zeros(()))
            totals.append(weight * own[-1] + chosen.weight * self.loudness(weight) * taught[-1])
        scale = torch.stack([self.gradient_scale(total) for total in totals])
        parameters = dict(self.model.named_parameters())
        gradients = torch.autograd.grad(
            sum(totals), list(parameters.values()), retain_graph=True, materialize_grads=True
        )
        own, taught = torch.stack(own).detach(), torch.stack(taught).detach()
        if self.settings.balances:
            loss = self.weights * own if self.settings.form.ratio_of == "own" else own + chosen.weight * taught
            self.balance(epoch, loss, scale, weights)
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            adam(parameter, gradient, self.states.setdefault(name, {}), training.learning_rate, training.weight_decay)
        return torch.stack([own, taught, scale.detach()])

    def loudness(self, weight: Tensor) -> Tensor | float:
        """What a head's score in the consensus loss is weighed with: lambda_x itself, or a number that was clipped."""
        if self.settings.form.weight_range is None:
            return weight
        low, high = self.settings.form.weight_range
        return min(max(weight.item(), low), high)

    def gradient_scale(self, total: Tensor) -> Tensor:
        """G_x, which autograd can follow back to lambda_x."""
        tables = (self.model.user, self.model.item)
        found = torch.autograd.grad(total, tables, create_graph=self.settings.balances, retain_graph=True,
                                    allow_unused=True)  # fmt: skip
        squares = [torch.zeros(()) if gradient is None else (gradient**2).sum() for gradient in found]
        if self.settings.form.norm == "joint":
            return (squares[0] + squares[1]).sqrt()
        norms = [square.sqrt() if square > 0 else square for square in squares]
        return norms[0] + 0.5 * norms[1]

    def balance(self, epoch: int, loss: Tensor, scale: Tensor, weights: Tensor) -> None:
        """Eq. 15, and autograd of Eq. 16 with the target held constant."""
        form = self.settings.form
        if epoch < self.settings.balance.settle or self.initial is None:
            self.initial = loss
        progress = loss / self.initial
        ratio = (progress / progress.mean()) ** EXPONENT[form.ratio_of]
        target = (scale.mean() * ratio).detach()
        pull = torch.autograd.grad((scale - target).abs().sum(), weights)[0]
        if form.optimiser == "adam":
            adam(self.weights, pull, self.states.setdefault("weights", {}), LEARNING_RATE["adam"])
        else:
            self.weights = self.weights - LEARNING_RATE["descent"] * pull
        kept = torch.tensor([max(weight, FLOOR[form.optimiser]) for weight in self.weights.tolist()])
        self.weights = kept / kept.sum() * (len(kept) if form.optimiser == "adam" else 1.0)

    @torch.no_grad()
    def agree(self, epoch: int) -> dict[str, Lists]:
        """Rank every user by every head, and build everyone's consensus (Eq. 10-12)."""
        chosen, (n_users, n_items), dense = self.settings.consensus, self.train.shape, self.train.toarray()
        self.rankings[epoch] = []
        for branch in self.head_losses():
            scores = branch.scores.tolist()
            unseen = [[i for i in range(n_items) if not dense[u, i]] for u in range(n_users)]
            self.rankings[epoch].append(
                [sorted(unseen[u], key=lambda i, u=u: (-scores[u][i], i)) for u in range(n_users)]
            )
        times = list(self.rankings)
        if self.settings.form.window_moves:
            window = times[-(chosen.window or len(times)) :]
        else:  # refreshed at epoch |Q| p, too late for that epoch's consensus, then frozen
            end = chosen.window * chosen.every
            window = [time for time in times if time <= end][-chosen.window :] if epoch > end else []
        late = not self.settings.form.newest_votes and len(times) > 1
        voting = times[-2] if late else times[-1]
        agreed = [self.consensus_of(u, voting, window) for u in range(n_users)]
        by_rank = [self.consensus_of(u, voting, []) for u in range(n_users)]
        end = None if chosen.top_k is None else 2 * chosen.length
        self.consensus_target = [items[:end] for items in agreed]
        return {"consensus": agreed, "R-consensus": by_rank}

    def consensus_of(self, u: int, voting: int, window: list[int]) -> list[int]:
        """One user's, by the ranking of the epoch `voting`, consistency over those of the epochs `window`."""
        chosen, n_items = self.settings.consensus, self.train.shape[1]
        kept = n_items if chosen.top_k is None else min(5 * chosen.top_k, n_items)
        votes: dict[int, int] = {}
        best: dict[int, int] = {}
        for head, name in enumerate(self.model.names):
            if name in chosen.non_voting:
                continue
            for rank, item in enumerate(self.rankings[voting][head][u][: chosen.top_k or n_items]):
                earned = round(exp(-rank / chosen.temperature) * STEPS)
                if window and chosen.consistency_temperature is not None:
                    past = [self.rankings[time][head][u][:kept] for time in window]
                    ranks = tuple(items.index(item) if item in items else kept for items in past)
                    earned += round(exp(-spread(ranks) / chosen.consistency_temperature) * STEPS)
                votes[item] = votes.get(item, 0) + earned
                best[item] = min(best.get(item, rank), rank)
        return sorted(votes, key=lambda item: (-votes[item], best[item], item))
