"""Lines of results made by hand, with the paper's own figures, so that what follows from them is known beforehand."""

from __future__ import annotations

from typing import Any

from reproduction import published
from reproduction.lines import CITEULIKE, DATASETS, NON_VOTING
from reproduction.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS, figures

Line = dict[str, Any]
SHIFTS = (0.0, 0.004, -0.002, 0.001, 0.003)  # of the splits
NOISE = 0.005  # between equal runs
HYPERPARAMETERS = ("without balancing", "alpha=0", "alpha=0.01", "alpha=0.1", "alpha=1",
                   *(f"Q={q},p={p}" for q in ("all", 5, 10) for p in (1, 10, 20) if (q, p) != (10, 20)))  # fmt: skip


def line(
    variant: str, figures: dict[str, float], dataset: tuple[str, str] = CITEULIKE, seed: int = 0, **fields: Any
) -> Line:
    """R@50 of each row; the other metrics and the groups are shares of it, G-4 gains with the rows' own `gains`."""
    preset, gains = fields.pop("preset", "reference"), fields.pop("gains", (0.9, 1.0, 1.1, 1.2))
    rows = {}
    for row, value in figures.items():
        test = dict(zip(METRICS, (0.6 * value, 0.35 * value, value, 0.45 * value), strict=True))
        groups = [
            {"users": 500, "activity": 40.0 - 10 * k} | {m: v * gains[k] for m, v in test.items()} for k in range(4)
        ]
        rows[row] = {"validation": value, "epoch": 50, "test": test, "groups": groups}
    heads = [row for row in figures if row not in (CONSENSUS, R_CONSENSUS)]
    cell = {"variant": variant, "data": dataset[0], "protocol": dataset[1], "seed": seed, "preset": preset}
    return {
        "cell": cell, "split_hash": "ab", "changes": [], "rows": rows, "seconds": 12.5, "device": "NVIDIA H200",
        "epochs": 200, "settings": {"training": {"epochs": 200}},
        "best_head": max(heads, key=lambda head: figures[head], default=""),
        "provenance": {"commit": "abc123", "versions": {"torch": "2.13"}, "machine": {"processor": "x", "cores": 8}},
    } | fields  # fmt: skip


def recalls(variant: str, data: str = "citeulike") -> dict[str, float]:
    """The paper's R@50 of each row of a variant."""
    return {row: four["recall@50"] for (where, who, row), four in figures().items() if (where, who) == (data, variant)}


def five(dataset: tuple[str, str], scheme: str, shift: float = 0.0) -> dict[str, float]:
    """The paper's own R@50, moved by a shift."""
    heads = {head: recalls(scheme, dataset[0])[head] + shift for head in HEADS}
    best = max(heads.values())
    return heads | {R_CONSENSUS: best - 0.004, CONSENSUS: best + 0.012}


def renamed(rows: dict[str, float], shift: float) -> dict[str, float]:
    """The best head is that of CF-A, moved by a shift."""
    return {"bpr" if row == BEST else row: value + shift for row, value in rows.items()}


def complements(ratio: float) -> dict[str, Any]:
    return {
        "per": {x: {y: 0.0 if x == y else 0.35 for y in HEADS} for x in HEADS},
        "chr": dict.fromkeys(HEADS, ratio),
        "user_chr": {head: [k / 100 * (0.9 + 0.02 * n) for k in range(101)] for n, head in enumerate(HEADS)},
    }


def controls(shift: float) -> dict[str, Any]:
    """Ranks alone below counting, and counting below consistency; each a little better when it is tuned."""
    ways = {"R": 0.34, "R + C": 0.37 + 1.2 * shift, "R + 1": 0.36 + shift}
    return {
        kind: {
            "T": 10.0, "T_c": None, "validation": value, "test": {"recall@50": value}, "groups": [value] * 4,
            "untuned": {"validation": value - 0.01, "test": {"recall@50": value - 0.01}},
        }
        for kind, value in ways.items()
    }  # fmt: skip


def consistency() -> dict[str, Any]:
    bins = {"correct": [0.6 - 0.05 * k for k in range(10)], "incorrect": [0.5 - 0.05 * k for k in range(10)]}
    rising = [0.1 + 0.02 * k for k in range(10)]  # the first four epochs are before the window is full
    curves = {"R": rising, "RC": [1.08 * value for value in rising]}
    all_curves = {"R": rising, "RC": [1.16 * value for value in rising]}
    return {
        "consistency": {"one": bins, "all": bins},
        "curves": {
            "epoch": [5 * k for k in range(10)],
            "one": curves,
            "all": all_curves,
            "tuned": [{"R": v, "R + C": 1.1 * v, "R + 1": v} for v in rising],
        },
    }


