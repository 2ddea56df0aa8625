"""A table as it is written: cells as words, and the paper's value beside ours with the difference."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from concf.experiments.paper.measured import FEWER, NAMES, Estimate, Place, Write, figure
from concf.experiments.paper.published import HEADS
from concf.runtime.text_tables import markdown

NOT_MEASURED, NOTHING = "not measured", "–"


@dataclass(frozen=True)
class Table:
    """Cells as words; `name` is that of its files."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """With the title above and the note below."""
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return f"**{self.title}**\n\n{markdown(self.header, rows)}" + (f"\n{self.note}\n" if self.note else "")

    def csv(self) -> str:
        """The header and the rows."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """For booktabs; the note is part of the caption."""
        header, *rows = (" & ".join(map(escape, row)) + r" \\" for row in (self.header, *self.rows))
        start = [r"\begin{table}", rf"\caption{{{escape(f'{self.title}. {self.note}'.strip())}}}"]
        tabular = [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule", header, r"\midrule", *rows]
        return "\n".join([*start, *tabular, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
    "^": r"\textasciicircum{}", "–": "--", "<": "$<$", ">": "$>$", "|": "$|$", "[": "{[}", "]": "{]}", "`": "",
}  # fmt: skip


def escape(text: str) -> str:
    """For LaTeX; a bracket at the start of a row would be an option of the line before."""
    return "".join(LATEX.get(sign, sign) for sign in text)


@dataclass(frozen=True)
class Pair:
    """The paper's value beside ours; `same` says whether both are of the same data."""

    paper: float | None
    ours: Estimate | None
    write: Write = figure
    same: bool = True

    def cells(self) -> list[str]:
        """The paper's, ours, the difference."""
        paper = "not given" if self.paper is None else self.write(self.paper)
        if self.paper is None or self.ours is None:
            return [paper, words(self.ours, self.write), NOTHING]
        difference = self.ours.mean - self.paper
        size = self.write(abs(difference))
        signed = size if size == self.write(0.0) else ("+" if difference > 0 else "-") + size
        return [paper, words(self.ours, self.write), signed if self.same else "other data"]


Row = tuple[list[str], list[Pair]]


def words(ours: Estimate | None, write: Write = figure) -> str:
    """`0.3795 ± 0.0037`, or that it was not measured."""
    return ours.words(write) if ours else NOT_MEASURED


def splits_in_words(splits: int, planned: int) -> str:
    """`5`, or `3 of 5` when some are still to come."""
    return str(splits) if splits >= planned else f"{splits} of {planned}"


def compared(
    name: str,
    title: str,
    labels: list[str],
    columns: Iterable[str],
    rows: Iterable[Row],
    planned: int = FEWER,
    note: str = "",
) -> Table:
    """A table of pairs: three columns for each, then the number of splits, of each pair where they differ."""
    header = [*labels, *(f"{column} {who}".strip() for column in columns for who in ("paper", "ours", "difference"))]
    body = []
    for names, pairs in rows:
        splits = [splits_in_words(pair.ours.splits if pair.ours else 0, planned) for pair in pairs]
        told = splits[0] if len(set(splits)) == 1 else ", ".join(splits)
        body.append([*names, *(cell for pair in pairs for cell in pair.cells()), told])
    return Table(name, title, [*header, "splits"], body, note)


def label(place: Place) -> str:
    """`CiteULike, released`."""
    return f"{NAMES.get(place[0], place[0])}, {place[1]}"


def name_of(row: str) -> str:
    """`CF-E 2` of `multinomial#2`; other names as they are."""
    head, _, number = row.partition("#")
    return f"{HEADS.get(head, head)} {number}".strip()
