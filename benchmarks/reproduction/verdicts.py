"""How a claim is decided: cases with figures, and one word for all of them.

A comparison says yes if it goes the paper's way on average and either p < 0.05 by the paired t-test over the splits, or
it goes that way on every split, two at least, by more than equal runs are apart; partly if on average only; else no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import mean

from concf.experiments.paper.measured import Series, Write, figure
from reproduction.lines import SPLITS, Lines, gain, p_value, paired, signed

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "not measured"
LEVEL = 0.05  # of the paired t-test
FEW = 4  # up to so many cases, all are named


class Grade(IntEnum):
    """How far a case goes the paper's way."""

    NO, PARTLY, YES = range(3)

    def turned(self) -> Grade:
        """Of the contrary claim."""
        return Grade(2 - self)


NO, PARTLY, YES = Grade


@dataclass(frozen=True)
class Verdict:
    """One of the four words, and the figures that decide it."""

    word: str
    figures: str


@dataclass(frozen=True)
class Case:
    """One of the things a claim says: how far it is so, its figures in words, and p of the t-test over the splits."""

    grade: Grade
    words: str
    p: float | None = None


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
        """On the splits planned for its experiment; cases without lines are left out."""
        cases = [case for case in self.decide(lines.first(SPLITS[self.experiment])) if case]
        return Verdict(together([case.grade for case in cases]), _summary(cases))


def together(grades: Sequence[Grade]) -> str:
    """The word for several cases: `holds` if all say yes, `does not hold` if none does and one or more say no."""
    if not grades:
        return UNKNOWN
    if all(grade is YES for grade in grades):
        return HOLDS
    return FAILS if YES not in grades and NO in grades else IN_PART


def _summary(cases: Sequence[Case]) -> str:
    """All of a few; of many how many agree, with those that do not."""
    every = list(dict.fromkeys(case.words for case in cases))
    if len(every) <= FEW:
        return "; ".join(every)
    agree = f"{sum(case.grade is YES for case in cases)} of {len(cases)} cases"
    against = dict.fromkeys(case.words for case in cases if case.grade is not YES)
    if against:
        return f"{agree}; the others: {'; '.join(against)}"
    known = [case.p for case in cases if case.p is not None]
    most = f", p at most {max(known):.2g}" if known else ""
    return f"{agree}{most}, such as {every[0]}"


def graded(moves: Sequence[float], p: float | None, noise: float | None) -> Grade:
    """Of the differences by split, counted the paper's way. noise: None where it is unknown or must not count."""
    if mean(moves) <= 0:
        return NO
    always = len(moves) > 1 and min(moves) > 0 and noise is not None and mean(moves) > noise
    return YES if always or (p is not None and p < LEVEL) else PARTLY


def chance(p: float | None, moves: Sequence[float]) -> str:
    """`p 0.003`; without significance also on how many splits it goes the paper's way."""
    if p is None:
        return "one split"
    often = f", {sum(move > 0 for move in moves)} of {len(moves)} splits"
    return f"p {p:.2g}" + (often if p >= LEVEL and mean(moves) > 0 else "")


def compare(
    ours: Series, theirs: Series, words: str = "", write: Write = figure, *, noise: float | None = None
) -> Case | None:
    """Whether ours is the higher one. words: with {} for each of the two means."""
    a, b = paired(ours, theirs)
    if not a:
        return None
    moves, p = [x - y for x, y in zip(a, b, strict=True)], p_value(ours, theirs)
    text = words.format(write(mean(a)), write(mean(b)))
    return Case(graded(moves, p, noise), f"{text} ({chance(p, moves)})", p)


def significant(ours: Series, theirs: Series, words: str = "") -> Case | None:
    """Whether ours is significantly the higher one; written as a gain."""
    share, case = gain(ours, theirs), compare(ours, theirs)
    return case and replace(case, words=f"{words} {signed(share.mean) if share else ''}{case.words}")
