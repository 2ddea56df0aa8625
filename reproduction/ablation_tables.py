"""The paper's tables of ablations, and ours of single objectives and of the differences between the readings."""

from __future__ import annotations

from itertools import product
from statistics import median

from reproduction.cells_of_tables import change_of, four_twice, pair_of, recalls, text_of
from reproduction.lines import (
    CITEULIKE,
    NON_VOTING,
    SPLITS,
    Lines,
    label,
    p_value,
    percent,
)
from reproduction.measured import (
    NOT_MEASURED,
    NOTHING,
    estimate,
    figure,
    whole,
)
from reproduction.plan import CIAO_TOO
from reproduction.published import BEST, CONSENSUS, HEADS, R_CONSENSUS, printed
from reproduction.table import Row, Table, compared, splits_of
from reproduction.variants import ALONE, BY_MEAN, LIKELIHOODS


def homogeneous(lines: Lines) -> list[Table]:
    """One objective five times against five objectives."""
    five = [*(f"multinomial#{k}" for k in range(1, 6)), CONSENSUS]
    rows = [
        ("SingleCF", "multinomial"),
        *product(("PCL", "homogeneous"), five),
        *product((f"PCL{BY_MEAN}", f"homogeneous{BY_MEAN}"), (BEST, CONSENSUS)),
        *product((NON_VOTING, "ConCF"), (BEST, CONSENSUS)),
    ]
    return four_twice(lines, "homogeneous", "Homogeneous objectives, CiteULike", rows)


def distillation(lines: Lines) -> list[Table]:
    """Two stages against one."""
    students = ("T1", "T2", "T1 > SingleCF", "T2 > SingleCF", "T2 > ConCF best head", "T2 > ConCF consensus",
                "T1 > ConCF best head", "T1 > ConCF consensus")  # fmt: skip
    again = [row + words for words in list(LIKELIHOODS.values())[1:] for row in students[2:]]
    again = [row for row in again if lines.test("distillation", CITEULIKE, row)]
    rows: list[Row] = [([row], recalls(lines, "distillation", [row])) for row in (*students, *again)]
    rows += [([f"ConCF {row}"], recalls(lines, "ConCF", [row])) for row in (BEST, CONSENSUS)]
    return [compared("distillation", "Two-stage distillation, CiteULike, R@50", ["scheme"], [""], rows)]


def hyperparameters(lines: Lines) -> list[Table]:
    """Balancing, alpha, the period and the length of the window."""
    windows = [f"Q={q},p={p}" for q in ("all", 5, 10) for p in (1, 10, 20)]
    variants = ("balanced per batch", "weights per epoch", "without balancing", "alpha=0", "alpha=0.005", "alpha=0.01",
                "alpha=0.1", "alpha=1", *windows)  # fmt: skip
    reference = ("balanced per batch", "alpha=0.005", "Q=10,p=20")  # ConCF itself
    theirs = {"balanced per batch": "alpha=0.01"}
    rows: list[Row] = []
    for name in variants:
        variant = "ConCF" if name in reference else name
        ours = {row: lines.test(variant, CITEULIKE, row) for row in (BEST, CONSENSUS)}
        paper = {row: printed("citeulike", theirs.get(name, name), row) for row in ours}
        rows.append(([name], [pair_of(CITEULIKE, paper[row], ours[row]) for row in ours]))
    title = "Hyperparameters, CiteULike, R@50"
    return [compared("hyperparameters", title, ["variant"], ["best head", "consensus"], rows)]


def selection(lines: Lines) -> list[Table]:
    """A head for each pair instead of all."""
    rows = list(product(("ConCF", "ConCF-S", "ConCF-S, all heads taught", "AutoML"), (BEST, CONSENSUS)))
    return four_twice(lines, "selection", "Selecting a loss, CiteULike", rows)


