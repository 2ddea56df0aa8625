"""How voters agree, and what is taught of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from concf.runtime.settings import Settings

CONSENSUS, R_CONSENSUS = "consensus", "R-consensus"  # what stands beside the heads' names in results
Begins = Literal["full-window", "warm-up", "after-warm-up"]


class ConsensusSettings(Settings):
    """How the voters agree, and how the students learn from their consensus."""

    weight: float = Field(0.005, ge=0, description="alpha: weight of the consensus loss; 0: no distillation")
    every: int = Field(20, ge=1, description="p: epochs between two rankings")
    window: int = Field(10, ge=1, description="|Q|: rankings over which consistency is measured")
    temperature: float = Field(10.0, gt=0, description="T: the smaller, the more the top ranks count")
    consistency_temperature: float | None = Field(
        100.0, gt=0, description="T_c: the smaller, the more a changing rank costs; none: ranks alone (R-consensus)"
    )
    top_k: int | None = Field(100, ge=1, description="K: a voter votes for its first K items; none: for all")
    kept: int | None = Field(500, ge=1, description="M: items of each ranking that are kept; none: all")
    length: int = Field(50, ge=1, description="N: items of the consensus target that students learn to order")
    tail: int | None = Field(
        50, ge=0, description="further items of the target, in the denominators only; none: all that have a vote"
    )
    shown: int = Field(200, ge=1, description="items of the consensus that are kept to recommend from")
    warm_up: int | None = Field(None, ge=1, description="rankings before the consensus loss begins; none: |Q|")
    begins: Begins = Field(
        "full-window", description="the consensus loss begins after the |Q|-th ranking, at epoch |Q| p, or one later"
    )
    window_moves: bool = Field(True, description="false: consistency is measured once, over rankings up to epoch |Q| p")
    newest_votes: bool = Field(True, description="false: the ranking before the newest one votes")
    non_voting: tuple[str, ...] = Field((), description="heads that do not vote")
    undistilled: tuple[str, ...] = Field(("multinomial-users",), description="heads without consensus loss")
    weight_range: tuple[float, float] | None = Field(
        (0.5, 2.0), description="lambda_x is clipped to it where it weighs the consensus loss; none: it is not"
    )
    clip: float | None = Field(
        None, gt=0, description="in the consensus loss of the heads in `clipped`, scores are clipped to +-this"
    )
    clipped: tuple[str, ...] = Field(("bpr", "multinomial"), description="heads that `clip` is for")

    @model_validator(mode="after")
    def _makes_sense(self) -> ConsensusSettings:
        if self.weight_range is not None and not 0 <= self.weight_range[0] <= self.weight_range[1]:
            raise ValueError(f"weight_range = {self.weight_range}: expected two figures, 0 or more, the lower first")
        if self.kept is not None and (self.top_k is None or self.top_k > self.kept):
            raise ValueError(f"top_k = {self.top_k} of a ranking vote, but only kept = {self.kept} of them are kept")
        return self

    @property
    def first_consensus_epoch(self) -> int:
        """The first epoch with consensus loss: right after the |Q|-th ranking, |Q| p (Algorithm 1), or one later."""
        warm_up = (self.warm_up or self.window) * self.every
        first = {"full-window": warm_up - self.every + 1, "warm-up": warm_up, "after-warm-up": warm_up + 1}
        return first[self.begins]
