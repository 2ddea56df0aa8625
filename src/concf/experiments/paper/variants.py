"""What the paper compares, each as settings of the one trainer: words such as `consensus.weight=0` over a preset."""

from __future__ import annotations

from concf.experiments.paper.published import HEADS

PAPERS_FIVE = tuple(HEADS)  # CF-A .. CF-E
SIZES = (32, 48, 64, 80, 96)

# SingleCF of every objective in one run: nothing is shared, no head learns from another, each is taken at its best.
SIDE_BY_SIDE = ("model.sharing=none", "balance.on=false", "consensus.weight=0", "training.watch=all")

# A head sees a sixth of the pairs in an epoch and rises for long: no early stop.
ONE_HEAD_A_PAIR = ("training.patience=none",)


def _five(objective: str) -> str:
    return "objectives=" + ",".join(f"{objective}#{start}" for start in range(1, 6))


def _window(rankings: int | None, every: int) -> tuple[str, ...]:
    """|Q| and p; all rankings count where |Q| is None, after a warm-up of 5 p. Few rankings need more epochs."""
    words = [f"consensus.every={every}", f"consensus.window={rankings or 1_000_000}", "consensus.warm_up=5"]
    return (*(words[:2] if rankings else words), *(["training.epochs=500"] if every > 10 else []))


# Each row of the paper's settings, and of its released code's, that is not `reference`: together they are the preset.
PAPER_ROWS: dict[str, tuple[str, ...]] = {
    "consistency temperature": ("consensus.consistency_temperature=10",),
    "p": ("consensus.every=20",),
    "alpha": ("consensus.weight=0.01",),
    "epochs": ("training.epochs=500",),
    "first epoch with consensus loss": ("consensus.begins=warm-up",),
    "voters": ('consensus.non_voting=["multinomial-users"]',),
    "training ratio": ("balance.ratio_of=whole", "balance.exponent=1"),
    "initial loss": ("balance.settle=0",),
    "lambdas": (
        "balance.total=1", "balance.floor=0.0001", "balance.optimiser=descent", "balance.learning_rate=0.0001",
    ),
    "gradient scale": ("balance.norm=joint",),
    "weight of the consensus loss": ("consensus.weight_range=none",),
    "CF-B": ("losses.distance=plain", "losses.distance_scale=1"),
    "CF-D": ("losses.error_scale=0.5",),
    "start": ("model.initial_std=none",),
    "dropout": ("model.dropout=0",),
    "weight decay": ("training.weight_decay=0",),
}  # fmt: skip
RELEASED_ROWS: dict[str, tuple[str, ...]] = {
    "epochs": ("training.patience=none",),
    "window": ("consensus.window_moves=false",),
    "newest ranking": ("consensus.newest_votes=false",),
    "first epoch with consensus loss": ("consensus.begins=after-warm-up",),
    "clipped scores": ("consensus.clip=40",),
}

VARIANTS: dict[str, tuple[str, ...]] = {
    "statistics": (),
    "ConCF": (),
    "SingleCF": SIDE_BY_SIDE,
    "without CL": ("consensus.weight=0",),
    "initial conditions": (*SIDE_BY_SIDE, _five("bpr")),
    "model sizes": (),
    "consistency": (
        *SIDE_BY_SIDE, "consensus.every=1", "consensus.window=20", "training.epochs=101", "training.patience=none",
    ),
    "homogeneous": (_five("multinomial"),),
    "PCL": (_five("multinomial"),),
    "distillation": (),
    "without balancing": ("balance.on=false",),
    "weights per epoch": ("balance.update=epoch",),
    **{f"alpha={alpha}": (f"consensus.weight={alpha}",) for alpha in ("0", "0.01", "0.1", "1")},
    **{f"Q={q or 'all'},p={p}": _window(q, p) for q in (None, 5, 10) for p in (1, 10, 20) if (q, p) != (5, 10)},
    "ConCF-S": ONE_HEAD_A_PAIR,
    "AutoML": (*ONE_HEAD_A_PAIR, "consensus.weight=0", "balance.on=false"),
    "sharing=full": ("model.sharing=full",),
    "sharing=layer": ("model.sharing=layer",),
    "sharing=none": ("model.sharing=none", "balance.on=false"),
    **{f"paper: {name}": words for name, words in PAPER_ROWS.items()},
    **{f"released: {name}": words for name, words in RELEASED_ROWS.items()},
}  # fmt: skip
HYPERPARAMETERS = (
    "without balancing", "weights per epoch", "alpha=0", "alpha=0.01", "alpha=0.1", "alpha=1",
    *(name for name in VARIANTS if name.startswith("Q=")),
)  # fmt: skip
DIFFERENCES = tuple(name for name in VARIANTS if name.startswith(("paper: ", "released: ")))
