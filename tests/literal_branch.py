"""One branch of ConCF written out slowly: its scores for all pairs, its own loss and its consensus target."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.reference.model import Model
from concf.reference.settings import ReferenceSettings

Lists = list[list[int]]  # [users] of items, best first

PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bpr": lambda s, t: -torch.log(torch.sigmoid(s - t)),
    "cross-entropy": lambda s, t: -torch.log(torch.sigmoid(s)) - torch.log(1 - torch.sigmoid(t)),
}


def tables(model: Model, place: int, train: csr_array) -> tuple[Tensor, Tensor]:
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
    for _ in range(3):
        nodes.append((root[:, None] * adjacency * root) @ nodes[-1])
    mean = torch.stack(nodes).mean(0)
    return mean[:n_users], mean[n_users:]


def encoding(model: Model, place: int, rows: Tensor) -> Tensor:
    """h of users or items in one branch."""
    if not hasattr(model.encoder, "first"):
        return rows
    first, second = model.encoder.first, model.encoder.second
    one, two = (place if layer.weight.shape[0] > 1 else 0 for layer in (first, second))
    hidden = torch.relu(rows @ first.weight[one] + first.bias[one, 0])
    return hidden @ second.weight[two] + second.bias[two, 0]


def ball(vectors: Tensor) -> Tensor:
    """Pulled into the unit ball: those outside it are divided by their length."""
    length = vectors.norm(dim=1, keepdim=True)
    return torch.where(length > 1, vectors / length, vectors)


class Branch:
    """One head: its scores from scratch."""

    def __init__(self, model: Model, name: str, train: csr_array, settings: ReferenceSettings) -> None:
        self.name, self.head, self.settings = name, model.head(name), settings
        self.dense = train.toarray() > 0
        place = model.names.index(name)
        both = tables(model, place, train)
        self.user, self.item = (encoding(model, place, rows) for rows in both)
        self.scores = self.score_table()

    def score_table(self) -> Tensor:
        """[users, items] s(u, i) as the losses see it; of the multinomial head the logits."""
        head, user, item = self.head, self.user, self.item
        if self.name == "bpr":
            return head.map(user) @ head.map(item).T
        if self.name == "cml":
            squared = (ball(head.map(user))[:, None] - ball(head.map(item))).square().sum(2)
            return -squared if self.settings.form.distance == "squared" else -squared.sqrt()
        if self.name == "multinomial":
            return head.table(user)
        if self.name == "multinomial-users":
            return head.table(item).log_softmax(1).T
        return head.map(user[:, None] * item)[:, :, 0]

    def at(self, pairs: list[tuple[int, int]], table: Tensor | None = None) -> list[Tensor]:
        """The scores of (user, item) pairs, one by one."""
        users, items = zip(*pairs, strict=True)
        return list((self.scores if table is None else table)[list(users), list(items)].unbind())

    def own_loss(self, users: list[int], positives: list[int], negatives: list[int]) -> Tensor:
        """Eq. 1-5."""
        n_users, n_items = self.dense.shape
        scale, margin = self.settings.form.error_scale, self.settings.losses.margin
        if self.name == "multinomial":
            used = [(u, i) for u in sorted(set(users)) for i in range(n_items) if self.dense[u, i]]
            return -sum(torch.log(self.scores[u, i].exp() / self.scores[u].exp().sum()) for u, i in used)
        if self.name == "multinomial-users":
            logits, items = self.head.table(self.item), sorted({*positives, *negatives})
            used = [(u, i) for i in items for u in range(n_users) if self.dense[u, i]]
            return -sum(torch.log(logits[i, u].exp() / logits[i].exp().sum()) for u, i in used)
        total = torch.zeros(())
        observed, unobserved = (self.at(list(zip(users, items, strict=True))) for items in (positives, negatives))
        for s, t in zip(observed, unobserved, strict=True):
            if self.name == "cml":
                total = total + torch.relu(-s + t + margin)
            elif self.name == "squared-error":
                total = total + scale * ((1 - s) ** 2 + (0 - t) ** 2)
            else:
                total = total + PAIRWISE[self.name](s, t)
        return total

    def consensus_loss_loss(self, users: list[int], lists: Lists) -> Tensor:
        """Eq. 13, 14 for the distinct users of the batch."""
        chosen = self.settings.consensus
        said = self.scores * (10.0 if self.name == "cml" and self.settings.form.distance == "squared" else 1.0)
        clip = self.settings.form.clip
        if clip is not None and self.name in ("bpr", "multinomial"):
            said = said.clamp(-clip, clip)
        total = torch.zeros(())
        for u in sorted(set(users)):
            strength = said[u, lists[u]].exp()
            for k in range(min(chosen.length, len(strength))):
                total = total - torch.log(strength[k] / strength[k:].sum())
        return total
