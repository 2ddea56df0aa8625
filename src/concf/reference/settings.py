"""Settings and presets of `reference`: the paper's ConCF. The defaults are the preset `reference`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from concf.errors import ConfigError
from concf.reference.encoders import ENCODERS, EncoderMaker, Sharing, mlp
from concf.reference.objectives import FIVE, FORMULATIONS, OBJECTIVES, Formulation, LossSettings, imported
from concf.runs.settings import CONSENSUS, R_CONSENSUS, RunSettings, ValidationSettings, VotingSettings
from concf.runtime.settings import Settings, named

RANKS_PER_VOTE = 5  # M / K: an item that falls out of the first M has rank M, so M must lie well below the votes
WARM_UP = 5  # the paper's |Q|: rankings before the consensus loss where the window holds all of them


class ModelSettings(Settings):
    """The encoder, or backbone, under all heads."""

    dimensions: int = Field(64, ge=4, multiple_of=4, description="of an embedding")
    encoder: str = Field("mlp", description="mlp, mf, lightgcn, or your own EncoderMaker as module:name")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout of the MLP")
    initial_std: float | None = Field(
        0.01, gt=0, description="standard deviation of the initial embeddings; none: PyTorch's default, 1"
    )
    sharing: Sharing = Field("embedding", description="what heads share: full (all but heads), layer, embedding, none")

    def make_encoder(self) -> EncoderMaker:
        """Return the encoder's constructor."""
        if self.encoder == "mlp":
            return partial(mlp, dropout=self.dropout)
        maker = imported(self.encoder) if ":" in self.encoder else ENCODERS.get(self.encoder)
        if not callable(maker):  # it is called with (dimensions, heads, sharing, train)
            known = ", ".join(ENCODERS)
            raise ConfigError(f"unknown encoder {self.encoder!r}; choose from {known}, or name your own as module:name")
        return maker


class ConsensusSettings(VotingSettings):
    """Consensus of the voters, and how students learn from it."""

    weight: float = Field(0.005, ge=0, description="alpha: weight of the consensus loss; 0: no distillation")
    every: int = Field(20, ge=1, description="p: epochs between two rankings")
    window: int | None = Field(10, ge=1, description="|Q|: rankings over which consistency is measured; none: all")
    consistency_temperature: float | None = Field(
        100.0, gt=0, description="T_c: the smaller, the more a changing rank costs; none: ranks alone (R-consensus)"
    )
    length: int = Field(50, ge=1, description="N: items of the consensus target that students learn to order")
    non_voting: tuple[str, ...] = Field((), description="heads that do not vote")

    @property
    def kept(self) -> int | None:
        """M: items of each ranking that are kept for the standard deviation of ranks (Eq. 11); None: all."""
        return None if self.top_k is None else RANKS_PER_VOTE * self.top_k

    @property
    def target_length(self) -> int | None:
        """Items of the consensus target: N to order, and N more in the denominators of Eq. 13; None: all with votes."""
        return None if self.top_k is None else 2 * self.length


class BalanceSettings(Settings):
    """Balancing of the heads' gradients (Eq. 15, 16)."""

    on: bool = Field(True, description="false: every lambda_x stays 1")
    settle: int = Field(10, ge=0, description="epochs in which every batch sets L^0; 0: the first batch alone")


class TrainingSettings(ValidationSettings):
    """The training loop."""

    epochs: int = Field(500, ge=1, description="most epochs; each goes over all observed pairs once")
    batch: int = Field(1024, ge=1, description="observed pairs of a batch, with one negative each")
    learning_rate: float = Field(0.01, gt=0, description="learning rate of the model, by Adam")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty of all parameters")
    patience: int | None = Field(
        20, ge=1, description="epochs without a rise before a run stops, once the consensus loss began; none: no stop"
    )


class ReferenceSettings(RunSettings):
    """All settings of a run of Algorithm 1."""

    kind: ClassVar[str] = "reference"
    objectives: tuple[str, ...] = Field(
        FIVE,
        description="one head each: names of OBJECTIVES, or your own as module:name; name=objective names the head",
    )
    formulation: str = Field(
        "reference",
        description="formulas on which the paper and its code differ: reference, paper, released, or your own row",
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
        heads = set(self.heads)
        if not self.objectives or len(heads) < len(self.objectives):
            raise ValueError(f"objectives {list(self.objectives)}: expected one or more, each once")
        taken = {CONSENSUS, R_CONSENSUS} & heads
        if taken:
            raise ValueError(f"a head cannot be called {taken.pop()!r}: results have that name")
        if self.formulation not in FORMULATIONS:
            raise ValueError(f"formulation: unknown {self.formulation!r}; choose from {', '.join(FORMULATIONS)}")
        if self.consensus.window is None and not self.form.window_moves:
            raise ValueError(f"formulation {self.formulation} measures consistency once: set consensus.window")
        unknown = sorted(set(self.non_voting) - {*heads, *OBJECTIVES})
        if unknown:
            raise ValueError(f"consensus.non_voting: unknown {', '.join(unknown)}; heads: {', '.join(self.heads)}")
        if self.balances and self.model.sharing == "none":
            raise ValueError("with sharing 'none' there is no shared embedding to balance on: set balance.on = false")
        if self.several and heads <= set(self.non_voting):
            raise ValueError("consensus.non_voting names every head: none is left to vote")
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
    def form(self) -> Formulation:
        """Formulas on which the paper and its code differ."""
        return FORMULATIONS[self.formulation]

    @property
    def first_consensus_epoch(self) -> int:
        """First epoch after the warm-up (Algorithm 1, line 6), by `begins`, but not before the voting ranking."""
        every = self.consensus.every
        warm_up = (self.consensus.window or WARM_UP) * every
        first = {"full-window": warm_up - every + 1, "warm-up": warm_up, "after-warm-up": warm_up + 1}
        return max(first[self.form.begins], 1 if self.form.newest_votes else every + 1)

    @property
    def balances(self) -> bool:
        """Whether the weights of the heads are learned."""
        return self.balance.on and self.several

    def single(self, objective: str) -> ReferenceSettings:
        """SingleCF: the same settings with one head."""
        return self.model_copy(update={"objectives": (objective,)})


PAPER = ReferenceSettings(
    formulation="paper",
    model=ModelSettings(initial_std=None, dropout=0.0),
    consensus=ConsensusSettings(weight=0.01, window=5, consistency_temperature=10.0, non_voting=("multinomial-users",)),
    balance=BalanceSettings(settle=0),
    training=TrainingSettings(weight_decay=0.0),
)

RELEASED = ReferenceSettings(
    formulation="released",
    consensus=ConsensusSettings(every=10, window=5),
    training=TrainingSettings(epochs=200, patience=None),
)

ReferenceSettings.presets = {"paper": PAPER, "released": RELEASED, "reference": ReferenceSettings()}
