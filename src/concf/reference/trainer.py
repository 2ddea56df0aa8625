"""One epoch of Algorithm 1 and one step of it; `train.py` has the rest. Lines are numbered as in the paper.

Of several processes each takes its part of every batch and holds the whole model; gradients are added up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.validation import Validation, fitting_metric, sample
from concf.reference.balance import gradient_scale, normalise, training_ratio, weight_gradient
from concf.reference.batches import Batch, SampledSoftmax, Sampler
from concf.reference.cuda_graphs import CudaGraph, Streams
from concf.reference.encoders import EVERY_HEAD
from concf.reference.head_losses import HeadLosses
from concf.reference.kernels import added_groups, sums_of_groups
from concf.reference.objectives import choose
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.run import make_model
from concf.reference.settings import ReferenceSettings
from concf.runtime.arguments import derive_seed
from concf.runtime.process_group import ALONE, ProcessGroup

CLIPPED = ("bpr", "multinomial")  # heads whose scores grow without bound: `consensus.clip` is for them


@dataclass(frozen=True)
class Parts:
    """Parts of Algorithm 1 that ablations replace.

    head_losses, consensus: losses of the heads, and how they agree
    teacher: [users, L] ranked items, -1 at an empty place, taught from the first epoch on in place of the consensus
             (two-stage distillation); the heads agree all the same, but are not taught what they agree on
    watch_rankings: called with every ranking: the epoch, the trainer (`trainer.consensus.queue` holds the newest
             rankings) and the lists [users, ...] of each head and consensus; of several processes each has its own
             users'
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

    loss:   [heads], without the weights
    tables: on users and on items, [heads, n, d] each
    others: on all other parameters
    """

    loss: Tensor
    tables: list[Tensor] = field(default_factory=list)
    others: list[Tensor] = field(default_factory=list)


class Trainer:
    """The model, the weights of its heads, and what they agree on.

    weights: [heads] lambda_x; initial: [heads] L^0_x (Eq. 15)
    """

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
        self.weights = torch.ones(len(self.model.names), device=self.device, dtype=self.model.user.dtype)  # line 2
        self.initial = torch.ones_like(self.weights)
        self.settling = torch.ones((), dtype=torch.bool, device=self.device)  # whether L^0 is overwritten
        self.names = self.model.names
        self.students = [name for name in self.names if name not in settings.consensus.undistilled]
        self.sampler = Sampler(data.train)
        self.sampled = SampledSoftmax.of(data.train, settings.losses, self.device, self.model.user.dtype)
        chosen = choose(settings.objectives, settings.losses)
        self.head_losses = parts.head_losses(self.model, chosen, data.train, self.sampled)
        self.consensus = self._make_consensus(parts.consensus, parts.teacher)
        embeddings = {id(self.model.user), id(self.model.item)}
        self.others = [each for each in self.model.parameters() if id(each) not in embeddings]
        self._make_optimisers()
        self.noise = torch.Generator(self.device)
        self.streams = Streams(self.device, 2)
        self.step = CudaGraph(self._step, self.noise, not group.several)
        self._next: dict[int, Batch] = {}  # the pairs of the next epoch

    def _make_consensus(self, kind: type[RankingConsensus], teacher: Tensor | None) -> RankingConsensus:
        data, chosen = self.data, self.settings.training
        users, metric = sample(data.validated, chosen.validated_users, self.seed), fitting_metric(chosen.metric, data)
        validation = Validation(data, metric, self.device, self.group, users)
        return kind(data, self.settings.consensus, self.seed, self.model, validation, teacher)

    def _make_optimisers(self) -> None:
        training, balance, on_gpu = self.settings.training, self.settings.balance, self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True,
            capturable=on_gpu,
        )  # fmt: skip
        kinds = {"adam": torch.optim.Adam, "descent": torch.optim.SGD}
        options = {"fused": True, "capturable": on_gpu} if balance.optimiser == "adam" else {}
        self.weight_optimiser = kinds[balance.optimiser]([self.weights], lr=balance.learning_rate, **options)

    def epoch(self, epoch: int) -> dict[str, Any]:
        """One pass over the observed pairs; a loss that is not finite ends the run by name."""
        begin = time.perf_counter()
        self.noise.manual_seed(derive_seed(self.seed, epoch, 1, *([self.group.rank] if self.group.rank else [])))
        taught = self.consensus.is_taught(epoch)
        with self._precision():
            steps = [self.step(batch, taught).clone() for batch in self.batches(epoch)]  # line 4
        if epoch + 1 < self.settings.training.epochs:
            self._next = {epoch + 1: self._draw(epoch + 1)}  # while a GPU is still at work
        report = torch.stack(steps).cpu()  # [batches, 3, heads]
        self._refuse_infinite(report, epoch)
        own, learned, scale = (dict(zip(self.names, row, strict=True)) for row in report.mean(0).tolist())
        weights = dict(zip(self.names, self.weights.tolist(), strict=True))
        return {
            "epoch": epoch, "loss": own, "consensus_loss": learned, "gradient": scale, "weight": weights,
            "seconds": time.perf_counter() - begin,
        }  # fmt: skip

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This process's part of every batch of an epoch."""
        pairs = self._next.pop(epoch, None) or self._draw(epoch)
        for number, batch in enumerate(pairs.split(self.settings.training.batch)):
            if number < 2:
                self.settling.fill_(epoch < self.settings.balance.settle or epoch == number == 0)
            if self.sampled is not None:
                batch = replace(batch, drawn=self.sampled.draw(self.seed, epoch, number).to(self.device))
            yield batch.part(self.group.share(len(batch))) if self.group.several else batch

    def _draw(self, epoch: int) -> Batch:
        return self.sampler.epoch(self.seed, epoch).to(self.device)

    def _step(self, batch: Batch, taught: bool) -> Tensor:
        """Lines 5 to 12: [3, heads] L_CF-x, L_CL-x and the gradient scale G_x of this batch.

        Both terms, and later the heads' weights and the model's parameters, do not depend on each other: on a GPU they
        go side by side, each in its stream.
        """
        with self.streams.stream(0):
            own = self._own_term(batch)  # line 5: L_CF-x
        learned = Term(torch.zeros_like(self.weights))  # lines 6, 7: in the warm-up L_x = L_CF-x
        if taught:
            with self.streams.stream(1):
                learned = self._consensus_term(batch)  # lines 8, 9: L_x = L_CF-x + alpha L_CL-x
        self.streams.join()
        scale, slope = self._set_gradients(batch, own, learned)  # line 10: of L = sum_x lambda_x L_x
        if self.settings.balances:
            with self.streams.stream(0):
                self._balance(own.loss, learned.loss, scale, slope)  # line 11: L_b and lambda_x
        self.optimiser.step()  # line 12: theta_s, theta_x
        self.streams.end()
        return torch.stack([own.loss, learned.loss, scale])

    def _own_term(self, batch: Batch) -> Term:
        """lambda_x L_CF-x (Eq. 1-5)."""
        copies = self._copies(EVERY_HEAD, EVERY_HEAD)
        loss = self.head_losses.own(*copies, batch, self.noise)
        return self._term(loss, self.weights, copies)

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

    def _copies(self, of_users: slice, of_items: slice) -> tuple[Tensor, Tensor]:
        """([h, users, d], [h, items, d]) the tables as leaves, one for each of those runs of heads."""
        user, item = (
            table.detach().expand(len(self.names), -1, -1)[heads].requires_grad_()
            for table, heads in ((self.model.user, of_users), (self.model.item, of_items))
        )
        return user, item

    def _term(self, loss: Tensor, weights: Tensor, copies: tuple[Tensor, Tensor]) -> Term:
        """The gradient of sum_x weights_x loss_x. loss, weights: [heads]; copies: each head's of users and items."""
        gradients = torch.autograd.grad((weights * loss).sum(), [*copies, *self.others], materialize_grads=True)
        self.head_losses.end()
        others = [each.contiguous() for each in gradients[2:]]  # the optimiser goes through memory
        return Term(loss.detach(), list(gradients[:2]), others)

    def _set_gradients(self, batch: Batch, own: Term, learned: Term) -> tuple[Tensor, Tensor]:
        """Set every parameter's gradient: ([heads], [heads]) G_x and lambda_x dG_x / dlambda_x (Eq. 16).

        Of several processes both losses become those of the whole batch.
        """
        others = list(torch._foreach_add(own.others, learned.others)) if learned.others else own.others
        if batch.whole is not None:
            self._all_reduce(batch.whole, own, learned, others)
        for parameter, gradient in zip(self.others, others, strict=True):
            parameter.grad = gradient
        first = [each.start for each in self.head_losses.student_slices(self.students)] if learned.tables else [0, 0]
        squares, products = [], []
        for side, table in enumerate((self.model.user, self.model.item)):
            more = learned.tables[side] if learned.tables else None
            over_heads = sums_of_groups if len(table) == 1 else added_groups  # a table for each head: nothing is summed
            total, square, product = over_heads(own.tables[side], more, first[side])
            table.grad = total.reshape(table.shape).contiguous()
            squares.append(square)
            products.append(product)
        return gradient_scale(squares, products, self.settings.balance.norm)

    def _all_reduce(self, whole: Batch, own: Term, learned: Term, others: list[Tensor]) -> None:
        """Replace losses and gradients by those of the whole batch.

        All losses are sums over the batch's rows, or over its distinct users or items, each counted by one process
        alone; so their sums, and the sums of their gradients, are those of one process that has the whole batch.
        Of gradients on tables only rows that the batch can touch travel: the others are 0 everywhere.
        """
        losses, tables, touched = torch.stack([own.loss, learned.loss]), own.tables, self.head_losses.touched(whole)
        if learned.tables:
            tables = tables + learned.tables
            touched += self.head_losses.touched_by_consensus(whole, self.consensus.target)
        rows = [table if at is None else table[:, at] for table, at in zip(tables, touched, strict=True)]
        self.group.all_reduce([losses, *rows, *others])
        for table, at, total in zip(tables, touched, rows, strict=True):
            if at is not None:
                table.index_copy_(1, at, total)
        own.loss, learned.loss = losses.unbind()

    def _balance(self, own: Tensor, learned: Tensor, scale: Tensor, slope: Tensor) -> None:
        """One step on the weights (Eq. 15, 16); the model's gradients are only looked at.

        slope: <lambda_x g_CF, g> / |g|. Where the consensus loss carries lambda_x too, it is G_x.
        """
        balance, chosen = self.settings.balance, self.settings.consensus
        loss = self.weights * own if balance.ratio_of == "own" else own + chosen.weight * learned
        self.initial.copy_(torch.where(self.settling & (loss > 0), loss, self.initial))  # 0 would be no measure
        ratio = training_ratio(loss, self.initial, balance.exponent)
        slope = (scale if chosen.weight_range is None else slope) / self.weights
        self.weights.grad = weight_gradient(scale, slope, ratio)
        self.weight_optimiser.step()
        total = balance.total if balance.total is not None else float(len(self.names))
        self.weights.copy_(normalise(self.weights, total, balance.floor))

    def _refuse_infinite(self, report: Tensor, epoch: int) -> None:
        bad = (~report.isfinite()).nonzero()
        if len(bad):
            batch, part, head = bad[0].tolist()
            kind = ("loss", "consensus loss", "gradient")[part]
            raise DataError(
                f"the {kind} of head {self.names[head]!r} is {report[batch, part, head].item()} in epoch {epoch}, "
                f"batch {batch}. The last good checkpoint is left as it was; try a lower training.learning_rate"
            )

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Products in TF32 on a GPU, if wanted; as before afterwards."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.settings.training.tf32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def end(self) -> None:
        """Let go of what only further epochs need."""
        self.step.forget()
        self._next.clear()

    def state_dict(self) -> dict[str, Any]:
        """What the next epoch depends on, beside the model: random draws depend on seed and epoch alone."""
        return {
            "weights": self.weights, "initial": self.initial, "optimiser": self.optimiser.state_dict(),
            "weight_optimiser": self.weight_optimiser.state_dict(), "consensus": self.consensus.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Of the optimisers only their state is taken, not what the settings say."""
        self.weights.copy_(state["weights"])
        self.initial.copy_(state["initial"])
        self.consensus.load_state_dict(state["consensus"])
        for name in ("optimiser", "weight_optimiser"):
            optimiser: torch.optim.Optimizer = getattr(self, name)
            parts = {int(number): part for number, part in state[name]["state"].items()}  # in JSON keys are text
            optimiser.load_state_dict({"state": parts, "param_groups": optimiser.state_dict()["param_groups"]})
