"""From measured lines to the paper's tables: its value, ours, the difference.

`TABLES` has a function for each experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median

from concf.experiments.paper import published
from concf.experiments.paper.measured import (
    CALLED,
    CITEULIKE,
    FACTORS,
    FEWER,
    NON_VOTING,
    PLACES,
    PRESETS,
    SCHEMES,
    SPLITS,
    WINDOW,
    Estimate,
    Measured,
    Place,
    Series,
    Write,
    density,
    estimate,
    figure,
    gain,
    hundredths,
    inside,
    p_value,
    paired,
    percent,
    whole,
)
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS
from concf.experiments.paper.table import (
    NOT_MEASURED,
    NOTHING,
    Pair,
    Row,
    Table,
    compared,
    label,
    name_of,
    splits_in_words,
    words,
)

DRAWN = "The paper draws these without figures."
Printed = Mapping[tuple[str, str], Sequence[float | None]]  # (variant, row) -> the paper's figures


def _beside(place: Place, paper: float | None, ours: Series | Estimate | None, write: Write = figure) -> Pair:
    found = estimate(ours) if isinstance(ours, dict) else ours
    return Pair(paper, found, write, same=place[0] != "foursquare")


def _four(
    measured: Measured, printed: Printed, cut: int, place: Place = CITEULIKE, preset: str = "reference"
) -> list[Row]:
    """A row for each (variant, row) with its two metrics at a cut; the paper's four are in the order of METRICS."""
    rows: list[Row] = []
    for (variant, row), four in printed.items():
        chosen = [(metric, paper) for metric, paper in zip(METRICS, four, strict=True) if metric.endswith(f"@{cut}")]
        pairs = [_beside(place, paper, measured.test(variant, place, row, metric, preset)) for metric, paper in chosen]
        rows.append(([CALLED.get(variant, variant), name_of(row)], pairs))
    return rows


def _four_twice(measured: Measured, name: str, title: str, printed: Printed) -> list[Table]:
    return [
        compared(
            f"{name}-{cut}", f"{title}, first {cut} places", ["scheme", "objective"], (f"R@{cut}", f"N@{cut}"), rows
        )
        for cut in (50, 20)
        for rows in [_four(measured, printed, cut)]
    ]


def _recall(measured: Measured, variant: str, rows: Iterable[str], paper: Sequence[float] | None) -> list[Pair]:
    """R@50 on CiteULike of some rows of a variant."""
    return [
        _beside(CITEULIKE, inside(paper, [place]), measured.test(variant, CITEULIKE, row))
        for place, row in enumerate(rows)
    ]


def statistics(measured: Measured) -> list[Table]:
    """The data sets as they are after the filters, and how they are divided."""
    kinds: dict[str, Write] = {"users": whole, "items": whole, "events": whole, "density": density}
    parts = ("train", "valid", "test", "evaluated_users")
    sizes: list[Row] = []
    divided = []
    for place in (("citeulike", "paper"), *PLACES):
        found = {kind: measured.field("statistics", place, "statistics", kind) for kind in (*kinds, *parts)}
        cells = {seed: users * found["items"][seed] for seed, users in found["users"].items()}
        found["density"] = {seed: pairs / cells[seed] for seed, pairs in found["events"].items()}
        printed = published.STATISTICS[place[0]]
        sizes.append(([label(place)], [_beside(place, printed[kind], found[kind], kinds[kind]) for kind in kinds]))
        divided.append([label(place), *(words(estimate(found[part]), whole) for part in parts)])
    header = ["data, protocol", *(part.replace("_", " ") for part in parts)]
    return [
        compared("statistics", "The data", header[:1], kinds, sizes, SPLITS["stats"]),
        Table("division", "Pairs that train, validate and test", header, divided),
    ]


def main(measured: Measured) -> list[Table]:
    """The main table for each data set and cut under `reference`, the presets side by side, then theirs in full."""
    tables = [_main(measured, place, cut, preset) for preset in PRESETS for place in PLACES for cut in (50, 20)]
    of_reference = 2 * len(PLACES)
    return [*tables[:of_reference], _presets(measured), *tables[of_reference:]]


def _main(measured: Measured, place: Place, cut: int, preset: str) -> Table:
    single, concf = published.SINGLE[place[0]], published.CONCF[place[0]]
    printed: Printed = {("SingleCF", head): single[head] for head in HEADS} | {
        ("ConCF", row): concf.get(row, (None,) * 4) for row in (*HEADS, R_CONSENSUS, CONSENSUS)
    }
    rows = _four(measured, printed, cut, place, preset)
    for name, gains in (("Gain.Best", published.GAIN_BEST), ("Gain.Con.", published.GAIN_CONSENSUS)):
        chosen = [(m, paper) for m, paper in zip(METRICS, gains[place[0]], strict=True) if m.endswith(f"@{cut}")]
        ours = {metric: gain(*measured.gains(place, metric, preset)[name]) for metric, _ in chosen}
        rows.append((["ConCF", name], [_beside(place, paper, ours[metric], percent) for metric, paper in chosen]))
    name, title = f"main-{'-'.join(place)}-{preset}-{cut}", f"{label(place)}, preset {preset}, first {cut} places"
    return compared(name, title, ["scheme", "objective"], (f"R@{cut}", f"N@{cut}"), rows, SPLITS["main"])


