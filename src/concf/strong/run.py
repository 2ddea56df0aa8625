"""Run of the model strong: the vectors of its heads, its consensus and its student."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from concf.baselines.table import voters
from concf.data.split import Split
from concf.errors import ConfigError, option
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.strong.settings import STUDENT, TIME, StrongSettings

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from scipy.sparse import csr_array
    from torch import Tensor

    from concf.evaluation.scorers import Factors
    from concf.strong.features import Clock
    from concf.strong.fold_in import StrongFoldIn

REFITTED = {"validation": "the training and validation parts", "everything": "all of the log, the test part too"}
OBJECTIVES = {"als": "least squares", "softmax": "softmax over all items", STUDENT: "distilled from the consensus"}
STUDENT_MARGIN = 0.02  # a student is shipped if its validation is at most this share below the best factor head's


class StrongRun(Run):
    """Run of the stages of strong; `best[head].state` has the vectors `user` [users, d] and `item` [items, d]."""

    unit: ClassVar[Literal["epochs", "stages"]] = "stages"
    settings: StrongSettings

    def __init__(self, data: Split, settings: StrongSettings, seed: int, device: str | torch.device) -> None:
        choose_late = settings.refit == "everything" and not settings.foreign  # which has not learned the newest pairs
        super().__init__(data.newest if choose_late else data, settings, seed, device)

    @property
    def learned(self) -> tuple[str, ...]:
        """Parts of the data set that the final voters and the student are fitted to."""
        return self.settings.learned

    @property
    def n_validated(self) -> int:
        """Number of users that the re-ranker is fitted to and metrics are measured on."""
        from concf.strong.search import PLANS

        return min(super().n_validated, PLANS[self.settings.budget].fitted)

    @cached_property
    def heads(self) -> list[str]:
        """Heads of the settings; by time none with a softmax: weights for its features do harm in the next window."""
        left_out = {head for head in self.settings.own_heads if self.by_time and head.startswith("softmax")}
        return [head for head in self.settings.heads if head not in left_out]

    def objective(self, name: str) -> str | None:
        """Name of a head's objective, or "given"; None for a consensus."""
        if name in self.settings.given_vectors:
            return "given"
        return OBJECTIVES[name.partition("-")[0]] if name in self.heads else None

    @cached_property
    def fixed_voters(self) -> tuple[str, ...]:
        """Voters without vectors: rows that `concf.BASELINES` had when the run began, and given ones.

        Voters that know times vote only where a log is split by time: elsewhere they would read the future.
        """
        chosen = self.settings
        return (*chosen.own_fixed, *(chosen.own_timed if self.by_time else ()), *chosen.given)

    @property
    def by_time(self) -> bool:
        """Whether everything that is held out is later than everything that is learned."""
        protocol, log = self.data.recipe.protocol, self.data.interactions
        return protocol.time_cut == "all" and log.timestamp is not None

    def method(self) -> str:
        """Describe the training in a sentence or two."""
        chosen, fixed = self.settings, ", ".join(self.fixed_voters)
        words = f"The stages of strong with budget `{chosen.budget}`; voters besides the heads: {fixed or 'none'}."
        words += f" Given from outside, not trained here: {', '.join(chosen.foreign)}." if chosen.foreign else ""
        return words + (f" Refitted on {REFITTED[chosen.refit]}." if chosen.refit in REFITTED else "")

    def factors(self, head: str) -> Factors:
        """Vectors of a head."""
        from concf.evaluation.scorers import Factors

        return Factors(**self._best(head).state)

    @cached_property
    def voters(self) -> dict[str, Factors]:
        """Voting heads, on the CPU."""
        return {name: self.factors(name).to("cpu") for name in self.heads if name != STUDENT}

    @cached_property
    def fold_in(self) -> StrongFoldIn:
        """The heads and the consensus for histories of new users."""
        from concf.strong.fold_in import StrongFoldIn

        heads = self.voters | {STUDENT: self.factors(STUDENT).to("cpu")}
        votes, fixed = self.best[CONSENSUS].votes, self.fixed_voters
        return StrongFoldIn(
            self.log, self.settings, heads, self.voters, votes, fixed, self.chosen, self._times, self.clock
        )

    @cached_property
    def _times(self) -> csr_array | None:
        """[users, items] times of the learned pairs, if the run was trained by time."""
        return self.data.times(self.learned) if TIME in self.chosen else None

    @cached_property
    def clock(self) -> Clock | None:
        """Features of time at the newest learned pair, if the re-ranker has them."""
        return self.clock_at(None) if TIME in self.chosen and self.chosen[TIME]["features"] else None

    def clock_at(self, now: float | None) -> Clock:
        """Features of time at a time in the unit of the log; None: at the newest learned pair."""
        from concf.strong.features import Clock

        assert self._times is not None
        return Clock.of(self.log, self._times, "cpu", now)

    def reranked_at(self, clock: Clock, rows: Tensor | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """([b, L], [b, L]) consensus lists of users [b], and their scores, at another time than the newest pair's.

        A score is a sum, of which only the terms of the features of time change; no voter lists other items.
        """
        import torch

        from concf.strong.features import TIME_FEATURES
        from concf.strong.reranker import TOP, n_features

        best, now, users = self.best[CONSENSUS], self.clock, torch.as_tensor(rows)
        assert best.lists is not None
        assert now is not None
        lists, votes = best.lists[users].cpu(), {name: each.cpu() for name, each in best.votes.items()}
        top, below = lists[:, :TOP], lists.shape[1] - min(TOP, lists.shape[1])
        n_voters = int((votes["voter_weights"] > 0).sum())
        first = n_features(n_voters, len(self.voters), listed=0)
        weights, items = votes["weights"][first : first + TIME_FEATURES], top.long().clamp(min=0)
        later, before = (each(users, items, self._direction) for each in (clock, now))
        moved = ((later - before).double() @ weights).masked_fill(top < 0, 0.0)
        scores, order = (votes["reranked"][users, : top.shape[1]] + moved).sort(dim=1, descending=True, stable=True)
        scores = torch.cat([scores, scores[:, -1:] - torch.arange(1, below + 1)], 1)
        return torch.cat([top.gather(1, order), lists[:, TOP:]], 1), scores.float()

    @cached_property
    def _direction(self) -> Tensor:
        """[items, d] item vectors of the first voter, of length 1."""
        return next(iter(self.voters.values())).directions

    def state_dict(self) -> dict[str, Any]:
        """Everything a run keeps, except its history."""
        return super().state_dict() | {"fixed_voters": list(self.fixed_voters)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; its voters must still be there."""
        super().load_state_dict(state)
        self.fixed_voters = tuple(state["fixed_voters"])
        for name in self.fixed_voters:
            if name not in voters() and name not in self.settings.given:
                raise ConfigError(f"the run was trained with a voter {name!r}. Restore its row of concf.BASELINES")

    def best_head(self) -> str:
        """Name of the head to deploy: the student, if its validation is within 2 % of the best head's."""
        if not self.finished:
            return STUDENT
        best = super().best_head()
        least = (1 - STUDENT_MARGIN) * self._best(best).validation
        return STUDENT if self._best(STUDENT).validation >= least else best

    def why_best_head(self) -> str:
        """Why `best_head` is the one to deploy."""
        best, name = (super().best_head(), self.best_head()) if self.best else (STUDENT, STUDENT)
        if best == STUDENT or not self.finished:
            return super().why_best_head()
        distance = "within 2 % of" if name == STUDENT else "more than 2 % below"
        lower, higher = self._best(STUDENT).validation, self._best(best).validation
        return f"the student ({lower:.4f}) is {distance} the best other head, {best} ({higher:.4f})"

    def refuse_learned(self, on: str) -> None:
        """Refuse to measure on a part that was learned from; held-out users are always measurable."""
        if on == "valid" and on not in self.learned and not self.data.has_new_users:
            problem = "the re-ranker was fitted to the validation part, so that a metric on it would be too high"
            raise ConfigError(f"{problem}. Choose {option('on', 'test')}; cross-fitted metrics are in the report")
        super().refuse_learned(on)
