"""What the paper compares ConCF with inside its own frame: parts of a training step that are replaced.

They train in one process and in memory: `train_reference(data, settings, parts=ABLATIONS["PCL"])`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from concf.errors import ConfigError
from concf.evaluation.scorers import Factors
from concf.reference.batches import Batch
from concf.reference.head_losses import HeadLosses
from concf.reference.heads import TableHead
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.trainer import Parts
from concf.runs.settings import CONSENSUS
from reproduction.sensitivity import DecoupledDecay, KeepsShare
from reproduction.variants import KEPT_SHARES


class Selector(nn.Module):
    """Which head a pair trains, where it trains only one: logits by a linear map of both embeddings, Gumbel-softmax.

    A head's logits are standardised over the batch. So pairs are divided by which head suits them more than others, and
    no head is left without any.
    """

    def __init__(self, dimensions: int, heads: int, draws: torch.Generator | None = None) -> None:
        super().__init__()
        self.map = nn.Linear(2 * dimensions, heads, bias=False)
        bound = (2 * dimensions) ** -0.5
        nn.init.uniform_(self.map.weight, -bound, bound, draws)

    def logits(self, user: Tensor, item: Tensor) -> Tensor:
        """[B, d], [B, d] -> [B, heads]."""
        mapped: Tensor = self.map(torch.cat([user, item], 1))
        return (mapped - mapped.mean(0)) / (mapped.std(0, correction=0) + 1e-6)

    def forward(self, user: Tensor, item: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """[B, d], [B, d] -> [B, heads]: 1 at the head that is drawn, else 0; its gradient is the soft choice's."""
        logits = self.logits(user, item)
        drawn = torch.rand(logits.shape, generator=noise, device=logits.device, dtype=logits.dtype)
        soft = (logits - (-drawn.clamp(1e-7, 1 - 1e-7).log()).log()).softmax(1)
        hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
        return hard + (soft - soft.detach())  # in this order 1 stays 1


