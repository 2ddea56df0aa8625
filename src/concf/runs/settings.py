"""The settings of a training run. Each says what its number means; the defaults are the preset `reference`."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from concf.consensus.settings import CONSENSUS, R_CONSENSUS, ConsensusSettings
from concf.data.weights import Weighting
from concf.errors import ConfigError
from concf.reference.encoders import ENCODERS, EncoderMaker, Sharing
from concf.reference.objectives import FIVE, OBJECTIVES, LossSettings, imported
from concf.runtime.settings import Settings, named

EVERYTHING = "all"  # the heads and the consensuses


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
    """How the heads' gradients are balanced (Eq. 15, 16)."""

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
    update: Literal["batch", "epoch"] = Field(
        "batch", description="when lambda_x is updated; epoch: by the mean gradient of its batches"
    )
    norm: Literal["sides", "joint"] = Field(
        "sides", description="gradient scale: norm(users) + item_share norm(items), or the norm of both as one"
    )
    item_share: float = Field(0.5, gt=0, description="with norm = sides: weight of the items' norm")


class TrainingSettings(Settings):
    """The training loop."""

    epochs: int = Field(500, ge=1, description="most epochs; each goes over all observed pairs once")
    batch: int = Field(1024, ge=1, description="observed pairs of a batch, with one negative each")
    steps: int | None = Field(
        None, ge=1, description="batches of an epoch, of 1024 to 65536 pairs each; none: `batch` sets their size"
    )
    order: Literal["pairs", "users"] = Field(
        "pairs", description="what is shuffled; users: a batch holds all pairs of few users"
    )
    learning_rate: float = Field(0.01, gt=0, description="learning rate of the model, by Adam")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty of all parameters")
    patience: int | None = Field(
        20, ge=1, description="epochs without a rise before a run stops, once the consensus loss began; none: never"
    )
    validate_every: int = Field(1, ge=1, description="epochs between two validations of the heads; rankings are, too")
    metric: str = Field("auto", description="validation metric; auto: recall@50, or with few items NDCG at a tenth")
    validated_users: int | None = Field(None, ge=1, description="so many, drawn by the seed, are validated; none: all")
    watch: str = Field(
        EVERYTHING, description="whose validation stops a run: all, consensus, R-consensus, or a head's name"
    )
    tf32: bool = Field(True, description="on a GPU: matrix products in TF32")

    def pairs_of_batch(self, pairs: int) -> int:
        """How many of so many observed pairs make a batch."""
        return self.batch if self.steps is None else min(max(-(-pairs // self.steps), 1024), 65536)


class RecipeSettings(Settings):
    """How the default is made: voters that are solved, a re-ranker, a student, and a refit. See docs/strong.md."""

    budget: Literal["fast", "default", "thorough"] = Field(
        "default", description="fast: nothing is learned by gradients but the student; thorough: more voters, longer"
    )
    refit: Literal["none", "validation", "everything"] = Field(
        "validation",
        description="what the final voters and student learn from beside the training part; everything: also the test "
        "part, for production",
    )
    popularity_groups: int = Field(
        1, ge=1, le=10, description="the student learns the order of the consensus within so many groups of items by "
        "popularity (docs/combine.md); 1: of all items together"
    )  # fmt: skip
    asked_users: int | None = Field(
        None, ge=1, description="users whose consensus is formed in the end, at most; it teaches the student, which "
        "ranks for the others (docs/scale.md); none: everyone, or as many as the budget pays for on a very "
        "large log"
    )  # fmt: skip
    own: bool = Field(True, description="whether the recipe's own voters vote; false: only given ones (concf combine)")
    given: tuple[str, ...] = Field((), description="voters of yours that are lists or scores (concf combine)")
    given_vectors: tuple[str, ...] = Field((), description="voters of yours that have vectors (concf combine)")
    snapshots: tuple[str, ...] = Field((), description="those of yours that are given at several times (concf combine)")

    @model_validator(mode="after")
    def _names_are_usable(self) -> RecipeSettings:
        heads = {named(entry)[0] for entries in RECIPE_HEADS.values() for entry in entries}
        own = {*heads, named(STUDENT)[0], CONSENSUS, R_CONSENSUS, EVERYTHING, *self.own_fixed}
        for name in self.foreign:
            if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
                raise ValueError(f"voter {name!r}: choose a name of letters, digits, _ and -, such as als or bm25-20")
            if name in own or self.foreign.count(name) > 1:
                raise ValueError(f"voter {name!r}: there is another of that name. Choose another name")
        if set(self.snapshots) - set(self.foreign):
            raise ValueError(f"snapshots {list(self.snapshots)}: expected names of given voters")
        if not self.own and not self.foreign:
            raise ValueError("own = false leaves nobody to vote")
        return self

    @property
    def foreign(self) -> tuple[str, ...]:
        """The voters from outside."""
        return (*self.given_vectors, *self.given)

    @property
    def own_heads(self) -> tuple[str, ...]:
        """The voting heads of the budget, with their objectives."""
        paid = (entries for budget, entries in RECIPE_HEADS.items() if self._pays(budget))
        return tuple(entry for entries in paid for entry in entries) if self.own else ()

    @property
    def own_fixed(self) -> tuple[str, ...]:
        """The voters without vectors of the budget."""
        everyone = ("rp3beta", "userknn", "ease") if self.budget == "thorough" else ("rp3beta",)
        return everyone if self.own else ()

    @property
    def objectives(self) -> tuple[str, ...]:
        """The heads: of the budget, those whose vectors are given, and the student."""
        return (*self.own_heads, *(f"{name}=weighted-squares" for name in self.given_vectors), STUDENT)

    @property
    def fixed_voters(self) -> tuple[str, ...]:
        """The voters without vectors."""
        return (*self.own_fixed, *self.given)

    def _pays(self, budget: str) -> bool:
        return list(RECIPE_HEADS).index(budget) <= list(RECIPE_HEADS).index(self.budget)


RECIPE_HEADS = {
    "fast": ("als-a=weighted-squares", "als-b=weighted-squares"),
    "default": ("softmax-a=cosine-softmax",),
    "thorough": ("softmax-b=cosine-softmax",),
}
STUDENT = "student=weighted-squares"
READ_BY_RECIPE = (
    "objectives", "model.dimensions", "model.encoder", "consensus.kept", "consensus.shown", "consensus.temperature",
    "consensus.top_k", "training.metric", "training.validated_users", "weights", "recipe",
)  # fmt: skip


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
    weights: Weighting = Weighting()
    recipe: RecipeSettings | None = Field(
        None, description="of the preset strong; none: Algorithm 1, all heads learn together by gradients"
    )

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
        strange = sorted(named - {*self.heads, *OBJECTIVES})
        if strange:
            raise ValueError(
                f"consensus names heads that do not exist: {', '.join(strange)}. Name others (consensus.non_voting, "
                "undistilled), or begin with the preset reference"
            )
        if self.balances and self.model.sharing == "none":
            raise ValueError("with sharing 'none' there is no shared embedding to balance on: set balance.on = false")
        if self.training.watch not in (*self.heads, CONSENSUS, R_CONSENSUS, EVERYTHING):
            raise ValueError(f"training.watch = {self.training.watch!r}: no head of that name, and not the consensus")
        if self.recipe is not None and self.objectives != self.recipe.objectives:
            raise ValueError(
                f"objectives {list(self.objectives)}: the recipe has its own. To train others, begin with the preset "
                "reference, or set recipe = none"
            )
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
    def fixed_voters(self) -> tuple[str, ...]:
        """Who votes beside the heads, without vectors."""
        return () if self.recipe is None else self.recipe.fixed_voters

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
        return self.model_copy(update={"objectives": (objective,), "training": training, "recipe": None})
