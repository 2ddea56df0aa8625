"""Settings and presets of `reference`: the paper's ConCF. The defaults are the preset `reference`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.errors import ConfigError
from concf.reference.encoders import ENCODERS, EncoderMaker, Sharing
from concf.reference.objectives import FIVE, OBJECTIVES, LossSettings, imported
from concf.runs.settings import EVERYTHING, RunSettings, ValidationSettings, VotingSettings
from concf.runtime.settings import Settings, named


class ModelSettings(Settings):
    """The encoder, or backbone, under all heads."""

    dimensions: int = Field(64, ge=4, multiple_of=4, description="of an embedding")
    encoder: str = Field("mlp", description="mlp, mf, lightgcn, or module:name of an EncoderMaker of yours")
    layers: int = Field(3, ge=1, description="layers of LightGCN")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the MLP")
    initial_std: float | None = Field(
        0.01, gt=0, description="standard deviation of the initial embeddings; none: PyTorch's default, 1"
    )
    sharing: Sharing = Field(
        "embedding", description="what heads share: full (all but the heads), layer, embedding, none"
    )

    def make_encoder(self) -> EncoderMaker:
        """Return the encoder's constructor."""
        options: dict[str, dict[str, float]] = {"mlp": {"dropout": self.dropout}, "lightgcn": {"layers": self.layers}}
        if self.encoder in ENCODERS:
            return ENCODERS[self.encoder](**options.get(self.encoder, {}))
        maker = imported(self.encoder) if ":" in self.encoder else None
        if not callable(maker):  # it is called with (dimensions, heads, sharing, train)
            known = ", ".join(ENCODERS)
            raise ConfigError(f"unknown encoder {self.encoder!r}; choose from {known}, or name yours as module:name")
        return maker


