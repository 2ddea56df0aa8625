"""Top-k lists of item positions for a block of users, by one head or by the consensus."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids
from concf.errors import ConfigError
from concf.evaluation.metrics import METRICS
from concf.inference.lookup import NONE, History, Positions, Short
from concf.inference.titles import Catalogue
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.strong.run import StrongRun

if TYPE_CHECKING:
    from torch import Tensor

    from concf.evaluation.evaluate import Evaluation
    from concf.evaluation.scorers import Factors, ListFunction
    from concf.inference.explain import Contributions, Votes
    from concf.inference.new_items import JoinedItems
    from concf.runs.fold_in import FoldIn
    from concf.strong.features import Clock

CELLS = 1 << 24  # most cells of a table [users, items] of scores in memory
T = TypeVar("T")
Rows = tuple[csr_array, csr_array]  # [n, items of the run] weights and times of n histories


class Ranker:
    """Heads of a run, each at its best epoch, and their consensus; users and items are positions.

    items: a catalogue whose new items are ranked too, see `concf.inference.new_items`
    clock: times of the log as of a later time than that of its newest pair
    """

    clock: Clock | None = None
    _later: Ranker | None = None

    def __init__(self, run: Run, items: Catalogue | None = None) -> None:
        self.run = run
        self.names, self.heads = run.rows(), list(run.heads)
        self.new: JoinedItems | None = None
        if items is not None:
            from concf.inference.new_items import joined

            self.new = joined(run, [Ranker(run).factors(head) for head in self.heads], items)
        self.item_ids: Ids = run.data.interactions.item_ids if self.new is None else self.new.ids
        self.n_items = len(self.item_ids)
        self._cache: dict[Hashable, Any] = {}

    def as_of(self, now: float) -> Ranker:
        """Return the ranker at a later time than that of the newest pair; the last one is cached."""
        assert isinstance(self.run, StrongRun)
        later = self._later
        if later is None or later.clock is None or later.clock.now != now:
            later = copy(self)
            later.clock, later._later = self.run.clock_at(now), None  # or each would keep the one before
            vars(later).pop("fold_in", None)
            self._later = later
        return later

    @cached_property
    def fold_in(self) -> FoldIn:
        """The heads and the consensus for histories."""
        run, clock = self.run, self.clock
        return run.fold_in.as_of(clock) if clock is not None and isinstance(run, StrongRun) else run.fold_in

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    @cached_property
    def viewed(self) -> csr_array:
        """[users, items] all interactions of the log, including held-out items."""
        return self._widened(self.run.data.interactions.matrix())

    def _widened(self, matrix: csr_array) -> csr_array:
        """Add empty columns for new items."""
        return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], self.n_items))

    @cached_property
    def newest(self) -> float | None:
        """Newest time of the log, held-out pairs included; None: it has no times."""
        times = self.run.data.interactions.timestamp
        return None if times is None else float(times.max())

    @cached_property
    def disliked(self) -> csr_array:
        """[users, items] dislikes, which are never shown."""
        return self._widened(self.run.data.interactions.disliked())

    @cached_property
    def popularity(self) -> NDArray[np.float32]:
        """[items] users of each item among the training pairs."""
        return np.pad(self.run.popularity, (0, self.n_items - len(self.run.popularity)))

    def directions(self, head: str) -> NDArray[np.float32]:
        """[items, d] a head's item vectors, normalised: their inner products are cosines."""
        return self._cached(("directions", head), lambda: self.factors(head).directions.numpy())

    def known(self, by: str) -> str:
        """Check the name of a head or consensus."""
        if by not in self.names:
            raise ConfigError(f"unknown recommender {by!r}; choose from {', '.join(self.names)}")
        return by

    def head(self, name: str | None) -> str:
        """Check the name of a head; None: the best head."""
        if name is not None and name not in self.heads:
            lists = " (a consensus is lists, not vectors)" if name in self.names else ""
            raise ConfigError(f"no head is called {name!r} in this run{lists}; choose from {', '.join(self.heads)}")
        return name or self.run.best_head()

    def factors(self, head: str) -> Factors:
        """Vectors of a head at its best epoch."""
        return self._cached(("factors", head), lambda: self._filled(self.run.factors(head).to("cpu")))

    def _filled(self, factors: Factors) -> Factors:
        return factors if self.new is None else self.new.map.filled(factors)

    def vectors(self, head: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """([users, d + 1], [items, d + 1]) as [user, 1] and [item, bias]: their inner product is the head's score."""
        factors = self.factors(head)
        user, item = factors.user.float().numpy(), factors.item.float().numpy()
        bias = np.zeros(len(item), np.float32) if factors.bias is None else factors.bias.float().numpy()
        return np.pad(user, ((0, 0), (0, 1)), constant_values=1), np.column_stack([item, bias])

    @cached_property
    def voters(self) -> dict[str, Factors]:
        """Voting heads at the best epoch of the consensus; the student where all voters are lists."""
        heads = self.run.voters or {self.run.best_head(): self.run.factors(self.run.best_head())}
        return {name: self._filled(factors.to("cpu")) for name, factors in heads.items()}

    @cached_property
    def voter_weights(self) -> list[float]:
        """Weight of each of `voters`, 1 on average; without fixed voters."""
        votes = self.votes(CONSENSUS)
        if votes is None:
            return [1.0] * len(self.voters)
        weights = dict(zip(votes.names, votes.voter_weights.tolist(), strict=True))
        own = [weights.get(name, 1.0) for name in self.voters]
        return [each * len(own) / sum(own) for each in own]

    def votes(self, by: str) -> Votes | None:
        """Votes of a consensus; the R-consensus may share those of the other. None if the run kept none."""
        from concf.inference.explain import Votes

        kept, lists = self.run.best[by].votes or self.run.best[CONSENSUS].votes, self.run.best[by].lists
        return self._cached(("votes", by), lambda: Votes(kept, lists, self.run, by) if kept else None)

    @cached_property
    def contributions(self) -> Contributions | None:
        """Contributions to the re-ranker's scores; None if the run has no re-ranker, or kept no weights of it."""
        votes = self.votes(CONSENSUS) if CONSENSUS in self.names else None
        if votes is None or votes.weights is None:
            return None
        from concf.inference.explain import Contributions

        return Contributions(votes, self.run)

    def block(self) -> int:
        """Number of users ranked at a time."""
        return int(max(1, CELLS // (self.n_items + 1)))

    def short(
        self, users: Positions, k: int, by: str, hidden: Sequence[Positions], *, anew: bool = False,
        among: Positions | None = None,
    ) -> list[Short]:  # fmt: skip
        """Return the list of each of b users, at most k items long.

        A head's score is its own; a consensus has the importance (Eq. 12) or the re-ranker's score. A user without a
        consensus list gets the list of the best head; a user without training pairs gets the most popular items.

        hidden: for each user, positions of items that may not be shown
        anew:   the voters of a consensus rank again, as its stored lists lack training items; the score is the mean R
        among:  the only items that may be shown to any of the users; every voter ranks all of them
        """
        if self.known(by) in self.heads:
            scores = self.factors(by).scores(users).numpy()
            lists = [highest(row, k, own) for row, own in zip(scores, hidden, strict=True)]
        elif anew:
            voters = [(each, each.user[users]) for each in self.voters.values()]
            lists = self._by_rank(voters, k, hidden, among)
        else:
            lists = self._stored(users, k, by, hidden)
        for at in np.flatnonzero(self.run.unlearned[users]).tolist():
            lists[at] = highest(self.popularity.copy(), k, hidden[at])
        return lists

    def _stored(self, users: Positions, k: int, by: str, hidden: Sequence[Positions]) -> list[Short]:
        """Return the stored lists of a consensus; the best head ranks for users without one."""
        self._check_length(k)
        (stored, scores), head = self.run.best[by].listed(), self.run.best_head()
        lists, rows, worth = stored[users], users, self.votes(by) if scores is None or by != CONSENSUS else scores
        if self.clock is not None and by == CONSENSUS and isinstance(self.run, StrongRun):
            lists, worth = (each.numpy() for each in self.run.reranked_at(self.clock, users))
            rows = np.arange(len(users))
        agreed = [self._agreed(row, each, k, worth, own) for row, each, own in zip(rows, lists, hidden, strict=True)]
        agreed = self._with_new(agreed, k, lambda: self.short(users, k, head, hidden))
        without = np.flatnonzero((lists[:, 0] < 0) & ~self.run.unlearned[users]).tolist()
        if without:
            closed = [np.union1d(hidden[at], self.run.unlisted[[users[at]]].indices) for at in without]
            ranked = self.short(users[without], k, head, closed)
            for at, each in zip(without, ranked, strict=True):
                agreed[at] = each
        return agreed

    def _check_length(self, k: int) -> None:
        shown = self.run.settings.consensus.shown
        if k > shown < self.n_items:
            fix = f"Train with consensus.shown = {min(k, self.n_items)}, or choose a head (by), which ranks every item"
            raise ConfigError(f"k = {k}: the consensus keeps {shown} items a user. {fix}")

    @property
    def reranks(self) -> bool:
        """Whether the consensus of a new history is re-ranked, as for users of the log."""
        return CONSENSUS in self.names and self.fold_in.weights is not None

    def rows_of(self, histories: Sequence[History]) -> Rows:
        """[n, items of the run] weights and times of the histories, without new items."""
        ends = np.cumsum([0, *(len(each.items) for each in histories)])
        used, times, weights = map(np.concatenate, zip(*histories, History.of(NONE), strict=True))
        shape, n = (len(histories), self.n_items), self.run.log.shape[1]
        rows, when = (csr_array((values, used, ends), shape=shape) for values in (weights, times))
        return (rows, when) if self.new is None else (rows[:, :n], when[:, :n])

    def _agreed(
        self, row: int, listed: NDArray[np.int32], k: int, votes: Votes | NDArray[np.float32] | None, hidden: Positions
    ) -> Short:
        """First k items of a consensus list [L] that may be shown, and their scores. votes: or the scores [n, L]"""
        excluded = {*hidden.tolist(), *(() if self.new is None else self.new.unused)}
        first = enumerate(listed[: k + len(excluded)].tolist())
        ranks = [rank for rank, item in first if item >= 0 and item not in excluded][:k]
        items = listed[ranks]
        if isinstance(votes, np.ndarray):
            return items, votes[row, ranks]
        return items, np.zeros(len(items), np.float32) if votes is None else votes.worth(row, items)

    def _with_new(self, agreed: list[Short], k: int, ranked: Callable[[], list[Short]]) -> list[Short]:
        """Insert new items, if there are any, at the ranks that the best head gives them."""
        if self.new is None:
            return agreed
        return [self.new.woven(*each, k) for each in zip(agreed, ranked(), strict=True)]

    def of_histories(
        self, histories: Sequence[History], k: int, by: str, hidden: Sequence[Positions],
        among: Positions | None = None,
    ) -> list[Short]:  # fmt: skip
        """Return the lists of new users, given their histories.

        Their consensus is re-ranked as for users of the log; without a re-ranker it is by R alone, since new users have
        no rankings over time. hidden, among: see `short`
        """
        import torch

        from concf.inference.explain import Votes

        with torch.inference_mode():  # a tenth faster: hundreds of small operations
            rows = self.rows_of(histories)
            if self.known(by) in self.heads:
                factors = self.factors(by)
                folded = replace(factors, user=self.fold_in.head(by, *rows).user)
                scores = folded.scores(np.arange(len(histories))).numpy()
                return [highest(row, k, own) for row, own in zip(scores, hidden, strict=True)]
            left_out = all(np.isin(used.items, own).all() for used, own in zip(histories, hidden, strict=True))
            if self.reranks and left_out and among is None and histories:
                self._check_length(k)
                (lists, plain, votes), head = self.fold_in.agree(*rows), self.run.best_head()
                listed = (lists if by == CONSENSUS else plain).numpy()
                worth = votes["reranked"].numpy() if by == CONSENSUS else Votes(votes, plain, self.run, by)
                agreed = [self._agreed(row, listed[row], k, worth, own) for row, own in enumerate(hidden)]
                return self._with_new(agreed, k, lambda: self.of_histories(histories, k, head, hidden))
            return self._by_rank([(each, each.user) for each in self.folded_voters(rows).values()], k, hidden, among)

    def folded_voters(self, histories: Rows) -> dict[str, Factors]:
        """Voting heads, with a user vector for each of n histories."""
        return {
            name: replace(each, user=self.fold_in.head(name, *histories, voting=True).user)
            for name, each in self.voters.items()
        }

    def _by_rank(
        self, voters: list[tuple[Factors, Tensor]], k: int, hidden: Sequence[Positions], among: Positions | None
    ) -> list[Short]:
        """R-consensus of heads for user vectors [b, d]: they rank all of `among`, or the first K of all items.

        Fixed voters take no part, since the run does not keep their scores.
        """
        import torch

        from concf.consensus.consensus import NOTHING, consensus, rank_importance

        if not hidden:
            return []
        columns = np.arange(self.n_items) if among is None else among
        blocked = [own if among is None else np.flatnonzero(np.isin(among, own)) for own in hidden]
        chosen = self.run.settings.consensus
        length = len(columns) if among is not None else min(max(chosen.top_k or len(columns), k), len(columns))
        newest = torch.full((len(voters), len(hidden), length), NOTHING, dtype=torch.int32)  # [voters, b, K]
        for (factors, vectors), rankings in zip(voters, newest.numpy(), strict=True):
            scores = vectors @ factors.item[columns].T
            scores = scores if factors.bias is None else scores + factors.bias[columns]
            for row, ranking, own in zip(scores.numpy(), rankings, blocked, strict=True) if length else ():
                best, _ = highest(row, length, own)
                ranking[: len(best)] = columns[best]
        _, lists = consensus(
            newest, [], self.n_items, min(k, len(columns)), voter_weights=self.voter_weights, top_k=newest.shape[2],
            temperature=chosen.temperature, consistency_temperature=None,
        )  # fmt: skip
        total = torch.zeros(len(hidden), self.n_items + 1, dtype=torch.float64)
        earned = rank_importance(torch.arange(newest.shape[2]).double(), chosen.temperature).expand(newest.shape[1:])
        for weight, ranking in zip(self.voter_weights, newest.long(), strict=True):
            total.scatter_add_(1, ranking.where(ranking >= 0, self.n_items), weight * earned)
        worth = (total / len(newest)).float().numpy()
        listed = [row[row >= 0] for row in lists.numpy()]
        return [(items, own[items]) for items, own in zip(listed, worth, strict=True)]


def highest(scores: NDArray[np.float32], k: int, hidden: Positions) -> Short:
    """Return the k highest of scores [n] that are not hidden; the lower position wins a tie. Overwrites the scores.

    The k-th highest maximum of groups of items is at most the k-th highest score, so lower scores need no sorting.
    """
    scores[hidden] = -np.inf
    k = min(k, len(scores))
    size = isqrt(len(scores) // k)
    groups = len(scores) // size
    maxima = scores[: groups * size].reshape(size, groups).max(0)
    items = np.flatnonzero(scores >= np.partition(maxima, groups - k)[groups - k])
    best = items[np.argsort(-scores[items], kind="stable")[:k]]
    best = best[np.isfinite(scores[best])]
    return best, scores[best]


def evaluate_new(
    ranker: Ranker,
    *,
    on: Literal["valid", "test"] = "test",
    at: Sequence[int] = (20, 50),
    metrics: Sequence[str] = METRICS,
) -> dict[str, Evaluation]:
    """Evaluate a ranker with new items as `Run.evaluate` does: on items of the log, since no others are held out."""
    from concf.evaluation.evaluate import evaluate
    from concf.evaluation.scorers import Factors, ListFunction

    run, data = ranker.run, ranker.run.data
    run.refuse_learned(on)
    data.note_if_few(on)
    n_items, seen, shown = data.interactions.n_items, data.seen(on), run.settings.consensus.shown
    only_new, others = data.candidates(on) is not None, np.arange(n_items, ranker.n_items)

    def scorer(name: str) -> Factors | ListFunction:
        if name in ranker.heads or only_new:  # a consensus has new items in the order of the best head
            each = ranker.factors(name if name in ranker.heads else run.best_head())
            return Factors(each.user, each.item[:n_items], None if each.bias is None else each.bias[:n_items])

        def lists(users: NDArray[np.int64], k: int) -> NDArray[np.int64]:
            listed, length = np.full((len(users), k), -1, np.int64), min(k, shown)
            hidden = [np.concatenate([seen.indices[seen.indptr[u] : seen.indptr[u + 1]], others]) for u in users]
            for row, (items, _) in zip(listed, ranker.short(users, length, name, hidden), strict=True):
                row[: len(items)] = items
            return listed

        return ListFunction(lists)

    return {name: evaluate(scorer(name), data, on=on, at=at, metrics=metrics) for name in run.rows()}
