"""How voters agree, and what is taught of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from concf.runtime.settings import Settings

CONSENSUS, R_CONSENSUS = "consensus", "R-consensus"  # what stands beside the heads' names in results
Begins = Literal["full-window", "warm-up", "after-warm-up"]


class ConsensusSettings(Settings):
    """How the heads agree, and how loudly each is taught."""

    weight: float = Field(0.005, ge=0)  # alpha: how loud the lesson is beside a head's own loss; 0: no lesson
    every: int = Field(10, ge=1)  # p: epochs between two rankings
    window: int = Field(5, ge=1)  # |Q|: rankings over which steadiness is measured
    temperature: float = Field(10.0, gt=0)  # T: how much the top counts
    steadiness: float | None = Field(100.0, gt=0)  # T_c: how little a jump costs; none: R-consensus
    places: int | None = Field(100, ge=1)  # K: an item outside a head's newest first K earns nothing there; none: all
    kept: int | None = Field(500, ge=1)  # M: places of each ranking that are kept; none: all
    length: int = Field(50, ge=1)  # N: places that are taught
    tail: int | None = Field(50, ge=0)  # further places that stand in the denominators; none: all that the heads name
    shown: int = Field(200, ge=1)  # places of the consensus that are kept to recommend from
    by: Literal["ranks", "softmax"] = "ranks"  # softmax (PCL): the mean of the heads' logits, taught as a distribution
    warm_up: int | None = Field(None, ge=1)  # rankings before the first lesson; none: |Q|
    begins: Begins = "full-window"  # the first lesson: right after the |Q|-th ranking, at epoch |Q| p, or one later
    window_moves: bool = True  # false: steadiness is measured once, over the rankings up to epoch |Q| p
    newest_votes: bool = True  # false: the ranking before the newest votes
    silent: tuple[str, ...] = ()  # heads that do not vote
    guests: tuple[str, ...] = ()  # baselines that vote without learning, such as rp3beta(beta=0.2)
    trust: float | None = Field(None, gt=0)  # a voter whose validation is this share below the best counts 1/e; none: 1
    judged: bool = False  # votes, and what heads say beside, are weighed as explains the validation part best
    untaught: tuple[str, ...] = ("multinomial-users",)  # heads that are not taught
    weight_range: tuple[float, float] | None = (0.5, 2.0)  # lambda_x is clipped to it before it weighs the lesson
    clip: float | None = Field(None, gt=0)  # scores are clipped to +-this in the lesson of the heads in `clipped`
    clipped: tuple[str, ...] = ("bpr", "multinomial")  # see `clip`

    @model_validator(mode="after")
    def _makes_sense(self) -> ConsensusSettings:
        if self.weight_range is not None and not 0 <= self.weight_range[0] <= self.weight_range[1]:
            raise ValueError(f"weight_range = {self.weight_range}: expected two figures, 0 or more, the lower first")
        if self.kept is not None and (self.places is None or self.places > self.kept):
            raise ValueError(f"places = {self.places} of a ranking vote, but only kept = {self.kept} of them are kept")
        return self

    @property
    def first_lesson(self) -> int:
        """The first epoch with consensus loss: right after the |Q|-th ranking, |Q| p (Algorithm 1), or one later."""
        warm_up = (self.warm_up or self.window) * self.every
        first = {"full-window": warm_up - self.every + 1, "warm-up": warm_up, "after-warm-up": warm_up + 1}
        return first[self.begins]
