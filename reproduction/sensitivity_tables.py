"""Tables of what the paper leaves open: how loudly heads hear the consensus, dropout, a slow CF-B, a strong base."""

from __future__ import annotations

from statistics import mean, median

from reproduction.cells_of_tables import change_of, text_of
from reproduction.lines import CITEULIKE, NAMES, Lines, label, p_value, paired
from reproduction.measured import NOTHING, Dataset, Series, best_of, figure, whole
from reproduction.plan import CIAO, CIAO_TOO, EXPERIMENTS
from reproduction.published import BEST, CONSENSUS, HEADS, printed
from reproduction.table import Table, splits_of
from reproduction.variants import DROPOUT, LOUDER, SHARES, SLOW
from reproduction.verdicts import least_shown

DATA = "data, protocol"
RATES = {"SingleCF": "0.1"} | {name: name.rpartition(" ")[2] for name in DROPOUT}  # 0.1: that of `reference`
BASES = {"from ALS, without CL": "without consensus loss", "from ALS": "with it", "from ALS, share=1": "with share 1"}


def against(ours: Series, theirs: Series) -> list[str]:
    """The mean change on the splits that both have, and the p of its paired t-test."""
    p = p_value(ours, theirs)
    change = {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()}
    return [change_of(change, std=True), NOTHING if p is None else f"{p:.2g}"]


def share(lines: Lines) -> list[Table]:
    """Heads whose consensus loss has a share of their gradient; and CF-E taught by T2."""
    rows, shown = [], (CONSENSUS, BEST, *HEADS)
    for dataset in CIAO_TOO:
        base = [lines.test("ConCF", dataset, row) for row in shown]
        rows.append([label(dataset), "ConCF: R@50", *map(text_of, base), str(len(base[0]))])
        for variant in (each for each in ("share=equal", *SHARES) if lines.runs(each, dataset)):
            ours = [lines.test(variant, dataset, row) for row in shown]
            cells = [f"{change} (p {p})" for change, p in map(against, ours, base)]
            rows.append([label(dataset), variant, *cells, str(len(ours[0]))])
    header = [DATA, "variant", CONSENSUS, BEST, *HEADS.values(), "splits"]
    title = "Each head's consensus loss at a share of its own gradient: change of R@50"
    return [Table("share", title, header, rows, "p of the paired t-test, not corrected."), _taught(lines)]


def _taught(lines: Lines) -> Table:
    base = lines.test("distillation", CITEULIKE, "T2 > SingleCF")
    students = {"alpha=0.005": ("distillation", "T2 > SingleCF")}
    students |= {name: ("taught CF-E", f"T2 > SingleCF, {name}") for name in LOUDER}
    students |= {"alpha=0.005, loss by user": ("distillation", "T2 > SingleCF, CF-E by user")}
    rows = []
    for name, (variant, row) in students.items():
        ours = lines.test(variant, CITEULIKE, row)
        change = [NOTHING, NOTHING] if ours == base else against(ours, base)
        valid = text_of(lines.field(variant, CITEULIKE, "rows", row, "validation"))
        rows.append([name, valid, text_of(ours), *change, splits_of(len(ours))])
    paper = printed("citeulike", "distillation", "T2 > SingleCF")
    note = f"The paper has {paper}. The teachers of the louder students were trained anew, on the same splits."
    header = ["CF-E taught by T2", "validation", "R@50", "change", "p", "splits"]
    return Table("taught", "CF-E as a student, CiteULike, R@50", header, rows, note)


def alone_rows(lines: Lines, dataset: Dataset, head: str, titles: dict[str, str]) -> list[list[str]]:
    """A row for each variant of one objective alone: best epoch, validation, test, change against the first."""
    rows, base = list[list[str]](), lines.test(next(iter(titles)), dataset, head)
    for variant, title in titles.items():
        ours = lines.test(variant, dataset, head)
        epochs = lines.field(variant, dataset, "rows", head, "epoch").values()
        valid = text_of(lines.field(variant, dataset, "rows", head, "validation"))
        change = [NOTHING, NOTHING] if not rows else against(ours, base)
        best = whole(median(epochs)) if epochs else NOTHING
        rows.append([label(dataset), title, best, valid, text_of(ours), *change, str(len(ours))])
    return rows


ALONE_HEADER = ["best epoch", "validation", "R@50", "change", "p", "splits"]


