"""Per-head losses L_CF (Eq. 1-5) and L_CL (Eq. 13, 14) of a batch."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.listwise import listwise
from concf.reference.batches import Among, Batch, distinct
from concf.reference.cuda_graphs import Streams
from concf.reference.heads import TableHead
from concf.reference.kernels import Sparse, listed_scores, take_from, take_rows
from concf.reference.model import Model
from concf.reference.objectives import Objective


class HeadLosses:
    """Losses of all heads, on one copy of the embedding tables for each head.

    A head's loss depends on its own copy alone, so the gradient of the copy is the gradient of that head.
    """

    def __init__(self, model: Model, objectives: dict[str, Objective], train: csr_array) -> None:
        self.model, self.objectives = model, objectives
        by_user, by_item = (train.sum(axis=axis, dtype=np.float64) for axis in (1, 0))  # sums of weights
        device, kind = model.user.device, model.user.dtype
        self.streams, self.consensus_streams = (Streams(device, len(objectives)) for _ in range(2))
        if {"items", "users"} & {objective.needs for objective in objectives.values()}:
            self.items_of = Sparse(train, kind).to(device)  # [users, items]
            self.users_of = self.items_of.T
        self.user_degree, self.item_degree = (torch.from_numpy(sums).to(device, kind) for sums in (by_user, by_item))

    def items_of_batch(self, batch: Batch) -> Tensor:
        """Items that are encoded for L_CF: the positives and, where a loss uses them, the negatives."""
        uses_negatives = any(objective.needs in ("pairs", "users") for objective in self.objectives.values())
        return batch.items if uses_negatives else batch.positive

    def end(self) -> None:
        """Wait for all streams, after the gradients were computed."""
        self.streams.end()
        self.consensus_streams.end()

    def own(self, user: Tensor, item: Tensor, batch: Batch, noise: torch.Generator | None = None) -> Tensor:
        """[heads] L_CF of each head (Eq. 1-5). user: [heads, users, d]; item: [heads, items, d]; noise: for dropout."""
        if not len(batch):
            return user[:, :0].sum((1, 2))
        user, item = self.model.encoder.propagate(user, item)
        both = self.items_of_batch(batch)
        rows = self.model.encode(take_from([user, item], [batch.user, both]), noise)  # users and items as one batch
        h_user, h_item = (side.unbind() for side in torch.split(rows, [len(batch), len(both)], 1))
        losses = []
        for x, name in enumerate(self.objectives):
            with self.streams.stream(x, h_user[x], h_item[x], both):
                losses.append(self._own(name, h_user[x], h_item[x], batch, both))
        self.streams.join()
        return torch.stack(losses)

    def _own(self, name: str, h_user: Tensor, h_item: Tensor, batch: Batch, both: Tensor) -> Tensor:
        """L_CF of one head. h_user: [B, size]; h_item: [n, size] of the items `both`."""
        objective = self.objectives[name]
        if objective.needs == "items":
            return self._multinomial(name, h_user, batch.user, batch.among_users(), self.items_of, self.user_degree)
        if objective.needs == "users":
            return self._multinomial(name, h_item, both, batch.among_items(), self.users_of, self.item_degree)
        return objective.loss(*self._pair_scores(name, h_user, h_item, batch.user, both))

    def _pair_scores(self, name: str, h_user: Tensor, h_item: Tensor, user: Tensor, item: Tensor) -> list[Tensor]:
        """k scores [B] of the pairs (user, item); item: [k B] the first item of every user, then the second, ..."""
        vectors, offset = self.model.head(name).user(h_user, user)
        items, bias = self.model.head(name).item(h_item, item)
        pairs = torch.arange(len(item), device=item.device).view(-1, len(user)).T
        scores = listed_scores(vectors[None], offset[None], items[None], bias[None], pairs)[0]
        return list(self.objectives[name].score(scores).unbind(1))

    def _multinomial(
        self, name: str, encoding: Tensor, ids: Tensor, among: Among | None, used: Sparse, degree: Tensor
    ) -> Tensor:
        """Multinomial loss (Eq. 5) of the distinct users, or items, among `ids`. used: their pairs in the log.

        sum_{i in I_u} <h_u, V_i> + b_i = <h_u, sum V_i> + sum b_i: a sparse product, no dense matrix of scores.
        """
        head = self.model.head(name)
        assert isinstance(head, TableHead)
        rows, weight = distinct(ids, len(degree), encoding.dtype, among=among)
        encoding, ids = encoding[rows], ids[rows]
        summed = used @ torch.cat([head.table.weight, head.table.bias[:, None]], 1)
        summed = take_rows(summed[None], ids)[0]
        vectors, biases = torch.split(summed, [encoding.shape[1], 1], 1)
        observed = (encoding * vectors).sum(1) + biases[:, 0]
        loss: Tensor = self.objectives[name].loss(head.partition(encoding), observed, degree[ids], weight)
        return loss

    def consensus(
        self, user: Tensor, item: Tensor, batch: Batch, consensus_target: Tensor, length: int, names: list[str],
        noise: torch.Generator | None = None, clip: dict[str, float] | None = None,
    ) -> Tensor:  # fmt: skip
        """[heads] L_CL of each head (Eq. 14), 0 for a head that is not among `names`.

        user, item: [h, users, d], [h, items, d] copies for the heads of `student_slices`
        consensus_target: [users, L] ranked items, -1 for padding; the first `length` of them are learned in order
        clip: head -> largest absolute score
        """
        if not len(batch):
            return user[:, :0].sum().expand(len(self.model.names))
        users, weight, sides = self._sides(user, item, batch, names, noise)
        weight = self.list_weights(batch, users, weight, names)
        lists = consensus_target[users]  # [b, L]
        empty, lists = lists < 0, lists.clamp(min=0)
        vectors, offset, items, bias = sides
        scores = []
        for name, raw in zip(names, listed_scores(vectors, offset, items, bias, lists), strict=True):  # raw: [b, L]
            score, bound = self.objectives[name].consensus_score(raw), (clip or {}).get(name)
            scores.append(score if bound is None else score.clamp(-bound, bound))
        masked = torch.stack(scores).masked_fill(empty, -torch.inf)
        return self._of_all(names, listwise(masked, length, weight))

    def _sides(
        self, user: Tensor, item: Tensor, batch: Batch, names: list[str], noise: torch.Generator | None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Distinct users [b], their weights, and vectors, offsets, items and biases [h, ...] of the heads `names`."""
        user, item = self.model.encoder.propagate(user, item)
        kind = self.model.user.dtype
        rows, weight = distinct(batch.user, self.model.n_users, kind, batch.among_users())
        users = batch.user[rows]
        user_heads, item_heads = self.student_slices(names)
        h_user = self._encoded(take_rows(user, users), noise, user_heads)
        h_item = self._encoded(item, noise, item_heads)
        sides = []
        for name in names:
            head = self.model.head(name)
            with self.consensus_streams.stream(self.model.names.index(name), h_user[name], h_item[name], users):
                sides.append((*head.user(h_user[name], users), *head.item(h_item[name])))
        self.consensus_streams.join()
        return users, weight, [torch.stack(parts) for parts in zip(*sides, strict=True)]

    def list_weights(self, batch: Batch, users: Tensor, weight: Tensor, names: list[str]) -> Tensor:  # noqa: ARG002
        """Weights of the users' lists in the consensus loss: [b], or [heads, b] where they differ by head."""
        return weight

    def _of_all(self, names: list[str], losses: Tensor) -> Tensor:
        """[heads] fill in 0 for heads that are not among `names`. losses: [h]"""
        by_name = dict(zip(names, losses.unbind(), strict=True))
        return torch.stack([by_name.get(name, losses.new_zeros(())) for name in self.model.names])

    def student_slices(self, names: list[str]) -> tuple[slice, slice]:
        """Slices of heads whose users, and whose items, must be encoded for the heads `names`.

        These are all heads if the encoder cannot encode a slice.
        """
        if not self.model.encoder.divides:
            return slice(0, len(self.model.names)), slice(0, len(self.model.names))
        heads = [(x, self.model.head(name)) for x, name in enumerate(self.model.names) if name in names]
        of_users = [x for x, head in heads if head.encodes_user]
        of_items = [x for x, head in heads if head.encodes_item]
        user_heads, item_heads = (slice(min(xs, default=0), max(xs, default=0) + 1) for xs in (of_users, of_items))
        return user_heads, item_heads

    def _encoded(self, rows: Tensor, noise: torch.Generator | None, heads: slice) -> dict[str, Tensor]:
        """Map each head to its encodings; a head outside the slice does not use its own, and gets those of another."""
        encoded = self.model.encode(rows, noise, heads).unbind()
        by_name = dict(zip(self.model.names[heads], encoded, strict=True))
        return {name: by_name.get(name, encoded[0]) for name in self.model.names}
