"""Embedding tables divided by rows: each process holds a run of the users and of the items.

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

from concf.consensus.agreement import not_finite
from concf.errors import ConfigError
from concf.evaluation.ranking_blocks import Block, rank_blocks
from concf.model.model import Model
from concf.runtime.process_group import ProcessGroup
from concf.training.batches import Batch
from concf.training.config.settings import ConCFSettings
from concf.training.embeddings.replicated import summed
from concf.training.embeddings.row_index import Places, Rows, marked
from concf.training.head_losses import HeadLosses

BLOCK = 1 << 16  # items whose vectors travel at a time


@dataclass(frozen=True)
class Asked:
    """Rows of one table that this process needs, and those that the others need of it.

    places: [n] which, ascending; wanted: how many of them each process holds
    own:    [m] rows of this process, one process's wishes after the other's; given: how many each of them gets
    """

    places: Tensor
    wanted: list[int]
    own: Tensor
    given: list[int]


class ShardedTable:
    """A table [g, n, d] of which this process holds its share of the n rows."""

    def __init__(self, group: ProcessGroup, n: int, device: torch.device) -> None:
        self.group, self.n = group, n
        self.begin = group.share(n).start
        self.starts = torch.tensor([group.share(n, rank).start for rank in range(1, group.size)], device=device)

    def ask(self, places: Tensor) -> Asked:
        """Tell those who hold them which rows are needed. places: [n] ascending, each once."""
        group, one = self.group, [1] * self.group.size
        ends = [0, *torch.searchsorted(places, self.starts).tolist(), len(places)]
        wanted = [end - begin for begin, end in pairwise(ends)]
        given = group.exchange(torch.tensor(wanted), one, one).tolist()
        return Asked(places, wanted, group.exchange(places, wanted, given) - self.begin, given)

    def fetch(self, table: Tensor, asked: Asked) -> Tensor:
        """[g, n, d] the rows asked for. table: [g, rows of this process, d]."""
        rows = table.detach()[:, asked.own].transpose(0, 1)
        return self.group.exchange(rows, asked.given, asked.wanted).transpose(0, 1).contiguous()

    def give_back(self, gradients: Tensor, asked: Asked, among: Tensor) -> Tensor:
        """[h, t, d] the sums of all processes' gradients on the rows `among` [t] of this one.

        gradients: [h, n, d] of this process on the rows asked for; added up process by process, always in one order
        """
        found = self.group.exchange(gradients.transpose(0, 1), asked.wanted, asked.given)  # [m, h, d]
        total = found.new_zeros(len(among), *found.shape[1:])
        at = torch.searchsorted(among, asked.own)
        for rows, theirs in zip(torch.split(at, asked.given), torch.split(found, asked.given), strict=True):
            total.index_add_(0, rows, theirs)
        return total.transpose(0, 1).contiguous()


@dataclass(frozen=True)
class Fetched(Rows):
    """Rows of users and items, and how they were asked for."""

    asked: tuple[Asked, ...] = ()

    @classmethod
    def of(cls, user: Tensor, item: Tensor, users: Asked, items: Asked) -> Fetched:
        """The rows that were asked for so."""
        return cls(user, item, Places(users.places, items.places), (users, items))


class ShardedTables:
    """The tables of users and items of a model that holds its share of both."""

    def __init__(self, group: ProcessGroup, model: Model, head_losses: HeadLosses) -> None:
        self.group, self.model, self.head_losses = group, model, head_losses
        device = model.user.device
        self.users, self.items = (ShardedTable(group, n, device) for n in (model.n_users, model.n_items))

    def fetched(self, batch: Batch, consensus_target: Tensor | None) -> Sequence[Rows]:
        """What a step needs: the rows of the batch, and with a consensus target also those of what is taught."""
        own = self._for_batch(batch)
        return [own] if consensus_target is None else [own, self._for_target(batch, consensus_target, own)]

    def _for_batch(self, batch: Batch) -> Fetched:
        """The rows of the batch's users and items, and of those that stand for all items."""
        read = self.head_losses.items_read(batch)
        assert read is not None  # else refused
        users, items = marked(batch.user, self.users.n), marked(read, self.items.n)
        asked = self.users.ask(users), self.items.ask(items)
        user, item = self.users.fetch(self.model.user, asked[0]), self.items.fetch(self.model.item, asked[1])
        return Fetched.of(user, item, *asked)

    def _for_target(self, batch: Batch, consensus_target: Tensor, before: Fetched) -> Fetched:
        """The rows of the items that its users are taught, beside those of the users, which are there."""
        listed = consensus_target[self.head_losses.students(batch)[0]].flatten()
        if (listed < 0).any():  # an empty place reads some row, to no effect; a list is not longer than there are rows
            listed = torch.cat([listed[listed >= 0], torch.arange(consensus_target.shape[1]).to(listed)])
        asked = self.items.ask(marked(listed, self.items.n))
        return Fetched.of(before.user, self.items.fetch(self.model.item, asked), before.asked[0], asked)

    def sums(self, place: int, found: list[Tensor], rows: Sequence[Rows], first: int) -> tuple[Tensor, Tensor]:
        """([heads], [heads]) |whole|^2 and <mine, whole> of `sums_of_groups`, over the rows of all processes.

        The gradient of the table, that of all processes, is set.

        place: 0 users, 1 items; found: [heads, n, d] on the rows of the batch, then those of the consensus loss if
        there is one
        """
        table, parameter = (self.users, self.items)[place], (self.model.user, self.model.item)[place]
        asked = [each.asked[place] for each in rows if isinstance(each, Fetched)]
        touched = marked(torch.cat([each.own for each in asked]), parameter.shape[1])
        back = [table.give_back(each, how, touched) for each, how in zip(found, asked, strict=True)]
        total, square, product = summed(back, first, len(parameter))
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.zero_().index_copy_(1, touched, total.reshape(len(parameter), *back[0].shape[1:]))
        self.group.all_reduce([square, product])
        return square, product

    @torch.no_grad()
    def ranked(self, seen: csr_array, k: int, asked: Tensor | None = None) -> dict[str, Tensor]:
        """[users of this process, k] int32 each head's lists.

        seen: [users of this process, items] what is left out; asked: [e] only those of its users; None: all
        """
        seen = seen if asked is None else seen[asked.cpu().numpy()]
        return {name: self._ranked(name, k, seen, asked) for name in self.model.names}

    def _ranked(self, name: str, k: int, seen: csr_array, asked: Tensor | None) -> Tensor:
        held = self.group.share(self.users.n)
        users = torch.arange(held.start, held.stop, device=self.model.user.device)
        vectors, _ = self.model.head(name).user(self._encoded(name, self.model.user), users)
        if self.group.any(not bool(vectors.isfinite().all())):
            raise not_finite(name)
        vectors = vectors if asked is None else vectors[asked]
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
                    places = torch.arange(begin, end, device=device)
                    rows = self.model.item[:, begin - held.start : end - held.start]
                    vectors, bias = self.model.head(name).item(self._encoded(name, rows), places)
                    whole = torch.cat([vectors, bias[:, None]], 1).contiguous()
                whole = self.group.broadcast(whole, rank)
                if not whole.isfinite().all():
                    raise not_finite(name)
                yield begin, whole[:, :size], whole[:, size]

    def _encoded(self, name: str, rows: Tensor) -> Tensor:
        """[n, size] of one head."""
        place = self.model.names.index(name)
        if self.model.encoder.divides:
            group = rows if len(rows) == 1 else rows[place : place + 1]
            return self.model.encode(group, heads=slice(place, place + 1))[0]
        return self.model.encode(rows)[place]


def refuse_unshardable(group: ProcessGroup, settings: ConCFSettings, head_losses: HeadLosses) -> None:
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
    if settings.several and settings.consensus.by == "softmax":
        raise ConfigError(
            "sharded tables: consensus.by = 'softmax' looks at all items. Choose 'ranks', or do not divide"
        )
    if settings.several and settings.consensus.rerank:
        raise ConfigError(
            "sharded tables: consensus.rerank looks at the vectors of all users and items. Set it to false, or do not "
            "divide"
        )
