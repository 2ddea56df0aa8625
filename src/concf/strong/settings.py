"""Settings of the default model, `strong`."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from concf.baselines.table import timed_voters, voters
from concf.runs.settings import CONSENSUS, R_CONSENSUS, RunSettings, VotingSettings

STUDENT = "student"
TIME = "time"  # key of the chosen settings of a run: which parts that use times are on
HEADS = {"fast": ("als-a",), "default": ("als-b",), "thorough": ("softmax-a", "softmax-b")}  # which a budget adds
LEARNED = {"none": ("train",), "validation": ("train", "valid"), "everything": ("train", "valid", "test")}
VALIDATED = 8192  # most users to fit the re-ranker to and measure metrics on; in fast fewer


class StrongSettings(RunSettings):
    """How voters are searched, fitted, re-ranked and distilled. See docs/strong.md."""

    kind: ClassVar[str] = "strong"
    budget: Literal["fast", "default", "thorough"] = Field(
        "default", description="fast: one factor model, shorter vectors and search; thorough: more voters, longer"
    )
    refit: Literal["none", "validation", "everything"] = Field(
        "validation", description="parts that the final voters and student learn from besides the training part; "
        "everything: also the test part, for production"
    )  # fmt: skip
    dimensions: int = Field(256, ge=4, multiple_of=4, description="of the vectors; in fast, half of it")
    consensus_users: int | None = Field(
        None, ge=1, description="users for whom the consensus is computed, at most; it teaches the student, which "
        "ranks for the others; none: everyone, or on a very large log as many as the budget allows"
    )  # fmt: skip
    own: bool = Field(True, description="whether the model's own voters vote; false: only given ones (concf combine)")
    given: tuple[str, ...] = Field((), description="your voters that are lists or scores (concf combine)")
    given_vectors: tuple[str, ...] = Field((), description="your voters that have vectors (concf combine)")
    consensus: VotingSettings = VotingSettings(top_k=200, temperature=20.0)

    @model_validator(mode="after")
    def _names_are_usable(self) -> StrongSettings:
        heads = {name for names in HEADS.values() for name in names}
        taken = {*heads, STUDENT, CONSENSUS, R_CONSENSUS, *self._own_voters}
        for name in self.foreign:
            if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
                raise ValueError(f"voter {name!r}: choose a name of letters, digits, _ and -, such as als or bm25-20")
            if name in taken or self.foreign.count(name) > 1:
                raise ValueError(f"voter {name!r}: there is another of that name. Choose another name")
        if not self.own and not self.foreign:
            raise ValueError("own = false leaves no voters")
        return self

    @property
    def foreign(self) -> tuple[str, ...]:
        """Voters from outside."""
        return (*self.given_vectors, *self.given)

    @property
    def own_heads(self) -> tuple[str, ...]:
        """Voting heads of the budget."""
        return tuple(head for budget in self._budgets for head in HEADS[budget])

    @property
    def own_fixed(self) -> tuple[str, ...]:
        """Voters without vectors of the budget, whatever the log is like."""
        return tuple(name for name in self._own_voters if name not in timed_voters())

    @property
    def own_timed(self) -> tuple[str, ...]:
        """Voters without vectors of the budget that know times; they vote only where a log is split by time."""
        return tuple(name for name in self._own_voters if name in timed_voters())

    @property
    def _own_voters(self) -> list[str]:
        return [name for name, vote in voters().items() if vote.budget in self._budgets]

    @property
    def _budgets(self) -> list[str]:
        """Budgets whose voters vote: this one and the smaller ones."""
        return list(HEADS)[: list(HEADS).index(self.budget) + 1] if self.own else []

    @property
    def heads(self) -> list[str]:
        """Heads of the budget, those whose vectors are given, and the student."""
        return [*self.own_heads, *self.given_vectors, STUDENT]

    @property
    def fixed_voters(self) -> tuple[str, ...]:
        """Voters without vectors."""
        return (*self.own_fixed, *self.given)

    @property
    def non_voting(self) -> tuple[str, ...]:
        """Heads that do not vote: the student, which learns from the vote."""
        return (STUDENT,)

    @property
    def learned(self) -> tuple[str, ...]:
        """Parts of the data set that the final voters and the student are fitted to."""
        return LEARNED[self.refit]


StrongSettings.presets = {"strong": StrongSettings()}
