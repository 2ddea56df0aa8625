"""From measured lines to the paper's tables. `TABLES` has a function for each experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import mean, median

from concf.experiments.paper import published
from concf.experiments.paper.controls import CONSISTENCIES, COUNTED, RC, TEMPERATURES, R
from concf.experiments.paper.measured import (
    NOT_MEASURED,
    NOTHING,
    Dataset,
    Estimate,
    Pair,
    Series,
    Write,
    estimate,
    figure,
    hundredths,
    inside,
    whole,
)
from concf.experiments.paper.plan import CIAO_TOO
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, R_CONSENSUS, printed
from concf.experiments.paper.variants import ALONE, BY_MEAN, LIKELIHOODS
from reproduction.lines import (
    BEST_TESTED,
    CITEULIKE,
    DATASETS,
    FACTORS,
    NON_VOTING,
    PRESETS,
    SCHEMES,
    SPLITS,
    TITLES,
    WINDOW,
    Lines,
    gain,
    label,
    name_of,
    p_value,
    paired,
    percent,
)
from reproduction.table import Row, Table, compared, splits_of

ALONE_ON = CIAO_TOO  # what other presets are measured on
KINDS = (R, RC, COUNTED)
EPOCHS: dict[str, Callable[[int], bool]] = {
    f"epochs 5 to {WINDOW - 5}, before the window is full": lambda epoch: 0 < epoch < WINDOW,
    f"epochs {WINDOW} to 50": lambda epoch: WINDOW <= epoch <= 50,
    "epochs 55 to 100": lambda epoch: epoch > 50,
}
DRAWN = "The paper draws these without figures."
DATA = "data, protocol"


def _text(ours: Series | Estimate | None, write: Write = figure) -> str:
    """`0.3795 ± 0.0037`, or that it was not measured."""
    ours = estimate(ours) if isinstance(ours, dict) else ours
    return ours.text(write) if ours else NOT_MEASURED


def _pair(dataset: Dataset, paper: float | None, ours: Series | Estimate | None, write: Write = figure) -> Pair:
    return Pair(paper, estimate(ours) if isinstance(ours, dict) else ours, write, same=dataset[0] != "foursquare")


def _recall(lines: Lines, variant: str, rows: Sequence[str], dataset: Dataset = CITEULIKE) -> list[Pair]:
    """R@50 of some rows of a variant."""
    return [_pair(dataset, printed(dataset[0], variant, row), lines.test(variant, dataset, row)) for row in rows]


def _four(
    lines: Lines, rows: Sequence[tuple[str, str]], cut: int, dataset: Dataset = CITEULIKE, preset: str = "reference"
) -> list[Row]:
    """The two metrics at a cut of each (variant, row)."""

    def pair(variant: str, row: str, metric: str) -> Pair:
        paper = None if row == R_CONSENSUS else printed(dataset[0], variant, row, metric)  # of another table
        if row.startswith("Gain"):
            return _pair(dataset, paper, gain(*lines.gains(dataset, metric, preset)[row]), percent)
        return _pair(dataset, paper, lines.test(variant, dataset, row, metric, preset))

    metrics = (f"recall@{cut}", f"ndcg@{cut}")
    return [([TITLES.get(v, v), name_of(row)], [pair(v, row, metric) for metric in metrics]) for v, row in rows]


def _four_twice(lines: Lines, name: str, title: str, rows: Sequence[tuple[str, str]]) -> list[Table]:
    labels = ["scheme", "objective"]
    return [
        compared(f"{name}-{n}", f"{title}, top {n}", labels, (f"R@{n}", f"N@{n}"), _four(lines, rows, n))
        for n in (50, 20)
    ]


def statistics(lines: Lines) -> list[Table]:
    """The data sets as they are after the filters, and how they are divided."""
    kinds: dict[str, Write] = dict.fromkeys(("users", "items", "events"), whole)
    kinds["density"] = lambda value: f"{100 * value:.3f} %"
    parts = ("train", "valid", "test", "evaluated_users")
    sizes: list[Row] = []
    divided = []
    for dataset in (("citeulike", "paper"), *DATASETS):
        counts = {kind: lines.field("statistics", dataset, "statistics", kind) for kind in (*kinds, *parts)}
        cells = {seed: users * counts["items"][seed] for seed, users in counts["users"].items()}
        counts["density"] = {seed: pairs / cells[seed] for seed, pairs in counts["events"].items()}
        paper = published.STATISTICS[dataset[0]]
        sizes.append(([label(dataset)], [_pair(dataset, paper[kind], counts[kind], kinds[kind]) for kind in kinds]))
        divided.append([label(dataset), *(_text(counts[part], whole) for part in parts)])
    header = [DATA, "train", "valid", "test", "evaluated users"]
    return [
        compared("statistics", "The data", [DATA], kinds, sizes, SPLITS["stats"]),
        Table("division", "Pairs that train, validate and test", header, divided),
    ]


def main(lines: Lines) -> list[Table]:
    """The main table for each data set and cut under `reference`, the presets side by side, then theirs in full."""
    ours = [_main(lines, "reference", *which) for which in product(DATASETS, (50, 20))]
    return [*ours, _presets(lines), *(_main(lines, *which) for which in product(PRESETS[1:], ALONE_ON, (50, 20)))]


def _main(lines: Lines, preset: str, dataset: Dataset, cut: int) -> Table:
    ours = (*HEADS, R_CONSENSUS, CONSENSUS, "Gain.Best", "Gain.Con.")
    which = [("SingleCF", head) for head in HEADS] + [("ConCF", row) for row in ours]
    name, title = f"main-{'-'.join(dataset)}-{preset}-{cut}", f"{label(dataset)}, preset {preset}, top {cut}"
    rows = _four(lines, which, cut, dataset, preset)
    return compared(name, title, ["scheme", "objective"], (f"R@{cut}", f"N@{cut}"), rows, SPLITS["main"])


def _presets(lines: Lines) -> Table:
    columns = {"best SingleCF": ("SingleCF", BEST), "best head": ("ConCF", BEST), "consensus": ("ConCF", CONSENSUS)}
    rows: list[Row] = []
    for dataset, preset in product(ALONE_ON, PRESETS):
        ours = {which: lines.test(which[0], dataset, which[1], preset=preset) for which in columns.values()}
        ours["SingleCF", BEST] = lines.test("SingleCF", dataset, BEST_TESTED, preset=preset)
        pairs = [_pair(dataset, printed(dataset[0], *which), ours[which]) for which in ours]
        rows.append(([label(dataset), preset], pairs))
    return compared("presets", "The three presets, R@50", [DATA, "preset"], columns, rows, SPLITS["main"])


def groups(lines: Lines) -> list[Table]:
    """Gain.Best by how active users are."""
    rows = []
    for dataset, group in product(DATASETS, range(4)):
        ours, theirs = lines.group(dataset, group)
        sizes = [_text(lines.group(dataset, group, key)[1], whole) for key in ("users", "activity")]
        figures = [_text(theirs), _text(ours), _text(gain(ours, theirs), percent)]
        splits = splits_of(len(paired(ours, theirs)[0]), SPLITS["groups"])
        rows.append([label(dataset), f"G-{group + 1}", *sizes, *figures, splits])
    header = [DATA, "group", "users", "their interactions", "SingleCF R@50", "ConCF R@50", "gain", "splits"]
    return [Table("groups", "Gain.Best by group of users", header, rows, DRAWN)]


def schemes(lines: Lines) -> list[Table]:
    """Three schemes, their best head and consensuses, and CHR of the head of CF-A."""
    columns = {"best": BEST, "R-con": R_CONSENSUS, "RC-con": CONSENSUS}
    rows = [
        ([label(dataset), title], _recall(lines, scheme, list(columns.values()), dataset))
        for dataset, (scheme, title) in product(DATASETS, SCHEMES.items())
    ]
    return [
        compared("schemes", "Three training schemes, R@50", [DATA, "scheme"], columns, rows, SPLITS["schemes"]),
        _chr(lines, "chr-by-scheme", "CHR by three training schemes", "scheme", SCHEMES),
        _epochs(lines),
    ]


def _chr(lines: Lines, name: str, title: str, column: str, variants: dict[str, str]) -> Table:
    rows: list[Row] = []
    for dataset, variant in product(DATASETS, variants):
        pair = _pair(dataset, published.CHR[variant][dataset[0]], lines.chr(variant, dataset), hundredths)
        rows.append(([label(dataset), variants[variant]], [pair]))
    return compared(name, title, [DATA, column], ["CHR"], rows, SPLITS["schemes" if column == "scheme" else "chr"])


def _epochs(lines: Lines) -> Table:
    """How long the runs are, and at which epoch each row is at its best."""
    shown = (*HEADS, R_CONSENSUS, CONSENSUS)
    body, ends = [], []
    for scheme, title in SCHEMES.items():
        capped = runs = 0
        for dataset in DATASETS:
            of_scheme = lines.runs(scheme, dataset).values()
            lengths = [line["epochs"] for line in of_scheme if "epochs" in line]
            full = sum(line.get("epochs") == inside(line, ("settings", "training", "epochs")) for line in of_scheme)
            length = (
                [f"{min(lengths)} to {max(lengths)}", f"{full} of {len(lengths)}"] if lengths else [NOT_MEASURED] * 2
            )
            best = [lines.field(scheme, dataset, "rows", row, "epoch").values() for row in shown]
            body.append([label(dataset), title, *length, *(whole(median(e)) if e else NOT_MEASURED for e in best)])
            capped, runs = capped + full, runs + len(lengths)
        ends.append(f"{capped} of {runs} runs of {title}")
    note = f"At the cap of epochs end {', '.join(ends)}. Best epochs are medians over the splits."
    header = [DATA, "scheme", "epochs trained", "at the cap", *(HEADS.get(row, row) for row in shown)]
    return Table("epochs", "Epochs trained, and the best epoch of each row", header, body, note)


def exclusive(lines: Lines) -> list[Table]:
    """PER: of what the row's model hits, the share that the column's misses."""
    missed = lines.field("SingleCF", CITEULIKE, "per", "bpr", "multinomial")
    higher = gain(*(lines.test("SingleCF", CITEULIKE, head) for head in ("multinomial", "bpr")))
    text: list[Row] = [
        (["PER(A;E)"], [_pair(CITEULIKE, published.PER_A_E, missed, hundredths)]),
        (["R@50 of CF-E over CF-A"], [_pair(CITEULIKE, published.E_OVER_A, higher, percent)]),
    ]
    tables = [compared("per-text", "What the text says, CiteULike", ["value"], [""], text)]
    for dataset in DATASETS:
        rows = [
            [HEADS[x], *(_text(lines.field("SingleCF", dataset, "per", x, y), hundredths) for y in HEADS)]
            for x in HEADS
        ]
        title = f"PER(row; column), {label(dataset)}"
        tables.append(Table(f"per-{'-'.join(dataset)}", title, ["", *HEADS.values()], rows))
    return tables


def complementary(lines: Lines) -> list[Table]:
    """CHR by what makes the models differ."""
    return [_chr(lines, "chr", "CHR induced by three factors", "factor", FACTORS)]


def consistency(lines: Lines) -> list[Table]:
    """How consistent right and wrong predictions are in ten bins of rank, what consistency adds to a consensus."""
    kinds = list(product(("one", "all"), ("correct", "incorrect")))
    bins = []
    for k in range(10):
        values = [lines.field("consistency", CITEULIKE, "consistency", *kind, k) for kind in kinds]
        bins.append([f"{10 * k + 1} to {10 * k + 10}", *map(_text, values)])
    rises: list[Row] = []
    for which, name, paper in (("all", "all objectives", published.RC_OVER_R), ("one", "CF-A alone", None)):
        most, usual = ({seed: of(each) for seed, each in lines.rises(which).items()} for of in (max, mean))
        rises.append(([name], [_pair(CITEULIKE, paper, most, percent), _pair(CITEULIKE, None, usual, percent)]))
    header = ["rank", *(f"{'CF-A' if which == 'one' else 'all'} {kind}" for which, kind in kinds)]
    title = f"RC-consensus over R-consensus from epoch {WINDOW} on"
    return [
        _controls(lines),
        _where(lines),
        Table("consistency", "Consistency at epoch 50", header, bins, DRAWN),
        compared("rc-over-r", title, ["heads"], ("at most", "on average"), rises),
    ]


def _controls(lines: Lines) -> Table:
    """The same rankings voted in three ways, with the temperatures of the run and with tuned ones."""
    rows = []
    runs = [*product(DATASETS, SCHEMES), (CITEULIKE, "homogeneous"), (CITEULIKE, "initial conditions")]
    for dataset, variant in runs:
        usual = [_text(lines.control(variant, dataset, kind, "untuned", "test", "recall@50")) for kind in KINDS]
        tuned = {kind: lines.control(variant, dataset, kind) for kind in KINDS}
        apart = {seed: value - tuned[COUNTED][seed] for seed, value in tuned[RC].items()}
        p, splits = p_value(tuned[RC], tuned[COUNTED]), splits_of(len(apart))
        worth = [_change(apart, std=True), NOTHING if p is None else f"{p:.2g}"]
        rows.append([label(dataset), TITLES.get(variant, variant), *usual, *map(_text, tuned.values()), *worth, splits])
    header = [DATA, "scheme", *KINDS, *(f"{kind}, tuned" for kind in KINDS), "C over counting", "p", "splits"]
    note = (
        "R + 1 adds 1 for each head that names the item, R + C its consistency. Tuned: T of "
        f"{', '.join(f'{t:g}' for t in TEMPERATURES)}, and for R + C T_c of "
        f"{', '.join(f'{t:g}' for t in CONSISTENCIES)}, by validation; else T = 10, T_c = 100. p is not corrected."
    )
    return Table("controls", "Consistency, separated from counting, R@50", header, rows, note)


def _where(lines: Lines) -> Table:
    """Where consistency adds to counting: groups of users, and early or late in training."""
    rows = []
    for dataset, group in product(DATASETS, range(4)):
        ours, counted = (lines.control("ConCF", dataset, kind, "groups", group) for kind in (RC, COUNTED))
        rows.append([f"{label(dataset)}, ConCF, users of G-{group + 1}", *_gain_row(ours, counted)])
    for words, chosen in EPOCHS.items():
        shares = lines.over_counting(chosen)
        p = p_value(shares, dict.fromkeys(shares, 0.0))
        shown = [_text(shares, percent), NOTHING if p is None else f"{p:.2g}", splits_of(len(shares))]
        rows.append([f"CiteULike, released, SingleCF, {words}", *shown])
    return Table("consistency-where", "R + C over R + 1, both tuned", ["where", "gain", "p", "splits"], rows)


def _gain_row(ours: Series, theirs: Series) -> list[str]:
    p = p_value(ours, theirs)
    return [_text(gain(ours, theirs), percent), NOTHING if p is None else f"{p:.2g}", splits_of(len(ours))]


def homogeneous(lines: Lines) -> list[Table]:
    """One objective five times against five objectives."""
    five = [*(f"multinomial#{k}" for k in range(1, 6)), CONSENSUS]
    rows = [
        ("SingleCF", "multinomial"),
        *product(("PCL", "homogeneous"), five),
        *product((f"PCL{BY_MEAN}", f"homogeneous{BY_MEAN}"), (BEST, CONSENSUS)),
        *product((NON_VOTING, "ConCF"), (BEST, CONSENSUS)),
    ]
    return _four_twice(lines, "homogeneous", "Homogeneous objectives, CiteULike", rows)


def distillation(lines: Lines) -> list[Table]:
    """Two stages against one."""
    students = ("T1", "T2", "T1 > SingleCF", "T2 > SingleCF", "T2 > ConCF best head", "T2 > ConCF consensus",
                "T1 > ConCF best head", "T1 > ConCF consensus")  # fmt: skip
    again = [row + words for words in list(LIKELIHOODS.values())[1:] for row in students[2:]]
    again = [row for row in again if lines.test("distillation", CITEULIKE, row)]
    rows: list[Row] = [([row], _recall(lines, "distillation", [row])) for row in (*students, *again)]
    rows += [([f"ConCF {row}"], _recall(lines, "ConCF", [row])) for row in (BEST, CONSENSUS)]
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
        rows.append(([name], [_pair(CITEULIKE, paper[row], ours[row]) for row in ours]))
    title = "Hyperparameters, CiteULike, R@50"
    return [compared("hyperparameters", title, ["variant"], ["best head", "consensus"], rows)]


def selection(lines: Lines) -> list[Table]:
    """A head for each pair instead of all."""
    rows = list(product(("ConCF", "ConCF-S", "ConCF-S, all heads taught", "AutoML"), (BEST, CONSENSUS)))
    return _four_twice(lines, "selection", "Selecting a loss, CiteULike", rows)


def sharing(lines: Lines) -> list[Table]:
    """What the heads share, and how much of a model the embeddings are."""
    shared = {"sharing=full": "all but the heads", "sharing=layer": "embeddings and a layer", "ConCF": "embeddings",
              "sharing=none": "nothing"}  # fmt: skip
    rows: list[Row] = []
    sizes = []
    for variant, name in shared.items():
        rows.append(([name], _recall(lines, variant, (BEST, R_CONSENSUS, CONSENSUS))))
        every, tables = (lines.field(variant, CITEULIKE, "parameters", kind) for kind in ("all", "embeddings"))
        share = {seed: size / every[seed] for seed, size in tables.items()}
        sizes.append([name, _text(every, whole), _text(tables, whole), _text(share, percent)])
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
        ["reference itself: R@50", NOTHING, _text(ours[CONSENSUS]), NOTHING, *heads, splits],
        ["the paper's ConCF: R@50", NOTHING, paper, NOTHING, *theirs, NOTHING],
    ]
    for effect in lines.effects():
        p = p_value(effect.consensus, dict.fromkeys(effect.consensus, 0.0))
        worth = [_change(effect.consensus, std=True), NOTHING if p is None else f"{p:.2g}"]
        heads = [_change(effect.added[head]) for head in HEADS]
        splits = splits_of(len(effect.consensus), SPLITS["differences"])
        rows.append([effect.name, ", ".join(effect.changes) or NOTHING, *worth, *heads, splits])
    header = ["switched from reference", "changes", "consensus", "p", *HEADS.values(), "splits"]
    title = "Each difference alone: change of R@50 against reference on CiteULike"
    return [Table("differences", title, header, rows, f"The paper has no such table.{_of_cf_e(lines)}")]


def alone(lines: Lines) -> list[Table]:
    """CF-B and CF-E by themselves, trained otherwise."""
    rows: list[Row] = []
    for dataset, (name, head) in product(ALONE_ON, (("CF-B", "cml"), ("CF-E", "multinomial"))):
        paper = printed(dataset[0], "SingleCF", head)
        variants = {"SingleCF": f"{name} as in SingleCF"} | {each: each for each in ALONE if each.startswith(name)}
        for variant, title in variants.items():
            epochs = lines.field(variant, dataset, "rows", head, "epoch")
            best = whole(median(epochs.values())) if epochs else NOT_MEASURED
            pair = _pair(dataset, paper, lines.test(variant, dataset, head))
            rows.append(([label(dataset), title, best], [pair]))
    labels = [DATA, "objective", "best epoch"]
    return [compared("alone", "CF-B and CF-E alone, R@50", labels, [""], rows, SPLITS["alone"])]


def protocol(lines: Lines) -> list[Table]:
    """The main table on CiteULike by the paper's own protocol."""
    return [_main(lines, "reference", ("citeulike", "paper"), cut) for cut in (50, 20)]


