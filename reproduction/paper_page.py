"""What docs/paper.md shows of the measured lines: the verdicts, ten figures, and what each other reading changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from concf.runtime.text_tables import markdown
from reproduction.cells_of_tables import change_of, text_of
from reproduction.claims import CLAIMS
from reproduction.controls import COUNTED, RC
from reproduction.lines import CITEULIKE, DATASETS, SCHEMES, Lines, gain, p_value, percent, signed
from reproduction.measured import NOTHING, Estimate, Series, estimate, figure
from reproduction.page import counted
from reproduction.plan import CIAO
from reproduction.published import BEST, CHR_OVER_SIZE, CONSENSUS, printed

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
MARKED = re.compile(r"(<!-- (\w+): written by reproduction/render\.py -->\n).*?(<!-- end -->)", re.S)


def filled(text: str, lines: Lines) -> str:
    """The page with each part between its marks."""
    parts = {"verdicts": verdicts(lines), "figures": _figures(lines), "changes": _changes(lines)}
    return MARKED.sub(lambda match: f"{match[1]}\n{parts[match[2]]}\n\n{match[3]}", text)


def verdicts(lines: Lines) -> str:
    """How many claims hold."""
    return counted([claim.verdict(lines).word for claim in CLAIMS])


def _figures(lines: Lines) -> str:
    rows = [[str(n), *row] for n, row in enumerate(_ten(lines.first()), 1)]
    return markdown(["", "R@50 on CiteULike unless said otherwise", "paper", "ours", "section"], rows).rstrip("\n")


def _ten(lines: Lines) -> Iterator[list[str]]:
    def row(words: str, paper: float | None, ours: Series, section: str) -> list[str]:
        return [words, NOTHING if paper is None else figure(paper), text_of(ours), f"`#{section}`"]

    def share(words: str, paper: float | None, ours: Estimate | None, section: str) -> list[str]:
        spread = f" ± {percent(ours.std)}" if ours and ours.std is not None else ""
        values = [NOTHING if each is None else signed(each) for each in (paper, ours.mean if ours else None)]
        return [words, values[0], values[1] + spread, f"`#{section}`"]

    def test(variant: str, name: str, preset: str = "reference") -> Series:
        return lines.test(variant, CITEULIKE, name, preset=preset)

    def of(variant: str, name: str, data: str = "citeulike") -> float | None:
        return printed(data, variant, name)

    yield row("consensus of ConCF", of("ConCF", CONSENSUS), test("ConCF", CONSENSUS), "main")
    ciao = lines.test("ConCF", CIAO[0], CONSENSUS)
    yield row("consensus of ConCF, Ciao", of("ConCF", CONSENSUS, "ciao"), ciao, "main")
    yield row("best head of ConCF", of("ConCF", BEST), test("ConCF", BEST), "main")
    gains = gain(*lines.gains(CITEULIKE, "recall@50")["Gain.Con."])
    yield share("consensus over the best single objective", of("ConCF", "Gain.Con."), gains, "main")
    yield row("consensus of models trained alone: voting without learning", of("SingleCF", CONSENSUS),
              test("SingleCF", CONSENSUS), "schemes")  # fmt: skip
    learned = gain(test("ConCF", BEST), test("without CL", BEST))
    yield share("best head with the consensus loss over that without", None, learned, "schemes")
    moves = [gain(*(lines.control(scheme, dataset, kind) for kind in (RC, COUNTED)))
             for dataset in DATASETS for scheme in SCHEMES]  # fmt: skip
    counted = estimate({n: each.mean for n, each in enumerate(moves) if each})
    yield share("consistency over a count of the heads, mean of data sets and schemes", None, counted, "consistency")
    differ = gain(lines.chr("SingleCF", CITEULIKE), lines.chr("model sizes", CITEULIKE))
    yield share("CHR by objective over CHR by model size", CHR_OVER_SIZE, differ, "chr")
    yield row("consensus with the settings of the paper's text", of("ConCF", CONSENSUS),
              test("ConCF", CONSENSUS, "paper"), "main")  # fmt: skip
    yield row("ALS of 64 factors, for comparison", None, test("from ALS", "ALS"), "base")


def _changes(lines: Lines) -> str:
    """Each row of the presets that differs from `reference`, switched alone."""
    rows = []
    for effect in lines.common("differences").effects():
        p = p_value(effect.consensus, dict.fromkeys(effect.consensus, 0.0))
        changes = ", ".join(f"`{change}`" for change in effect.changes) or "the whole preset"
        rows.append([effect.name, changes, change_of(effect.consensus, std=True), NOTHING if p is None else f"{p:.2g}"])
    return markdown(["reading", "setting", "consensus, R@50", "p"], rows).rstrip("\n")