def _presets(measured: Measured) -> Table:
    columns = {"best SingleCF": ("SingleCF", BEST), "best head": ("ConCF", BEST), "consensus": ("ConCF", CONSENSUS)}
    rows: list[Row] = []
    for place, preset in ((place, preset) for place in PLACES for preset in PRESETS):
        found = {which: measured.test(which[0], place, which[1], preset=preset) for which in columns.values()}
        found["SingleCF", BEST] = measured.single(place, preset=preset)
        points = {which: published.SCHEME_POINTS[place[0], which[0]][which[1]] for which in found}
        rows.append(([label(place), preset], [_beside(place, points[which], found[which]) for which in found]))
    return compared("presets", "The three presets, R@50", ["data, protocol", "preset"], columns, rows, SPLITS["main"])


def groups(measured: Measured) -> list[Table]:
    """Gain.Best by how active users are."""
    rows = []
    for place, group in ((place, group) for place in PLACES for group in range(4)):
        ours, theirs = measured.group(place, group)
        sizes = [words(estimate(measured.group(place, group, key)[1]), whole) for key in ("users", "activity")]
        figures = [words(estimate(theirs)), words(estimate(ours)), words(gain(ours, theirs), percent)]
        splits = splits_in_words(len(paired(ours, theirs)[0]), SPLITS["groups"])
        rows.append([label(place), f"G-{group + 1}", *sizes, *figures, splits])
    header = ["data, protocol", "group", "users", "their interactions", "SingleCF R@50", "ConCF R@50", "gain", "splits"]
    return [Table("groups", "Gain.Best by group of users", header, rows, DRAWN)]


def schemes(measured: Measured) -> list[Table]:
    """Three schemes, their best head and consensuses, and CHR of the head of CF-A."""
    columns = {"best": BEST, "R-con": R_CONSENSUS, "RC-con": CONSENSUS}
    rows: list[Row] = []
    ratios: list[Row] = []
    for place, scheme in ((place, scheme) for place in PLACES for scheme in SCHEMES):
        points, names = published.SCHEME_POINTS.get((place[0], scheme), {}), [label(place), SCHEMES[scheme]]
        pairs = [_beside(place, points.get(row), measured.test(scheme, place, row)) for row in columns.values()]
        rows.append((names, pairs))
        ratio, printed = measured.field(scheme, place, "chr", "bpr"), published.CHR_BY_SCHEME[scheme][place[0]]
        ratios.append((names, [_beside(place, printed, ratio, hundredths)]))
    labels = ["data, protocol", "scheme"]
    return [
        compared("schemes", "Three training schemes, R@50", labels, columns, rows, SPLITS["schemes"]),
        compared("chr-by-scheme", "CHR by three training schemes", labels, ["CHR"], ratios, SPLITS["schemes"]),
        _epochs(measured),
    ]


def _epochs(measured: Measured) -> Table:
    """How long the runs are, and at which epoch each row is at its best."""
    shown = (*HEADS, R_CONSENSUS, CONSENSUS)
    body, told = [], []
    for scheme, place in ((scheme, place) for scheme in SCHEMES for place in PLACES):
        runs = measured.runs(scheme, place).values()
        lengths = [line["epochs"] for line in runs if "epochs" in line]
        full = sum(line.get("epochs") == inside(line, ("settings", "training", "epochs")) for line in runs)
        best = [measured.field(scheme, place, "rows", row, "epoch") for row in shown]
        length = [f"{min(lengths)} to {max(lengths)}", f"{full} of {len(lengths)}"] if lengths else [NOT_MEASURED] * 2
        body.append([label(place), SCHEMES[scheme], *length, *(_middle(epochs) for epochs in best)])
        told.append((scheme, full, len(lengths)))
    ended = [
        f"{sum(n for who, n, _ in told if who == scheme)} of {sum(n for who, _, n in told if who == scheme)} runs of "
        f"{SCHEMES[scheme]}"
        for scheme in SCHEMES
    ]
    note = f"At the cap of epochs end {', '.join(ended)}. Best epochs are medians over the splits."
    header = ["data, protocol", "scheme", "epochs trained", "at the cap", *(HEADS.get(row, row) for row in shown)]
    return Table("epochs", "Epochs trained, and the best epoch of each row", header, body, note)


