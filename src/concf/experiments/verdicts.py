"""How a claim is decided: cases with figures, and one word for all of them.

A comparison is decided on the splits that both sides have: "yes" if it goes the paper's way on every split, "partly" if
only on average, else "no". A claim of several cases holds if all say yes and does not hold if all say no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from concf.experiments.measured import SPLITS, Measured, Series, figure, gain, p_value, paired, signed

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "not measured"
LEVEL = 0.05  # of the paired t-test
FEW = 4  # cases that are all told
YES, PARTLY, NO = 1.0, 0.5, 0.0


@dataclass(frozen=True)
class Verdict:
    """One of the four words, and the figures that decide it."""

    word: str
    figures: str


@dataclass(frozen=True)
class Case:
    """One of the things a claim says: how far it is so, and its figures in words."""

    grade: float
    words: str


Cases = Iterable[Case | None]  # None: without lines
Decide = Callable[[Measured], Cases]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our words, where it stands, and what decides it."""

    id: str
    experiment: str
    where: str
    sentence: str
    decide: Decide

    def verdict(self, measured: Measured) -> Verdict:
        """On the splits planned for its experiment; cases without lines are left out."""
        cases = self.decide(measured.first(SPLITS[self.experiment]))
        found = [case for case in cases if case is not None]
        if not found:
            return Verdict(UNKNOWN, "")
        grades = {case.grade for case in found}
        word = HOLDS if grades == {YES} else FAILS if grades == {NO} else IN_PART
        return Verdict(word, _in_words(found))


def _in_words(cases: Sequence[Case]) -> str:
    """All of a few; of many how many agree, with those that do not."""
    every, against = ({case.words: None for case in cases if case.grade < below} for below in (2 * YES, YES))
    if len(every) <= FEW:
        return "; ".join(every)
    agree = f"{sum(case.grade == YES for case in cases)} of {len(cases)} cases"
    return f"{agree}, such as {next(iter(every))}" if not against else f"{agree}; the others: {'; '.join(against)}"


def above(ours: Series, theirs: Series, words: str, write: Callable[[float], str] = figure) -> Case | None:
    """Whether ours is the higher one. words: with a place for each of the two means."""
    a, b = paired(ours, theirs)
    if not a:
        return None
    always = all(x > y for x, y in zip(a, b, strict=True))
    grade = YES if always else PARTLY if mean(a) > mean(b) else NO
    only = " (on average, not on every split)" if grade == PARTLY else ""
    return Case(grade, words.format(write(mean(a)), write(mean(b))) + only)


def below(ours: Series, theirs: Series, words: str, write: Callable[[float], str] = figure) -> Case | None:
    """Whether ours is the lower one."""
    found = above(theirs, ours, "{1}\n{0}", write)
    return found and Case(found.grade, words.format(*found.words.split("\n")))


def tested(ours: Series, theirs: Series, words: str) -> Case | None:
    """Whether ours is significantly the higher one."""
    found, p = gain(ours, theirs), p_value(ours, theirs)
    if found is None:
        return None
    grade = NO if found.mean <= 0 else YES if p is not None and p < LEVEL else PARTLY
    return Case(grade, f"{words} {signed(found.mean)} ({'one split' if p is None else f'p {p:.2g}'})")