def _change(effect: Series, std: bool = False) -> str:
    one = estimate(effect)
    if not one:
        return NOTHING
    change = f"{one.mean:+.4f}".replace("-0.0000", "0.0000").replace("+0.0000", "0.0000")
    return change + (f" ± {one.std:.4f}" if std and one.std is not None else "")


def _of_cf_e(lines: Lines) -> str:
    """Where CF-E's shortfall comes from."""
    names = {"ConCF": "reference"} | {name: name for name in ("paper: training ratio", "paper: lambdas")}
    ours = {name: estimate(lines.test(variant, CITEULIKE, "multinomial")) for variant, name in names.items()}
    shown = ", ".join(f"{figure(one.mean)} with `{name}`" for name, one in ours.items() if one)
    paper = figure(printed("citeulike", "ConCF", "multinomial") or 0.0)
    return f" R@50 of CF-E is {shown}; the paper has {paper}." if shown else ""


TABLES: dict[str, Callable[[Lines], list[Table]]] = {
    "stats": statistics, "main": main, "groups": groups, "schemes": schemes, "per": exclusive, "chr": complementary,
    "consistency": consistency, "homogeneous": homogeneous, "distillation": distillation,
    "hyperparameters": hyperparameters, "selection": selection, "sharing": sharing, "alone": alone,
    "differences": differences, "protocol": protocol,
}  # fmt: skip