def sharing(lines: Lines) -> list[Table]:
    """What the heads share, and how much of a model the embeddings are."""
    shared = {"sharing=full": "all but the heads", "sharing=layer": "embeddings and a layer", "ConCF": "embeddings",
              "sharing=none": "nothing"}  # fmt: skip
    rows: list[Row] = []
    sizes = []
    for variant, name in shared.items():
        rows.append(([name], recalls(lines, variant, (BEST, R_CONSENSUS, CONSENSUS))))
        every, tables = (lines.field(variant, CITEULIKE, "parameters", kind) for kind in ("all", "embeddings"))
        share = {seed: size / every[seed] for seed, size in tables.items()}
        sizes.append([name, text_of(every, whole), text_of(tables, whole), text_of(share, percent)])
    columns = ["best head", "R-con", "RC-con"]
    return [
        compared("sharing", "Parameter sharing, CiteULike, R@50", ["shared"], columns, rows),
        Table("parameters", "Parameters", ["shared", "all", "of the embeddings", "share"], sizes),
    ]


def differences(lines: Lines) -> list[Table]:
    """What each difference between the presets is worth, to the consensus and to each head."""
    ours = {row: estimate(lines.test("ConCF", CITEULIKE, row)) for row in (CONSENSUS, *HEADS)}
    paper, *theirs = (figure(printed("citeulike", "ConCF", row) or 0.0) for row in ours)
    heads = [figure(one.mean) if (one := ours[head]) else NOT_MEASURED for head in HEADS]
    splits = splits_of(one.splits if (one := ours[CONSENSUS]) else 0, SPLITS["differences"])
    rows = [
        ["reference itself: R@50", NOTHING, text_of(ours[CONSENSUS]), NOTHING, *heads, splits],
        ["the paper's ConCF: R@50", NOTHING, paper, NOTHING, *theirs, NOTHING],
    ]
    for effect in lines.effects():
        p = p_value(effect.consensus, dict.fromkeys(effect.consensus, 0.0))
        worth = [change_of(effect.consensus, std=True), NOTHING if p is None else f"{p:.2g}"]
        heads = [change_of(effect.added[head]) for head in HEADS]
        splits = splits_of(len(effect.consensus), SPLITS["differences"])
        rows.append([effect.name, ", ".join(effect.changes) or NOTHING, *worth, *heads, splits])
    header = ["switched from reference", "changes", "consensus", "p", *HEADS.values(), "splits"]
    title = "Each difference alone: change of R@50 against reference on CiteULike"
    return [Table("differences", title, header, rows, f"The paper has no such table.{_of_cf_e(lines)}")]


def alone(lines: Lines) -> list[Table]:
    """CF-B and CF-E by themselves, trained otherwise."""
    rows: list[Row] = []
    for dataset, (name, head) in product(CIAO_TOO, (("CF-B", "cml"), ("CF-E", "multinomial"))):
        paper = printed(dataset[0], "SingleCF", head)
        variants = {"SingleCF": f"{name} as in SingleCF"} | {each: each for each in ALONE if each.startswith(name)}
        for variant, title in variants.items():
            epochs = lines.field(variant, dataset, "rows", head, "epoch")
            best = whole(median(epochs.values())) if epochs else NOT_MEASURED
            pair = pair_of(dataset, paper, lines.test(variant, dataset, head))
            rows.append(([label(dataset), title, best], [pair]))
    labels = ["data, protocol", "objective", "best epoch"]
    return [compared("alone", "CF-B and CF-E alone, R@50", labels, [""], rows, SPLITS["alone"])]


def _of_cf_e(lines: Lines) -> str:
    """Where CF-E's shortfall comes from."""
    names = {"ConCF": "reference"} | {name: name for name in ("paper: training ratio", "paper: lambdas")}
    ours = {name: estimate(lines.test(variant, CITEULIKE, "multinomial")) for variant, name in names.items()}
    shown = ", ".join(f"{figure(one.mean)} with `{name}`" for name, one in ours.items() if one)
    paper = figure(printed("citeulike", "ConCF", "multinomial") or 0.0)
    return f" R@50 of CF-E is {shown}; the paper has {paper}." if shown else ""
