"""What the paper compares, each as settings of the one trainer: words such as `consensus.weight=0` over a preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from concf.reference.objectives import FORMULATIONS, Formulation
from concf.runs.settings import from_word
from reproduction.published import HEADS

PAPERS_FIVE = tuple(HEADS)  # CF-A .. CF-E
SIZES = (32, 48, 64, 80, 96)

# What is compared as single models trains for as long as ConCF does, and is taken at its best: so all train alike.
TO_THE_CAP = ("training.epochs=300", "training.patience=none")

# SingleCF of every objective in one run: nothing is shared, and no head learns from another.
SIDE_BY_SIDE = ("model.sharing=none", "balance.on=false", "consensus.weight=0", *TO_THE_CAP)

# How CF-E's loss is counted, and what is added to the name of a row or variant; Eq. 5 is the sum over rows.
LIKELIHOODS = {"rows": "", "users": ", CF-E by user", "mean": ", CF-E by mean"}
BY_MEAN = LIKELIHOODS["mean"]


# How loudly a student of CF-E hears its teacher, beside alpha = 0.005
LOUDER: dict[str, tuple[str, ...]] = {
    **{f"alpha={alpha}": (f"consensus.weight={alpha}",) for alpha in ("0.05", "0.1", "0.2")},
    **{f"share={share}": () for share in ("0.3", "1")},
}
# Variants whose heads hear the consensus at a share of their own gradient scale, see `KeepsShare`
KEPT_SHARES = {"share=0.3": 0.3, "share=1": 1.0, "from ALS, share=1": 1.0}
# Heads that start from vectors of ALS: small steps, no decay towards 0, and a consensus loss from the second epoch on.
# CF-B and CF-E' cannot rank as ALS does at the start, so that they have no vote.
FROM_ALS_WORDS = (
    "model.encoder=mf", "training.learning_rate=0.0001", "training.weight_decay=0", "training.epochs=60",
    "consensus.every=1", "consensus.window=2", 'consensus.non_voting=["cml", "multinomial-users"]',
)  # fmt: skip
FROM_ALS = {
    "from ALS": FROM_ALS_WORDS,
    "from ALS, without CL": (*FROM_ALS_WORDS, "consensus.weight=0"),
    "from ALS, share=1": FROM_ALS_WORDS,
}


def _five(objective: str) -> str:
    return "objectives=" + ",".join(f"{objective}#{start}" for start in range(1, 6))


def _alone(objective: str, *words: str) -> tuple[str, ...]:
    return (f"objectives={objective}", *TO_THE_CAP, *words)


def _window(rankings: int | None, every: int) -> tuple[str, ...]:
    """|Q| and p; all rankings count where |Q| is None, after a warm-up of 5 p."""
    return f"consensus.every={every}", f"consensus.window={rankings or 'none'}"


def _point(name: str, text: str) -> tuple[str, ...]:
    """`reference` with one other point: a formulation of its own, called `name=text`."""
    (value,) = from_word(f"{name}={text}").values()
    point: dict[str, Any] = {name: None if value == "none" else value}
    FORMULATIONS[f"{name}={text}"] = replace(Formulation(), **point)
    return (f"formulation={name}={text}",)


# Each row of the paper's settings, and of its released code's, that is not `reference`: together they are the preset.
PAPER_ROWS: dict[str, tuple[str, ...]] = {
    "consistency temperature": ("consensus.consistency_temperature=10",),
    "window": ("consensus.window=5",),
    "alpha": ("consensus.weight=0.01",),
    "first epoch with consensus loss": _point("begins", "warm-up"),
    "voters": ('consensus.non_voting=["multinomial-users"]',),
    "training ratio": _point("ratio_of", "whole"),
    "initial loss": ("balance.settle=0",),
    "lambdas": _point("optimiser", "descent"),
    "gradient scale": _point("norm", "joint"),
    "weight of the consensus loss": _point("weight_range", "none"),
    "CF-B": _point("distance", "plain"),
    "CF-D": _point("error_scale", "0.5"),
    "start": ("model.initial_std=none",),
    "dropout": ("model.dropout=0",),
    "weight decay": ("training.weight_decay=0",),
}  # fmt: skip
RELEASED_ROWS: dict[str, tuple[str, ...]] = {
    "epochs": ("training.epochs=200", "training.patience=none"),
    "p, |Q|": ("consensus.every=10", "consensus.window=5"),
    "window": _point("window_moves", "false"),
    "newest ranking": _point("newest_votes", "false"),
    "first epoch with consensus loss": _point("begins", "after-warm-up"),
    "clipped scores": _point("clip", "40"),
}

VARIANTS: dict[str, tuple[str, ...]] = {
    "statistics": (),
    "ConCF": (),
    "SingleCF": SIDE_BY_SIDE,
    "without CL": ("consensus.weight=0",),
    "initial conditions": (*SIDE_BY_SIDE, _five("bpr")),
    "model sizes": TO_THE_CAP,
    "consistency": (
        *SIDE_BY_SIDE, "consensus.every=1", "consensus.window=20", "training.epochs=101",
    ),
    "homogeneous": (_five("multinomial"),),
    "PCL": (_five("multinomial"),),
    f"homogeneous{BY_MEAN}": (_five("multinomial"), "losses.likelihood=mean"),
    f"PCL{BY_MEAN}": (_five("multinomial"), "losses.likelihood=mean"),
    "distillation": (),
    "without balancing": ("balance.on=false",),
    **{f"alpha={alpha}": (f"consensus.weight={alpha}",) for alpha in ("0", "0.01", "0.1", "1")},
    **{f"Q={q or 'all'},p={p}": _window(q, p) for q in (None, 5, 10) for p in (1, 10, 20) if (q, p) != (10, 20)},
    "ConCF-S": TO_THE_CAP,
    "ConCF-S, all heads taught": TO_THE_CAP,
    "AutoML": (*TO_THE_CAP, "consensus.weight=0", "balance.on=false"),
    "sharing=full": ("model.sharing=full",),
    "sharing=layer": ("model.sharing=layer",),
    "sharing=none": ("model.sharing=none", "balance.on=false"),
    **{f"paper: {name}": words for name, words in PAPER_ROWS.items()},
    **{f"released: {name}": words for name, words in RELEASED_ROWS.items()},
    f"reading{BY_MEAN}": ("losses.likelihood=mean",),
    "CF-B, 1000 epochs": _alone("cml", "training.epochs=1000"),
    "CF-B, margin 0.5": _alone("cml", "losses.margin=0.5"),
    "CF-B, margin 2": _alone("cml", "losses.margin=2"),
    "CF-B, learning rate 0.001": _alone("cml", "training.learning_rate=0.001"),
    "CF-E, by user": _alone("multinomial", "losses.likelihood=users"),
    "CF-E, by mean": _alone("multinomial", "losses.likelihood=mean"),
    "CF-E, learning rate 0.001": _alone("multinomial", "training.learning_rate=0.001"),
    "taught CF-E": (),
    **{f"share={share}": () for share in ("0.3", "1")},
    **{f"CF-E, dropout {rate}": _alone("multinomial", "training.epochs=100", f"model.dropout={rate}")
       for rate in ("0.2", "0.3", "0.4", "0.5")},
    "CF-B, start": _alone("cml", "model.initial_std=1"),
    "CF-B, start, 1000 epochs": _alone("cml", "model.initial_std=1", "training.epochs=1000"),
    "CF-B, no weight decay": _alone("cml", "training.weight_decay=0"),
    "CF-B, decoupled decay": _alone("cml", "training.weight_decay=0"),
    "CF-B, no bias": _alone("cml=reproduction.sensitivity:CML_WITHOUT_BIAS"),
    **FROM_ALS,
    "strong": (),
}  # fmt: skip
# Two variants are in the results and tables, but no setting trains them any more: "weights per epoch" (lambda_x moved
# once an epoch), and "share=equal" (of the gradient, the geometric mean over the heads).
HYPERPARAMETERS = (
    "without balancing", "alpha=0", "alpha=0.01", "alpha=0.1", "alpha=1",
    *(name for name in VARIANTS if name.startswith("Q=")),
)  # fmt: skip
DIFFERENCES = tuple(name for name in VARIANTS if name.startswith(("paper: ", "released: ", "reading")))
SHARES = tuple(name for name in VARIANTS if name.startswith("share="))
DROPOUT = tuple(name for name in VARIANTS if name.startswith("CF-E, dropout"))
SLOW = tuple(name for name in VARIANTS if name.startswith(("CF-B, start", "CF-B, no ", "CF-B, decoupled")))
ALONE = tuple(name for name in VARIANTS if name.startswith(("CF-B, ", "CF-E, ")) and name not in (*DROPOUT, *SLOW))