class ConsensusSettings(VotingSettings):
    """Consensus of the voters, and how students learn from it."""

    weight: float = Field(0.005, ge=0, description="alpha: weight of the consensus loss; 0: no distillation")
    every: int = Field(20, ge=1, description="p: epochs between two rankings")
    window: int = Field(10, ge=1, description="|Q|: rankings over which consistency is measured")
    consistency_temperature: float | None = Field(
        100.0, gt=0, description="T_c: the smaller, the more a changing rank costs; none: ranks alone (R-consensus)"
    )
    kept: int | None = Field(500, ge=1, description="M: items of each ranking that are kept; none: all")
    length: int = Field(50, ge=1, description="N: items of the consensus target that students learn to order")
    tail: int | None = Field(
        50, ge=0, description="further items of the target, in the denominators only; none: all that have a vote"
    )
    warm_up: int | None = Field(None, ge=1, description="rankings before the consensus loss begins; none: |Q|")
    begins: Literal["full-window", "warm-up", "after-warm-up"] = Field(
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
        None, gt=0, description="in the consensus loss, scores of BPR and the multinomial heads are clipped to +-this"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> ConsensusSettings:
        if self.weight_range is not None and not 0 <= self.weight_range[0] <= self.weight_range[1]:
            raise ValueError(f"weight_range = {self.weight_range}: expected two numbers, 0 or more, the lower first")
        if self.kept is not None and (self.top_k is None or self.top_k > self.kept):
            raise ValueError(f"top_k = {self.top_k} of a ranking vote, but only kept = {self.kept} of them are kept")
        return self

    @property
    def first_consensus_epoch(self) -> int:
        """First epoch after the warm-up (Algorithm 1, line 6), by `begins`; at least the voting ranking is there."""
        warm_up = (self.warm_up or self.window) * self.every
        first = {"full-window": warm_up - self.every + 1, "warm-up": warm_up, "after-warm-up": warm_up + 1}
        return max(first[self.begins], 1 if self.newest_votes else self.every + 1)


class BalanceSettings(Settings):
    """Balancing of the heads' gradients (Eq. 15, 16)."""

    on: bool = Field(True, description="false: every lambda_x stays 1")
    ratio_of: Literal["own", "whole"] = Field(
        "own", description="training ratio of lambda_x L_CF-x (own), or of L_x with its consensus loss (whole)"
    )
    exponent: float = Field(0.15, ge=0, description="exponent of the training ratio")
    settle: int = Field(10, ge=0, description="epochs in which every batch sets L^0; 0: the first batch alone")
    total: float | None = Field(None, gt=0, description="sum of all lambda_x; none: the number of heads")
    floor: float = Field(0.01, gt=0, description="least lambda_x, before all are scaled to the total")
    optimiser: Literal["adam", "descent"] = Field("adam", description="optimiser of lambda_x; descent: plain gradient")
    learning_rate: float = Field(0.01, gt=0, description="learning rate of lambda_x")
    norm: Literal["sides", "joint"] = Field(
        "sides", description="gradient scale: norm(users) + norm(items) / 2, or the norm of both as one"
    )


class TrainingSettings(ValidationSettings):
    """The training loop."""

    epochs: int = Field(500, ge=1, description="most epochs; each goes over all observed pairs once")
    batch: int = Field(1024, ge=1, description="observed pairs of a batch, with one negative each")
    learning_rate: float = Field(0.01, gt=0, description="learning rate of the model, by Adam")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty of all parameters")
    patience: int | None = Field(
        20, ge=1, description="epochs without a rise before a run stops, once the consensus loss began; none: never"
    )
    validate_every: int = Field(1, ge=1, description="epochs between two validations of the heads; rankings are, too")
    watch: str = Field(
        EVERYTHING, description="whose validation stops a run: all, consensus, R-consensus, or a head's name"
    )
    tf32: bool = Field(True, description="on a GPU: matrix products in TF32")


class ReferenceSettings(RunSettings):
    """All settings of a run of Algorithm 1."""

    kind: ClassVar[str] = "reference"
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
    def _makes_sense(self) -> ReferenceSettings:
        heads, consensus = set(self.heads), self.consensus
        if not self.objectives or len(heads) < len(self.objectives):
            raise ValueError(f"objectives {list(self.objectives)}: expected one or more, each once")
        taken = {CONSENSUS, R_CONSENSUS, EVERYTHING} & heads
        if taken:
            raise ValueError(f"a head cannot be called {taken.pop()!r}: results have that name")
        unknown = sorted({*consensus.non_voting, *consensus.undistilled} - {*heads, *OBJECTIVES})
        if unknown:
            raise ValueError(
                f"consensus.non_voting, consensus.undistilled: no head is called {', '.join(unknown)}; there are "
                f"{', '.join(self.heads)}"
            )
        if self.balances and self.model.sharing == "none":
            raise ValueError("with sharing 'none' there is no shared embedding to balance on: set balance.on = false")
        if self.training.watch not in (*heads, CONSENSUS, R_CONSENSUS, EVERYTHING):
            raise ValueError(f"training.watch = {self.training.watch!r}: no head of that name, and not the consensus")
        if self.several and heads <= set(consensus.non_voting):
            raise ValueError("consensus.non_voting names every head: none is left to vote")
        if self.teaches and heads <= set(consensus.undistilled):
            raise ValueError("consensus.undistilled names every head: to teach none, set consensus.weight = 0")
        return self

    @property
    def heads(self) -> list[str]:
        """Names of the heads."""
        return [named(entry)[0] for entry in self.objectives]

    @property
    def non_voting(self) -> tuple[str, ...]:
        """Heads that do not vote."""
        return self.consensus.non_voting

    @property
    def consistency_temperature(self) -> float | None:
        """T_c (Eq. 11); None: consistency does not count."""
        return self.consensus.consistency_temperature

    @property
    def balances(self) -> bool:
        """Whether the weights of the heads are learned."""
        return self.balance.on and self.several

    @property
    def teaches(self) -> bool:
        """Whether the heads learn from the consensus."""
        return self.consensus.weight > 0 and self.several

    def single(self, objective: str) -> ReferenceSettings:
        """SingleCF: the same settings with one head."""
        training = self.training.model_copy(update={"watch": named(objective)[0]})
        return self.model_copy(update={"objectives": (objective,), "training": training})


PAPER = ReferenceSettings(
    losses=LossSettings(distance="plain", distance_scale=1.0, error_scale=0.5),
    model=ModelSettings(initial_std=None, dropout=0.0),
    consensus=ConsensusSettings(
        weight=0.01,
        window=5,
        consistency_temperature=10.0,
        begins="warm-up",
        non_voting=("multinomial-users",),
        weight_range=None,
    ),
    balance=BalanceSettings(
        ratio_of="whole",
        exponent=1.0,
        settle=0,
        total=1.0,
        floor=1e-4,
        optimiser="descent",
        learning_rate=1e-4,  # the paper leaves it open
        norm="joint",
    ),
    training=TrainingSettings(weight_decay=0.0),
)

RELEASED = ReferenceSettings(
    consensus=ConsensusSettings(
        every=10, window=5, begins="after-warm-up", window_moves=False, newest_votes=False, clip=40.0
    ),
    training=TrainingSettings(epochs=200, patience=None),
)

ReferenceSettings.presets = {"paper": PAPER, "released": RELEASED, "reference": ReferenceSettings()}
