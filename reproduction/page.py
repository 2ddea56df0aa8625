"""From measured lines to README.md, with its figures and tables: `page.md` has the words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from textwrap import fill

from concf.runtime.files import new_file
from concf.runtime.provenance import DIGITS
from concf.runtime.text_tables import markdown
from reproduction.claims import CLAIMS
from reproduction.drawing import Drawing
from reproduction.figures import draw
from reproduction.lines import EQUAL, Lines
from reproduction.measured import Line, inside
from reproduction.published import BEST, CONSENSUS
from reproduction.story import story
from reproduction.table import Table
from reproduction.tables import TABLES
from reproduction.verdicts import AGAINST, HOLDS, IN_PART, NOT_SHOWN, UNKNOWN, Claim, Verdict

CHANGED = "A + at a commit: measured with uncommitted changes. The code may have changed since a commit."
TEMPLATE = Path(__file__).with_name("page.md")
FORMS = {
    HOLDS: ("holds", "hold"),
    IN_PART: ("holds in part", "hold in part"),
    AGAINST: ("is contradicted", "are contradicted"),
    NOT_SHOWN: ("is not shown", "are not shown"),
    UNKNOWN: ("is not decided yet", "are not decided yet"),
}


@dataclass(frozen=True)
class Section:
    """An experiment as it is shown."""

    tables: list[Table]
    drawings: list[Drawing]
    verdicts: list[tuple[Claim, Verdict]]


def render(lines: Iterable[Line], out: Path) -> list[Path]:
    """Write README.md, pictures/*.png, *.svg and tables/*.csv, *.tex into `out`."""
    measured, written = Lines(lines), []
    sections = {name: section(name, measured.common(name)) for name in TABLES}
    for each in sections.values():
        for table in each.tables:
            for kind, text in (("csv", table.csv()), ("tex", table.latex())):
                written.append(_write(out / "tables" / f"{table.name}.{kind}", text))
        for drawing in each.drawings:
            for kind in ("png", "svg"):
                written.append(out / "pictures" / f"{drawing.name}.{kind}")
                with new_file(written[-1]) as fresh:
                    drawing.save(fresh, kind)
    return [*written, _write(out / "README.md", document(sections, measured))]


def section(name: str, lines: Lines) -> Section:
    """The tables, figures and verdicts of an experiment."""
    verdicts = [(claim, claim.verdict(lines)) for claim in CLAIMS if claim.experiment == name]
    return Section(TABLES[name](lines), draw(name, lines), verdicts)


def _write(path: Path, text: str) -> Path:
    with new_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")
    return path


def document(sections: Mapping[str, Section], lines: Lines) -> str:
    """The page."""
    verdicts = [each for section in sections.values() for each in section.verdicts]
    parts = {"count": str(len(verdicts)), "verdicts": _verdicts(verdicts), "missing": _missing(lines)}
    parts |= {"noise": fill(_noise(lines), 120), "sources": _sources(lines)} | story(lines.first())
    parts |= {name: _shown(section) for name, section in sections.items()}
    text = re.sub(r"\{\{(\w+)\}\}", lambda name: parts.get(name[1], ""), TEMPLATE.read_text(encoding="utf-8"))
    return re.sub(r"\n{3,}", "\n\n", text)


def counted(words: list[str]) -> str:
    """How many claims have each verdict."""
    count = Counter(words)
    counts = ", ".join(
        f"{count[word]} {one if count[word] == 1 else more}" for word, (one, more) in FORMS.items() if count[word]
    )
    return f"Of {len(words)} claims, one of them a control of ours, {counts}."


def _verdicts(verdicts: list[tuple[Claim, Verdict]]) -> str:
    """How many claims hold, and which are contradicted or not shown."""
    parts = [counted([verdict.word for _, verdict in verdicts])]
    for word in (AGAINST, NOT_SHOWN):
        named = [
            f"[{claim.sentence.rstrip('.')}](#{claim.experiment})" for claim, mine in verdicts if mine.word == word
        ]
        parts += [f"{word.capitalize()}: {'; '.join(named)}."] if named else []
    return "\n\n".join(parts)


def _missing(lines: Lines) -> str:
    """Which cells of the plan have no line."""
    missing = lines.missing()
    named = "; ".join(f"{count} of {name}" for name, count in missing.items())
    cells = "1 cell of the plan is" if missing.total() == 1 else f"{missing.total()} cells of the plan are"
    folded = f'<details markdown="1"><summary>{cells} not measured</summary>\n\n{named}.\n\n</details>'
    return folded if missing else ""


def _noise(lines: Lines) -> str:
    """How far equal runs are apart."""
    pairs = "; ".join(f'"{one}" and "{other}"' for one, other in EQUAL)
    apart = {row: lines.apart_in(row) for row in (CONSENSUS, BEST)}
    if not all(apart.values()):
        return "Run-to-run noise: not measured."
    means = ", ".join(f"{mean(values):.4f} ({row}; at most {max(values):.4f})" for row, values in apart.items())
    return (
        f"Run-to-run noise: pairs of equal settings among the lines ({pairs}; CiteULike) differ in R@50 on a split by "
        f"{means} on average."
    )


def _shown(section: Section) -> str:
    """Claims and figures, and folded below them the tables; of the main experiment only those of `reference`."""
    parts = []
    if section.verdicts:
        rows = [
            [f"{claim.sentence} ({claim.where})", f"**{verdict.word}**", verdict.figures or "–"]
            for claim, verdict in section.verdicts
        ]
        parts.append(markdown(["claim", "verdict", "figures"], rows))
    for drawing in section.drawings:
        svg = f"[SVG](pictures/{drawing.name}.svg)"
        parts.append(f"![{drawing.alt}](pictures/{drawing.name}.png)\n\n{drawing.caption} {svg}\n")
    shown = [each for each in section.tables if not each.name.startswith("main-") or "-reference-" in each.name]
    files = ", ".join(f"[{table.name}](tables/{table.name}.csv)" for table in section.tables)
    folded = "\n".join([*(table.markdown() for table in shown), f"As CSV, with LaTeX beside: {files}."])
    titles = "; ".join(table.title for table in shown[:3]) + (" and more" if len(shown) > 3 else "")
    parts.append(f'<details markdown="1"><summary>Tables: {titles}</summary>\n\n{folded}\n\n</details>')
    return "\n".join(parts)


def commit_of(line: Line) -> str:
    """The commit of a measurement, with a + if there were uncommitted changes."""
    commit = str(inside(line, ("provenance", "commit")) or "")
    return commit.rstrip("+")[:DIGITS] + "+" * commit.endswith("+") or "commit not recorded"


def _sources(lines: Lines) -> str:
    """Which machine and commit the lines are of."""
    seconds: dict[tuple[str, ...], list[float]] = {}
    for line in lines.lines:
        provenance = line.get("provenance", {})
        processor, cores = (inside(provenance, ("machine", key)) for key in ("processor", "cores"))
        machine = ", ".join(filter(None, (line.get("device"), processor, f"{cores} cores" if cores else "")))
        versions = ", ".join(f"{name} {version}" for name, version in provenance.get("versions", {}).items())
        source = (machine or "–", commit_of(line), versions or "–")
        seconds.setdefault(source, []).append(line.get("seconds", 0))
    rows = [[*source, str(len(seconds[source])), f"{sum(seconds[source]):,.0f}"] for source in sorted(seconds)]
    header = ["machine", "commit", "versions", "lines", "seconds in all"]
    return f"{markdown(header, rows)}\n{CHANGED}" if rows else "Nothing was measured yet."
