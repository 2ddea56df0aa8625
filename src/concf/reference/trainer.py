"""Algorithm 1, lines 1, 2 and 4: an epoch of the steps of `step.py`. Lines are numbered as in the paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.validation import Validation, fitting_metric, sample
from concf.reference.batches import Batch, Sampler, unique
from concf.reference.cuda_graphs import CudaGraph
from concf.reference.encoders import MLP, Encoder
from concf.reference.head_losses import HeadLosses
from concf.reference.objectives import choose
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.run import make_model
from concf.reference.settings import ReferenceSettings
from concf.reference.step import Step, Term
from concf.runtime.arguments import derive_seed
from concf.runtime.process_group import ALONE, ProcessGroup

TF32 = True  # on a GPU: its rounding is far below the noise of a batch


@dataclass(frozen=True)
class Parts:
    """Parts of Algorithm 1 that ablations replace.

    head_losses, consensus: make the heads' losses and their consensus; trainer: makes the trainer; None: `Trainer`
    watch_rankings: called at every ranking with the epoch, the trainer (`trainer.consensus.queue` holds the newest
             rankings) and the lists [local users, ...] of each head and consensus
    """

    head_losses: Callable[..., HeadLosses] = HeadLosses
    consensus: Callable[..., RankingConsensus] = RankingConsensus
    trainer: Callable[..., Trainer] | None = None
    watch_rankings: Callable[[int, Trainer, dict[str, Tensor]], None] | None = None


class Trainer(Step):
    """Epochs of steps, their checks, and their state in a checkpoint."""

    def __init__(
        self, data: Split, settings: ReferenceSettings, seed: int = 0, device: str | torch.device = "cpu", *,
        parts: Parts | None = None, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        if group.several and settings.losses.likelihood == "mean":
            raise ConfigError("losses.likelihood = 'mean' is over the rows of a whole batch: train in one process")
        self.data, self.seed, parts = data, seed, parts or Parts()
        model = make_model(data, settings, seed).to(device)  # line 1
        losses = parts.head_losses(model, choose(settings.objectives, settings.losses, settings.form), data.train)
        users = sample(data.validated, settings.training.validated_users, seed)
        metric = fitting_metric(settings.training.metric, data)
        validation = Validation(data, metric, model.user.device, group, users)
        consensus = parts.consensus(data, settings, model, validation)
        super().__init__(settings, losses, consensus)  # line 2
        self.group, self.sampler = group, Sampler(data.train)
        self.step = CudaGraph(self._step, self.noise, not group.several)
        self._next: dict[int, Batch] = {}  # epoch -> its pairs, drawn ahead

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Train on every observed pair once; returns the record of the epoch."""
        begin = time.perf_counter()
        self.noise.manual_seed(derive_seed(self.seed, epoch, 1, *([self.group.rank] if self.group.rank else [])))
        steps, distils = [], self.distils(epoch)
        with self._precision():
            for number, batch in enumerate(self.batches(epoch)):  # line 4
                self.balance.begin(epoch, number)
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

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this process's part of every batch of an epoch."""
        pairs = self._next.pop(epoch, None) or self._draw(epoch)
        for batch in pairs.split(self.settings.training.batch):
            yield batch.part(self.group.share(len(batch))) if self.group.several else batch

    def _draw(self, epoch: int) -> Batch:
        return self.sampler.epoch(self.seed, epoch).to(self.device)

    def all_reduce(self, whole: Batch, own: Term, learned: Term, others: list[Tensor]) -> None:
        """Replace the losses and gradients of this process's part by those of the whole batch: their sums.

        Each process holds the whole model and takes its part of every batch. Every loss is a sum over the batch's rows,
        or over its distinct users or items, each counted by one process alone.
        others: gradients of all parameters but the embeddings
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
        n_items = self.model.n_items
        users, items = unique(batch.user, self.model.n_users), unique(self.head_losses.items_of_batch(batch), n_items)
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
        """Free the state for further epochs, with the captured graphs, which are in a reference cycle with the step."""
        self.step.graphs.clear()
        self._next.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next epoch needs besides the model; random draws depend on seed and epoch alone."""
        return {
            "weights": self.weights, "initial": self.balance.initial, "consensus": self.consensus.state_dict(),
            "weight_optimiser": self.balance.optimiser.state_dict(), "optimiser": self.optimiser.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.weights.copy_(state["weights"])
        self.balance.initial.copy_(state["initial"])
        _restore(self.balance.optimiser, state["weight_optimiser"])
        _restore(self.optimiser, state["optimiser"])
        self.consensus.load_state_dict(state["consensus"])


def _restore(optimiser: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load moments and step counts; learning rate and weight decay stay those of the settings."""
    moments = {int(number): part for number, part in saved["state"].items()}  # JSON has string keys
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
