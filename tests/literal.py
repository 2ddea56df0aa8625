"""ConCF written out slowly: one pair, one user, one head at a time, with dense matrices and plain autograd.

It shares with the fast code its parameters at the start and the batches, and nothing else.
"""

from __future__ import annotations

from math import exp
from statistics import pstdev

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.learning.consensus import STEPS
from concf.learning.settings import ConCFSettings
from concf.model.model import Model


def tables(model: Model, place: int, train: csr_array, layers: int) -> tuple[Tensor, Tensor]:
    """One branch's embedding tables, propagated over a dense graph where the encoder is LightGCN."""
    group = place if model.user.shape[0] > 1 else 0
    user, item = model.user[group], model.item[group]
    if not hasattr(model.encoder, "graph"):
        return user, item
    n_users, n_items = train.shape
    observed = torch.from_numpy(train.toarray()).double()
    adjacency = torch.zeros(n_users + n_items, n_users + n_items)
    adjacency[:n_users, n_users:], adjacency[n_users:, :n_users] = observed, observed.T
    degree = adjacency.sum(1)
    root = torch.where(degree > 0, degree.clamp(min=1).rsqrt(), 0.0)
    nodes = [torch.cat([user, item])]
    for _ in range(layers):
        nodes.append((root[:, None] * adjacency * root) @ nodes[-1])
    mean = torch.stack(nodes).mean(0)
    return mean[:n_users], mean[n_users:]


def encoding(model: Model, place: int, row: Tensor) -> Tensor:
    """h of one user or item in one branch."""
    if not hasattr(model.encoder, "first"):
        return row
    first, second = model.encoder.first, model.encoder.second
    one, two = (place if layer.weight.shape[0] > 1 else 0 for layer in (first, second))
    hidden = torch.relu(row @ first.weight[one] + first.bias[one, 0])
    return hidden @ second.weight[two] + second.bias[two, 0]


def ball(vector: Tensor) -> Tensor:
    """Pulled into the unit ball."""
    return vector / vector.norm().clamp(min=1.0)


class Branch:
    """One head: its scores from scratch."""

    def __init__(self, model: Model, name: str, train: csr_array, layers: int) -> None:
        self.name, self.head = name, model.head(name)
        place = model.names.index(name)
        user, item = tables(model, place, train, layers)
        self.user = [encoding(model, place, row) for row in user]
        self.item = [encoding(model, place, row) for row in item]

    def score(self, u: int, i: int) -> Tensor:
        """s(u, i) as the head's loss and the ranking see it; for CF-B the negative squared distance."""
        if self.name == "bpr":
            return self.head.map(self.user[u]) @ self.head.map(self.item[i])
        if self.name == "cml":
            return -(ball(self.head.map(self.user[u])) - ball(self.head.map(self.item[i]))).square().sum()
        if self.name in ("cross-entropy", "squared-error"):
            return self.head.map(self.user[u] * self.item[i])[0]
        if self.name == "multinomial":
            return self.head.table(self.user[u]).log_softmax(0)[i]
        return self.head.table(self.item[i]).log_softmax(0)[u]

    def own_loss(self, users: list[int], positives: list[int], negatives: list[int], train: csr_array) -> Tensor:
        """Eq. 1-5."""
        dense = train.toarray()
        if self.name == "multinomial":
            return -sum(self.score(u, i) for u in sorted(set(users)) for i in range(dense.shape[1]) if dense[u, i])
        if self.name == "multinomial-users":
            items = sorted({*positives, *negatives})
            return -sum(self.score(u, i) for i in items for u in range(dense.shape[0]) if dense[u, i])
        total = torch.zeros(())
        for u, i, j in zip(users, positives, negatives, strict=True):
            s, t = self.score(u, i), self.score(u, j)
            total = total + {
                "bpr": lambda s, t: -torch.log(torch.sigmoid(s - t)),
                "cml": lambda s, t: torch.relu(1 - s + t),
                "cross-entropy": lambda s, t: -torch.log(torch.sigmoid(s)) - torch.log(1 - torch.sigmoid(t)),
                "squared-error": lambda s, t: (1 - s) ** 2 + t**2,
            }[self.name](s, t)
        return total

    def lesson_loss(self, users: list[int], lists: list[list[int]], length: int) -> Tensor:
        """Eq. 13, 14 for the distinct users of the batch."""
        total = torch.zeros(())
        for u in sorted(set(users)):
            scores = torch.stack([self.score(u, i) for i in lists[u]]) * (10 if self.name == "cml" else 1)
            for k in range(min(length, len(scores))):
                total = total - torch.log(scores[k].exp() / scores[k:].exp().sum())
        return total


