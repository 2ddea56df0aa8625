"""Stages of the model strong: search, voters, re-ranker, student, then a refit on the whole log.

    search    choose the settings of voters without vectors by validation
    als       search the settings of ALS, and fit two factor models (one in `fast`)
    time      if split by time: search voters that know times, and decide which parts that use times are on
    softmax   in `thorough`, unless split by time: fit heads with a softmax loss, from the vectors of the first
    rerank    fit the re-ranker, cross-fitted; if split by time, also to earlier windows
    student   distil the consensus into one head
    refit     refit the voters on the training and validation parts (or on everything)
    final     compute the consensus of these voters for all users, and distil it

Finished stages are in the checkpoint: a killed run resumes with its current stage, and has the same result. Up to
`student`, metrics are measured on users with held-out items; the settings and the re-ranker's weights chosen there are
carried over to `refit` and `final`, and the metrics measured there stay the run's validation.

Where users x items exceed the budget, `final` computes the consensus for a sample of the users. They teach the student;
the others get vectors without lists (`students.without_lists`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import UserSolver
from concf.baselines.table import timed_voters
from concf.consensus.consensus import NOTHING
from concf.consensus.fitting import Weights, fitted
from concf.consensus.voters import Voter, kept_votes
from concf.errors import note
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation, sample
from concf.runs.run import Best
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.executors import one_thread_each
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong import search
from concf.strong.decision import TimeStage
from concf.strong.reranker import TOP
from concf.strong.run import StrongRun
from concf.strong.search import n_consensus_users
from concf.strong.settings import STUDENT, TIME
from concf.strong.softmax import fit_softmax
from concf.strong.students import SOLVED_BY, USUAL, closer, solve_student, teach_student, without_lists

KEPT = 0.985  # share of the consensus that a student keeps on validation; below it, other settings are tried
BEHIND = 0.8  # a softmax with less than this share of ALS' validation after an epoch is not trained further
VOTES_OF_USERS = {  # votes with a dimension of users -> that dimension, and the padding
    "items": (1, NOTHING), "reranked": (0, -torch.inf),
}  # fmt: skip


class Recipe(TimeStage):
    """Stages of a run, and their results so far."""

    def __init__(self, run: StrongRun, group: ProcessGroup = ALONE) -> None:
        super().__init__(run, group)
        settings = run.settings
        if settings.own:
            self.stages = {"search": self._search, "als": self._als}
            self.stages |= {"time": self._time} if run.by_time else {}
        for head in self.softmaxes:
            self.stages[head] = partial(self._softmax, head)
        self.stages |= {"rerank": self._rerank, "student": self._student}
        self.stages |= {} if settings.refit == "none" else {"refit": self._refit}
        self.stages["final"] = self._final

    def stage(self, number: int) -> dict[str, Any]:
        """Run one stage; returns its record for the history."""
        name, work = list(self.stages.items())[number]
        begin = time.perf_counter()
        with one_thread_each():
            record = {"epoch": number, "stage": name} | work()
            if number == len(self.stages) - 1:
                self._finish()
        return record | {"seconds": time.perf_counter() - begin}

    @torch.no_grad()
    def _finish(self) -> None:
        """Store all results in the run."""
        last = len(self.stages) - 1
        for head in self.run.heads:
            user, item = self.vectors[head]
            vectors = {"user": self.group.gather(user), "item": item}
            self.run.best[head] = Best(self.metrics[head], last, last, vectors)
        lists, plain, votes = self.agreed()
        lists, plain = (self.group.gather(self._spread(part)) for part in (lists, plain))
        votes |= {
            name: self.group.gather(self._spread(votes[name], dim, nothing), dim)
            for name, (dim, nothing) in VOTES_OF_USERS.items()
            if name in votes
        }
        self.run.best[R_CONSENSUS] = Best(self.metrics[R_CONSENSUS], last, last, lists=plain)
        self.run.best[CONSENSUS] = Best(self.metrics[CONSENSUS], last, last, lists=lists, votes=votes)

    def _spread(self, part: Tensor, dim: int = 0, nothing: float = NOTHING) -> Tensor:
        """Scatter the rows of the consensus users into a tensor of all local users, filled with `nothing`."""
        if len(self.consensus_users) == self.shape[0]:
            return part
        shape = list(part.shape)
        shape[dim] = self.shape[0]
        whole = torch.empty(*shape, dtype=part.dtype, device=part.device)
        return whole.fill_(nothing).index_copy_(dim, self.consensus_users, part)

    def _search(self) -> dict[str, Any]:
        """Choose the settings of the fixed voters."""
        train, few, rounds = self.data.train, self.searched, self.plan.rounds
        seen = self.seen(train)
        for name in self.fixed:
            if name == "rp3beta":
                users = sample(few.validated, self.plan.users // 2, self.seed)  # these settings matter little
                fewer = Validation(self.data, self.run.metric, self.device, self.group, validated=users)
                walked = search.search_walks(train, seen, fewer, self.device)
                self.chosen[name] = walked | {"neighbours": self.plan.neighbours}
            elif name not in timed_voters():
                self.chosen[name] = search.search_fixed(name, partial(self.fit_fixed, name, train), seen, few, rounds)
        return {"chosen": dict(self.chosen)}

    def _als(self) -> dict[str, Any]:
        """Search the settings of ALS, and keep the best points that are stable over sweeps."""
        train = self.data.train
        als, seen = self.solver(train), self.seen(train)
        points = search.search_als(als, seen, self.searched, als.start(self._seed(1)), self.plan.rounds)
        stable = search.stable_points(als, points, seen, self.searched, self.plan.sweeps[0], len(self.als))
        for name, (value, point, vectors) in zip(self.als, stable, strict=True):
            self.chosen[name], self.vectors[name] = search.als_settings(als, point.at), vectors
            self.metrics[name] = value  # of few users; `rerank` measures it again
        return {"chosen": {name: self.chosen[name] for name in self.als}} | {"validation": dict(self.metrics)}

    def _softmax(self, head: str) -> dict[str, Any]:
        """Fit a softmax head from the vectors of the better ALS; a second head has the next best temperature.

        A head that is far behind ALS after an epoch would hardly vote, and is not trained further.
        """
        train = self.data.train
        if head == self.softmaxes[0]:
            vectors, local, seen = self.vectors["als-a"], self.local(train), self.seen(train)
            seed, wanted = self._seed(2), len(self.softmaxes)
            tried = search.search_temperature(local, seen, self.searched, *vectors, seed, wanted)
            least = BEHIND * search.measured(Factors(*vectors), seen, self.searched)
            for name, (metric, temperature, vectors) in zip(self.softmaxes, tried, strict=True):
                more = 0 if metric < least else self.plan.softmax[0]
                self.chosen[name] = {"temperature": temperature, "epochs": 1 + more}
                self.vectors[name], self.metrics[name] = vectors, metric
        self._fit_softmax(train, head, int(self.chosen[head]["epochs"]) - 1, self._seed(3))
        return {"chosen": {head: self.chosen[head]}, "validation": {head: self.metrics[head]}}

    def _fit_softmax(self, log: csr_array, head: str, epochs: int, seed: int) -> None:
        """Train a softmax head for more epochs."""
        temperature, start = self.chosen[head]["temperature"], self.vectors[head]
        self.vectors[head] = fit_softmax(self.local(log), *start, temperature, epochs, seed, group=self.group)

    def _measure(self, voters: Sequence[Voter]) -> None:
        """Measure the validation metric of the voters."""
        for voter in voters:
            self.metrics[voter.name] = self.validation.of_its_users(voter.lists)

    def _rerank(self) -> dict[str, Any]:
        """Fit the re-ranker to the held-out items of the validated users; its metrics are cross-fitted."""
        train, users = self.data.train, self.validation.users
        prepared = self._prepared()
        voters = self._voters(train, users) if prepared is None else prepared[0].voters
        self._measure(voters)
        if prepared is None:
            reranker = self._reranker(train, users, voters)
            training = reranker.training(self.validation.held_out(reranker.lists[:, :TOP]))
        else:
            reranker, training = prepared
        self.weights = fitted(training, self.near, self.chosen.get(TIME, {}).get("penalty"))
        lists, _ = reranker.rerank(self.weights, cross_fitted=True)
        self.metrics[R_CONSENSUS] = self.validation.of_its_users(reranker.lists)
        self.metrics[CONSENSUS] = self.validation.of_its_users(lists)
        self._cache["lists"] = lists
        named = [*(voter.name for voter in voters), R_CONSENSUS, CONSENSUS]
        return {"validation": {name: self.metrics[name] for name in named}}

    def _cross_fitted(self) -> Tensor:
        """[local validated users, L] consensus lists, each re-ranked with weights fitted on the other folds."""
        if "lists" not in self._cache:
            assert self.weights is not None
            train, users = self.data.train, self.validation.users
            reranker = self._reranker(train, users, self._voters(train, users))
            self._cache["lists"] = reranker.rerank(self.weights, cross_fitted=True)[0]
        lists: Tensor = self._cache["lists"]
        return lists

    def _distil(self, log: csr_array, users: Tensor, lists: Tensor, start: tuple[Tensor, Tensor], sweeps: int) -> None:
        """Fit the student to a log and the lists [n, L] of users [n], from initial vectors."""
        pairs, settings, group = self._pairs(log), self.chosen.get(STUDENT, USUAL), self.group
        vectors = solve_student(pairs, users, lists, start, sweeps, settings, group)
        lists, epochs = lists[:, : self.plan.depth], self.plan.student[1]
        self.vectors[STUDENT] = teach_student(*vectors, users, lists, epochs, self._seed(4), group)

    def _start(self) -> tuple[Tensor, Tensor]:
        """Initial vectors of the student."""
        return self.vectors["als-a"]

    def _student(self) -> dict[str, Any]:
        """Distil the cross-fitted lists, so that the metric of the student is unbiased too.

        Where the usual settings of its regression keep too little of the consensus, as on a dense log, settings that
        follow it more closely are tried.
        """
        tried = [self._taught(USUAL)]
        if tried[0][0] < KEPT * self.metrics[CONSENSUS] and "als-a" in self.chosen:
            tried.append(self._taught(closer(self.chosen["als-a"], self.data.train)))
        self.metrics[STUDENT], self.chosen[STUDENT], self.vectors[STUDENT] = max(tried, key=lambda each: each[0])
        return {"chosen": {STUDENT: self.chosen[STUDENT]}, "validation": {STUDENT: self.metrics[STUDENT]}}

    def _taught(self, settings: Mapping[str, float]) -> tuple[float, dict[str, float], tuple[Tensor, Tensor]]:
        """Distil with these settings; returns the student's validation, the settings and its vectors."""
        self.chosen[STUDENT], sweeps = dict(settings), self.plan.student[0]
        self._distil(self.data.train, self.validation.users, self._cross_fitted(), self._start(), sweeps)
        self._validate_student()
        return self.metrics[STUDENT], self.chosen[STUDENT], self.vectors[STUDENT]

    def _validate_student(self) -> None:
        factors = Factors(*self.vectors[STUDENT])
        self.metrics[STUDENT] = search.measured(factors, self.seen(self.data.train), self.validation)

    def _refit(self) -> dict[str, Any]:
        """Refit the voters on the whole log, from their present vectors."""
        log = self.run.log
        als = self.solver(log)
        for head in self.als:
            self.vectors[head] = als.fit(self.vectors[head], **self.chosen[head], sweeps=self.plan.sweeps[1])
        for head in self.softmaxes:
            epochs = 1 if self.chosen[head]["epochs"] == 1 else self.plan.softmax[1]
            self._fit_softmax(log, head, epochs, self._seed(5))
        return {}

    def _final(self) -> dict[str, Any]:
        """Compute the consensus of the refitted voters with the weights of `rerank`, and distil it."""
        lists = self.agreed()[0]
        self._distil(self.run.log, self.consensus_users, lists, self.vectors[STUDENT], self.plan.student[0])
        n, everyone = n_consensus_users(self.data.train.shape, self.settings), self.data.train.shape[0]
        if n == everyone:
            return {}
        if self.group.is_main:
            users = f"{n:,} of {everyone:,} users, drawn at random"
            note(f"the consensus was computed for {users}: they taught the student, which ranks for the others")
        user, item = self.vectors[STUDENT]
        solve = UserSolver(item, **self.chosen.get("als-a", SOLVED_BY))
        alone = solve(self._pairs(self.run.log), len(user))
        voters = [self.vectors[head][0] for head in self.vectors if head != STUDENT]
        self.vectors[STUDENT] = without_lists(alone, user, voters, self.consensus_users, self.group), item
        return {"consensus_users": n}

    def agreed(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Consensus of the consensus users [n]: re-ranked lists [n, L], plain lists [n, L], and the votes."""
        if "consensus" not in self._cache:
            assert self.weights is not None
            log, users = self.run.log, self.consensus_users
            voters = self._voters(log, users)
            reranker = self._reranker(log, users, voters)
            lists, scores = reranker.rerank(self.weights)
            names = [*self.run.heads, *self.run.fixed_voters]
            votes = kept_votes(voters, reranker.voter_weights, names, self.top_k)
            votes |= {"reranked": scores, "weights": self.weights.everyone, "centre": self.weights.centre}
            of_items = [voter.of_items for voter in voters if voter.of_items is not None]
            votes |= {"of_items": torch.stack(of_items)} if of_items else {}
            self._cache["consensus"] = lists, reranker.lists, votes
        result: tuple[Tensor, Tensor, dict[str, Tensor]] = self._cache["consensus"]
        return result

    def tables(self) -> list[Tensor]:
        """Tensors that must match on all ranks."""
        return [item for _, item in self.vectors.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next stages depend on, for all users."""
        weights = None if self.weights is None else self.weights._asdict()
        vectors = {head: (self.group.gather(user), item) for head, (user, item) in self.vectors.items()}
        return {"chosen": self.chosen, "vectors": vectors, "metrics": self.metrics, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.chosen, self.metrics = state["chosen"], state["metrics"]
        self.vectors = {head: (user[self.own].clone(), item) for head, (user, item) in state["vectors"].items()}
        self.weights = None if state["weights"] is None else Weights(**state["weights"])