def _middle(epochs: Series) -> str:
    return whole(median(epochs.values())) if epochs else NOT_MEASURED


def exclusive(measured: Measured) -> list[Table]:
    """PER: of what the row's model hits, the share that the column's misses."""
    missed = measured.field("SingleCF", CITEULIKE, "per", "bpr", "multinomial")
    higher = gain(*(measured.test("SingleCF", CITEULIKE, head) for head in ("multinomial", "bpr")))
    said: list[Row] = [
        (["PER(A;E)"], [_beside(CITEULIKE, published.PER_A_E, missed, hundredths)]),
        (["R@50 of CF-E over CF-A"], [_beside(CITEULIKE, published.E_OVER_A, higher, percent)]),
    ]
    tables = [compared("per-text", "What the text says, CiteULike", ["value"], [""], said)]
    for place in PLACES:
        found = {(x, y): estimate(measured.field("SingleCF", place, "per", x, y)) for x in HEADS for y in HEADS}
        rows = [[HEADS[x], *(words(found[x, y], hundredths) for y in HEADS)] for x in HEADS]
        tables.append(Table(f"per-{'-'.join(place)}", f"PER(row; column), {label(place)}", ["", *HEADS.values()], rows))
    return tables


def complementary(measured: Measured) -> list[Table]:
    """CHR by what makes the models differ."""
    names = {"initial conditions": "initial condition", "model sizes": "model size", "SingleCF": "learning objective"}
    rows: list[Row] = []
    for place, factor in ((place, factor) for place in PLACES for factor in FACTORS):
        ours, printed = measured.field(factor, place, "chr", FACTORS[factor]), published.CHR[factor][place[0]]
        rows.append(([label(place), names[factor]], [_beside(place, printed, ours, hundredths)]))
    return [compared("chr", "CHR induced by three factors", ["data, protocol", "factor"], ["CHR"], rows)]


def consistency(measured: Measured) -> list[Table]:
    """How consistent right and wrong predictions are in ten bins of rank, what consistency adds to a consensus."""
    kinds = [(which, kind) for which in ("one", "all") for kind in ("correct", "incorrect")]
    rows = []
    for place in range(10):
        found = [measured.field("consistency", CITEULIKE, "consistency", *kind, place) for kind in kinds]
        rows.append([f"{10 * place + 1} to {10 * place + 10}", *(words(estimate(one)) for one in found)])
    columns = ("at most", "on average")
    said: list[Row] = []
    for which, name, paper in (("all", "all objectives", published.RC_OVER_R), ("one", "CF-A alone", None)):
        rises = measured.rises(which)
        most, usual = ({seed: of(each) for seed, each in rises.items()} for of in (max, mean))
        said.append(([name], [_beside(CITEULIKE, paper, most, percent), _beside(CITEULIKE, None, usual, percent)]))
    header = ["rank", *(f"{'CF-A' if which == 'one' else 'all'} {kind}" for which, kind in kinds)]
    return [
        Table("consistency", "Consistency at epoch 50", header, rows, DRAWN),
        compared("rc-over-r", f"RC-consensus over R-consensus from epoch {WINDOW} on", ["heads"], columns, said),
    ]


def homogeneous(measured: Measured) -> list[Table]:
    """One objective five times against five objectives."""
    concf = {("ConCF", row): published.SELECTION["ConCF", row] for row in (BEST, CONSENSUS)}
    non_voting = {(NON_VOTING, row): (None,) * 4 for row in (BEST, CONSENSUS)}
    printed: Printed = {**published.HOMOGENEOUS, **non_voting, **concf}
    return _four_twice(measured, "homogeneous", "Homogeneous objectives, CiteULike", printed)


def distillation(measured: Measured) -> list[Table]:
    """Two stages against one."""
    points = published.SCHEME_POINTS["citeulike", "ConCF"]
    rows: list[Row] = []
    for row in (*published.DISTILLATION, "T1 > ConCF best head", "T1 > ConCF consensus"):
        printed = published.DISTILLATION.get(row)
        rows.append(([row], [_beside(CITEULIKE, printed, measured.test("distillation", CITEULIKE, row))]))
    for row in (BEST, CONSENSUS):
        rows.append(([f"ConCF {row}"], [_beside(CITEULIKE, points[row], measured.test("ConCF", CITEULIKE, row))]))
    return [compared("distillation", "Two-stage distillation, CiteULike, R@50", ["scheme"], [""], rows)]


