"""Algorithm 1, lines 1, 2 and 4 to 12: an epoch, and one step of it. Lines are numbered as in the paper.

To understand one step, read in this order:

1. `trainer.py`      `Trainer._step` and the methods after it
2. `model.py`        theta_s and theta_x: shared embeddings, an encoder and the heads
3. `heads.py`        the score of each head, an inner product
4. `losses.py`       L_CF-x of each objective (Eq. 1-5)
5. `head_losses.py`  L_CF-x and L_CL-x of all heads on one batch
6. `balance.py`      L_b and lambda_x (Eq. 15, 16)

`train.py` has lines 3 and 13 to 15. A first reading can leave out fused operations (`kernels.py`), CUDA graphs and
streams (`cuda_graphs.py`), and several processes, each of which holds the whole model and takes its part of every
batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.validation import Validation, fitting_metric, sample
from concf.reference.balance import Balance, gradient_scale, make_adam, restore
from concf.reference.batches import Batch, Sampler, unique
from concf.reference.cuda_graphs import CudaGraph, Streams
from concf.reference.encoders import EVERY_HEAD, MLP, Encoder
from concf.reference.head_losses import HeadLosses
from concf.reference.kernels import sum_of_gradients
from concf.reference.objectives import choose
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.run import make_model
from concf.reference.settings import ReferenceSettings
from concf.runtime.arguments import derive_seed
from concf.runtime.process_group import ALONE, ProcessGroup

TF32 = True  # on a GPU: its rounding is far below the noise of a batch
CLIPPED = ("bpr", "multinomial")  # heads with unbounded scores, which `consensus.clip` bounds


@dataclass(frozen=True)
class Parts:
    """Parts of Algorithm 1 that ablations replace.

    head_losses, consensus: classes of the heads' losses and of their consensus
    teacher: [users, L] ranked items, -1 for padding: a fixed target from the first epoch on, in place of the consensus
             (two-stage distillation); the consensus is still computed, but not distilled
    watch_rankings: called at every ranking with the epoch, the trainer (`trainer.consensus.queue` holds the newest
             rankings) and the lists [local users, ...] of each head and consensus
    """

    head_losses: type[HeadLosses] = HeadLosses
    consensus: type[RankingConsensus] = RankingConsensus
    teacher: Tensor | None = None
    watch_rankings: Callable[[int, Trainer, dict[str, Tensor]], None] | None = None

    @property
    def plain(self) -> bool:
        """Whether the losses and the consensus are those of the paper."""
        return (self.head_losses, self.consensus) == (HeadLosses, RankingConsensus)


@dataclass
class Term:
    """A loss of every head on a batch, and the gradient of its weighted sum over heads.

    loss:   [heads], not weighted
    tables: gradients of the user and the item embeddings, [heads, n, d] each
    others: gradients of all other parameters
    """

    loss: Tensor
    tables: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)


class Trainer:
    """The model, the balancing weights of its heads, and their consensus. weights: [heads] lambda_x."""

    def __init__(
        self,
        data: Split,
        settings: ReferenceSettings,
        seed: int = 0,
        device: str | torch.device = "cpu",
        *,
        parts: Parts | None = None,
        group: ProcessGroup = ALONE,
    ) -> None:
        if group.several and settings.losses.likelihood == "mean":
            raise ConfigError("losses.likelihood = 'mean' is over the rows of a whole batch: train in one process")
        self.data, self.settings, self.seed, self.group = data, settings, seed, group
        self.device, parts = torch.device(device), parts or Parts()
        self.model = make_model(data, settings, seed).to(self.device)  # line 1
        self.names, dtype = self.model.names, self.model.user.dtype
        self.balance = Balance(settings, len(self.names), self.device, dtype)  # line 2
        self.weights = self.balance.weights
        self.sampler = Sampler(data.train)
        objectives, training = choose(settings.objectives, settings.losses), settings.training
        self.students = [name for name, objective in objectives.items() if objective.distilled]
        self.head_losses = parts.head_losses(self.model, objectives, data.train)
        users = sample(data.validated, training.validated_users, seed)
        validation = Validation(data, fitting_metric(training.metric, data), self.device, group, users)
        self.consensus = parts.consensus(data, settings.consensus, seed, self.model, validation, parts.teacher)
        tables = {id(self.model.user), id(self.model.item)}
        self.others = [parameter for parameter in self.model.parameters() if id(parameter) not in tables]
        self.optimiser = make_adam(self.model.parameters(), self.device, training.learning_rate, training.weight_decay)
        self.noise = torch.Generator(self.device)
        self.streams = Streams(self.device, 2)
        self.step = CudaGraph(self._step, self.noise, not group.several)
        self._next: dict[int, Batch] = {}  # epoch -> its pairs, drawn ahead

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train on every observed pair once; returns the record of the epoch."""
        begin = time.perf_counter()
        self.noise.manual_seed(derive_seed(self.seed, epoch, 1, *([self.group.rank] if self.group.rank else [])))
        steps, distils = [], bool(self.students) and self.consensus.distils(epoch)
        with self._precision():
            for number, batch in enumerate(self.batches(epoch)):  # line 4
                self.balance.sets_initial.fill_(epoch < self.settings.balance.settle or epoch == number == 0)
                steps.append(self.step(batch, distils).clone())
        if epoch + 1 < self.settings.training.epochs:
            self._next = {epoch + 1: self._draw(epoch + 1)}  # on the CPU, while a GPU is still at work
        report = torch.stack(steps).cpu()  # [batches, 3, heads]
        self._check_finite(report, epoch)
        own, learned, scale = (dict(zip(self.names, row, strict=True)) for row in report.mean(0).tolist())
        weights = dict(zip(self.names, self.weights.tolist(), strict=True))
        return {
            "epoch": epoch, "loss": own, "consensus_loss": learned, "gradient": scale, "weight": weights,
            "seconds": time.perf_counter() - begin,
        }  # fmt: skip

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
        chosen = self.settings.consensus
        clip = {} if chosen.clip is None else dict.fromkeys(CLIPPED, chosen.clip)
        weights = self.weights if chosen.weight_range is None else self.weights.clamp(*chosen.weight_range)
        copies = self._copies(*self.head_losses.student_slices(self.students))
        loss = self.head_losses.consensus(
            *copies, batch, self.consensus.target, chosen.length, self.students, self.noise, clip
        )
        return self._term(loss, chosen.weight * weights, copies)

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
            self._all_reduce(batch.whole, own, learned, others)
        for parameter, gradient in zip(self.others, others, strict=True):
            parameter.grad = gradient
        first = [heads.start for heads in self.head_losses.student_slices(self.students)]
        squares, products = [], []
        for side, table in enumerate((self.model.user, self.model.item)):
            more = learned.tables[side] if learned.tables else None
            total, square, product = sum_of_gradients(own.tables[side], more, first[side])
            table.grad = (total.sum(0) if len(table) == 1 else total).reshape(table.shape).contiguous()
            squares.append(square)
            products.append(product)
        return gradient_scale(squares, products, self.settings.balance.norm)

    # Batches, checks, several processes and checkpoints: not needed to understand a step.

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this process's part of every batch of an epoch."""
        pairs = self._next.pop(epoch, None) or self._draw(epoch)
        for batch in pairs.split(self.settings.training.batch):
            yield batch.part(self.group.share(len(batch))) if self.group.several else batch

    def _draw(self, epoch: int) -> Batch:
        return self.sampler.epoch(self.seed, epoch).to(self.device)

    def _all_reduce(self, whole: Batch, own: Term, learned: Term, others: list[Tensor]) -> None:
        """Replace the losses and gradients of this process's part by those of the whole batch: their sums.

        Every loss is a sum over the batch's rows, or over its distinct users or items, each counted by one process
        alone. others: gradients of all parameters but the embeddings
        """
        losses, tables = torch.stack([own.loss, learned.loss]), own.tables + learned.tables
        rows = self._rows_with_gradient(whole, bool(learned.tables))
        sent = [table if ids is None else table[:, ids] for table, ids in zip(tables, rows, strict=True)]
        self.group.all_reduce([losses, *sent, *others])
        for table, ids, total in zip(tables, rows, sent, strict=True):
            if ids is not None:
                table.index_copy_(1, ids, total)
        own.loss, learned.loss = losses.unbind()

    def _rows_with_gradient(self, batch: Batch, distils: bool) -> list[Tensor | None]:
        """Users and items whose embeddings may have a gradient of L_CF and then, if it distils, of L_CL; None: all."""
        if type(self.model.encoder) not in (Encoder, MLP):  # an encoding may depend on other rows' embeddings
            return [None, None] * (1 + distils)
        n_items, needs = self.model.n_items, {each.needs for each in self.head_losses.objectives.values()}
        users = unique(batch.user, self.model.n_users)
        items = None if "everything" in needs else unique(self.head_losses.items_of_batch(batch), n_items)
        if not distils:
            return [users, items]
        listed = self.consensus.target[batch.user].flatten()
        return [users, items, users, unique(listed[listed >= 0], n_items)]

    def _check_finite(self, report: Tensor, epoch: int) -> None:
        """Refuse losses of an epoch, or parameters after its last batch, that are not finite."""
        parameters = dict(self.model.named_parameters())
        finite = torch.stack([parameter.detach().isfinite().all() for parameter in parameters.values()]).tolist()
        bad, where = (~report.isfinite()).nonzero(), ""
        if len(bad):
            batch, row, head = bad[0].tolist()
            kind = ("loss", "consensus loss", "gradient")[row]
            value = report[batch, row, head].item()
            where = f"the {kind} of head {self.names[head]!r} is {value} in epoch {epoch}, batch {batch}"
        elif not all(finite):
            name = list(parameters)[finite.index(False)]
            where = f"the parameter {name!r} is not finite after the last batch of epoch {epoch}"
        if where:
            raise DataError(f"{where}. The last good checkpoint is kept; try a lower training.learning_rate")

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Allow TF32 matrix products on a GPU inside the block."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = TF32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def end(self) -> None:
        """Free what only further epochs need: also the captured graphs, in a reference cycle with the step."""
        self.step.graphs.clear()
        self._next.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next epoch depends on beside the model; random draws depend on seed and epoch alone."""
        state = {"optimiser": self.optimiser.state_dict(), "consensus": self.consensus.state_dict()}
        return self.balance.state_dict() | state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.balance.load_state_dict(state)
        restore(self.optimiser, state["optimiser"])
        self.consensus.load_state_dict(state["consensus"])