def everything() -> list[Line]:
    """Lines as the paper would have them, so that its claims hold."""
    lines = []
    for dataset in (("citeulike", "paper"), *DATASETS):
        printed = published.STATISTICS[dataset[0]]
        parts = {"train": 100, "valid": 20, "test": 20, "evaluated_users": 50}
        lines.append(line("statistics", {}, dataset, statistics={**printed, **parts}))
    for seed, shift in enumerate(SHIFTS):
        for dataset in DATASETS:
            single, concf = five(dataset, "SingleCF", shift), five(dataset, "ConCF", 1.1 * shift)
            for preset in ("reference", "paper", "released"):
                more = {"controls": controls(shift)} | complements(0.56)
                lines.append(line("SingleCF", single, dataset, seed, preset=preset, **more))
                sizes = {"all": 1000, "embeddings": 995}
                lines.append(line("ConCF", concf, dataset, seed, preset=preset, gains=(0.9, 1.0, 1.1, 1.6),
                                  parameters=sizes, **complements(0.18)))  # fmt: skip
            together = {k: v + (0.003, 0.005)[seed % 2] for k, v in single.items()} | {CONSENSUS: single[CONSENSUS]}
            lines.append(line("without CL", together, dataset, seed, **complements(0.42)))
            if seed < 3:
                lines.append(line("initial conditions", {"bpr#1": 0.25}, dataset, seed, chr={"bpr#1": 0.30}))
                lines.append(line("model sizes", {"bpr d=64": 0.25}, dataset, seed, chr={"bpr d=64": 0.32}))
    for seed, shift in enumerate(SHIFTS[:3]):
        lines += only_citeulike(seed, shift)
    return lines


def only_citeulike(seed: int, shift: float) -> list[Line]:
    consensus = five(CITEULIKE, "ConCF", 1.1 * shift)[CONSENSUS]
    lines = [line("consistency", {}, seed=seed, **consistency())]
    for variant in ("PCL", "homogeneous"):
        lines.append(line(variant, {row: value + shift for row, value in recalls(variant).items()}, seed=seed))
    noise = 0.002 * (seed - 1)  # a student head is better or worse than its teacher by chance
    taught = {row: value + shift + noise * (">" in row) for row, value in recalls("distillation").items()}
    taught = {row: min(value, 0.3700 + shift) if ">" in row else value for row, value in taught.items()}
    lines.append(line("distillation", taught, seed=seed))
    for variant in HYPERPARAMETERS:
        lines.append(line(variant, renamed(recalls(variant), shift), seed=seed))
    lines += twins(seed, shift)
    lines.append(line("weights per epoch", {"bpr": 0.36 + shift, CONSENSUS: 0.37 + shift}, seed=seed))
    for variant in ("ConCF-S", "AutoML"):
        lines.append(line(variant, renamed(recalls(variant), shift), seed=seed))
    for variant in ("sharing=full", "sharing=layer", "sharing=none"):
        sizes = {"all": 1000, "embeddings": 900}
        lines.append(line(variant, renamed(recalls(variant), shift), seed=seed, parameters=sizes))
    for variant, effect in (("paper: lambdas", 0.01), ("released: window_[x]", -0.02), (NON_VOTING, -0.01)):
        figures = five(CITEULIKE, "ConCF", 1.1 * shift) | {CONSENSUS: consensus + effect}
        lines.append(line(variant, figures, seed=seed, changes=["balance.total=1"]))
    return lines


def twins(seed: int, shift: float) -> list[Line]:
    """Equal settings once more: NOISE apart on every split, one way or the other."""
    apart = NOISE * (-1) ** seed
    alpha = line("paper: alpha", renamed(recalls("alpha=0.01"), shift + apart), seed=seed)
    again = {row: value + apart for row, value in renamed(recalls("Q=5,p=20"), shift).items()}
    # `without CL` is of the main experiment: here `alpha=0` is its twin
    alone = {row: value + (0.003, 0.005)[seed % 2] for row, value in five(CITEULIKE, "SingleCF", shift).items()}
    alone[CONSENSUS] = five(CITEULIKE, "SingleCF", shift)[CONSENSUS]
    twin = {row: value + apart for row, value in alone.items()}
    return [
        alpha | {"changes": ["consensus.weight=0.01"]},
        line("paper: window", again, seed=seed, changes=["consensus.window=5"], **complements(0.18)),
        line("alpha=0", twin, seed=seed, **complements(0.42)),
    ]


LINES = everything()


def changed(variant: str, add: float, row: str | None = None) -> list[Line]:
    """The lines with a variant's test figures moved."""
    lines = []
    for each in LINES:
        if each["cell"]["variant"] == variant:
            rows = {
                name: old if row not in (None, name) else old | {"test": {m: v + add for m, v in old["test"].items()}}
                for name, old in each["rows"].items()
            }
            each = each | {"rows": rows}
        lines.append(each)
    return lines
