"""A table of the page: cells as words, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from concf.runtime.text_tables import markdown
from reproduction.lines import PLANNED
from reproduction.measured import Pair

LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "±": r"$\pm$",
    "^": r"\textasciicircum{}", "–": "--", "<": "$<$", ">": "$>$", "|": "$|$", "[": "{[}", "]": "{]}", "`": "",
}  # fmt: skip


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


def escape(text: str) -> str:
    """For LaTeX; a bracket at the start of a row would be an option of the line before."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def splits_of(splits: int, planned: int = PLANNED) -> str:
    """`5`, or `3 of 5` when some are still to come."""
    return str(splits) if splits >= planned else f"{splits} of {planned}"


Row = tuple[list[str], list[Pair]]


def compared(
    name: str, title: str, labels: list[str], columns: Iterable[str], rows: Iterable[Row], planned: int = PLANNED
) -> Table:
    """A table of pairs: three columns for each, then the number of splits, of each pair where they differ."""
    header = [*labels, *(f"{column} {who}".strip() for column in columns for who in ("paper", "ours", "difference"))]
    body = []
    for names, pairs in rows:
        splits = [splits_of(pair.ours.splits if pair.ours else 0, planned) for pair in pairs]
        shown = splits[0] if len(set(splits)) == 1 else ", ".join(splits)
        body.append([*names, *(cell for pair in pairs for cell in pair.cells()), shown])
    return Table(name, title, [*header, "splits"], body)
