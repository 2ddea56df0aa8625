"""How a claim is decided: cases with figures, and one word for all of them.

A case is settled by a bound or a count, or tested by the paired t-test over the splits, two-sided. The p of a claim's
tests are corrected by Holm's rule. A tested case says yes if it goes the paper's way with p < 0.05, no if it goes the
other way with p < 0.05, and is open otherwise; then the least difference that its splits could have shown is given.
A claim with a test on fewer than three splits is not decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt
from statistics import mean, stdev

from scipy.stats import t as student_t

from concf.evaluation.significance import holm
from reproduction.lines import Lines, gain, p_value, paired, signed
from reproduction.measured import Series, Write, figure

HOLDS, IN_PART, AGAINST, NOT_SHOWN = "holds", "holds in part", "contradicted", "not shown"
UNKNOWN = "not decided"
LEVEL, POWER = 0.05, 0.8  # of the corrected tests; chance that a test finds the least difference it could show
FEWEST_SPLITS = 3  # of a test: on fewer a claim is not decided
FEW = 4  # up to so many cases, all are named


class Grade(Enum):
    """How far a case goes the paper's way."""

    NO, OPEN, YES = range(3)


NO, OPEN, YES = Grade.NO, Grade.OPEN, Grade.YES


@dataclass(frozen=True)
class Verdict:
    """The word for a claim, and the figures that decide it."""

    word: str
    figures: str


@dataclass(frozen=True)
class Case:
    """One of the things a claim says.

    words:   its figures
    settled: how far it is so where no test is needed; None: `moves` and `p` decide
    moves:   the differences by split, counted the paper's way
    p:       of the test, not yet corrected; None: a single split
    unless:  what is claimed is that there is no significant difference the other way
    write:   how a difference is written
    """

    words: str
    settled: Grade | None = None
    moves: tuple[float, ...] = ()
    p: float | None = None
    unless: bool = False
    write: Write = figure

    @property
    def toward(self) -> bool:
        """Whether it goes the paper's way on average."""
        return mean(self.moves) > 0

    def grade(self, p: float | None) -> Grade:
        """With the corrected p."""
        if self.settled is not None:
            return self.settled
        significant = p is not None and p < LEVEL
        if self.unless:
            return NO if significant and not self.toward else YES
        if not significant:
            return OPEN
        return YES if self.toward else NO

    def shown(self, p: float | None) -> str:
        """The words with the test: `p 0.003`, or on how many splits it goes the paper's way."""
        if self.settled is not None:
            return self.words
        if p is None:
            return f"{self.words} (one split)"
        often = f", {sum(move > 0 for move in self.moves)} of {len(self.moves)} splits"
        least = "" if self.unless or not self.moves else f", could have shown {self.write(least_shown(self.moves))}"
        return f"{self.words} (p {p:.2g}{often + least if p >= LEVEL else ''})"


Cases = Iterable[Case | None]  # None: without lines
Decide = Callable[[Lines], Cases]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our words, where it is found there, and what decides it."""

    id: str
    experiment: str
    where: str
    sentence: str
    decide: Decide

    def verdict(self, lines: Lines) -> Verdict:
        """On the splits that its experiment has of all its variants; cases without lines are left out."""
        cases = [case for case in self.decide(lines.common(self.experiment)) if case]
        p = corrected(cases)
        grades = [case.grade(each) for case, each in zip(cases, p, strict=True)]
        few = any(case.settled is None and len(case.moves) < FEWEST_SPLITS for case in cases)
        return Verdict(UNKNOWN if few else together(grades), _summary(cases, p, grades))


def corrected(cases: Sequence[Case]) -> list[float | None]:
    """The p of each case, by Holm's rule over those of the claim that are tested."""
    tested = [n for n, case in enumerate(cases) if case.settled is None and case.p is not None]
    p: list[float | None] = [None] * len(cases)
    for n, each in zip(tested, holm([cases[n].p or 0.0 for n in tested]), strict=True):
        p[n] = each
    return p


def together(grades: Sequence[Grade]) -> str:
    """`holds` if all say yes, `contradicted` if one says no, `holds in part` if more than half say yes."""
    if not grades:
        return UNKNOWN
    if NO in grades:
        return AGAINST
    if all(grade is YES for grade in grades):
        return HOLDS
    return IN_PART if 2 * grades.count(YES) > len(grades) else NOT_SHOWN


def least_shown(moves: Sequence[float]) -> float:
    """Smallest mean difference that a paired t-test of these splits finds with probability `POWER`.

    (t_{1 - LEVEL / 2} + t_POWER) sd / sqrt(n), both of n - 1 degrees of freedom; a single test, not corrected.
    """
    n = len(moves)
    quantiles = student_t.ppf([1 - LEVEL / 2, POWER], n - 1)
    return float(quantiles.sum()) * stdev(moves) / sqrt(n)


def _summary(cases: Sequence[Case], p: Sequence[float | None], grades: Sequence[Grade]) -> str:
    """All of a few; of many how many say yes, with those that do not, the contrary ones first."""
    every = list(dict.fromkeys(case.shown(each) for case, each in zip(cases, p, strict=True)))
    if len(every) <= FEW:
        return "; ".join(every)
    shown = [f"{grades.count(YES)} of {len(cases)} cases"]
    for grade, words in ((NO, "against it"), (OPEN, "open")):
        named = [case.shown(each) for case, each, mine in zip(cases, p, grades, strict=True) if mine is grade]
        if named:
            shown.append(f"{words}: {'; '.join(dict.fromkeys(named))}")
    if len(shown) == 1:
        known = [each for each in p if each is not None]
        shown[0] += (f", p at most {max(known):.2g}" if known else "") + f", such as {every[0]}"
    return "; ".join(shown)


def settled(words: str, condition: bool) -> Case:
    """A case without a test: a bound that is met or missed."""
    return Case(words, YES if condition else NO)


def compare(
    ours: Series, theirs: Series, words: str = "", write: Write = figure, *, unless: bool = False
) -> Case | None:
    """Whether ours is the higher one. words: with {} for each of the two means."""
    a, b = paired(ours, theirs)
    if not a:
        return None
    moves = tuple(x - y for x, y in zip(a, b, strict=True))
    return Case(words.format(write(mean(a)), write(mean(b))), None, moves, p_value(ours, theirs), unless, write)


def gained(ours: Series, theirs: Series, words: str) -> Case | None:
    """Whether ours is the higher one; written as a gain."""
    share = gain(ours, theirs)
    return compare(ours, theirs, f"{words} {signed(share.mean) if share else ''}")
