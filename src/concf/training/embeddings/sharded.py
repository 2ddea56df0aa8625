"""Embedding tables sharded by rows: each process holds a run of the users and of the items.

A step fetches the rows that this process's part of the batch needs from those who hold them, and sends their gradients
back. So the optimiser, and its state, are those of the rows that a process holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.ranking_consensus import not_finite
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.ranking import Block, rank_blocks
from concf.model.model import Model
from concf.runtime.process_group import ProcessGroup
from concf.training.batches import Batch
from concf.training.embeddings.replicated import ReplicatedTables, summed
from concf.training.embeddings.row_index import RowIndex, Rows, unique
from concf.training.head_losses import HeadLosses

BLOCK = 1 << 16  # items whose vectors travel at a time


@dataclass(frozen=True)
class Request:
    """Rows of one table that this process needs, and those that the others need of it.

    ids:      [n] which, ascending; received: how many of them come from each process
    own:      [m] rows of this process, one process's requests after the other's; sent: how many each of them gets
    """

    ids: Tensor
    received: list[int]
    own: Tensor
    sent: list[int]


class ShardedTable:
    """A table [g, n, d] of which this process holds its share of the n rows."""

    def __init__(self, group: ProcessGroup, n: int, device: torch.device) -> None:
        self.group, self.n = group, n
        self.begin = group.share(n).start
        self.starts = torch.tensor([group.share(n, rank).start for rank in range(1, group.size)], device=device)

    def request(self, ids: Tensor) -> Request:
        """Tell those who hold them which rows are needed. ids: [n] ascending, each once."""
        group, one = self.group, [1] * self.group.size
        ends = [0, *torch.searchsorted(ids, self.starts).tolist(), len(ids)]
        received = [end - begin for begin, end in pairwise(ends)]
        sent = group.exchange(torch.tensor(received), one, one).tolist()
        return Request(ids, received, group.exchange(ids, received, sent) - self.begin, sent)

    def fetch(self, table: Tensor, request: Request) -> Tensor:
        """[g, n, d] the rows requested. table: [g, rows of this process, d]."""
        rows = table.detach()[:, request.own].transpose(0, 1)
        return self.group.exchange(rows, request.sent, request.received).transpose(0, 1).contiguous()

    def give_back(self, gradients: Tensor, request: Request, among: Tensor) -> Tensor:
        """[h, t, d] the sums of all processes' gradients on the rows `among` [t] of this one.

        gradients: [h, n, d] of this process on the rows requested; added up process by process, always in one order
        """
        parts = self.group.exchange(gradients.transpose(0, 1), request.received, request.sent)  # [m, h, d]
        total = parts.new_zeros(len(among), *parts.shape[1:])
        at = torch.searchsorted(among, request.own)
        for rows, part in zip(torch.split(at, request.sent), torch.split(parts, request.sent), strict=True):
            total.index_add_(0, rows, part)
        return total.transpose(0, 1).contiguous()


@dataclass(frozen=True)
class Fetched(Rows):
    """Rows of users and items, and how they were requested."""

    requests: tuple[Request, ...] = ()

    @classmethod
    def of(cls, user: Tensor, item: Tensor, users: Request, items: Request) -> Fetched:
        """The rows that came for these requests."""
        return cls(user, item, RowIndex(users.ids, items.ids), (users, items))


class ShardedTables(ReplicatedTables):
    """The tables of users and items of a model that holds its share of both."""

    def __init__(self, model: Model, head_losses: HeadLosses, group: ProcessGroup) -> None:
        super().__init__(model, head_losses, group)
        device = model.user.device
        self.users, self.items = (ShardedTable(group, n, device) for n in (model.n_users, model.n_items))

    def fetch(self, batch: Batch, consensus_target: Tensor | None) -> Sequence[Rows]:
        """The rows for the heads' own losses and, if there is a consensus target, those for the consensus loss."""
        own = self._for_batch(batch)
        return [own] if consensus_target is None else [own, self._for_target(batch, consensus_target, own)]

    def _for_batch(self, batch: Batch) -> Fetched:
        """The rows of the batch's users and items, and of those that stand for all items."""
        read = self.head_losses.items_read(batch)
        assert read is not None  # else refused
        users, items = unique(batch.user, self.users.n), unique(read, self.items.n)
        requests = self.users.request(users), self.items.request(items)
        user, item = self.users.fetch(self.model.user, requests[0]), self.items.fetch(self.model.item, requests[1])
        return Fetched.of(user, item, *requests)

    def _for_target(self, batch: Batch, consensus_target: Tensor, before: Fetched) -> Fetched:
        """The rows of the items in its users' targets, beside those of the users, which are there."""
        listed = consensus_target[self.head_losses.distinct_users(batch)[0]].flatten()
        if (listed < 0).any():  # an empty rank reads some row, to no effect; a list is not longer than there are rows
            listed = torch.cat([listed[listed >= 0], torch.arange(consensus_target.shape[1]).to(listed)])
        request = self.items.request(unique(listed, self.items.n))
        return Fetched.of(before.user, self.items.fetch(self.model.item, request), before.requests[0], request)

    def reduce(
        self, batch: Batch, consensus_target: Tensor, losses: Tensor, tables: list[Tensor], others: list[Tensor]  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """[2, heads] both losses on the whole batch; gradients on tables go to those who hold the rows, later."""
        self.group.all_reduce([losses, *others])
        return losses

    def set_gradient(
        self, side: int, gradients: list[Tensor], rows: Sequence[Rows], first: int
    ) -> tuple[Tensor, Tensor]:
        """As for replicated tables: of the rows that this process holds, the sums over all processes."""
        table, parameter = (self.users, self.items)[side], (self.model.user, self.model.item)[side]
        requests = [each.requests[side] for each in rows if isinstance(each, Fetched)]
        touched = unique(torch.cat([each.own for each in requests]), parameter.shape[1])
        back = [table.give_back(each, request, touched) for each, request in zip(gradients, requests, strict=True)]
        total, square, product = summed(back, first, len(parameter))
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.zero_().index_copy_(1, touched, total.reshape(len(parameter), *back[0].shape[1:]))
        self.group.all_reduce([square, product])
        return square, product

    @torch.no_grad()
    def ranked(self, seen: csr_array, k: int, users: Tensor | None = None) -> dict[str, Tensor]:
        """[users of this process, k] int32 each head's lists.

        seen: [users of this process, items] what is left out; users: [e] only those of its users; None: all
        """
        seen = seen if users is None else seen[users.cpu().numpy()]
        return {name: self._ranked(name, k, seen, users) for name in self.model.names}

    def _ranked(self, name: str, k: int, seen: csr_array, users: Tensor | None) -> Tensor:
        held = self.group.share(self.users.n)
        mine = torch.arange(held.start, held.stop, device=self.model.user.device)
        vectors, _ = self.model.head(name).user(self._encoded(name, self.model.user), mine)
        if self.group.any(not bool(vectors.isfinite().all())):
            raise not_finite(name)
        vectors = vectors if users is None else vectors[users]
        return rank_blocks(vectors.contiguous(), self._blocks(name, vectors.shape[1]), k, seen)

    def _blocks(self, name: str, size: int) -> Iterator[Block]:
        """The head's item vectors and biases, one process's after the other's, each made by the one that holds them."""
        kind, device = self.model.item.dtype, self.model.item.device
        for rank in range(self.group.size):
            held = self.group.share(self.items.n, rank)
            for begin in range(held.start, held.stop, BLOCK):
                end = min(begin + BLOCK, held.stop)
                whole = torch.empty(end - begin, size + 1, dtype=kind, device=device)
                if rank == self.group.rank:
                    items = torch.arange(begin, end, device=device)
                    rows = self.model.item[:, begin - held.start : end - held.start]
                    vectors, bias = self.model.head(name).item(self._encoded(name, rows), items)
                    whole = torch.cat([vectors, bias[:, None]], 1).contiguous()
                whole = self.group.broadcast(whole, rank)
                if not whole.isfinite().all():
                    raise not_finite(name)
                yield begin, whole[:, :size], whole[:, size]

    def _encoded(self, name: str, rows: Tensor) -> Tensor:
        """[n, size] of one head."""
        x = self.model.names.index(name)
        if self.model.encoder.divides:
            own = rows if len(rows) == 1 else rows[x : x + 1]
            return self.model.encode(own, heads=slice(x, x + 1))[0]
        return self.model.encode(rows)[x]


def refuse_unsplittable(group: ProcessGroup, data: Split) -> None:
    """Refuse what cannot be split among processes."""
    users = data.interactions.n_users
    if group.size > users:
        raise ConfigError(f"{group.size} processes for {users} users: expected no more processes than users")


def refuse_unshardable(group: ProcessGroup, head_losses: HeadLosses) -> None:
    """Refuse what needs the whole tables at every step."""
    model = head_losses.model
    if not group.sharded:
        return
    if group.size > model.n_items:
        raise ConfigError(f"{group.size} processes for {model.n_items} items: expected no more processes than items")
    if head_losses.propagates():
        raise ConfigError(
            f"sharded tables: the encoder {type(model.encoder).__name__} may need all rows for one. Choose mf or mlp"
        )
    whole = [name for name in head_losses.objectives if head_losses.reads_all(name)]
    if whole:
        sampled = head_losses.objectives[whole[0]].needs == "catalogue"
        fix = f", sample it (losses.softmax_samples below {model.n_items})" if sampled else ""
        raise ConfigError(
            f"sharded tables: {whole[0]!r} looks at all items in every step. Leave it out{fix}, take the preset "
            "reference, or do not divide"
        )
