"""The settings of a training run. Each says what its number means; the defaults are the preset `reference`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from concf.consensus.settings import CONSENSUS, R_CONSENSUS, ConsensusSettings
from concf.errors import ConfigError
from concf.model.encoders import ENCODERS, EncoderMaker, Sharing
from concf.model.objectives import FIVE, OBJECTIVES, LossSettings, imported
from concf.runtime.settings import Settings, named

EVERYTHING = "all"  # the heads and the consensuses


class ModelSettings(Settings):
    """What is learned."""

    dimensions: int = Field(64, ge=4, multiple_of=4, description="of an embedding")
    encoder: str = Field("mlp", description="mlp, mf, lightgcn, or module:name of an EncoderMaker of yours")
    layers: int = Field(3, ge=1, description="of LightGCN: steps over the training graph")
    dropout: float = Field(0.1, ge=0, lt=1, description="of the MLP")
    initial_std: float | None = Field(
        0.01, gt=0
    )  # standard deviation of the embeddings at the start; none: PyTorch's 1
    sharing: Sharing = Field("embedding", description="full (all but the heads), layer, embedding, none")

    def make_encoder(self) -> EncoderMaker:
        """The target model."""
        options: dict[str, dict[str, float]] = {"mlp": {"dropout": self.dropout}, "lightgcn": {"layers": self.layers}}
        if self.encoder in ENCODERS:
            return ENCODERS[self.encoder](**options.get(self.encoder, {}))
        found = imported(self.encoder) if ":" in self.encoder else None
        if not callable(found):  # it is called with (dimensions, heads, sharing, train)
            known = ", ".join(ENCODERS)
            raise ConfigError(f"unknown encoder {self.encoder!r}; choose from {known}, or name yours as module:name")
        return found


class BalanceSettings(Settings):
    """How the heads' gradients are kept alike."""

    on: bool = Field(True, description="false: every weight stays 1")
    ratio_of: Literal["own", "whole"] = (
        "own"  # training ratio of lambda_x L_CF-x, or of L_x with its consensus loss (Eq. 15)
    )
    exponent: float = Field(0.15, ge=0, description="of the training ratio")
    settle: int = Field(10, ge=0, description="epochs in which every batch overwrites L^0; 0: it is the first batch's")
    total: float | None = Field(None, gt=0, description="what the weights sum to; none: the number of heads")
    floor: float = Field(0.01, gt=0, description="no weight falls below, before they are scaled to the total")
    optimiser: Literal["adam", "descent"] = Field("adam", description="of the weights; descent: plain gradient descent")
    learning_rate: float = Field(0.01, gt=0, description="of the weights")
    update: Literal["batch", "epoch"] = Field(
        "batch", description="when the weights move; with epoch, by the mean of the batches"
    )
    norm: Literal["sides", "joint"] = Field(
        "sides", description="gradient scale: norm(users) + item_share norm(items), or of both as one"
    )
    item_share: float = Field(0.5, gt=0, description="with norm = sides: how much the items' gradients count")


class TrainingSettings(Settings):
    """The loop."""

    epochs: int = Field(200, ge=1, description="at most; each goes over all observed pairs once")
    batch: int = Field(1024, ge=1, description="observed pairs, one negative each")
    steps: int | None = Field(
        None, ge=1, description="batches of an epoch, of 1024 to 65536 pairs; none: `batch` says their size"
    )
    order: Literal["pairs", "users"] = Field(
        "pairs", description="what is shuffled; users: a batch has all pairs of few users"
    )
    learning_rate: float = Field(0.01, gt=0, description="of the model, by Adam")
    weight_decay: float = Field(1e-5, ge=0, description="how strongly parameters are drawn to 0")
    patience: int | None = Field(
        20, ge=1
    )  # epochs without a rise, counted from the first epoch with consensus loss on; none: never stop
    metric: str = Field(
        "auto", description="on validation, every p epochs; auto: recall@50, or of few items NDCG at a tenth of them"
    )
    validated_users: int | None = Field(
        None, ge=1, description="so many, drawn by the seed, are validated; none: all users"
    )
    watch: str = Field(
        CONSENSUS, description="whose validation stops the run: the consensus, a head by name, or all of them"
    )
    tf32: bool = Field(True, description="on a GPU: products with 10 bits of mantissa")

    def pairs_of_batch(self, pairs: int) -> int:
        """How many of so many observed pairs make a batch."""
        return self.batch if self.steps is None else min(max(-(-pairs // self.steps), 1024), 65536)


class ConCFSettings(Settings):
    """Everything that a run depends on, but for the data and the seed."""

    objectives: tuple[str, ...] = Field(
        FIVE,
        description="a head each: names of OBJECTIVES, or module:name of yours; name=objective gives it a name",
    )
    losses: LossSettings = LossSettings()
    model: ModelSettings = ModelSettings()
    consensus: ConsensusSettings = ConsensusSettings()
    balance: BalanceSettings = BalanceSettings()
    training: TrainingSettings = TrainingSettings()

    @field_validator("objectives", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _makes_sense(self) -> ConCFSettings:
        if not self.objectives or len(set(self.heads)) < len(self.objectives):
            raise ValueError(f"objectives {list(self.objectives)}: expected one or more, each once")
        taken = {CONSENSUS, R_CONSENSUS, EVERYTHING} & set(self.heads)
        if taken:
            raise ValueError(f"a head cannot be called {taken.pop()!r}: results have that name")
        named = {*self.consensus.non_voting, *self.consensus.undistilled, *self.consensus.clipped}
        strange = sorted(named - {*self.heads, *OBJECTIVES, *self.consensus.fixed_names})
        if strange:
            raise ValueError(
                f"consensus names heads that do not exist: {', '.join(strange)}. Name others (consensus.non_voting, "
                "undistilled), or begin with the preset reference"
            )
        if self.balances and self.model.sharing == "none":
            raise ValueError("with sharing 'none' there is no shared embedding to balance on: set balance.on = false")
        if self.training.watch not in (*self.heads, CONSENSUS, R_CONSENSUS, EVERYTHING):
            raise ValueError(f"training.watch = {self.training.watch!r}: no head of that name, and not the consensus")
        if self.consensus.rerank and self.consensus.consistency_temperature is not None:
            raise ValueError("consensus.rerank weighs ranks, not consistency: set consistency_temperature = none")
        if self.several and set(self.heads) <= set(self.consensus.non_voting):
            raise ValueError("consensus.non_voting names every head: none is left to vote")
        if self.teaches and set(self.heads) <= set(self.consensus.undistilled):
            raise ValueError("consensus.undistilled names every head: to teach none, set consensus.weight = 0")
        return self

    @property
    def heads(self) -> list[str]:
        """What the heads are called."""
        return [named(entry)[0] for entry in self.objectives]

    @property
    def several(self) -> bool:
        """Whether there are heads to agree and to balance; one alone is SingleCF."""
        return len(self.objectives) > 1

    @property
    def balances(self) -> bool:
        """Whether the heads' weights move."""
        return self.balance.on and self.several

    @property
    def teaches(self) -> bool:
        """Whether the heads learn from the consensus."""
        return self.consensus.weight > 0 and self.several

    def single(self, objective: str) -> ConCFSettings:
        """SingleCF: the same with one head."""
        training = self.training.model_copy(update={"watch": named(objective)[0]})
        return self.model_copy(update={"objectives": (objective,), "training": training})