def hyperparameters(measured: Measured) -> list[Table]:
    """Balancing, alpha, the period and the length of the window."""
    balancing = ("balanced per batch", "weights per epoch")
    printed = published.HYPERPARAMETERS | {balancing[0]: published.HYPERPARAMETERS["alpha=0.01"]}
    same = dict.fromkeys(("balanced per batch", "alpha=0.005", "Q=5,p=10"), "ConCF")
    names = [*balancing, "without balancing", "alpha=0", "alpha=0.005", *list(published.HYPERPARAMETERS)[2:]]
    rows = [([n], _recall(measured, same.get(n, n), (BEST, CONSENSUS), printed.get(n))) for n in names]
    title = "Hyperparameters, CiteULike, R@50"
    return [compared("hyperparameters", title, ["variant"], ["best head", "consensus"], rows)]


def selection(measured: Measured) -> list[Table]:
    """A head for each pair instead of all."""
    return _four_twice(measured, "selection", "Selecting a loss, CiteULike", published.SELECTION)


def sharing(measured: Measured) -> list[Table]:
    """What the heads share, and how much of a model the embeddings are."""
    shared = ("all but the heads", "embeddings and a layer", "embeddings", "nothing")
    rows: list[Row] = []
    sizes = []
    for variant, name in zip(published.SHARING, shared, strict=True):
        rows.append(([name], _recall(measured, variant, (BEST, R_CONSENSUS, CONSENSUS), published.SHARING[variant])))
        every, tables = (measured.field(variant, CITEULIKE, "parameters", kind) for kind in ("all", "embeddings"))
        share = {seed: size / every[seed] for seed, size in tables.items()}
        sizes.append(
            [name, *(words(estimate(size), whole) for size in (every, tables)), words(estimate(share), percent)]
        )
    columns = ["best head", "R-con", "RC-con"]
    return [
        compared("sharing", "Parameter sharing, CiteULike, R@50", ["shared"], columns, rows),
        Table("parameters", "Parameters", ["shared", "all", "of the embeddings", "share"], sizes),
    ]


def differences(measured: Measured) -> list[Table]:
    """What each difference between the presets is worth, to the consensus and to each head."""
    rows = [_standing(measured, "reference itself: R@50"), _printed_heads()]
    for effect in measured.effects():
        p = p_value(effect.consensus, dict.fromkeys(effect.consensus, 0.0))
        worth = [_change(effect.consensus), NOTHING if p is None else f"{p:.2g}"]
        heads = [_change(effect.added[head], spread=False) for head in HEADS]
        splits = splits_in_words(len(effect.consensus), FEWER)
        rows.append([effect.name, ", ".join(effect.changes) or NOTHING, *worth, *heads, splits])
    header = ["switched from reference", "changes", "consensus", "p", *HEADS.values(), "splits"]
    title = "Each difference alone: change of R@50 against reference on CiteULike"
    return [Table("differences", title, header, rows, _of_cf_e(measured))]


def _change(effect: Series, spread: bool = True) -> str:
    found = estimate(effect)
    if not found:
        return NOTHING
    mean_in_words = f"{found.mean:+.4f}".replace("-0.0000", "0.0000").replace("+0.0000", "0.0000")
    return mean_in_words + (f" ± {found.spread:.4f}" if spread and found.spread is not None else "")


def _standing(measured: Measured, name: str) -> list[str]:
    found = {row: estimate(measured.test("ConCF", CITEULIKE, row)) for row in (CONSENSUS, *HEADS)}
    heads = [figure(one.mean) if one else NOT_MEASURED for one in (found[head] for head in HEADS)]
    agreed = found[CONSENSUS]
    splits = splits_in_words(agreed.splits if agreed else 0, FEWER)
    return [name, NOTHING, words(agreed), NOTHING, *heads, splits]


def _printed_heads() -> list[str]:
    printed = {row: figure(four[2]) for row, four in published.CONCF["citeulike"].items()}
    return ["the paper's ConCF: R@50", NOTHING, printed[CONSENSUS], NOTHING, *(printed[h] for h in HEADS), NOTHING]


def _of_cf_e(measured: Measured) -> str:
    """Where CF-E's shortfall comes from."""
    told = []
    for variant in ("ConCF", "paper: training ratio", "paper: lambdas"):
        found = estimate(measured.test(variant, CITEULIKE, "multinomial"))
        if found:
            told.append(f"{figure(found.mean)} with `{'reference' if variant == 'ConCF' else variant}`")
    paper = figure(published.CONCF["citeulike"]["multinomial"][2])
    said = f" R@50 of CF-E is {', '.join(told)}; the paper has {paper}." if told else ""
    return f"The paper has no such table.{said}"


TABLES: dict[str, Callable[[Measured], list[Table]]] = {
    "stats": statistics, "main": main, "groups": groups, "schemes": schemes, "per": exclusive, "chr": complementary,
    "consistency": consistency, "homogeneous": homogeneous, "distillation": distillation,
    "hyperparameters": hyperparameters, "selection": selection, "sharing": sharing, "differences": differences,
}  # fmt: skip
