"""The state of a run, one step and one epoch of it, and the agreement of its heads (the body of Algorithm 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from math import exp
from typing import Any

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.ranking import Seen, rank, rank_everyone
from concf.evaluation.scorers import Factors
from concf.learning.balance import gradient_scale, normalise, training_ratio, weight_gradient
from concf.learning.batches import Batch, Sampler, stream
from concf.learning.branches import Branches
from concf.learning.capture import Captured, Lanes
from concf.learning.consensus import NOTHING, consensus, consistencies
from concf.learning.divided import DividedTables, infinite, refuse_undividable
from concf.learning.guests import guest
from concf.learning.judge import Judge
from concf.learning.places import Places, Rows
from concf.learning.sampled import SampledSoftmax
from concf.learning.settings import CONSENSUS, R_CONSENSUS, ConCFSettings
from concf.learning.start import make_model
from concf.learning.together import add_up, refuse_many
from concf.learning.validation import Validation, sample, shared_places
from concf.learning.whole import WholeTables
from concf.learning.world import ALONE, World, fingerprint
from concf.model.encoders import EVERY_HEAD, EncoderMaker
from concf.model.objectives import Objective, choose


class Trainer:
    """Model, weights of the heads, rankings and consensus of a run.

    queue:  the newest rankings, [heads, users, M] each, the newest last; of several processes each holds its users'
    window: the rankings over which steadiness is measured
    lesson: [users, L] the consensus that is taught, -1 at an empty place
    """

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
        world: World = ALONE,
    ) -> None:
        self.data, self.settings, self.seed, self.world = data, settings, seed, world
        refuse_many(world, data, settings)
        self.mine = world.share(data.train.shape[0])  # the users that this process ranks for
        self.device = torch.device(device)
        self.objectives = choose(settings.objectives, settings.losses, objectives)
        self.model = make_model(data, settings, objectives, encoder, seed, world).to(self.device)
        self.names = self.model.names
        embeddings = {id(self.model.user), id(self.model.item)}
        self.others = [part for part in self.model.parameters() if id(part) not in embeddings]
        self.batch = settings.training.pairs_of_batch(data.train.nnz)
        by_user = self.batch if settings.training.order == "users" else None
        self.sampled = SampledSoftmax.of(data.train, settings.losses, self.device, self.model.user.dtype)
        self.branches = Branches(self.model, self.objectives, data.train, by_user, self.sampled)
        refuse_undividable(world, settings, self.branches)
        self.divided = DividedTables(world, self.model, self.branches) if world.divided else None
        self.tables = self.divided or WholeTables(self.model)
        self.sampler = Sampler(data.train)
        self.seen = Seen(data.train, self.device)
        evaluated = sample(data.evaluated, settings.training.validated_users, seed)
        self.validation = Validation(data, settings.training.metric, self.device, world, evaluated)
        self.ranks_all = settings.several or evaluated is data.evaluated  # what heads agree on is for everyone
        self.noise = torch.Generator(self.device)
        self.weights = torch.ones(len(self.names), device=self.device, dtype=self.model.user.dtype)  # lambda
        self.initial = torch.ones_like(self.weights)  # L^0
        self.settling = torch.ones((), dtype=torch.bool, device=self.device)  # whether L^0 is overwritten
        self.pull = torch.zeros_like(self.weights)  # the sum of Eq. 16's gradients in this epoch
        self._make_optimisers()
        self.guests = self._invited()
        self.voices: list[float] = []
        self.judge = Judge(
            data.train, self.validation, self._places(), settings.consensus.temperature, self.mine, self.device, world
        )
        self._crossed: Tensor | None = None  # the judged lists that are validated
        self.queue: list[Tensor] = []
        self.window: list[Tensor] = []
        self._voted: tuple[Tensor, list[Tensor]] | None = None  # of the newest consensus: the ranking, and its window
        self.n_rankings = 0
        self.lesson = torch.full(
            (self.model.n_users, self._lesson_length()), NOTHING, dtype=torch.int32, device=self.device
        )
        self.teacher = None if teacher is None else self._learn_from(teacher)  # what it is known by
        self.lanes = Lanes(self.device, 2)
        self._captured = Captured(self._step, self.noise, not world.several)
        self._drawn: dict[int, Batch] = {}

    @property
    def alike(self) -> list[Tensor]:
        """The parameters that all processes hold."""
        return list(self.others) if self.divided else list(self.model.parameters())

    def _make_optimisers(self) -> None:
        training, balance, on_gpu = self.settings.training, self.settings.balance, self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True,
            capturable=on_gpu,
        )  # fmt: skip
        kinds = {"adam": torch.optim.Adam, "descent": torch.optim.SGD}
        options = {"fused": True, "capturable": on_gpu} if balance.optimiser == "adam" else {}
        self.weight_optimiser = kinds[balance.optimiser]([self.weights], lr=balance.learning_rate, **options)

    def _learn_from(self, teacher: Tensor) -> str:
        """Take the lists as the lesson; their SHA-256."""
        users, items = self.model.n_users, self.model.n_items
        if self.settings.consensus.by == "softmax":
            raise ConfigError("teacher: with consensus.by = 'softmax' heads learn from each other alone")
        if teacher.ndim != 2 or len(teacher) != users or not teacher.shape[1]:
            raise ConfigError(f"teacher: expected ranked lists [{users} users, L], L > 0, found {list(teacher.shape)}")
        strange = teacher[(teacher < NOTHING) | (teacher >= items)]
        if len(strange):
            raise ConfigError(f"teacher: expected items below {items} and -1 for none, found item {int(strange[0])}")
        length = min(teacher.shape[1], self.lesson.shape[1])
        self.lesson[:, :length] = teacher[:, :length].to(self.lesson)
        return sha256(self.lesson.cpu().numpy().tobytes()).hexdigest()

    def _invited(self) -> Tensor:
        """[guests, users, M] the rankings of those who vote without learning."""
        kept = min(self.settings.consensus.kept or self.model.n_items, self.model.n_items)
        asked = self.settings.consensus.guests if self.settings.several else ()
        lists = [guest(name).ranking(self.data.train, kept, self.seed, self.mine) for name in asked]
        empty = torch.empty(0, self.mine.stop - self.mine.start, kept, dtype=torch.int32)
        return (torch.stack(lists) if lists else empty).to(self.device)

    def _lesson_length(self) -> int:
        chosen = self.settings.consensus
        if chosen.tail is not None:
            return min(chosen.length + chosen.tail, self.model.n_items)
        return min(len(self._voters()) * self._places(), self.model.n_items)

    def _places(self) -> int:
        return min(self.settings.consensus.places or self.model.n_items, self.model.n_items)

    def _voters(self) -> list[int]:
        """The places of the heads and guests that vote."""
        return [place for place, name in enumerate(self._electorate()) if name not in self.settings.consensus.silent]

    def _electorate(self) -> list[str]:
        return [*self.names, *self.settings.consensus.guests]

    def _voices(self, newest: Tensor) -> list[float]:
        """How loud each voter is: exp(-(1 - v / the best v) / trust), v the validation of its newest ranking."""
        voters, trust = self._voters(), self.settings.consensus.trust
        if trust is None:
            return [1.0] * len(voters)
        found = [self.validation(newest[voter]) for voter in voters]
        best = max(found)
        return [exp((each / best - 1) / trust) if best else 1.0 for each in found]

    def teaches(self, epoch: int) -> bool:
        """Whether the heads are taught in that epoch."""
        if self.teacher:
            return self.settings.consensus.weight > 0
        ready = self.n_rankings >= (1 if self.settings.consensus.newest_votes else 2)
        return self.settings.teaches and ready and epoch >= self.settings.consensus.first_lesson

    def _step(self, batch: Batch, teaching: bool) -> Tensor:
        """[3, heads] L_CF, L_CL and the gradient scale G, after the parameters and weights were updated."""
        rows = self.tables.fetched(batch, self.lesson if teaching else None)
        with self.lanes.lane(0):
            copies = rows[0].copies(len(self.names), EVERY_HEAD, EVERY_HEAD)
            own = self.branches.own(*copies, batch, self.noise, rows[0].places)
            of_tables, of_others = self._gradients(self.weights * own, copies)
            own = own.detach()  # nothing of its graph is left to the lesson's
        taught = torch.zeros_like(self.weights)
        if teaching:
            with self.lanes.lane(1):
                copies = rows[-1].copies(len(self.names), *self.branches.lesson_heads(self._pupils()))
                taught = self._taught(copies, batch, rows[-1].places)
                lesson = self._gradients(self.settings.consensus.weight * self._lesson_weights() * taught, copies)
                taught = taught.detach()
        self.lanes.join()
        if teaching:
            of_tables += lesson[0]
            if of_others:
                of_others = list(torch._foreach_add(of_others, lesson[1]))
        if self.world.several:
            listed = None if self.settings.consensus.by == "softmax" else self.lesson
            here = [] if self.divided else of_tables  # those of divided tables go to the rows' owners
            own, taught = add_up(self.world, self.branches, batch, listed, own, taught, here, of_others)
        scale, slope = self._share_gradients(of_tables, rows)
        for parameter, gradient in zip(self.others, of_others, strict=True):
            parameter.grad = gradient
        with self.lanes.lane(0):
            if self.settings.balances:
                self._balance(own, taught, scale, slope)
        self.optimiser.step()
        self.lanes.end()
        return torch.stack([own, taught, scale])

    def _gradients(self, costs: Tensor, copies: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Of the sum of costs [heads]: on the copies of both tables, and on the parameters that are not embeddings."""
        found = torch.autograd.grad(costs.sum(), [*copies, *self.others], materialize_grads=True)
        self.branches.end()
        return list(found[:2]), [part.contiguous() for part in found[2:]]  # the optimiser goes through memory

    def _share_gradients(self, found: list[Tensor], rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        """G_x and lambda_x dG_x / dlambda_x; the heads' gradients on their copies are summed on the embeddings.

        found: lambda_x g_CF on users and items, [heads, n, d] each, then those of the lesson if there is one
        """
        squares, products = [], []
        for place in (0, 1):
            first = self.branches.lesson_heads(self._pupils())[place].start if len(found) > 2 else 0
            square, product = self.tables.sums(place, found[place::2], rows, first)
            squares.append(square)
            products.append(product)
        return gradient_scale(squares, products, self.settings.balance.norm, self.settings.balance.item_share)

    def _pupils(self) -> list[str]:
        return [name for name in self.names if name not in self.settings.consensus.untaught]

    def _taught(self, copies: tuple[Tensor, Tensor], batch: Batch, places: Places) -> Tensor:
        chosen = self.settings.consensus
        if chosen.by == "softmax":
            return self.branches.peers(*copies, batch, self._pupils(), self.noise)
        clip = {} if chosen.clip is None else dict.fromkeys(chosen.clipped, chosen.clip)
        return self.branches.taught(
            *copies, batch, self.lesson, chosen.length, self._pupils(), self.noise, clip, places
        )

    def _lesson_weights(self) -> Tensor:
        limits = self.settings.consensus.weight_range
        return self.weights if limits is None else self.weights.clamp(*limits)

    def _balance(self, own: Tensor, taught: Tensor, scale: Tensor, slope: Tensor) -> None:
        """One step on the weights (Eq. 15, 16); the model's gradients are only looked at.

        slope: <lambda_x g_CF, g> / |g|. Where the lesson carries lambda_x too, lambda_x dG_x / dlambda_x is G_x.
        """
        balance, chosen = self.settings.balance, self.settings.consensus
        loss = self.weights * own if balance.ratio_of == "own" else own + chosen.weight * taught
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
        self.noise.manual_seed(stream(self.seed, epoch, 1, *([self.world.rank] if self.world.rank else [])))
        teaching, reports = self.teaches(epoch), []
        with self._precision():
            for number, batch in enumerate(drawn.split(self.batch)):
                if number < 2:
                    self.settling.fill_(epoch < self.settings.balance.settle or epoch == number == 0)
                if self.sampled is not None:
                    batch = replace(batch, drawn=self.sampled.draw(self.seed, epoch, number).to(self.device))
                part = batch.part(self.world.share(len(batch))) if self.world.several else batch
                reports.append(self._captured(part, teaching).clone())
        if self.settings.balances and self.settings.balance.update == "epoch":
            self._move_weights(len(reports))
        del drawn  # before the next one is there
        if epoch + 1 < self.settings.training.epochs:
            self._drawn = {epoch + 1: self._draw(epoch + 1)}  # while a GPU is still at work
        steps = torch.stack(reports).cpu()  # [batches, 3, heads]
        self._refuse_infinite(steps, epoch)
        own, taught, scale = (dict(zip(self.names, row, strict=True)) for row in steps.mean(0).tolist())
        weights = dict(zip(self.names, self.weights.tolist(), strict=True))
        seconds = time.perf_counter() - begin
        return {"epoch": epoch, "loss": own, "lesson": taught, "gradient": scale, "weight": weights, "seconds": seconds}

    def end(self) -> None:
        """Let go of what only further epochs need."""
        self._captured.forget()
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
        """Rank everything, update the queue and the consensus: the lists [users, ...] of each head and consensus.

        Of several processes each ranks for its own users; the lesson is everyone's. One head may rank for a sample.
        """
        self.world.refuse_difference({"model": fingerprint(self.alike)})
        kept = min(self.settings.consensus.kept or self.model.n_items, self.model.n_items)
        length = max(kept, self.validation.depth)
        if self.divided:
            users = None if self.ranks_all else self.validation.users
            lists = self.divided.ranked(length, self.data.train[self.mine], users)
        else:
            factors = self.model.factors()
            lists = {name: self._ranked(name, factors[name], length) for name in self.names}
        if self.settings.several and self.settings.consensus.by == "softmax":
            self.n_rankings += 1
            lists[CONSENSUS] = self._ranked(
                CONSENSUS, _mean([factors[self.names[x]] for x in self._voters()]), self._shown()
            )
        elif self.settings.several:
            lists |= self._agreed(torch.cat([torch.stack([each[:, :kept] for each in lists.values()]), self.guests]))
        return lists

    def _shown(self) -> int:
        """Places of a consensus: to teach, to validate by, and to recommend from without either held-out part."""
        shown = self.settings.consensus.shown + 2 * self.validation.longest
        return int(min(max(self.lesson.shape[1], shown, self.validation.depth), self.model.n_items))

    def _ranked(self, name: str, factors: Factors, k: int) -> Tensor:
        if not torch.stack([each.isfinite().all() for each in (factors.user, factors.item)]).all():
            raise infinite(name)
        if self.ranks_all:
            return rank_everyone(factors, k, self.seen, self.mine)
        users = self.mine.start + self.validation.users.cpu().numpy()
        return torch.from_numpy(rank(factors, users, k, seen=self.data.train, device=self.device)).to(self.device)

    def _agreed(self, newest: Tensor) -> dict[str, Tensor]:
        """Eq. 10-12 on the newest ranking [heads and guests, users, M]; the lesson is taken from it."""
        chosen = self.settings.consensus
        self.queue = [*self.queue, newest][-max(chosen.window, 2) :]
        self.n_rankings += 1
        self.voices = self._voices(newest)
        if chosen.window_moves:
            self.window = self.queue[-chosen.window :]
        votes = self.queue[-1] if chosen.newest_votes or len(self.queue) == 1 else self.queue[-2]
        self._voted = votes, list(self.window)
        both, by_rank = consensus(
            votes, self.window, self.model.n_items, self._shown(), voters=self._voters(), voices=self.voices,
            places=self._places(), temperature=chosen.temperature, steadiness=chosen.steadiness,
        )  # fmt: skip
        if chosen.judged:
            both, self._crossed = self.judge(both, [votes[voter] for voter in self._voters()], self.voices)
        if not self.teacher:
            self.lesson.copy_(self.world.gather(both[:, : self.lesson.shape[1]], self.model.n_users))
        if not chosen.window_moves and self.n_rankings == chosen.window + 1:
            self.window = self.queue[-chosen.window :]  # measured at epoch |Q| p, used from the next consensus on
        return {CONSENSUS: both, R_CONSENSUS: by_rank}

    def votes(self) -> dict[str, Tensor]:
        """What the newest consensus was made of, of all users: each head's first K items, how steady it is about them.

        items: [heads and guests, users, K] int32, -1 at an empty place; steadiness: the same shape, C (Eq. 11), 0
        without it; voices: [heads and guests] how loud each is, 0 for one that does not vote; judge: its weights
        """
        if self._voted is None:
            return {}
        ranking, window = self._voted
        items, temperature = ranking[:, :, : self._places()], self.settings.consensus.steadiness
        voices = torch.zeros(len(items), dtype=torch.float64)
        voices[self._voters()] = torch.tensor(self.voices, dtype=torch.float64)
        if temperature is None or not window:
            steady = torch.zeros(items.shape, device=items.device)
        else:
            steady = consistencies(items, window, self.model.n_items, temperature)
        found = {"items": items, "steadiness": steady}
        judged = {"judge": self.judge.weights} if self.settings.consensus.judged else {}
        return {name: self.whole(each, 1) for name, each in found.items()} | {"voices": voices} | judged

    def whole(self, lists: Tensor, dim: int = 0) -> Tensor:
        """A copy of lists [this process's users, ...], of all users; where tables are divided, so are lists."""
        return lists.clone() if self.divided else self.world.gather(lists, self.model.n_users, dim).clone()

    def validate(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """The validation figure of each."""
        crossed = {} if self._crossed is None else {CONSENSUS: self._crossed}
        users = self.validation.users if self.ranks_all else slice(None)
        return {name: self.validation.of_its_users(each[users]) for name, each in (dict(lists) | crossed).items()}

    def agreement(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """The share of the consensus that each head names too, in as many places as validation looks at; {} for one."""
        if CONSENSUS not in lists:
            return {}
        heads = {name: lists[name] for name in self.names}
        return shared_places(heads, lists[CONSENSUS], self.validation.n, self.model.n_items, self.world)


def _mean(heads: list[Factors]) -> Factors:
    """The mean of the heads' scores, as one set of vectors."""
    user, item = (torch.cat([getattr(each, side) for each in heads], 1) for side in ("user", "item"))
    bias = torch.stack([each.bias for each in heads if each.bias is not None]).sum(0)
    return Factors(user / len(heads), item, bias / len(heads))
