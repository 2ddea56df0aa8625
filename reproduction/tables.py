"""From measured lines to the paper's tables. `TABLES` has a function for each experiment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import mean, median

from reproduction import published
from reproduction.ablation_tables import (
    alone,
    differences,
    distillation,
    homogeneous,
    hyperparameters,
    selection,
    sharing,
)
from reproduction.cells_of_tables import change_of, four, pair_of, recalls, text_of
from reproduction.controls import CONSISTENCIES, COUNTED, RC, TEMPERATURES, R
from reproduction.lines import (
    BEST_TESTED,
    CITEULIKE,
    DATASETS,
    FACTORS,
    PRESETS,
    SCHEMES,
    SPLITS,
    TITLES,
    WINDOW,
    Lines,
    gain,
    label,
    p_value,
    paired,
    percent,
)
from reproduction.measured import (
    NOT_MEASURED,
    NOTHING,
    Dataset,
    Series,
    Write,
    hundredths,
    inside,
    whole,
)
from reproduction.plan import CIAO_TOO
from reproduction.published import BEST, CONSENSUS, HEADS, R_CONSENSUS, printed
from reproduction.sensitivity_tables import base, dropout, share, slow, ten
from reproduction.table import Row, Table, compared, splits_of

KINDS = (R, RC, COUNTED)
EPOCHS: dict[str, Callable[[int], bool]] = {
    f"epochs 5 to {WINDOW - 5}, before the window is full": lambda epoch: 0 < epoch < WINDOW,
    f"epochs {WINDOW} to 50": lambda epoch: WINDOW <= epoch <= 50,
    "epochs 55 to 100": lambda epoch: epoch > 50,
}
DRAWN = "The paper draws these without figures."
DATA = "data, protocol"


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
        sizes.append(([label(dataset)], [pair_of(dataset, paper[kind], counts[kind], kinds[kind]) for kind in kinds]))
        divided.append([label(dataset), *(text_of(counts[part], whole) for part in parts)])
    header = [DATA, "train", "valid", "test", "evaluated users"]
    return [
        compared("statistics", "The data", [DATA], kinds, sizes, SPLITS["stats"]),
        Table("division", "Pairs that train, validate and test", header, divided),
    ]


def main(lines: Lines) -> list[Table]:
    """The main table for each data set and cut under `reference`, the presets side by side, then theirs in full."""
    ours = [_main(lines, "reference", *which) for which in product(DATASETS, (50, 20))]
    return [*ours, _presets(lines), *(_main(lines, *which) for which in product(PRESETS[1:], CIAO_TOO, (50, 20)))]


def _main(lines: Lines, preset: str, dataset: Dataset, cut: int) -> Table:
    ours = (*HEADS, R_CONSENSUS, CONSENSUS, "Gain.Best", "Gain.Con.")
    which = [("SingleCF", head) for head in HEADS] + [("ConCF", row) for row in ours]
    name, title = f"main-{'-'.join(dataset)}-{preset}-{cut}", f"{label(dataset)}, preset {preset}, top {cut}"
    rows = four(lines, which, cut, dataset, preset)
    return compared(name, title, ["scheme", "objective"], (f"R@{cut}", f"N@{cut}"), rows, SPLITS["main"])


def _presets(lines: Lines) -> Table:
    columns = {"best SingleCF": ("SingleCF", BEST), "best head": ("ConCF", BEST), "consensus": ("ConCF", CONSENSUS)}
    rows: list[Row] = []
    for dataset, preset in product(CIAO_TOO, PRESETS):
        ours = {which: lines.test(which[0], dataset, which[1], preset=preset) for which in columns.values()}
        ours["SingleCF", BEST] = lines.test("SingleCF", dataset, BEST_TESTED, preset=preset)
        pairs = [pair_of(dataset, printed(dataset[0], *which), ours[which]) for which in ours]
        rows.append(([label(dataset), preset], pairs))
    return compared("presets", "The three presets, R@50", [DATA, "preset"], columns, rows, SPLITS["main"])


def groups(lines: Lines) -> list[Table]:
    """Gain.Best by how active users are."""
    rows = []
    for dataset, group in product(DATASETS, range(4)):
        ours, theirs = lines.group(dataset, group)
        sizes = [text_of(lines.group(dataset, group, key)[1], whole) for key in ("users", "activity")]
        figures = [text_of(theirs), text_of(ours), text_of(gain(ours, theirs), percent)]
        splits = splits_of(len(paired(ours, theirs)[0]), SPLITS["groups"])
        rows.append([label(dataset), f"G-{group + 1}", *sizes, *figures, splits])
    header = [DATA, "group", "users", "their interactions", "SingleCF R@50", "ConCF R@50", "gain", "splits"]
    return [Table("groups", "Gain.Best by group of users", header, rows, DRAWN)]


def schemes(lines: Lines) -> list[Table]:
    """Three schemes, their best head and consensuses, and CHR of the head of CF-A."""
    columns = {"best": BEST, "R-con": R_CONSENSUS, "RC-con": CONSENSUS}
    rows = [
        ([label(dataset), title], recalls(lines, scheme, list(columns.values()), dataset))
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
        pair = pair_of(dataset, published.CHR[variant][dataset[0]], lines.chr(variant, dataset), hundredths)
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
        (["PER(A;E)"], [pair_of(CITEULIKE, published.PER_A_E, missed, hundredths)]),
        (["R@50 of CF-E over CF-A"], [pair_of(CITEULIKE, published.E_OVER_A, higher, percent)]),
    ]
    tables = [compared("per-text", "What the text says, CiteULike", ["value"], [""], text)]
    for dataset in DATASETS:
        rows = [
            [HEADS[x], *(text_of(lines.field("SingleCF", dataset, "per", x, y), hundredths) for y in HEADS)]
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
        bins.append([f"{10 * k + 1} to {10 * k + 10}", *map(text_of, values)])
    rises: list[Row] = []
    for which, name, paper in (("all", "all objectives", published.RC_OVER_R), ("one", "CF-A alone", None)):
        most, usual = ({seed: of(each) for seed, each in lines.rises(which).items()} for of in (max, mean))
        rises.append(([name], [pair_of(CITEULIKE, paper, most, percent), pair_of(CITEULIKE, None, usual, percent)]))
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
        usual = [text_of(lines.control(variant, dataset, kind, "untuned", "test", "recall@50")) for kind in KINDS]
        tuned = {kind: lines.control(variant, dataset, kind) for kind in KINDS}
        apart = {seed: value - tuned[COUNTED][seed] for seed, value in tuned[RC].items()}
        p, splits = p_value(tuned[RC], tuned[COUNTED]), splits_of(len(apart))
        worth = [change_of(apart, std=True), NOTHING if p is None else f"{p:.2g}"]
        rows.append(
            [label(dataset), TITLES.get(variant, variant), *usual, *map(text_of, tuned.values()), *worth, splits]
        )
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
        shown = [text_of(shares, percent), NOTHING if p is None else f"{p:.2g}", splits_of(len(shares))]
        rows.append([f"CiteULike, released, SingleCF, {words}", *shown])
    return Table("consistency-where", "R + C over R + 1, both tuned", ["where", "gain", "p", "splits"], rows)


def _gain_row(ours: Series, theirs: Series) -> list[str]:
    p = p_value(ours, theirs)
    return [text_of(gain(ours, theirs), percent), NOTHING if p is None else f"{p:.2g}", splits_of(len(ours))]


def protocol(lines: Lines) -> list[Table]:
    """The main table on CiteULike by the paper's own protocol."""
    return [_main(lines, "reference", ("citeulike", "paper"), cut) for cut in (50, 20)]


TABLES: dict[str, Callable[[Lines], list[Table]]] = {
    "stats": statistics, "main": main, "groups": groups, "schemes": schemes, "per": exclusive, "chr": complementary,
    "consistency": consistency, "homogeneous": homogeneous, "distillation": distillation,
    "hyperparameters": hyperparameters, "selection": selection, "sharing": sharing, "alone": alone,
    "differences": differences, "protocol": protocol, "share": share, "dropout": dropout, "slow": slow, "base": base,
    "ten": ten,
}  # fmt: skip