def adam(parameter: Tensor, gradient: Tensor, state: dict, rate: float, decay: float = 0.0) -> None:
    """Kingma and Ba, 2015, with L2 regularisation, in place."""
    with torch.no_grad():
        gradient = gradient + decay * parameter
        state["t"] = state.get("t", 0) + 1
        state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
        state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
        first, second = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
        parameter -= rate * first / (second.sqrt() + 1e-8)


class LiteralConCF:
    """Algorithm 1 on a model of its own."""

    def __init__(self, model: Model, settings: ConCFSettings, train: csr_array) -> None:
        self.model, self.settings, self.train = model, settings, train
        self.weights = torch.ones(len(model.names))
        self.states: dict[object, dict] = {}
        self.initial: Tensor | None = None
        self.queue: list[list[list[list[int]]]] = []  # [times][heads][users] lists
        self.lesson: list[list[int]] | None = None

    def branches(self) -> list[Branch]:
        return [Branch(self.model, name, self.train, self.settings.model.layers) for name in self.model.names]

    def step(self, users: list[int], positives: list[int], negatives: list[int], epoch: int) -> None:
        teaching, training, balance = self.settings.consensus, self.settings.training, self.settings.balance
        weights = self.weights.clone().requires_grad_()
        branches = self.branches()
        own = [branch.own_loss(users, positives, negatives, self.train) for branch in branches]
        totals = [weight * loss for weight, loss in zip(weights, own, strict=True)]
        if self.lesson is not None:
            low, high = teaching.weight_range or (0.0, float("inf"))
            for place, branch in enumerate(branches):
                if branch.name not in teaching.untaught:
                    loud = teaching.weight * self.weights[place].clamp(low, high)
                    totals[place] = totals[place] + loud * branch.lesson_loss(users, self.lesson, teaching.length)
        parameters = dict(self.model.named_parameters())
        gradients = torch.autograd.grad(sum(totals), list(parameters.values()), retain_graph=True, allow_unused=True)
        if balance.on:
            scales = []
            for total in totals:
                shared = (self.model.user, self.model.item)
                user, item = torch.autograd.grad(total, shared, create_graph=True, allow_unused=True)
                norms = [torch.zeros(()) if gradient is None else gradient.norm() for gradient in (user, item)]
                scales.append(norms[0] + balance.item_share * norms[1])
            scale = torch.stack(scales)
            weighted = self.weights * torch.stack(own).detach()
            if epoch < balance.settle or self.initial is None:
                self.initial = weighted
            progress = weighted / self.initial
            target = (scale.mean() * (progress / progress.mean()) ** balance.exponent).detach()
            pull = torch.autograd.grad((scale - target).abs().sum(), weights)[0]
            adam(self.weights, pull, self.states.setdefault("weights", {}), balance.learning_rate)
            kept = self.weights.clamp(min=balance.floor)
            self.weights = kept / kept.sum() * (balance.total or len(kept))
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            adam(parameter, gradient, self.states.setdefault(name, {}), training.learning_rate, training.weight_decay)

    @torch.no_grad()
    def agree(self) -> list[list[int]]:
        """Rank every user by every head, update the queue, and build everyone's consensus (Eq. 10-12)."""
        teaching, dense = self.settings.consensus, self.train.toarray()
        ranked = []
        for branch in self.branches():
            lists = []
            for u in range(dense.shape[0]):
                unseen = [i for i in range(dense.shape[1]) if not dense[u, i]]
                lists.append(sorted(unseen, key=lambda i, u=u: (-branch.score(u, i).item(), i)))
            ranked.append(lists)
        self.queue = [*self.queue, ranked][-teaching.window :]
        agreed = [self.consensus_of(u) for u in range(dense.shape[0])]
        if len(self.queue) == teaching.window:
            wanted = min(teaching.length + teaching.tail, *(len(items) for items in agreed))
            self.lesson = [items[:wanted] for items in agreed]
        return agreed

    def consensus_of(self, u: int) -> list[int]:
        teaching = self.settings.consensus
        total: dict[int, float] = {}
        best: dict[int, int] = {}
        for head in range(len(self.model.names)):
            history = [ranked[head][u] for ranked in self.queue]
            kept = min(teaching.kept, self.train.shape[1])
            for rank, item in enumerate(history[-1][: teaching.places]):
                earned = exp(-rank / teaching.temperature)
                if teaching.steadiness is not None:
                    ranks = [items[:kept].index(item) if item in items[:kept] else kept for items in history]
                    earned += exp(-pstdev(ranks) / teaching.steadiness)
                total[item] = total.get(item, 0.0) + earned
                best[item] = min(best.get(item, teaching.places), rank)
        steps = {item: round(value / len(self.model.names) * STEPS) for item, value in total.items()}
        return sorted(total, key=lambda item: (-steps[item], best[item], item))
