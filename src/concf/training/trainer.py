"""The state of a run, one step and one epoch of it (the body of Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from concf.consensus.agreement import Agreement
from concf.data.split import Split
from concf.errors import DataError
from concf.evaluation.validation import Validation, sample
from concf.evaluation.validation_metric import fitting_metric
from concf.model.encoders import EVERY_HEAD, EncoderMaker
from concf.model.objectives import Objective, choose
from concf.runtime.process_group import ALONE, ProcessGroup, fingerprint
from concf.runtime.seeds import derive_seed
from concf.training.balance import gradient_scale, normalise, training_ratio, weight_gradient
from concf.training.batches import Batch, Sampler
from concf.training.config.settings import ConCFSettings
from concf.training.cuda_graphs import CudaGraph, Streams
from concf.training.embeddings.all_reduce import add_up, refuse_unsplittable
from concf.training.embeddings.replicated import ReplicatedTables
from concf.training.embeddings.row_index import Places, Rows
from concf.training.embeddings.sharded import ShardedTables, refuse_unshardable
from concf.training.head_losses import HeadLosses
from concf.training.run import make_model
from concf.training.sampled_softmax import SampledSoftmax


class Trainer:
    """Model and weights of the heads of a run, and what they agree on."""

    def __init__(
        self,
        data: Split,
        settings: ConCFSettings,
        seed: int = 0,
        device: str | torch.device = "cpu",
        *,
        objectives: Mapping[str, Objective] | None = None,
        encoder: EncoderMaker | None = None,
        teacher: Tensor | None = None,
        group: ProcessGroup = ALONE,
    ) -> None:
        self.data, self.settings, self.seed, self.group = data, settings, seed, group
        refuse_unsplittable(group, data, settings)
        self.device = torch.device(device)
        self.objectives = choose(settings.objectives, settings.losses, objectives)
        self.model = make_model(data, settings, objectives, encoder, seed, group).to(self.device)
        self.names = self.model.names
        embeddings = {id(self.model.user), id(self.model.item)}
        self.others = [part for part in self.model.parameters() if id(part) not in embeddings]
        self.batch = settings.training.pairs_of_batch(data.train.nnz)
        by_user = self.batch if settings.training.order == "users" else None
        self.sampled = SampledSoftmax.of(data.train, settings.losses, self.device, self.model.user.dtype)
        self.head_losses = HeadLosses(self.model, self.objectives, data.train, by_user, self.sampled)
        refuse_unshardable(group, settings, self.head_losses)
        self.sharded = ShardedTables(group, self.model, self.head_losses) if group.sharded else None
        self.tables = self.sharded or ReplicatedTables(self.model)
        self.sampler = Sampler(data.train)
        self.agreement = self._agreement(teacher)
        self.noise = torch.Generator(self.device)
        self.weights = torch.ones(len(self.names), device=self.device, dtype=self.model.user.dtype)  # lambda
        self.initial = torch.ones_like(self.weights)  # L^0
        self.settling = torch.ones((), dtype=torch.bool, device=self.device)  # whether L^0 is overwritten
        self.pull = torch.zeros_like(self.weights)  # the sum of Eq. 16's gradients in this epoch
        self._make_optimisers()
        self.streams = Streams(self.device, 2)
        self._graph = CudaGraph(self._step, self.noise, not group.several)
        self._drawn: dict[int, Batch] = {}

    def _agreement(self, teacher: Tensor | None) -> Agreement:
        data, chosen = self.data, self.settings.training
        users, metric = sample(data.validated, chosen.validated_users, self.seed), fitting_metric(chosen.metric, data)
        validation = Validation(data, metric, self.device, self.group, users)
        mine = self.group.share(data.train.shape[0])
        ranked = None if self.sharded is None else partial(self.sharded.ranked, data.train[mine])
        return Agreement(data, self.settings.consensus, self.seed, self.model, validation, teacher, ranked, self.group)

    @property
    def alike(self) -> list[Tensor]:
        """The parameters that all processes hold."""
        return list(self.others) if self.sharded else list(self.model.parameters())

    @property
    def queue(self) -> list[Tensor]:
        """The newest rankings, [heads, users, M] each, the newest last; of several processes each holds its users'."""
        return self.agreement.queue

    @property
    def consensus_target(self) -> Tensor:
        """[users, L] the consensus that is taught, -1 at an empty place."""
        return self.agreement.consensus_target

    def _make_optimisers(self) -> None:
        training, balance, on_gpu = self.settings.training, self.settings.balance, self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True,
            capturable=on_gpu,
        )  # fmt: skip
        kinds = {"adam": torch.optim.Adam, "descent": torch.optim.SGD}
        options = {"fused": True, "capturable": on_gpu} if balance.optimiser == "adam" else {}
        self.weight_optimiser = kinds[balance.optimiser]([self.weights], lr=balance.learning_rate, **options)

    def _step(self, batch: Batch, teaching: bool) -> Tensor:
        """[3, heads] L_CF, L_CL and the gradient scale G, after the parameters and weights were updated."""
        rows = self.tables.fetched(batch, self.consensus_target if teaching else None)
        with self.streams.stream(0):
            copies = rows[0].copies(len(self.names), EVERY_HEAD, EVERY_HEAD)
            own = self.head_losses.own(*copies, batch, self.noise, rows[0].places)
            of_tables, of_others = self._gradients(self.weights * own, copies)
            own = own.detach()  # nothing of its graph is left to the consensus loss's
        consensus_loss = torch.zeros_like(self.weights)
        if teaching:
            with self.streams.stream(1):
                copies = rows[-1].copies(len(self.names), *self.head_losses.student_slices(self._students()))
                consensus_loss = self._consensus_loss(copies, batch, rows[-1].places)
                of_consensus = self._gradients(
                    self.settings.consensus.weight * self._consensus_weights() * consensus_loss, copies
                )
                consensus_loss = consensus_loss.detach()
        self.streams.join()
        if teaching:
            of_tables += of_consensus[0]
            if of_others:
                of_others = list(torch._foreach_add(of_others, of_consensus[1]))
        if self.group.several:
            listed = None if self.settings.consensus.by == "softmax" else self.consensus_target
            here = [] if self.sharded else of_tables  # those of sharded tables go to the rows' owners
            own, consensus_loss = add_up(
                self.group, self.head_losses, batch, listed, own, consensus_loss, here, of_others
            )
        scale, slope = self._share_gradients(of_tables, rows)
        for parameter, gradient in zip(self.others, of_others, strict=True):
            parameter.grad = gradient
        with self.streams.stream(0):
            if self.settings.balances:
                self._balance(own, consensus_loss, scale, slope)
        self.optimiser.step()
        self.streams.end()
        return torch.stack([own, consensus_loss, scale])

    def _gradients(self, costs: Tensor, copies: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of the sum of costs [heads]: on the copies of both tables, and on the parameters that are not embeddings."""
        found = torch.autograd.grad(costs.sum(), [*copies, *self.others], materialize_grads=True)
        self.head_losses.end()
        return list(found[:2]), [part.contiguous() for part in found[2:]]  # the optimiser goes through memory

    def _share_gradients(self, found: list[Tensor], rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        """G_x and lambda_x dG_x / dlambda_x; the heads' gradients on their copies are summed on the embeddings.

        found: lambda_x g_CF on users and items, [heads, n, d] each, then those of the consensus loss if there is one
        """
        squares, products = [], []
        for place in (0, 1):
            first = self.head_losses.student_slices(self._students())[place].start if len(found) > 2 else 0
            square, product = self.tables.sums(place, found[place::2], rows, first)
            squares.append(square)
            products.append(product)
        return gradient_scale(squares, products, self.settings.balance.norm, self.settings.balance.item_share)

    def _students(self) -> list[str]:
        return [name for name in self.names if name not in self.settings.consensus.undistilled]

    def _consensus_loss(self, copies: tuple[Tensor, Tensor], batch: Batch, places: Places) -> Tensor:
        chosen = self.settings.consensus
        if chosen.by == "softmax":
            return self.head_losses.peers(*copies, batch, self._students(), self.noise)
        clip = {} if chosen.clip is None else dict.fromkeys(chosen.clipped, chosen.clip)
        return self.head_losses.consensus(
            *copies, batch, self.consensus_target, chosen.length, self._students(), self.noise, clip, places
        )

    def _consensus_weights(self) -> Tensor:
        limits = self.settings.consensus.weight_range
        return self.weights if limits is None else self.weights.clamp(*limits)

    def _balance(self, own: Tensor, consensus_loss: Tensor, scale: Tensor, slope: Tensor) -> None:
        """One step on the weights (Eq. 15, 16); the model's gradients are only looked at.

        slope: <lambda_x g_CF, g> / |g|. Where the consensus loss carries lambda_x too, lambda_x dG_x / dlambda_x is
        G_x.
        """
        balance, chosen = self.settings.balance, self.settings.consensus
        loss = self.weights * own if balance.ratio_of == "own" else own + chosen.weight * consensus_loss
        self.initial.copy_(torch.where(self.settling & (loss > 0), loss, self.initial))  # 0 would be no measure
        ratio = training_ratio(loss, self.initial, balance.exponent)
        slope = (scale if chosen.weight_range is None else slope) / self.weights
        self.pull += weight_gradient(scale, slope, ratio)
        if balance.update == "batch":
            self._move_weights(1)

    def _move_weights(self, batches: int) -> None:
        balance = self.settings.balance
        self.weights.grad = self.pull / batches
        self.weight_optimiser.step()
        self.pull.zero_()
        total = balance.total if balance.total is not None else float(len(self.names))
        self.weights.copy_(normalise(self.weights, total, balance.floor))

    def epoch(self, epoch: int) -> dict[str, Any]:
        """One pass over the observed pairs; a loss that is not finite ends the run by name."""
        begin = time.perf_counter()
        drawn = self._drawn.pop(epoch, None) or self._draw(epoch)
        self.noise.manual_seed(derive_seed(self.seed, epoch, 1, *([self.group.rank] if self.group.rank else [])))
        teaching, reports = self.agreement.teaches(epoch), []
        with self._precision():
            for number, batch in enumerate(drawn.split(self.batch)):
                if number < 2:
                    self.settling.fill_(epoch < self.settings.balance.settle or epoch == number == 0)
                if self.sampled is not None:
                    batch = replace(batch, drawn=self.sampled.draw(self.seed, epoch, number).to(self.device))
                part = batch.part(self.group.share(len(batch))) if self.group.several else batch
                reports.append(self._graph(part, teaching).clone())
        if self.settings.balances and self.settings.balance.update == "epoch":
            self._move_weights(len(reports))
        del drawn  # before the next one is there
        if epoch + 1 < self.settings.training.epochs:
            self._drawn = {epoch + 1: self._draw(epoch + 1)}  # while a GPU is still at work
        steps = torch.stack(reports).cpu()  # [batches, 3, heads]
        self._refuse_infinite(steps, epoch)
        own, consensus_loss, scale = (dict(zip(self.names, row, strict=True)) for row in steps.mean(0).tolist())
        weights = dict(zip(self.names, self.weights.tolist(), strict=True))
        seconds = time.perf_counter() - begin
        return {
            "epoch": epoch,
            "loss": own,
            "consensus_loss": consensus_loss,
            "gradient": scale,
            "weight": weights,
            "seconds": seconds,
        }

    def end(self) -> None:
        """Let go of what only further epochs need."""
        self._graph.forget()
        self._drawn.clear()

    def _draw(self, epoch: int) -> Batch:
        by_user = self.settings.training.order == "users"
        return self.sampler.epoch(self.seed, epoch, by_user).to(self.device)

    def _refuse_infinite(self, steps: Tensor, epoch: int) -> None:
        bad = (~steps.isfinite()).nonzero()
        if len(bad):
            batch, part, head = bad[0].tolist()
            kind = ("loss", "consensus loss", "gradient")[part]
            raise DataError(
                f"the {kind} of head {self.names[head]!r} is {steps[batch, part, head].item()} in epoch {epoch}, batch "
                f"{batch}. The last good checkpoint is left as it was; try a lower training.learning_rate"
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

    def agree(self) -> dict[str, Tensor]:
        """Rank everything, renew the consensus and the consensus target: the lists [users, ...] of each head and
        consensus.

        Of several processes each ranks for its own users; the consensus target is everyone's. One head may rank for a
        sample.
        """
        self.group.refuse_difference({"model": fingerprint(self.alike)})
        return self.agreement.renewed()

    def validate(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """The validation figure of each."""
        return self.agreement.validate(lists)
