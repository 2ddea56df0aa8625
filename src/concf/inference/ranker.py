"""Ranked lists of item positions for a block of users, by one head or by the consensus."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from math import isqrt
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import CONSENSUS, consensus, rank_importance
from concf.data.ids import Ids
from concf.errors import ConfigError
from concf.evaluation.evaluate import METRICS, Evaluation, evaluate
from concf.evaluation.ranking import NOTHING
from concf.evaluation.scorers import Factors, ListFunction
from concf.inference.new_items import JoinedItems, joined
from concf.inference.titles import Catalogue
from concf.inference.votes import Contributions, Votes, votes_of
from concf.runs.run import Run

Positions = NDArray[np.int64]
Short = tuple[NDArray[Any], NDArray[np.float32]]  # one user's item positions, best first, and their scores
CELLS = 1 << 24  # of a table [users, items] that is held at a time
T = TypeVar("T")


class Ranker:
    """The heads of a run, each at its best epoch, and their consensus with the votes that made it.

    Users and items are positions here. items: a catalogue whose new items are ranked too, see
    `concf.inference.new_items`
    """

    def __init__(self, run: Run, items: Catalogue | None = None) -> None:
        self.run = run
        self.names, self.heads = run.rows(), list(run.heads)
        self.new: JoinedItems | None = None if items is None else joined(run, Ranker(run).head_factors(), items)
        self.item_ids: Ids = run.data.interactions.item_ids if self.new is None else self.new.ids
        self.n_items = len(self.item_ids)
        self._cache: dict[Hashable, Any] = {}

    def head_factors(self) -> list[Factors]:
        """The vectors of each head at its own best epoch."""
        return [self.factors(head) for head in self.heads]

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    @cached_property
    def viewed(self) -> csr_array:
        """[users, items] everything in the log, including held-out items."""
        return self._widened(self.run.data.interactions.matrix())

    @cached_property
    def log(self) -> csr_array:
        """[users, items] what the run has learned from."""
        return self._widened(self.run.log)

    def _widened(self, matrix: csr_array) -> csr_array:
        """With columns for new items."""
        return csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], self.n_items))

    @cached_property
    def disliked(self) -> csr_array:
        """[users, items] what is never shown."""
        return self._widened(self.run.data.interactions.disliked())

    @cached_property
    def popularity(self) -> NDArray[np.float32]:
        """[items] how many users of the learned pairs have used each."""
        return np.pad(self.run.popularity, (0, self.n_items - len(self.run.popularity)))

    @cached_property
    def log_popularity(self) -> NDArray[np.float64]:
        """[items] log(1 + users), from 0 to 1."""
        logs = np.log1p(self.popularity.astype(np.float64))
        return np.asarray(logs / logs.max())

    def directions(self, head: str) -> NDArray[np.float32]:
        """[items, d] a head's vectors of length 1, whose inner products are similarities."""
        make = lambda: torch.nn.functional.normalize(self.factors(head).item.float(), dim=1).numpy()  # noqa: E731
        return self._cached(("directions", head), make)

    def known(self, by: str) -> str:
        """The name, if it is a head or consensus of the run."""
        if by not in self.names:
            raise ConfigError(f"nothing is called {by!r} in this run; choose from {', '.join(self.names)}")
        return by

    def factors(self, head: str) -> Factors:
        """The vectors of a head at its own best epoch."""
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
        """The voting heads at the best epoch of the consensus; where all voters are lists, their student for them."""
        heads = self.run.voters or {self.run.best_head(): self.run.factors(self.run.best_head())}
        return {name: self._filled(factors.to("cpu")) for name, factors in heads.items()}

    @cached_property
    def voter_weights(self) -> list[float]:
        """The weight of each of `voters`, 1 on average; fixed voters are not among them."""
        votes = self.votes(CONSENSUS)
        if votes is None:
            return [1.0] * len(self.voters)
        weights = dict(zip(votes.names, votes.voter_weights.tolist(), strict=True))
        own = [weights.get(name, 1.0) for name in self.voters]
        return [each * len(own) / sum(own) for each in own]

    def was_asked_for(self, user: int) -> bool:
        """Whether the voters were asked for a user, and so the consensus has a list of its own."""
        lists = self.run.best[CONSENSUS].lists
        return lists is None or int(lists[user, 0]) >= 0

    def votes(self, by: str) -> Votes | None:
        """The votes that made a consensus; None if the run kept none."""
        kept, lists = votes_of(self.run, by), self.run.best[by].lists
        return self._cached(("votes", by), lambda: Votes(kept, lists, self.run.settings, by) if kept else None)

    @cached_property
    def contributions(self) -> Contributions | None:
        """What lifts items in the re-ranked lists; None without a re-ranker, or if the run kept no weights of it."""
        votes = self.votes(CONSENSUS) if CONSENSUS in self.names else None
        if votes is None or votes.weights is None:
            return None
        return Contributions(votes, self.run.voters, self.run.log, self.run.settings.consensus.temperature)

    def block(self) -> int:
        """How many users are ranked at a time."""
        return int(max(1, CELLS // (self.n_items + 1)))

    def short(
        self, users: Positions, ks: Sequence[int], by: str, hidden: Sequence[Positions], *, anew: bool = False,
        among: Positions | None = None,
    ) -> list[Short]:  # fmt: skip
        """The list of each of b users, at most ks[user] long.

        The score of a head is its own; that of a consensus is the importance (Eq. 12) or the re-ranker's score. For a
        user without a consensus list, the best head ranks; one without a learned pair gets the most popular items.

        hidden: for each user, the positions of items that may not be shown
        anew:   the voters of a consensus rank again, since the lists that it keeps are without training items; the
                score is then the mean of R
        among:  the only items that may be shown to any of the users; every voter ranks all of them
        """
        lists = self._short(users, ks, by, hidden, anew, among)
        for at in np.flatnonzero(self.run.unlearned[users]).tolist():
            lists[at] = highest(self.popularity.copy(), ks[at], hidden[at])
        return lists

    def _short(
        self, users: Positions, ks: Sequence[int], by: str, hidden: Sequence[Positions], anew: bool,
        among: Positions | None,
    ) -> list[Short]:  # fmt: skip
        """`short` by vectors or votes, whatever was learned of the users."""
        if self.known(by) in self.heads:
            scores = self.factors(by).scores(torch.from_numpy(users)).numpy()
            return [highest(row, k, own) for row, k, own in zip(scores, ks, hidden, strict=True)]
        if not anew:
            lists = self._consensus_lists(max(ks, default=0), by)
            votes = self.votes(by)
            agreed = [
                self._agreed(user, lists[user], k, votes, own) for user, k, own in zip(users, ks, hidden, strict=True)
            ]
            agreed = self._with_new(agreed, ks, lambda: self.short(users, ks, self.run.best_head(), hidden))
            unasked = np.flatnonzero(lists[users, 0] < 0).tolist()
            if unasked:
                closed = [np.union1d(hidden[at], self.run.unlisted[[users[at]]].indices) for at in unasked]
                ranked = self.short(users[unasked], [ks[at] for at in unasked], self.run.best_head(), closed)
                for at, each in zip(unasked, ranked, strict=True):
                    agreed[at] = each
            return agreed
        rows = torch.from_numpy(users)
        found = self._by_rank(
            [(each, each.user[rows]) for each in self.voters.values()], max(ks, default=1), hidden, among
        )
        return [(items[:k], scores[:k]) for (items, scores), k in zip(found, ks, strict=True)]

    def _consensus_lists(self, k: int, by: str) -> NDArray[np.int32]:
        """[users, shown] the lists of a consensus, if they are k items long."""
        lists = self.run.best[by].lists
        assert lists is not None
        self._refuse_longer(k)
        return lists.cpu().numpy()

    def _refuse_longer(self, k: int) -> None:
        shown = self.run.settings.consensus.shown
        if k > shown:
            raise ConfigError(
                f"k = {k}: the consensus keeps {shown} places. Train with consensus.shown = "
                f"{min(k, self.n_items)} or more, or choose a head (by), which ranks every item"
            )

    @property
    def reranks(self) -> bool:
        """Whether the consensus of a new history is re-ranked, as that of a user of the log."""
        return CONSENSUS in self.names and self.run.fold_in.weights is not None

    def folded_votes(self, histories: csr_array, by: str) -> tuple[NDArray[np.int32], Votes]:
        """[n, L] the lists of a consensus for histories [n, items], and the votes that made them."""
        agreed = self.run.fold_in.agree(histories)
        lists = agreed.lists if by == CONSENSUS else agreed.plain
        return lists.numpy(), Votes(agreed.votes, lists, self.run.settings, by)

    def rows_of(self, histories: Sequence[Positions]) -> csr_array:
        """[n, items of the run] the histories as a matrix; of new items nothing was learned."""
        ends = np.cumsum([0, *map(len, histories)])
        used = np.concatenate([*histories, np.empty(0, np.int64)])
        rows = csr_array((np.ones(len(used), np.float32), used, ends), shape=(len(histories), self.n_items))
        return rows if self.new is None else rows[:, : self.run.log.shape[1]]

    def _agreed(self, row: int, listed: NDArray[np.int32], k: int, votes: Votes | None, hidden: Positions) -> Short:
        """The first k of the row's consensus list that may be shown, and their worth."""
        excluded = {*hidden.tolist(), *(() if self.new is None else self.new.unused)}
        first = listed[: k + len(excluded)].tolist()
        items = np.array([item for item in first if item >= 0 and item not in excluded][:k], np.int32)
        return items, np.zeros(len(items), np.float32) if votes is None else votes.worth(row, items)

    def _with_new(self, agreed: list[Short], ks: Sequence[int], ranked: Callable[[], list[Short]]) -> list[Short]:
        """Consensus lists with new items, if there are any, where the best head ranks them."""
        if self.new is None:
            return agreed
        return [self.new.woven(*each) for each in zip(agreed, ranked(), ks, strict=True)]

    def of_histories(
        self, histories: Sequence[Positions], k: int, by: str, hidden: Sequence[Positions],
        among: Positions | None = None,
    ) -> list[Short]:  # fmt: skip
        """The lists of new users, from the positions of the items that each has used.

        Their consensus is re-ranked as that of a user of the log, if there is a re-ranker; without one it is by R
        alone, as they have no rankings over time. hidden, among: see `short`
        """
        matrix, fold_in = self.rows_of(histories), self.run.fold_in
        if self.known(by) in self.heads:
            factors = self.factors(by)
            folded = Factors(fold_in.head(by, matrix).user, factors.item, factors.bias)
            scores = folded.scores(torch.arange(len(histories))).numpy()
            return [highest(row, k, own) for row, own in zip(scores, hidden, strict=True)]
        left_out = all(np.isin(used, own).all() for used, own in zip(histories, hidden, strict=True))
        if self.reranks and left_out and among is None and histories:
            self._refuse_longer(k)
            lists, votes = self.folded_votes(matrix, by)
            agreed = [self._agreed(row, lists[row], k, votes, own) for row, own in enumerate(hidden)]
            head = self.run.best_head()
            return self._with_new(agreed, [k] * len(agreed), lambda: self.of_histories(histories, k, head, hidden))
        return self._by_rank([(each, each.user) for each in self.folded_voters(matrix).values()], k, hidden, among)

    def folded_voters(self, histories: csr_array) -> dict[str, Factors]:
        """The voting heads, with a user for each history [n, items of the run]."""
        return {
            name: Factors(self.run.fold_in.head(name, histories, voting=True).user, each.item, each.bias)
            for name, each in self.voters.items()
        }

    def _by_rank(
        self, voters: list[tuple[Factors, Tensor]], k: int, hidden: Sequence[Positions], among: Positions | None
    ) -> list[Short]:
        """R-consensus of heads that rank for user vectors [b, d]: all of `among`, or their first K of all items.

        Fixed voters take no part, since the run keeps none of their scores.
        """
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
    """The k highest of scores [n] that are not hidden, ties by the lower position. Overwrites the scores.

    Items are dealt into groups. The k-th highest of the groups' maxima is at most the k-th highest score, so lower
    scores need not be sorted.
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
    ranker: Ranker, *, on: Literal["valid", "test"] = "test", at: Sequence[int] = (20, 50),
    metrics: Sequence[str] = METRICS,
) -> dict[str, Evaluation]:  # fmt: skip
    """As `Run.evaluate`, with attributes: of the items of the log alone, since no others are held out."""
    run, data = ranker.run, ranker.run.data
    run.refuse_learned(on)
    data.note_if_few(on)
    n_items, seen, shown = data.interactions.n_items, data.seen(on), run.settings.consensus.shown
    only_new, others = data.candidates(on) is not None, np.arange(n_items, ranker.n_items)

    def scorer(name: str) -> Factors | ListFunction:
        if name in ranker.heads or only_new:  # the best head says in which order a consensus has new items
            each = ranker.factors(name if name in ranker.heads else run.best_head())
            return Factors(each.user, each.item[:n_items], None if each.bias is None else each.bias[:n_items])

        def lists(users: NDArray[np.int64], k: int) -> NDArray[np.int64]:
            listed, length = np.full((len(users), k), NOTHING, np.int64), min(k, shown)
            hidden = [np.concatenate([seen.indices[seen.indptr[u] : seen.indptr[u + 1]], others]) for u in users]
            for row, (items, _) in zip(listed, ranker.short(users, [length] * len(users), name, hidden), strict=True):
                row[: len(items)] = items
            return listed

        return ListFunction(lists)

    return {name: evaluate(scorer(name), data, on=on, at=at, metrics=metrics) for name in run.rows()}
