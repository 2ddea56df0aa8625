"""Lines 5 to 12 of Algorithm 1: one step. Lines are numbered as in the paper.

To understand a step, read in this order:

1. `step.py`         the step
2. `head_losses.py`  L_CF-x and L_CL-x of all heads on one batch
3. `losses.py`       L_CF-x of each objective (Eq. 1-5)
4. `heads.py`        the score of each head, an inner product
5. `balance.py`      L_b and lambda_x (Eq. 15, 16)

`model.py` holds theta_s and theta_x: shared embeddings, an encoder and the heads. `trainer.py` has lines 1, 2 and 4 and
steps of several processes, `train.py` has lines 3 and 13 to 15. A first reading can leave out fused operations
(`kernels.py`), and CUDA graphs and streams (`cuda_graphs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from concf.reference.balance import Balance, gradient_scale
from concf.reference.batches import Batch
from concf.reference.cuda_graphs import Streams, make_adam
from concf.reference.encoders import EVERY_HEAD
from concf.reference.head_losses import HeadLosses
from concf.reference.kernels import sum_of_gradients
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.settings import ReferenceSettings

CLIPPED = ("bpr", "multinomial")  # heads with unbounded scores, which `Formulation.clip` bounds


@dataclass
class Term:
    """Loss of every head on a batch, and the gradient of its weighted sum over heads.

    loss:   [heads], not weighted
    tables: gradients of the user and the item embeddings, [heads, n, d] each
    others: gradients of all other parameters
    """

    loss: Tensor
    tables: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)


class Step:
    """Training step of all heads. weights: [heads] lambda_x; students: heads that learn from the consensus."""

    def __init__(self, settings: ReferenceSettings, head_losses: HeadLosses, consensus: RankingConsensus) -> None:
        self.settings, self.head_losses, self.consensus = settings, head_losses, consensus
        self.model = head_losses.model
        self.names, self.device, training = self.model.names, self.model.user.device, settings.training
        self.students = [name for name, objective in head_losses.objectives.items() if objective.distilled]
        self.slices = head_losses.student_slices(self.students)  # heads whose users, and items, L_CL-x encodes
        self.balance = Balance(settings, len(self.names), self.device, self.model.user.dtype)  # line 2
        self.weights = self.balance.weights
        tables = {id(self.model.user), id(self.model.item)}
        self.others = [parameter for parameter in self.model.parameters() if id(parameter) not in tables]
        self.optimiser = make_adam(self.model.parameters(), self.device, training.learning_rate, training.weight_decay)
        self.noise = torch.Generator(self.device)  # of the dropout
        self.streams = Streams(self.device, 2)

    def distils(self, epoch: int) -> bool:
        """Line 6: whether the heads learn from the consensus in this epoch."""
        return self.consensus.teaches(epoch) and self.settings.consensus.weight > 0 and bool(self.students)

    def _step(self, batch: Batch, distils: bool) -> Tensor:
        """Lines 5 to 12: [3, heads] L_CF-x, L_CL-x and the gradient scale G_x of this batch.

        On a GPU the two terms run in parallel streams, and so do the updates of lambda_x and of the model.
        """
        with self.streams.stream(0):
            copies = self._copies(EVERY_HEAD, EVERY_HEAD)
            own = self._term(self.head_losses.own(*copies, batch, self.noise), self.weights, copies)  # line 5: L_CF-x
        learned = Term(torch.zeros_like(self.weights))  # lines 6, 7: in the warm-up L_x = L_CF-x
        if distils:
            with self.streams.stream(1):
                learned = self._consensus_term(batch)  # lines 8, 9: L_x = L_CF-x + alpha L_CL-x
        self.streams.join()
        scale, projection = self._set_gradients(batch, own, learned)  # line 10: L = sum_x lambda_x L_x
        if self.settings.balances:
            with self.streams.stream(0):
                self.balance.step(own.loss, learned.loss, scale, projection)  # line 11: L_b and lambda_x
        self.optimiser.step()  # line 12: theta_s, theta_x
        self.streams.end()
        return torch.stack([own.loss, learned.loss, scale])

    def _consensus_term(self, batch: Batch) -> Term:
        """alpha lambda_x L_CL-x (Eq. 13, 14) of the students."""
        chosen, bound = self.settings.consensus, self.settings.form.clip
        clip = {} if bound is None else dict.fromkeys(CLIPPED, bound)
        copies = self._copies(*self.slices)
        target = self.consensus.target
        loss = self.head_losses.consensus(*copies, batch, target, chosen.length, self.students, self.noise, clip)
        return self._term(loss, self.balance.consensus_weights(), copies)

    def _copies(self, user_heads: slice, item_heads: slice) -> tuple[Tensor, Tensor]:
        """([h, users, d], [h, items, d]) embeddings as leaves, one copy for each head: its gradient is the head's."""
        user, item = (
            table.detach().expand(len(self.names), -1, -1)[heads].requires_grad_()
            for table, heads in ((self.model.user, user_heads), (self.model.item, item_heads))
        )
        return user, item

    def _term(self, loss: Tensor, weights: Tensor, copies: tuple[Tensor, Tensor]) -> Term:
        """Differentiate sum_x weights_x loss_x. loss, weights: [heads]; copies: embeddings of `_copies`."""
        gradients = torch.autograd.grad((weights * loss).sum(), [*copies, *self.others], materialize_grads=True)
        self.head_losses.end()
        others = [gradient.contiguous() for gradient in gradients[2:]]  # as fused Adam needs them
        return Term(loss.detach(), list(gradients[:2]), others)

    def _set_gradients(self, batch: Batch, own: Term, learned: Term) -> tuple[Tensor, Tensor]:
        """Set the gradient of every parameter; returns G_x and its projection (`gradient_scale`), [heads] each."""
        others = list(torch._foreach_add(own.others, learned.others)) if learned.others else own.others
        if batch.whole is not None:
            self.all_reduce(batch.whole, own, learned, others)
        for parameter, gradient in zip(self.others, others, strict=True):
            parameter.grad = gradient
        squares, products = [], []
        for side, table in enumerate((self.model.user, self.model.item)):
            more = learned.tables[side] if learned.tables else None
            total, square, product = sum_of_gradients(own.tables[side], more, self.slices[side].start)
            table.grad = (total.sum(0) if len(table) == 1 else total).reshape(table.shape).contiguous()
            squares.append(square)
            products.append(product)
        return gradient_scale(squares, products, self.settings.form.norm)

    def all_reduce(self, whole: Batch, own: Term, learned: Term, others: list[Tensor]) -> None:
        """Replace losses and gradients by those of the whole batch, where several processes divide it."""
        raise NotImplementedError
