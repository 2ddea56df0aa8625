"""The stages of the default: search, voters, re-ranker, student, and the same once more on the whole log.

    search    the settings of the voters, on validation            stages that are over are in the checkpoint: a run
    als       two factor models, solved                            that was killed begins again with the one that it
    softmax   a head that learns by gradients, from the first      was in, and comes to the same end
    rerank    how much each voter is to be believed, cross-fitted
    student   one head that ranks as the consensus does
    refit     the voters on training and validation part together (or on everything)
    final     the consensus of these voters for everyone, and its student

Up to `student` every figure is of users who hold out items for validation, and the settings and the weights of the
re-ranker are chosen; `refit` and `final` carry them over. What was measured before stays the run's validation.

Where users x items are too many for a budget, `final` asks the voters for a sample of the users. They teach the
student; the others have vectors without lists (`students.without_lists`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS, Pairs, UserSolver
from concf.baselines.table import voter
from concf.consensus.consensus import CONSENSUS, NOTHING, R_CONSENSUS
from concf.consensus.voters import Voter, by_factors, by_scores, kept_votes, voter_weights
from concf.errors import note
from concf.evaluation.metrics import popularity_groups
from concf.evaluation.scorers import Factors, Offset
from concf.evaluation.validation import Validation, sample
from concf.runs.run import Best
from concf.runtime.arguments import derive_seed
from concf.runtime.executors import one_thread_each
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong import search
from concf.strong.reranker import TOP, Reranker, Weights
from concf.strong.run import StrongRun
from concf.strong.search import PLANS, list_length, n_consensus_users
from concf.strong.settings import STUDENT
from concf.strong.softmax import fit_softmax
from concf.strong.students import SOLVED_BY, by_groups, solve_student, teach_student, without_lists

SMALL = 32  # factors of the first search
BEHIND = 0.8  # of ALS' validation: a softmax that is below it after its first epoch learns no longer
VOTER_TEMPERATURE = 0.04  # a voter whose validation is this share below the best has weight 1/e
VOTES_OF_USERS = {  # votes that are of users: along which dimension, and what stands for nothing
    "items": (1, NOTHING), "consistency": (1, 0.0), "reranked": (0, -torch.inf),
}  # fmt: skip


class Recipe:
    """A run of stages, and what they have come to so far.

    stages:  name -> what it does, in order
    chosen:  voter -> its settings
    vectors: head -> ([own users, d], [items, d])
    figures: head, voter or consensus -> its validation
    weights: of the re-ranker
    group:   several processes divide the users: each holds the log, vectors, lists and votes of its local users, whose
             positions are offset by the first of them; items are whole in every process
    shape:   (local users, items)
    consensus_users: local users for whom the consensus is computed, ascending: all with a learned pair, or a sample
    """

    def __init__(self, run: StrongRun, group: ProcessGroup = ALONE) -> None:
        data, settings, seed, device = run.data, run.settings, run.seed, run.device
        self.run, self.data, self.settings, self.seed, self.device = run, data, settings, seed, device
        self.group = group
        self.plan = PLANS[settings.budget]
        everyone = sample(data.validated, run.n_validated, seed)
        self.validation = Validation(data, run.metric, device, group, validated=everyone)
        few = sample(everyone, self.plan.users, seed)
        self.searched = Validation(data, run.metric, device, group, validated=few)
        self.own = group.share(data.train.shape[0])
        self.shape: tuple[int, int] = (self.own.stop - self.own.start, data.train.shape[1])
        sampled = sample(np.arange(data.train.shape[0]), n_consensus_users(data.train.shape, settings), seed)
        mine = sampled[(sampled >= self.own.start) & (sampled < self.own.stop) & ~run.unlearned[sampled]]
        self.consensus_users = torch.from_numpy(mine - self.own.start).to(device)
        self.factors = settings.dimensions
        self.top_k = min(settings.consensus.top_k or self.shape[1], self.shape[1])
        self.chosen: dict[str, dict[str, float]] = {}
        self.vectors: dict[str, tuple[Tensor, Tensor]] = {}
        self.figures: dict[str, float] = {}
        self.weights: Weights | None = None
        self.near: Tensor | None = None  # weights of before, for the re-ranker to stay near
        self._cache: dict[str, Any] = {}
        self.fixed = [name for name in settings.own_fixed if search.has_a_vote(name, data.train.shape, device)]
        self.softmaxes = [head for head in settings.own_heads if head.startswith("softmax")]
        self.stages: dict[str, Callable[[], dict[str, Any]]] = {}
        if settings.own:
            self.stages = {"search": self._search, "als": self._als}
        for head in self.softmaxes:
            self.stages[head] = partial(self._softmax, head)
        self.stages |= {"rerank": self._rerank, "student": self._student}
        self.stages |= {} if settings.refit == "none" else {"refit": self._refit}
        self.stages["final"] = self._final

    def stage(self, number: int) -> dict[str, Any]:
        """Carry out one stage: its record for the history."""
        name, work = list(self.stages.items())[number]
        begin = time.perf_counter()
        with one_thread_each():
            record = {"epoch": number, "stage": name} | work()
            if number == len(self.stages) - 1:
                self._finish()
        return record | {"seconds": time.perf_counter() - begin}

    @torch.no_grad()
    def _finish(self) -> None:
        """Hand everything over to the run."""
        last = len(self.stages) - 1
        for head in self.run.heads:
            user, item = self.vectors[head]
            vectors = {"user": self._gather(user), "item": item}
            self.run.best[head] = Best(self.figures[head], last, last, vectors)
        lists, plain, votes = self.agreed()
        lists, plain = self._gather(self._spread(lists)), self._gather(self._spread(plain))
        votes |= {
            name: self._gather(self._spread(votes[name], dim, nothing), dim)
            for name, (dim, nothing) in VOTES_OF_USERS.items()
            if name in votes
        }
        self.run.best[R_CONSENSUS] = Best(self.figures[R_CONSENSUS], last, last, lists=plain)
        self.run.best[CONSENSUS] = Best(self.figures[CONSENSUS], last, last, lists=lists, votes=votes)

    def _gather(self, part: Tensor, dim: int = 0) -> Tensor:
        """Rows of all users, of which each process has its own."""
        return self.group.gather(part, self.data.train.shape[0], dim)

    def _spread(self, part: Tensor, dim: int = 0, nothing: float = NOTHING) -> Tensor:
        """Scatter the rows of the consensus users into a tensor of all local users, filled with `nothing`."""
        if len(self.consensus_users) == self.shape[0]:
            return part
        shape = list(part.shape)
        shape[dim] = self.shape[0]
        whole = torch.empty(*shape, dtype=part.dtype, device=part.device)
        return whole.fill_(nothing).index_copy_(dim, self.consensus_users, part)

    def _seed(self, purpose: int) -> int:
        return derive_seed(self.seed, 18, purpose)

    def _mine(self, log: csr_array) -> csr_array:
        """[own users, items] of a log [users, items]."""
        return log[self.own] if self.group.several else log

    def _pairs(self, log: csr_array) -> Pairs:
        """What ALS fits: the own users' pairs of a log by their weights, and dislikes as zeros."""
        dtype, disliked = torch.get_default_dtype(), self.data.disliked
        observed = Pairs.observed(self._mine(log), self.device, dtype)
        if disliked is None:
            return observed
        weighted = self._mine(disliked) * self.settings.weights.dislike
        return observed.and_more(Pairs.observed(weighted, self.device, dtype, target=0.0))

    def _seen(self, log: csr_array) -> csr_array:
        """[own users, items] what is not listed: the pairs of a log [users, items], and dislikes."""
        mine, disliked = self._mine(log), self.data.disliked
        return mine if disliked is None else (mine + self._mine(disliked)).tocsr()

    def _solver(self, log: csr_array, factors: int | None = None) -> ALS:
        """Of the pairs of a log [users, items]. None: with all factors"""
        return ALS(self._pairs(log), self.shape, factors or self.factors, self.group)

    def _search(self) -> dict[str, Any]:
        """ALS with few factors, and the fixed voters."""
        train, few = self.data.train, self.searched
        small, seen = self._solver(train, min(SMALL, self.factors)), self._seen(train)
        start, rounds = small.start(self._seed(0)), self.plan.rounds[0]
        points = search.search_als(small, seen, few, start, search.MIDDLE, rounds)
        self.chosen["als"] = search.als_settings(points[0])
        for name in self.fixed:
            self.chosen[name] = (
                search.search_walks(train, seen, few, self.device)
                if name == "rp3beta"
                else search.search_fixed(name, train, seen, few, self.device, self.plan.rounds[0])
            )
        return {"chosen": dict(self.chosen)}

    def _als(self) -> dict[str, Any]:
        """The two best of the neighbourhood with all factors, of those that do not fall as sweeps go on."""
        train = self.data.train
        als, seen = self._solver(train), self._seen(train)
        place = tuple(
            grid.index(self.chosen["als"][name])
            for name, grid in (("unobserved", search.UNOBSERVED), ("penalty", search.PENALTY))
        )
        start = als.start(self._seed(1))
        rounds = self.plan.rounds[1]
        points = search.search_als(als, seen, self.searched, start, (place[0], place[1]), rounds)
        found = search.steady_points(als, points, seen, self.searched, self.plan.sweeps[0])
        for name, (point, vectors) in zip(("als-a", "als-b"), found, strict=True):
            self.chosen[name] = search.als_settings(point)
            self.vectors[name] = vectors
        return {"chosen": {name: self.chosen[name] for name in ("als-a", "als-b")}} | self._validate("als-a", "als-b")

    def _softmax(self, head: str) -> dict[str, Any]:
        """From the vectors of the better ALS; a second one has the next best temperature.

        One that is far behind ALS after an epoch will have no vote to speak of, and learns no longer.
        """
        train = self.data.train
        if head == self.softmaxes[0]:
            vectors = self.vectors["als-a"]
            mine, seen = self._mine(train), self._seen(train)
            seed, wanted = self._seed(2), len(self.softmaxes)
            tried = search.search_temperature(mine, seen, self.searched, *vectors, seed, wanted)
            least = BEHIND * search.measured(Factors(*vectors), seen, self.searched)
            for name, (figure, temperature, vectors) in zip(self.softmaxes, tried, strict=True):
                more = 0 if figure < least else self.plan.softmax[0]
                self.chosen[name] = {"temperature": temperature, "epochs": 1 + more}
                self.vectors[name] = vectors
        chosen = self.chosen[head]
        more = int(chosen["epochs"]) - 1
        self._fit_softmax(train, head, more, self._seed(3))
        return {"chosen": {head: chosen}} | self._validate(head)

    def _fit_softmax(self, log: csr_array, head: str, epochs: int, seed: int) -> None:
        """From where the head is."""
        temperature, start = self.chosen[head]["temperature"], self.vectors[head]
        self.vectors[head] = fit_softmax(self._mine(log), *start, temperature, epochs, seed, group=self.group)

    def _validate(self, *heads: str) -> dict[str, Any]:
        """The validation figures of heads."""
        for head in heads:
            factors = Factors(*self.vectors[head])
            self.figures[head] = search.measured(factors, self._seen(self.data.train), self.validation)
        return {"validation": {head: self.figures[head] for head in heads}}

    def _voters(self, log: csr_array, users: Tensor) -> list[Voter]:
        """Everyone who votes, for some of the own users, with what each has not used of a log [users, items]."""
        k = max(self.top_k, self.validation.depth)  # its figure may look further than its vote goes
        seen = self._seen(log)
        heads = [head for head in self.settings.heads if head in self.vectors and head != STUDENT]
        voters = [by_factors(head, Factors(*self.vectors[head]), seen, users, k) for head in heads]
        for name in self.fixed:
            fitted = voter(name, self.chosen[name]).fit(log, device=self.device, group=self.group)
            scorer = Offset(fitted, self.own.start)
            voters.append(by_scores(name, scorer, seen, users, k, group=self.group))
        return voters

    def _reranker(self, log: csr_array, users: Tensor, voters: list[Voter]) -> Reranker:
        weights = voter_weights([self.figures[each.name] for each in voters], VOTER_TEMPERATURE)
        length = max(list_length(self.data, self.settings), self.validation.depth)
        return Reranker(
            self._mine(log), users, voters, weights, length=length, top_k=self.top_k,
            temperature=self.settings.consensus.temperature, group=self.group,
        )  # fmt: skip

    def _measure(self, voters: list[Voter]) -> None:
        """The validation figures of those who vote for the validated users."""
        for each in voters:
            self.figures[each.name] = self.validation.of_its_users(each.lists)

    def _rerank(self) -> dict[str, Any]:
        """Fit the re-ranker on what the validated users hold out; its figures are cross-fitted."""
        voters = self._voters(self.data.train, self.validation.users)
        self._measure(voters)
        reranker = self._reranker(self.data.train, self.validation.users, voters)
        self.weights = reranker.fit(self.validation.held_out(reranker.lists[:, :TOP]), self.near)
        lists, _ = reranker.rerank(self.weights, cross_fitted=True)
        self.figures[R_CONSENSUS] = self.validation.of_its_users(reranker.lists)
        self.figures[CONSENSUS] = self.validation.of_its_users(lists)
        self._cache["lists"] = lists
        named = [*self.settings.fixed_voters, R_CONSENSUS, CONSENSUS]
        return {"validation": {name: self.figures[name] for name in named if name in self.figures}}

    def _cross_fitted(self) -> Tensor:
        """[own validated, L] the consensus by weights that each user's own items did not help to fit."""
        if "lists" not in self._cache:
            assert self.weights is not None
            train, users = self.data.train, self.validation.users
            reranker = self._reranker(train, users, self._voters(train, users))
            self._cache["lists"] = reranker.rerank(self.weights, cross_fitted=True)[0]
        lists: Tensor = self._cache["lists"]
        return lists

    def _distil(self, log: csr_array, users: Tensor, lists: Tensor, start: Tensor) -> None:
        (sweeps, epochs), (regressed, taught) = self.plan.student, self.plan.places
        groups, target_lists = self.settings.popularity_groups, [lists[:, :taught]]
        if groups > 1:
            of_items = torch.from_numpy(popularity_groups(log, groups)).to(self.device)
            target_lists = by_groups(lists[:, :taught], of_items, groups)
        pairs, group = self._pairs(log), self.group
        vectors = solve_student(pairs, users, lists[:, :regressed], self.shape, start, sweeps, group)
        self.vectors[STUDENT] = teach_student(*vectors, users, target_lists, epochs, self._seed(4), group)

    def _start(self) -> Tensor:
        """[items, d] where the student begins."""
        return self.vectors["als-a"][1]

    def _student(self) -> dict[str, Any]:
        """A student of the cross-fitted lists, so that its figure is honest too."""
        self._distil(self.data.train, self.validation.users, self._cross_fitted(), self._start())
        return self._validate(STUDENT)

    def _refit(self) -> dict[str, Any]:
        """The voters on the whole log, each from where it was."""
        log = self.run.log
        als = self._solver(log)
        for head in ("als-a", "als-b"):
            if head in self.vectors:
                self.vectors[head] = als.fit(self.vectors[head][1], **self.chosen[head], sweeps=self.plan.sweeps[1])
        for head in self.softmaxes:
            epochs = 1 if self.chosen[head]["epochs"] == 1 else self.plan.softmax[1]
            self._fit_softmax(log, head, epochs, self._seed(5))
        return {}

    def _final(self) -> dict[str, Any]:
        """The consensus of the voters as they are now, by the weights from before, and its student."""
        lists = self.agreed()[0]
        self._distil(self.run.log, self.consensus_users, lists, self.vectors[STUDENT][1])
        n, everyone = n_consensus_users(self.data.train.shape, self.settings), self.data.train.shape[0]
        if n == everyone:
            return {}
        if self.group.is_main:
            note(
                f"the consensus was computed for {n:,} of {everyone:,} users, drawn at random: they have taught the "
                "student, which ranks for the others (consensus_users)"
            )
        user, item = self.vectors[STUDENT]
        solve = UserSolver(item, **self.chosen.get("als-a", SOLVED_BY))
        alone = solve(self._pairs(self.run.log), len(user))
        voters = [self.vectors[head][0] for head in self.vectors if head != STUDENT]
        self.vectors[STUDENT] = without_lists(alone, user, voters, self.consensus_users, self.group), item
        return {"consensus_users": n}

    def agreed(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The consensus of the asked users: its lists [asked, L], those of the plain one, and the votes."""
        if "consensus" not in self._cache:
            assert self.weights is not None
            log, users = self.run.log, self.consensus_users
            voters = self._voters(log, users)
            reranker = self._reranker(log, users, voters)
            lists, scores = reranker.rerank(self.weights)
            names = [*self.settings.heads, *self.settings.fixed_voters]
            votes = kept_votes(voters, reranker.voter_weights, names, self.top_k)
            votes |= {"reranked": scores, "weights": self.weights.everyone, "centre": self.weights.centre}
            without = [each.of_items for each in voters if each.of_items is not None]
            votes |= {"of_items": torch.stack(without)} if without else {}
            self._cache["consensus"] = lists, reranker.lists, votes
        found: tuple[Tensor, Tensor, dict[str, Tensor]] = self._cache["consensus"]
        return found

    def tables(self) -> list[Tensor]:
        """Tensors that must match on all ranks."""
        return [item for _, item in self.vectors.values()]

    def state_dict(self) -> dict[str, Any]:
        """What the next stages depend on, of all users."""
        weights = None if self.weights is None else self.weights._asdict()
        vectors = {head: (self._gather(user), item) for head, (user, item) in self.vectors.items()}
        return {"chosen": self.chosen, "vectors": vectors, "figures": self.figures, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.chosen, self.figures = state["chosen"], state["figures"]
        self.vectors = {head: (user[self.own].clone(), item) for head, (user, item) in state["vectors"].items()}
        self.weights = None if state["weights"] is None else Weights(**state["weights"])
