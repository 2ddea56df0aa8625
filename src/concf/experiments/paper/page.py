"""From measured lines to docs/reproduction.md, with its figures and tables. Nothing is measured here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

from concf.experiments.paper.claims import CLAIMS
from concf.experiments.paper.drawing import Drawing
from concf.experiments.paper.figures import draw
from concf.experiments.paper.measured import SPLITS, TWINS, WINDOW, Line, Measured, inside
from concf.experiments.paper.published import BEST, CONSENSUS
from concf.experiments.paper.table import Table
from concf.experiments.paper.tables import TABLES
from concf.experiments.paper.verdicts import FAILS, HOLDS, IN_PART, UNKNOWN, Claim, Reranked
from concf.runtime.files import new_file
from concf.runtime.provenance import CHANGED, commit_of
from concf.runtime.text_tables import markdown

INTRODUCTION = """# The paper, reproduced

Every table and figure of *Consensus Learning from Heterogeneous Objectives for One-Class Collaborative Filtering* (Kang
et al., WWW '22), beside what this implementation measures, and a verdict on {claims} claims of its text.
"""

HOW = """## How it is made

```
concf reproduce all --render   # measure what is missing, then write this page
concf reproduce --render       # write it again from the lines alone
```

A line of `results/reproduction.jsonl` is one variant on one split under one preset. Ours are test figures, mean ±
standard deviation over splits of the data, which also seed the model; every head stands at the epoch of its own best
validation R@50. The preset is `reference` unless another is named ([training.md](training.md#presets)). "3 of 5"
splits: the others are still to be measured. Tables on three splits differ a little from those on five of the same
cells. Foursquare is a subset of the paper's: a third data set, not its column.

Gains follow the paper's rule: for each metric, the best SingleCF is the objective with the best mean test figure of
that metric; Gain.Best is ConCF's head of that objective over it, Gain.Con. the consensus over it. Where schemes are
compared by their best model or head, that is the best by validation.

A comparison says yes if the difference goes the paper's way on average and either p < 0.05 by the paired t-test over
the splits (the only way for a claim of significance), or it does so on every split, two at least, with a mean
difference above the run-to-run noise; partly if it goes the paper's way on average only; else no. A claim of several
cases holds if all say yes, does not hold if none says yes and one or more say no, and else holds in part; a bound that
we had to choose stands in the claim's sentence.
"""

SECTIONS = {
    "stats": "The data",
    "main": "Recommendation performance",
    "groups": "Gains by group of users",
    "schemes": "Consensus learning: three schemes",
    "per": "What one objective hits and another misses",
    "chr": "How complementary the models are",
    "consistency": "Consistency and correctness",
    "homogeneous": "Homogeneous objectives",
    "distillation": "Two-stage distillation",
    "hyperparameters": "Hyperparameters",
    "selection": "Selecting a loss instead of agreeing",
    "sharing": "Sharing parameters",
    "differences": "Where the paper and its released code differ",
}

NOTES = {
    "stats": (
        "The paper's counts are those of the data before its rule of ten interactions. Protocol `paper` keeps that "
        "data and lets only such users and items into validation and test; `released` removes the others altogether. "
        "Events: Ciao's count has repeated pairs."
    ),
    "main": (
        "SingleCF models are trained side by side with nothing shared, no balancing and no consensus loss, which is "
        "each of them alone. Validation is every 10 epochs. Under `reference` most of these runs end at the cap of 200 "
        "epochs while ConCF stops earlier ([counted](#schemes) below), so a SingleCF might still rise a little. The "
        "tables of the presets `paper` and `released` are among the files."
    ),
    "groups": (
        "Users are sorted by their training interactions and cut into four equal groups. A group's gain is the ratio "
        "of its mean R@50 over the splits; the paper averages the gains of single users, which is not defined for a "
        "user whom SingleCF gives no hit."
    ),
    "schemes": (
        "The best model of SingleCF is one objective for all splits, the best head of the others that of each split, "
        "both by validation. The paper's points are those that its other tables print. SingleCF mostly trains to the "
        "cap, the others stop earlier; the last table has the epochs."
    ),
    "per": ("Of the models of SingleCF, at 50 places."),
    "chr": ("The model y is the BPR model of 64 dimensions of each set. User-level CHR is that of users with any hit."),
    "consistency": (
        f"SingleCF models, ranked after every epoch, with a window of {WINDOW} rankings. Until epoch {WINDOW} the "
        "window is not full; claims and tables leave those epochs out. How much of RC over R is consistency and how "
        "much a count of votes is not separated: at T_c = 100 adding C mostly counts how many heads name an item."
    ),
    "homogeneous": (
        "Five heads of CF-E from other starts. PCL: the teacher is the softmax of the mean logits of the heads; its "
        "loss has the weight of the consensus loss and begins at the same epoch; its ensemble is that mean. ConCF "
        "votes with six heads (the column-wise CF-E', too), these two with five: the rows with CF-E' not voting"
        " (`paper: "
        "voters`) have five."
    ),
    "distillation": (
        "The teacher's list is static and taught from the first epoch on with the same listwise loss. T1 is the best "
        "SingleCF by validation, T2 the RC-consensus of all of them. The student of SingleCF is CF-E, taught with "
        "alpha 0.005; it gains only about 0.008 over CF-E undistilled, so this says little about distillation with "
        "a larger weight."
    ),
    "hyperparameters": (
        "Ours change one setting of `reference`, which has alpha 0.005, |Q| 5 and p 10; the paper's change one of "
        "0.01, 5 and 20. With |Q| all, consensus learning begins when it does with |Q| 5. Rows with p = 20 may train "
        '500 epochs, not 200, so that "one setting" is not exact there.'
    ),
    "selection": (
        "ConCF-S: a linear map of the pair's user and item embeddings gives the logits of a straight-through Gumbel-"
        "softmax of temperature 1, trained with the model. So that no head is left without pairs, a head's logits are "
        "standardised over the batch, and the choice is moved by each loss relative to its mean. A head sees a sixth "
        "of the pairs in an epoch, and these runs have no early stop. AutoML is the same without consensus loss and "
        "balancing; its ensemble is the RC-consensus of the heads."
    ),
    "sharing": (
        "With nothing shared there is no embedding to balance on, and balancing is off. The embeddings' share counts "
        "the output tables of CF-E among the other parameters."
    ),
    "differences": (
        'Each setting of the paper, or of its released code, that `reference` has otherwise, switched alone; "all" is '
        "the whole preset. The columns of the heads show that CF-E's shortfall in ConCF comes from the balancing of "
        "`reference`; a larger weight (alpha 0.01) helps it, too."
    ),
}


@dataclass(frozen=True)
class Section:
    """An experiment as it is shown."""

    name: str
    tables: list[Table]
    drawings: list[Drawing]
    verdicts: list[tuple[Claim, Reranked]]


def sections(lines: Iterable[Line]) -> list[Section]:
    """Every experiment in the order of the document, each on the splits planned for it."""
    every = Measured(lines)
    found = []
    for name in SECTIONS:
        measured = every.first(SPLITS[name])
        verdicts = [(claim, claim.verdict(measured)) for claim in CLAIMS if claim.experiment == name]
        found.append(Section(name, TABLES[name](measured), draw(name, measured), verdicts))
    return found


def render(lines: Iterable[Line], out_docs: Path, out_results: Path, summary: str | None = None) -> list[Path]:
    """Write reproduction.md and reproduction/*.png, *.svg into `out_docs`, tables/*.csv, *.tex into `out_results`.

    summary: a person's own lines for the top, Markdown; None: those of reproduction/summary.md in `out_docs`, if any
    """
    lines = list(lines)
    own = out_docs / "reproduction" / "summary.md"
    if summary is None and own.is_file():
        summary = own.read_text(encoding="utf-8")
    found, written = sections(lines), []
    for section in found:
        for table in section.tables:
            for kind, text in (("csv", table.csv()), ("tex", table.latex())):
                written.append(_write(out_results / "tables" / f"{table.name}.{kind}", text))
        for drawing in section.drawings:
            for kind in ("png", "svg"):
                path = out_docs / "reproduction" / f"{drawing.name}.{kind}"
                with new_file(path) as fresh:
                    drawing.save(fresh, kind)
                written.append(path)
    tables = Path(os.path.relpath(out_results / "tables", out_docs)).as_posix()
    return [*written, _write(out_docs / "reproduction.md", document(found, lines, summary or "", tables))]


def _write(path: Path, text: str) -> Path:
    with new_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")
    return path


def document(found: Iterable[Section], lines: Iterable[Line], summary: str, tables: str) -> str:
    """The page. tables: where the tables' files lie, seen from it."""
    found, measured = list(found), Measured(lines)
    count = sum(len(section.verdicts) for section in found)
    how = f"{HOW}\n{fill(_noise(measured), 120)}\n"
    short = [INTRODUCTION.format(claims=count), _verdicts_in_short(found), _not_measured(measured)]
    parts = [*short, summary.strip() + "\n" if summary.strip() else "", how]
    return "\n".join([*(part for part in parts if part), *(_shown(each, tables) for each in found), _sources(lines)])


def _verdicts_in_short(found: Iterable[Section]) -> str:
    """How many claims hold, and which do not."""
    verdicts = [both for section in found for both in section.verdicts]
    count = Counter(verdict.word for _, verdict in verdicts)
    words = ", ".join(f"{count[word]} {one if count[word] == 1 else more}" for word, (one, more) in FORMS.items())
    failed = [claim for claim, verdict in verdicts if verdict.word == FAILS]
    named = "; ".join(f"[{claim.sentence.rstrip('.')}](#{claim.experiment})" for claim in failed)
    which = "The one that does not" if len(failed) == 1 else "Those that do not"
    return f"Of these {len(verdicts)} claims {words}.\n" + (f"\n{which}: {named}.\n" if named else "")


FORMS = {
    HOLDS: ("holds", "hold"),
    IN_PART: ("holds in part", "hold in part"),
    FAILS: ("does not hold", "do not hold"),
    UNKNOWN: ("is not measured", "are not measured"),
}


def _not_measured(measured: Measured) -> str:
    """Which cells of the plan have no line."""
    missing = measured.missing()
    if not missing:
        return ""
    named = ", ".join(f"{count} of {name}" for name, count in missing.items())
    cells = "1 cell of the plan is" if missing.total() == 1 else f"{missing.total()} cells of the plan are"
    return f"{cells} not measured: {named}.\n"


def _noise(measured: Measured) -> str:
    """How far equal runs are apart."""
    twins = "; ".join(f'"{one}" and "{other}"' for one, other in TWINS)
    apart = {row: measured.apart_in(row) for row in (CONSENSUS, BEST)}
    if not all(apart.values()):
        return "Run-to-run noise: not measured."
    told = ", ".join(f"{mean(found):.4f} ({row}; at most {max(found):.4f})" for row, found in apart.items())
    return (
        f"Run-to-run noise: pairs of equal settings among the lines ({twins}; CiteULike) differ in R@50 on a split by "
        f"{told} on average. Other figures, such as CHR, are held against the same pairs, single heads against the "
        "best head's noise, other data sets against CiteULike's; where the pairs lack a figure, only the t-test counts."
    )


def _shown(section: Section, tables: str) -> str:
    """Claims, figures, tables, in that order; of the main experiment only the tables of `reference`."""
    text = f'<a id="{section.name}"></a>\n\n## {SECTIONS[section.name]}\n\n{fill(NOTES[section.name], 120)}\n'
    if section.verdicts:
        rows = [
            [f"{claim.sentence} ({claim.where})", f"**{verdict.word}**", verdict.figures or "–"]
            for claim, verdict in section.verdicts
        ]
        text += "\n" + markdown(["claim", "verdict", "figures"], rows)
    for drawing in section.drawings:
        text += f"\n![{drawing.alt}](reproduction/{drawing.name}.png)\n\n{drawing.caption} "
        text += f"[SVG](reproduction/{drawing.name}.svg)\n"
    for table in section.tables:
        if not table.name.startswith("main-") or "-reference-" in table.name:
            text += f"\n{table.markdown()}"
    files = ", ".join(f"[{table.name}]({tables}/{table.name}.csv)" for table in section.tables)
    return f"{text}\nAs CSV, with LaTeX beside: {files}.\n"


def _sources(lines: Iterable[Line]) -> str:
    """Which machine and commit the lines are of."""
    counts: Counter[tuple[str, ...]] = Counter()
    seconds: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        provenance = line.get("provenance", {})
        machine = ", ".join(part for part in (str(line.get("device", "")), _machine(provenance)) if part)
        versions = _words(provenance.get("versions"))
        source = (machine or "–", commit_of(line), versions or "–")
        counts[source] += 1
        seconds[source] += line.get("seconds", 0)
    rows = [[*source, str(counts[source]), f"{seconds[source]:,.0f}"] for source in sorted(counts)]
    header = ["machine", "commit", "versions", "lines", "seconds in all"]
    table = f"{markdown(header, rows)}\n{CHANGED}\n" if rows else "Nothing was measured yet.\n"
    return f"## Where the lines come from\n\n{table}"


def _machine(provenance: Mapping[str, Any]) -> str:
    machine = provenance.get("machine")
    if not isinstance(machine, Mapping):
        return str(machine or "")
    cores = inside(machine, ["cores"])
    return ", ".join(filter(None, (str(machine.get("processor", "")), f"{cores} cores" if cores else "")))


def _words(values: Any) -> str:
    if not isinstance(values, Mapping):
        return str(values or "")
    return ", ".join(f"{name} {value}" for name, value in values.items())
