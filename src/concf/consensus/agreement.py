"""What the heads agree on: everyone's rankings, the consensus, how well each does, and what is taught of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import exp

import numpy as np
import torch
from torch import Tensor

from concf.consensus.consensus import NOTHING, consensus, consistencies
from concf.consensus.fixed_voters import fixed_voter
from concf.consensus.reranker import Reranker
from concf.consensus.settings import CONSENSUS, R_CONSENSUS, ConsensusSettings
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.ranking import Seen, rank, rank_everyone
from concf.evaluation.validation import Validation, shared_places
from concf.model.model import Model
from concf.model.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup

Ranked = Callable[[int, Tensor | None], dict[str, Tensor]]


class Agreement:
    """Rankings and consensus of a run.

    queue:  the newest rankings, [heads, users, M] each, the newest last; of several processes each holds its users'
    window: the rankings over which consistency is measured
    consensus_target: [users, L] the consensus that is taught, -1 at an empty place
    ranked: of so many places, and of those of this process's users or all, the lists of each head; None: they are
            ranked here, by a model that this process holds whole
    """

    def __init__(
        self, data: Split, settings: ConsensusSettings, seed: int, model: Model, validation: Validation,
        teacher: Tensor | None = None, ranked: Ranked | None = None, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        self.data, self.settings, self.seed, self.model, self.group = data, settings, seed, model, group
        self.names, self.device, self.ranked = model.names, model.user.device, ranked
        self.several = len(self.names) > 1
        self.mine = group.share(data.train.shape[0])  # the users that this process ranks for
        self.seen = Seen(data.train, self.device)
        self.validation = validation
        self.ranks_all = self.several or validation.validated is data.validated  # what heads agree on is for everyone
        self.fixed_voters = self._fixed_rankings()
        self.voter_weights: list[float] = []
        self.reranker = self._called() if self.several and settings.rerank else None
        self._reranked = self._cross_fitted = torch.empty(
            0
        )  # the re-ranker's scores, and the re-ranked lists that are validated
        self.queue: list[Tensor] = []
        self.window: list[Tensor] = []
        self._voted: tuple[Tensor, list[Tensor]] | None = None  # of the newest consensus: the ranking, and its window
        self.n_rankings = 0
        self.consensus_target = torch.full(
            (self.model.n_users, self._target_length()), NOTHING, dtype=torch.int32, device=self.device
        )
        self.teacher = None if teacher is None else self._learn_from(teacher)  # what it is known by

    def _learn_from(self, teacher: Tensor) -> str:
        """Take the lists as the consensus target; their SHA-256."""
        users, items = self.model.n_users, self.model.n_items
        if self.settings.by == "softmax":
            raise ConfigError("teacher: with consensus.by = 'softmax' heads learn from each other alone")
        if teacher.ndim != 2 or len(teacher) != users or not teacher.shape[1]:
            raise ConfigError(f"teacher: expected ranked lists [{users} users, L], L > 0, found {list(teacher.shape)}")
        strange = teacher[(teacher < NOTHING) | (teacher >= items)]
        if len(strange):
            raise ConfigError(f"teacher: expected items below {items} and -1 for none, found item {int(strange[0])}")
        length = min(teacher.shape[1], self.consensus_target.shape[1])
        self.consensus_target[:, :length] = teacher[:, :length].to(self.consensus_target)
        return sha256(self.consensus_target.cpu().numpy().tobytes()).hexdigest()

    def _fixed_rankings(self) -> Tensor:
        """[fixed voters, users, M] the rankings of those who vote without learning."""
        kept = min(self.settings.kept or self.model.n_items, self.model.n_items)
        asked = self.settings.fixed_voters if self.several else ()
        lists = [fixed_voter(name).ranking(self.data.train, kept, self.seed, self.mine) for name in asked]
        empty = torch.empty(0, self.mine.stop - self.mine.start, kept, dtype=torch.int32)
        return (torch.stack(lists) if lists else empty).to(self.device)

    def _called(self) -> Reranker:
        temperature = self.settings.temperature
        return Reranker(
            self.data.train, self.validation, self._places(), temperature, self.mine, self.device, self.group
        )

    def _target_length(self) -> int:
        chosen = self.settings
        if chosen.tail is not None:
            return min(chosen.length + chosen.tail, self.model.n_items)
        return min(len(self._voters()) * self._places(), self.model.n_items)

    def _places(self) -> int:
        return min(self.settings.top_k or self.model.n_items, self.model.n_items)

    def _voters(self) -> list[int]:
        """The places of the heads and fixed voters that vote."""
        return [place for place, name in enumerate(self._electorate()) if name not in self.settings.non_voting]

    def _witnesses(self) -> list[str]:
        """The heads that a re-ranker hears by their vectors too: all that vote."""
        return [name for name in self.names if name not in self.settings.non_voting]

    def _electorate(self) -> list[str]:
        return [*self.names, *self.settings.fixed_names]

    def _voter_weights(self, newest: Tensor) -> list[float]:
        """How loud each voter is: exp(-(1 - v / the best v) / trust), v the validation of its newest ranking."""
        voters, voter_temperature = self._voters(), self.settings.voter_temperature
        if voter_temperature is None:
            return [1.0] * len(voters)
        found = [self.validation(newest[voter]) for voter in voters]
        best = max(found)
        return [exp((each / best - 1) / voter_temperature) if best else 1.0 for each in found]

    def teaches(self, epoch: int) -> bool:
        """Whether the heads are taught in that epoch."""
        if self.teacher:
            return self.settings.weight > 0
        ready = self.n_rankings >= (1 if self.settings.newest_votes else 2)
        return self.several and self.settings.weight > 0 and ready and epoch >= self.settings.first_consensus_epoch

    def renewed(self) -> dict[str, Tensor]:
        """Rank everything, update the queue and the consensus: the lists [users, ...] of each head and consensus."""
        kept = min(self.settings.kept or self.model.n_items, self.model.n_items)
        length = max(kept, self.validation.depth)
        if self.ranked is not None:
            lists = self.ranked(length, None if self.ranks_all else self.validation.users)
        else:
            factors = self.model.factors()
            lists = {name: self._ranked(name, factors[name], length) for name in self.names}
        if self.several and self.settings.by == "softmax":
            self.n_rankings += 1
            lists[CONSENSUS] = self._ranked(
                CONSENSUS, _mean([factors[self.names[x]] for x in self._voters()]), self._shown()
            )
        elif self.several:
            heads = [factors[name] for name in self._witnesses()] if self.reranker else []
            newest = torch.cat([torch.stack([each[:, :kept] for each in lists.values()]), self.fixed_voters])
            lists |= self._agreed(newest, heads)
        return lists

    def _shown(self) -> int:
        """Places of a consensus: to teach, to validate by, and to recommend from.

        `shown` are left to every user when what it holds out is taken out of its list. The test part is not looked at:
        it is taken to be as long as the validation part, as most protocols make it. Where it is longer, its longest
        rows leave somewhat fewer.
        """
        longest = int(np.diff(self.data.valid.indptr).max())
        shown = self.settings.shown + 2 * longest
        return int(min(max(self.consensus_target.shape[1], shown, self.validation.depth), self.model.n_items))

    def _ranked(self, name: str, factors: Factors, k: int) -> Tensor:
        if not torch.stack([each.isfinite().all() for each in (factors.user, factors.item)]).all():
            raise not_finite(name)
        if self.ranks_all:
            return rank_everyone(factors, k, self.seen, self.mine)
        users = self.mine.start + self.validation.users.cpu().numpy()
        return torch.from_numpy(rank(factors, users, k, seen=self.data.train, device=self.device)).to(self.device)

    def _agreed(self, newest: Tensor, heads: Sequence[Factors]) -> dict[str, Tensor]:
        """Eq. 10-12 on the newest ranking [heads and fixed voters, users, M]; the consensus target is taken from it.

        heads: whose vectors a re-ranker looks at
        """
        chosen = self.settings
        self.queue = [*self.queue, newest][-max(chosen.window, 2) :]
        self.n_rankings += 1
        self.voter_weights = self._voter_weights(newest)
        if chosen.window_moves:
            self.window = self.queue[-chosen.window :]
        votes = self.queue[-1] if chosen.newest_votes or len(self.queue) == 1 else self.queue[-2]
        self._voted = votes, list(self.window)
        both, by_rank = consensus(
            votes, self.window, self.model.n_items, self._shown(), voters=self._voters(),
            voter_weights=self.voter_weights, top_k=self._places(), temperature=chosen.temperature,
            consistency_temperature=chosen.consistency_temperature,
        )  # fmt: skip
        if self.reranker is not None:
            both, self._reranked, self._cross_fitted = self.reranker(
                both, [votes[voter] for voter in self._voters()], self.voter_weights, heads
            )
        if not self.teacher:
            self.consensus_target.copy_(
                self.group.gather(both[:, : self.consensus_target.shape[1]], self.model.n_users)
            )
        if not chosen.window_moves and self.n_rankings == chosen.window + 1:
            self.window = self.queue[-chosen.window :]  # measured at epoch |Q| p, used from the next consensus on
        return {CONSENSUS: both, R_CONSENSUS: by_rank}

    def votes(self) -> dict[str, Tensor]:
        """What the newest consensus was made of, of all users: each head's first K items, how steady it is about them.

        items: [heads and fixed voters, users, K] int32, -1 at an empty place; consistency: the same shape, C (Eq. 11),
        0 without it; voter weights: [heads and fixed voters] how loud each is, 0 for one that does not vote; re-ranked:
        [users, L] what a re-ranker gives each place of the list
        """
        if self._voted is None:
            return {}
        ranking, window = self._voted
        items, temperature = ranking[:, :, : self._places()], self.settings.consistency_temperature
        voter_weights = torch.zeros(len(items), dtype=torch.float64)
        voter_weights[self._voters()] = torch.tensor(self.voter_weights, dtype=torch.float64)
        if temperature is None or not window:
            steady = torch.zeros(items.shape, device=items.device)
        else:
            steady = consistencies(items, window, self.model.n_items, temperature)
        found = {"items": items, "consistency": steady}
        reranked = {} if self.reranker is None else {"reranked": self.whole(self._reranked)}
        return {name: self.whole(each, 1) for name, each in found.items()} | {"voter_weights": voter_weights} | reranked

    def whole(self, lists: Tensor, dim: int = 0) -> Tensor:
        """A copy of lists [this process's users, ...], of all users; where tables are divided, so are lists."""
        return lists.clone() if self.ranked else self.group.gather(lists, self.model.n_users, dim).clone()

    def validate(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """The validation figure of each."""
        cross_fitted = {} if self.reranker is None or CONSENSUS not in lists else {CONSENSUS: self._cross_fitted}
        users = self.validation.users if self.ranks_all else slice(None)
        return {name: self.validation.of_its_users(each[users]) for name, each in (dict(lists) | cross_fitted).items()}

    def shared(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """The share of the consensus that each head names too, in as many places as validation looks at; {} for one."""
        if CONSENSUS not in lists:
            return {}
        heads = {name: lists[name] for name in self.names}
        return shared_places(heads, lists[CONSENSUS], self.validation.n, self.model.n_items, self.group)


def _mean(heads: list[Factors]) -> Factors:
    """The mean of the heads' scores, as one set of vectors."""
    user, item = (torch.cat([getattr(each, side) for each in heads], 1) for side in ("user", "item"))
    bias = torch.stack([each.bias for each in heads if each.bias is not None]).sum(0)
    return Factors(user / len(heads), item, bias / len(heads))


def not_finite(head: str) -> DataError:
    """What is said of a head that cannot rank."""
    return DataError(f"head {head!r} scores by vectors that are not finite; try a lower training.learning_rate")
