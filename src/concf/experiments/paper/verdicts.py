"""How a claim is decided: cases with figures, and one word for all of them.

A comparison says yes if it goes the paper's way on average and either p < 0.05 by the paired t-test over the splits, or
it goes that way on every split, two at least, by more than equal runs are apart; partly if on average only; else no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import mean

from concf.experiments.paper.measured import SPLITS, Measured, Series, Write, figure, gain, p_value, paired, signed

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "not measured"
LEVEL = 0.05  # of the paired t-test
FEW = 4  # cases that are all told


class Grade(Enum):
    """How far a case goes the paper's way."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"

    def turned(self) -> Grade:
        """Of the contrary claim."""
        return {Grade.YES: Grade.NO, Grade.NO: Grade.YES}.get(self, self)


YES, PARTLY, NO = Grade.YES, Grade.PARTLY, Grade.NO


@dataclass(frozen=True)
class Reranked:
    """One of the four words, and the figures that decide it."""

    word: str
    figures: str


@dataclass(frozen=True)
class TrainingSet:
    """One of the things a claim says: how far it is so, and its figures in words.

    mean, p: of a comparison, our mean and the t-test's p over the splits
    """

    grade: Grade
    words: str
    mean: float | None = None
    p: float | None = None


Cases = Iterable[TrainingSet | None]  # None: without lines
Decide = Callable[[Measured], Cases]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our words, where it stands, and what decides it."""

    id: str
    experiment: str
    where: str
    sentence: str
    decide: Decide

    def verdict(self, measured: Measured) -> Reranked:
        """On the splits planned for its experiment; cases without lines are left out."""
        cases = self.decide(measured.first(SPLITS[self.experiment]))
        found = [case for case in cases if case is not None]
        return Reranked(together([case.grade for case in found]), _in_words(found))


def together(grades: Sequence[Grade]) -> str:
    """The word for several cases: `holds` if all say yes, `does not hold` if none does and one or more say no."""
    if not grades:
        return UNKNOWN
    if all(grade is YES for grade in grades):
        return HOLDS
    return FAILS if YES not in grades and NO in grades else IN_PART


def _in_words(cases: Sequence[TrainingSet]) -> str:
    """All of a few; of many how many agree, with those that do not."""
    every = list(dict.fromkeys(case.words for case in cases))
    if len(every) <= FEW:
        return "; ".join(every)
    against = list(dict.fromkeys(case.words for case in cases if case.grade is not YES))
    agree = f"{len(cases) - sum(case.grade is not YES for case in cases)} of {len(cases)} cases"
    if against:
        return f"{agree}; the others: {'; '.join(against)}"
    known = [case.p for case in cases if case.p is not None]
    most = f", p at most {max(known):.2g}" if known else ""
    return f"{agree}{most}, such as {every[0]}"


def graded(moves: Sequence[float], p: float | None, noise: float | None) -> Grade:
    """Of the differences by split, counted the paper's way. noise: None where no equal runs tell of it, or only the
    t-test is to count."""
    if mean(moves) <= 0:
        return NO
    always = len(moves) > 1 and min(moves) > 0 and noise is not None and mean(moves) > noise
    return YES if always or (p is not None and p < LEVEL) else PARTLY


def _compared(
    ours: Series, theirs: Series, words: str, write: Write, noise: float | None, way: int
) -> TrainingSet | None:
    a, b = paired(ours, theirs)
    if not a:
        return None
    moves, p = [way * (x - y) for x, y in zip(a, b, strict=True)], p_value(ours, theirs)
    text = words.format(write(mean(a)), write(mean(b)))
    return TrainingSet(graded(moves, p, noise), f"{text} ({chance(p, moves)})", mean(a), p)


def chance(p: float | None, moves: Sequence[float]) -> str:
    """`p 0.003`; without significance also on how many splits it goes the paper's way."""
    if p is None:
        return "one split"
    often = f", {sum(move > 0 for move in moves)} of {len(moves)} splits"
    return f"p {p:.2g}" + (often if p >= LEVEL and mean(moves) > 0 else "")


def above(
    ours: Series, theirs: Series, words: str, write: Write = figure, *, noise: float | None = None
) -> TrainingSet | None:
    """Whether ours is the higher one. words: with a place for each of the two means."""
    return _compared(ours, theirs, words, write, noise, 1)


def below(
    ours: Series, theirs: Series, words: str, write: Write = figure, *, noise: float | None = None
) -> TrainingSet | None:
    """Whether ours is the lower one."""
    return _compared(ours, theirs, words, write, noise, -1)


def tested(ours: Series, theirs: Series, words: str) -> TrainingSet | None:
    """Whether ours is significantly the higher one; told as a gain."""
    found, case = gain(ours, theirs), above(ours, theirs, "")
    return case and replace(case, words=f"{words} {signed(found.mean) if found else ''}{case.words}")


def hardly(ours: Series, theirs: Series, words: str, *, noise: float | None) -> TrainingSet | None:
    """Whether ours is no higher than by the noise; partly where it is, but not for certain."""
    case = above(ours, theirs, words, noise=noise)
    if case is None:
        return None
    a, b = paired(ours, theirs)
    return replace(case, grade=YES if mean(a) - mean(b) <= (noise or 0.0) else case.grade.turned())
