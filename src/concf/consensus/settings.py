"""How voters agree, and what is taught of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from concf.runtime.settings import Settings, named

CONSENSUS, R_CONSENSUS = "consensus", "R-consensus"  # what stands beside the heads' names in results
Begins = Literal["full-window", "warm-up", "after-warm-up"]


class ConsensusSettings(Settings):
    """How the heads agree, and how loudly each is taught."""

    weight: float = Field(
        0.005, ge=0, description="alpha: how much the consensus loss counts beside a head's own loss; 0: none"
    )
    every: int = Field(10, ge=1, description="p: epochs between two rankings")
    window: int = Field(5, ge=1, description="|Q|: rankings over which consistency is measured")
    temperature: float = Field(10.0, gt=0, description="T: how much the top counts")
    consistency_temperature: float | None = Field(
        100.0, gt=0, description="T_c: how little a jump costs; none: R-consensus"
    )
    top_k: int | None = Field(
        100, ge=1, description="K: an item outside a head's newest first K earns nothing there; none: all"
    )
    kept: int | None = Field(500, ge=1, description="M: places of each ranking that are kept; none: all")
    length: int = Field(50, ge=1, description="N: places that are taught")
    tail: int | None = Field(
        50, ge=0, description="further places that stand in the denominators; none: all that the heads name"
    )
    shown: int = Field(200, ge=1, description="places of the consensus that are kept to recommend from")
    warm_up: int | None = Field(
        None, ge=1, description="rankings before the first epoch with consensus loss; none: |Q|"
    )
    begins: Begins = Field(
        "full-window",
        description="the first epoch with consensus loss: right after the |Q|-th ranking, at epoch |Q| p, or one later",
    )
    window_moves: bool = Field(
        True, description="false: consistency is measured once, over the rankings up to epoch |Q| p"
    )
    newest_votes: bool = Field(True, description="false: the ranking before the newest votes")
    non_voting: tuple[str, ...] = Field((), description="heads that do not vote")
    fixed_voters: tuple[str, ...] = Field(
        (), description="baselines that vote without learning, such as rp3beta(beta=0.2)"
    )
    voter_temperature: float | None = Field(
        None, gt=0
    )  # a voter whose validation is this share below the best counts 1/e; none: 1
    rerank: bool = Field(
        False, description="votes, and what heads say beside, are weighed as explains the validation part best"
    )
    undistilled: tuple[str, ...] = Field(("multinomial-users",), description="heads that are not taught")
    weight_range: tuple[float, float] | None = (
        0.5,
        2.0,
    )  # lambda_x is clipped to it before it weighs the consensus loss
    clip: float | None = Field(
        None, gt=0
    )  # scores are clipped to +-this in the consensus loss of the heads in `clipped`
    clipped: tuple[str, ...] = Field(("bpr", "multinomial"), description="see `clip`")

    @model_validator(mode="after")
    def _makes_sense(self) -> ConsensusSettings:
        if self.weight_range is not None and not 0 <= self.weight_range[0] <= self.weight_range[1]:
            raise ValueError(f"weight_range = {self.weight_range}: expected two figures, 0 or more, the lower first")
        if self.kept is not None and (self.top_k is None or self.top_k > self.kept):
            raise ValueError(f"top_k = {self.top_k} of a ranking vote, but only kept = {self.kept} of them are kept")
        return self

    @property
    def fixed_names(self) -> list[str]:
        """What the fixed voters are called."""
        return [named(entry)[0] for entry in self.fixed_voters]

    @property
    def first_consensus_epoch(self) -> int:
        """The first epoch with consensus loss: right after the |Q|-th ranking, |Q| p (Algorithm 1), or one later."""
        warm_up = (self.warm_up or self.window) * self.every
        first = {"full-window": warm_up - self.every + 1, "warm-up": warm_up, "after-warm-up": warm_up + 1}
        return first[self.begins]