class SelectedPairs(HeadLosses):
    """A pair trains a single head by its own loss, drawn by a Gumbel-softmax that learns with the model."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if len(self.model.user) > 1:
            raise ConfigError("ConCF-S chooses by the shared embedding of pairs: share it")
        seed = int(self.model.user.detach().view(torch.int32).sum()) % 2**63  # which the run's seed decides
        draws = torch.Generator().manual_seed(seed)
        selector = Selector(self.model.user.shape[2], len(self.objectives), draws)
        self.selector = selector.to(self.model.user.device, self.model.user.dtype)
        self.model.add_module("selector", self.selector)  # so that it learns with the model
        self.chosen: dict[str, Tensor] = {}

    def items_of_batch(self, batch: Batch) -> Tensor:
        """Positives and negatives, whatever the losses use."""
        return batch.items

    def own(self, user: Tensor, item: Tensor, batch: Batch, noise: torch.Generator | None = None) -> Tensor:
        """[heads] L_CF of each branch on the pairs that train it."""
        pair = self.model.user.detach()[0, batch.user], self.model.item.detach()[0, batch.positive]
        self.chosen = dict(zip(self.objectives, self.selector(*pair, noise).unbind(1), strict=True))
        self.streams.kept += self.chosen.values()
        return super().own(user, item, batch, noise)

    def _own(self, name: str, h_user: Tensor, h_item: Tensor, batch: Batch, both: Tensor) -> Tensor:
        """One head's loss on the pairs that train it: a multinomial is then a sum over pairs, not over users' rows.

        The choice itself is moved by each loss relative to its mean in the batch: by their sizes alone, the head with
        the smallest losses would be chosen for everything.
        """
        loss, chosen = torch.vmap(self.objectives[name].loss), self.chosen[name]
        each: Tensor = loss(*(part[:, None] for part in self._of_pairs(name, h_user, h_item, batch, both)))
        relative = (each / each.mean().clamp(min=1e-12)).detach()
        return (chosen.detach() * each + (chosen - chosen.detach()) * relative).sum()

    def _of_pairs(self, name: str, h_user: Tensor, h_item: Tensor, batch: Batch, both: Tensor) -> list[Tensor]:
        """[B] each: what the loss needs of every observed pair alone."""
        head = self.model.head(name)
        if self.objectives[name].needs == "pairs":
            return self._pair_scores(name, h_user, h_item, batch.user, both)
        assert isinstance(head, TableHead)
        (score,) = self._pair_scores(name, h_user, h_item[: len(batch)], batch.user, batch.positive)
        partition = head.partition(h_user) if head.encodes_user else torch.zeros_like(score)  # E': it is in the score
        return [partition, score, torch.ones_like(score), torch.ones_like(score)]


class SelectedInstances(SelectedPairs):
    """ConCF-S: the consensus, too, is taught by a pair to the head that it trains.

    A user's list counts for a head by the mean probability that the user's pairs in the batch are drawn for it. If
    every head were taught the whole of it, the consensus would outweigh what a sixth of the pairs say.
    """

    def list_weights(self, batch: Batch, users: Tensor, weight: Tensor, names: list[str]) -> Tensor:
        """[heads, b]."""
        pair = self.model.user.detach()[0, batch.user], self.model.item.detach()[0, batch.positive]
        with torch.no_grad():
            likely = self.selector.logits(*pair).softmax(1)  # [B, heads]
            likely = torch.cat([likely, torch.ones_like(likely[:, :1])], 1)
            total = likely.new_zeros(self.model.n_users, likely.shape[1]).index_add_(0, batch.user, likely)[users]
        shares = [total[:, self.model.names.index(name)] / total[:, -1] for name in names]  # a captured step: no lists
        return weight * torch.stack(shares)


class PeerLosses(HeadLosses):
    """PCL, peer collaborative learning: each head goes to the softmax of all items' mean logits."""

    def consensus(
        self, user: Tensor, item: Tensor, batch: Batch, consensus_target: Tensor, length: int, names: list[str],  # noqa: ARG002
        noise: torch.Generator | None = None, clip: dict[str, float] | None = None,  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """[heads] how far each is from the heads' mean."""
        _, weight, (vectors, _, items, bias) = self._sides(user, item, batch, names, noise)
        logits = torch.baddbmm(bias[:, None], vectors, items.transpose(1, 2))
        return self._of_all(names, ensemble_divergence(logits, weight))


class PeerConsensus(RankingConsensus):
    """The heads' mean logits, ranked; no votes."""

    def _agree(self, lists: Mapping[str, Tensor], factors: Mapping[str, Factors]) -> dict[str, Tensor]:  # noqa: ARG002
        self.n_rankings += 1
        mean = mean_of([factors[self.heads[x]] for x in self.voters])
        return {CONSENSUS: self._rank(CONSENSUS, mean, self._list_length())}


class Teacher(RankingConsensus):
    """Two-stage distillation: given lists are the target from the first epoch on. The heads agree, but unheard.

    lists: [users, L] ranked items, -1 for padding
    """

    def __init__(self, lists: Tensor, *args: Any) -> None:
        super().__init__(*args)
        length = min(lists.shape[1], self.target.shape[1])
        self.target[:, :length] = lists[:, :length].to(self.target)
        self.lists = self.target.clone()

    def teaches(self, epoch: int) -> bool:  # noqa: ARG002
        """From the first epoch on."""
        return True

    def _agree(self, lists: Mapping[str, Tensor], factors: Mapping[str, Factors]) -> dict[str, Tensor]:
        agreed = super()._agree(lists, factors)
        self.target.copy_(self.lists)
        return agreed


def ensemble_divergence(logits: Tensor, weight: Tensor) -> Tensor:
    """sum_u weight_u KL(softmax(mean of the heads' logits) || softmax(a head's logits)).

    logits: [heads, b, n]; weight: [b]. The ensemble is a constant: each head goes to it. Gives [heads].
    """
    teacher = logits.detach().mean(0).log_softmax(1)
    divergence = (teacher.exp() * (teacher - logits.log_softmax(2))).sum(2)
    return divergence @ weight


def mean_of(heads: list[Factors]) -> Factors:
    """The mean of the heads' scores, as one set of vectors."""
    user, item = (torch.cat([getattr(each, side) for each in heads], 1) for side in ("user", "item"))
    bias = torch.stack([each.bias for each in heads if each.bias is not None]).sum(0)
    return Factors(user / len(heads), item, bias / len(heads))


PEERS = Parts(PeerLosses, PeerConsensus)
ABLATIONS = {
    "ConCF-S": Parts(SelectedInstances), "ConCF-S, all heads taught": Parts(SelectedPairs),
    "AutoML": Parts(SelectedPairs), "PCL": PEERS, "PCL, CF-E by mean": PEERS,
    "CF-B, decoupled decay": Parts(DecoupledDecay),
    **{name: Parts(trainer=partial(KeepsShare, share)) for name, share in KEPT_SHARES.items()},
}  # fmt: skip