def chosen_rate(lines: Lines, dataset: Dataset) -> str:
    """The variant of CF-E alone whose dropout has the best mean validation."""
    path = ("rows", "multinomial", "validation")
    return best_of({variant: lines.field(variant, dataset, *path) for variant in RATES}) or "SingleCF"


def dropout(lines: Lines) -> list[Table]:
    """CF-E alone by dropout, with the one that validation chooses."""
    rows = []
    for dataset in CIAO_TOO:
        best = chosen_rate(lines, dataset)
        titles = {name: rate + " (chosen)" * (name == best) for name, rate in RATES.items()}
        rows += alone_rows(lines, dataset, "multinomial", titles)
    paper = ", ".join(f"{NAMES[data]} {figure(printed(data, 'SingleCF', 'multinomial') or 0)}" for data, _ in CIAO_TOO)
    note = f"Chosen: the best mean validation. The paper has {paper}, and names no dropout."
    return [Table("dropout", "CF-E alone, by dropout, R@50", [DATA, "dropout", *ALONE_HEADER], rows, note)]


def slow(lines: Lines) -> list[Table]:
    """CF-B alone on Ciao."""
    titles = {"SingleCF": "as in SingleCF", "CF-B, 1000 epochs": "1000 epochs"}
    titles |= {name: name.removeprefix("CF-B, ") for name in SLOW}
    rows = alone_rows(lines, CIAO[0], "cml", titles)
    note = (
        "Start: embeddings of standard deviation 1, PyTorch's default, in place of 0.01. Decoupled decay: as in AdamW, "
        f"0.01. No bias: of the head's map. The paper has {figure(printed('ciao', 'SingleCF', 'cml') or 0)}."
    )
    return [Table("slow", "CF-B alone, Ciao, R@50", [DATA, "CF-B", *ALONE_HEADER], rows, note)]


def base(lines: Lines) -> list[Table]:
    """Heads that start from ALS, with and without consensus loss, beside ALS and `strong`."""
    rows = []
    for dataset in CIAO_TOO:
        als = lines.test("from ALS", dataset, "ALS")
        named = {("from ALS", "ALS"): "ALS itself"}
        named |= {(v, row): f"heads from ALS, {BASES[v]}: {row}" for v in BASES for row in (BEST, CONSENSUS)}
        named |= {("strong", row): f"strong: {name}" for row, name in ((BEST, "student"), (CONSENSUS, CONSENSUS))}
        for (variant, row), title in named.items():
            ours = lines.test(variant, dataset, row)
            runs = lines.runs(variant, dataset).values()
            valid = {
                s: run["rows"][run["best_head"] if row == BEST else row]["validation"] for s, run in enumerate(runs)
            }
            change = [NOTHING, NOTHING] if row == "ALS" or variant == "strong" else against(ours, als)
            cost = mean(run["base_seconds"] if row == "ALS" else run["seconds"] for run in runs) if runs else 0
            rows.append(
                [label(dataset), title, text_of(valid), text_of(ours), *change, f"{cost:.0f}", splits_of(len(ours))]
            )
    header = [DATA, "model", "validation", "R@50", "change from ALS", "p", "seconds", "splits"]
    note = (
        "ALS and the heads learn from the training part; the test figures of strong are those of its refit on training "
        "and validation part, so that validation is where they compare. Best head: by validation. Seconds of a run on "
        "an H200 with 14 side by side, ALS with its search in them."
    )
    return [Table("base", "Consensus learning over a strong base, R@50", header, rows, note)]


def ten(lines: Lines) -> list[Table]:
    """The splits beyond the fifth that were measured."""
    rows, every = [], lines.whole
    for variant in EXPERIMENTS["ten"].variants[1:]:
        for row in (BEST, CONSENSUS):
            ours, theirs = (every.test(name, CITEULIKE, row) for name in ("ConCF", variant))
            a, b = paired(ours, theirs)
            moves = [x - y for x, y in zip(a, b, strict=True)]
            least = figure(least_shown(moves)) if len(moves) > 1 else NOTHING
            means = [figure(mean(side)) if side else NOTHING for side in (a, b)]
            rows.append([variant, row, *means, *against(ours, theirs), least, splits_of(len(a), 10)])
    header = ["ConCF against", "row", "ConCF", "other", "change", "p", "could have shown", "splits"]
    note = "p of the paired t-test, not corrected."
    return [Table("ten", "More splits, CiteULike, R@50", header, rows, note)]
