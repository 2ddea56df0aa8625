"""Rankings of the heads over time: the queue Q, their consensus, and the target that students learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from concf.consensus.consensus import NOTHING, consensus, consistencies
from concf.data.split import Split
from concf.errors import DataError
from concf.evaluation.ranking import Seen, rank_everyone
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation
from concf.reference.model import Model
from concf.reference.settings import ReferenceSettings
from concf.runs.settings import CONSENSUS, R_CONSENSUS


class RankingConsensus:
    """Rankings and consensus of every p epochs (Algorithm 1, lines 14 and 15).

    queue:  Q, the newest rankings, [heads, local users, M] int32 each, the newest last
    window: rankings over which consistency is measured
    target: [users, L] int32 consensus lists that students learn, padded with -1
    """

    def __init__(self, data: Split, settings: ReferenceSettings, model: Model, validation: Validation) -> None:
        self.data, self.model, self.group = data, model, validation.group
        self.settings, self.form = settings.consensus, settings.form
        self.heads, self.device = model.names, model.user.device
        self.several = len(self.heads) > 1
        self.users = self.group.share(data.train.shape[0])  # local users
        seen = data.seen("valid")
        self.seen, self.validation = Seen(seen, self.device), validation
        validated = self.users.start + validation.users.cpu().numpy()
        self.seen_by_validated = Seen(seen[validated], self.device)
        self.ranks_all = self.several or validation.validated is data.validated  # a consensus is for all users
        n_items = model.n_items
        self.top_k, self.kept = (min(n or n_items, n_items) for n in (self.settings.top_k, self.settings.kept))
        self.voters = [x for x, name in enumerate(self.heads) if name not in settings.non_voting]
        self.queue: list[Tensor] = []
        self.window: list[Tensor] = []
        self.n_rankings = 0
        self._voted: tuple[Tensor, list[Tensor]] | None = None  # ranking and window of the newest consensus
        size = model.n_users, min(self.settings.target_length or len(self.voters) * self.top_k, n_items)
        self.target = torch.full(size, NOTHING, dtype=torch.int32, device=self.device)
        self.first_epoch = settings.first_consensus_epoch

    def teaches(self, epoch: int) -> bool:
        """Line 6: whether the warm-up is over."""
        return self.several and epoch >= self.first_epoch

    def update(self) -> dict[str, Tensor]:
        """Rank all items, update Q and the consensus; returns lists [local users, ...] of each head and consensus.

        The target is gathered for all users.
        """
        length, factors = max(self.kept, self.validation.depth), self.model.factors()
        lists = {name: self._rank(name, factors[name], length) for name in self.heads}
        return lists | self._agree(lists, factors) if self.several else lists

    def validate_heads(self) -> dict[str, float]:
        """Validation metric of each head between two rankings, from the lists of the validated users alone."""
        depth = self.validation.depth
        heads = self.model.factors().items()
        lists = {name: self._rank(name, factors, depth, everyone=False) for name, factors in heads}
        return {name: self.validation.of_its_users(ranked) for name, ranked in lists.items()}

    def _rank(self, name: str, factors: Factors, k: int, *, everyone: bool = True) -> Tensor:
        if not torch.stack([side.isfinite().all() for side in (factors.user, factors.item)]).all():
            raise DataError(f"head {name!r} scores by vectors that are not finite; try a lower training.learning_rate")
        if everyone and self.ranks_all:
            return rank_everyone(factors, k, self.seen, self.users)
        user = factors.user[self.users.start + self.validation.users]
        return rank_everyone(Factors(user, factors.item, factors.bias), k, self.seen_by_validated)

    def _agree(self, lists: Mapping[str, Tensor], factors: Mapping[str, Factors]) -> dict[str, Tensor]:  # noqa: ARG002
        """Compute the RC- and the R-consensus (Eq. 10-12) of the heads' lists, and renew the target."""
        chosen = self.settings
        newest = torch.stack([ranked[:, : self.kept] for ranked in lists.values()])
        self.n_rankings += 1
        window = chosen.window or self.n_rankings
        self.queue = [*self.queue, newest][-max(window, 2) :]
        if self.form.window_moves:
            self.window = self.queue[-window:]
        ranking = self.queue[-1] if self.form.newest_votes or len(self.queue) == 1 else self.queue[-2]
        self._voted = ranking, list(self.window)
        both, by_rank = consensus(
            ranking, self.window, self.model.n_items, self._list_length(), voters=self.voters,
            top_k=self.top_k, temperature=chosen.temperature,
            consistency_temperature=chosen.consistency_temperature,
        )  # fmt: skip
        self.target.copy_(self.group.gather(both[:, : self.target.shape[1]]))
        if not self.form.window_moves and self.n_rankings == window + 1:
            self.window = self.queue[-window:]  # measured at epoch |Q| p, used from the next consensus on
        return {CONSENSUS: both, R_CONSENSUS: by_rank}

    def _list_length(self) -> int:
        """Length of a stored list: enough for the target, for validation, and for shown items plus held-out ones.

        The test part is assumed to be as long as the validation part, so that training does not read it.
        """
        longest = int(np.diff(self.data.valid.indptr).max())
        shown = self.settings.shown + 2 * longest
        return int(min(max(self.target.shape[1], shown, self.validation.depth), self.model.n_items))

    def votes(self) -> dict[str, Tensor]:
        """Votes of the newest consensus, for all users.

        items: [heads, users, K] int32 first K items of each head, padded with -1; consistency: [heads, users, K] C
        (Eq. 11), or 0; voter_weights: [heads] 1, or 0 for a head that does not vote
        """
        if self._voted is None:
            return {}
        ranking, window = self._voted
        items, temperature = ranking[:, :, : self.top_k], self.settings.consistency_temperature
        weights = torch.zeros(len(items), dtype=torch.float64)
        weights[self.voters] = 1.0
        if temperature is None or not window:
            consistency = torch.zeros(items.shape, device=items.device)
        else:
            consistency = consistencies(items, window, self.model.n_items, temperature)
        return {"items": self.whole(items, 1), "consistency": self.whole(consistency, 1), "voter_weights": weights}

    def whole(self, lists: Tensor, dim: int = 0) -> Tensor:
        """Gather lists [local users, ...] of all processes to those of all users."""
        return self.group.gather(lists, dim).clone()

    def validate(self, lists: Mapping[str, Tensor]) -> dict[str, float]:
        """Validation metric of each head and consensus."""
        users = self.validation.users if self.ranks_all else slice(None)
        return {name: self.validation.of_its_users(ranked[users]) for name, ranked in lists.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for the next epochs, of all users; rankings in both queue and window are stored once."""
        rankings = list({id(ranking): ranking for ranking in (*self.queue, *self.window)}.values())
        number = {id(ranking): n for n, ranking in enumerate(rankings)}
        return {
            "target": self.target, "n_rankings": self.n_rankings,
            "rankings": [self.group.gather(ranking, 1) for ranking in rankings],
            "queue": [number[id(ranking)] for ranking in self.queue],
            "window": [number[id(ranking)] for ranking in self.window],
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.target.copy_(state["target"])
        self.n_rankings = state["n_rankings"]
        rankings = [ranking[:, self.users].clone() for ranking in state["rankings"]]
        self.queue, self.window = ([rankings[n] for n in state[name]] for name in ("queue", "window"))
