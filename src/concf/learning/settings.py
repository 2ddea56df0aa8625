"""The settings of a training run; the defaults are our reading of the paper and of its released code."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from concf.config import Settings
from concf.model.encoders import ENCODERS, EncoderMaker, Sharing
from concf.model.objectives import OBJECTIVES


class ModelSettings(Settings):
    """What is learned."""

    dimensions: int = Field(64, ge=4, multiple_of=4)
    encoder: Literal["mlp", "mf", "lightgcn"] = "mlp"
    layers: int = Field(3, ge=1)  # of LightGCN
    dropout: float = Field(0.1, ge=0, lt=1)  # of the MLP
    spread: float | None = 0.01  # standard deviation of the embeddings at the start; none: 1
    sharing: Sharing = "embedding"

    def make_encoder(self) -> EncoderMaker:
        """The target model."""
        options: dict[str, dict[str, float]] = {"mlp": {"dropout": self.dropout}, "lightgcn": {"layers": self.layers}}
        return ENCODERS[self.encoder](**options.get(self.encoder, {}))


class ConsensusSettings(Settings):
    """How the heads agree, and how loudly each is taught."""

    weight: float = Field(0.005, ge=0)  # alpha; 0: the heads are not taught
    every: int = Field(10, ge=1)  # p: epochs between two rankings
    window: int = Field(5, ge=1)  # |Q|: rankings over which steadiness is measured
    temperature: float = Field(10.0, gt=0)  # T: how much the top counts
    steadiness: float | None = Field(100.0, gt=0)  # T_c: how little a jump costs; none: R-consensus
    places: int = Field(100, ge=1)  # K: an item outside a head's newest first K earns nothing from it
    kept: int = Field(500, ge=1)  # M: places of each ranking that are kept
    length: int = Field(50, ge=1)  # N: places that are taught
    tail: int = Field(50, ge=0)  # further places that stand in the denominators
    untaught: tuple[str, ...] = ("multinomial-users",)  # heads that vote but are not taught
    weight_range: tuple[float, float] | None = (0.5, 2.0)  # lambda_x is clipped to it before it weighs the lesson


class BalanceSettings(Settings):
    """How the heads' gradients are kept alike."""

    on: bool = True
    exponent: float = Field(0.15, ge=0)  # of the training ratio
    settle: int = Field(10, ge=0)  # epochs in which L^0 is overwritten by every batch
    total: float | None = None  # what the weights sum to; none: the number of heads
    floor: float = Field(0.01, gt=0)
    learning_rate: float = Field(0.01, gt=0)  # of Adam on the weights
    item_share: float = Field(0.5, gt=0)  # gradient scale = norm(users) + item_share norm(items)


class TrainingSettings(Settings):
    """The loop."""

    epochs: int = Field(200, ge=1)
    batch: int = Field(1024, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    weight_decay: float = Field(1e-5, ge=0)
    patience: int = Field(20, ge=1)  # epochs without a rise of validation, counted from the first lesson
    metric: str = "recall@50"  # of the consensus, on validation


class ConCFSettings(Settings):
    """Everything that a run depends on, but for the data and the seed."""

    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    model: ModelSettings = ModelSettings()
    consensus: ConsensusSettings = ConsensusSettings()
    balance: BalanceSettings = BalanceSettings()
    training: TrainingSettings = TrainingSettings()

    @model_validator(mode="after")
    def _makes_sense(self) -> ConCFSettings:
        unknown = [name for name in self.objectives if name not in OBJECTIVES]
        if unknown or not self.objectives:
            raise ValueError(f"unknown objectives {unknown}; choose from {', '.join(OBJECTIVES)}")
        if self.balance.on and self.model.sharing == "none" and len(self.objectives) > 1:
            raise ValueError("with sharing 'none' there is no shared embedding to balance on: set balance.on = false")
        return self
