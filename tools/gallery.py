"""docs/gallery/ from examples/: each script is run, and its cells, what they print and their pictures become a page.

python tools/gallery.py docs                 run every example, each in a process of its own (`make gallery`)
python tools/gallery.py docs daily_update    run only this one

An example is a script in percent format: `# %% [markdown]` begins a cell of text, `# %%` one of code. Editors and
Jupytext open it as a notebook. Links in the text are written as they are right in examples/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
ORDER = (
    "first_recommendations", "is_it_better", "explain_a_list", "new_users_and_items", "daily_update", "combine_models",
    "own_voter", "own_objective", "paper_figure", "ten_million_rows", "serve_vectors",
)  # fmt: skip
PRINTED = '```text title="printed"\n'
INTRODUCTION = """# Gallery

Short scripts, from the first list to ten million rows. Each page shows the code, what it printed and the pictures that
it drew, and was written by running the script (`make gallery`). The logs are simulated and small, so that every example
runs in seconds on two cores and needs no download. The terms are explained in the [glossary](../glossary.md).

"""
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": "#e6e6e6", "legend.frameon": False,
    "figure.figsize": (7.0, 3.4), "figure.dpi": 130, "figure.facecolor": "white", "figure.constrained_layout.use": True,
    "figure.max_open_warning": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A cell of a script. line: where it begins; text: Markdown, or code."""

    line: int
    is_code: bool
    text: str


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn. alt: its title, for those who do not see it"""

    file: str
    alt: str


@dataclass(frozen=True)
class Output:
    """Text and pictures that a cell of code produced."""

    printed: str = ""
    pictures: tuple[Picture, ...] = ()


def cells_of(script: Path) -> list[Cell]:
    """The cells of a script in percent format."""
    lines = script.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    if not starts or starts[0]:
        raise SystemExit(f"{script}:1: an example begins with a cell; expected '# %% [markdown]', found {lines[:1]}")
    cells = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        is_code, body = "[markdown]" not in lines[start], lines[start + 1 : end]
        text = "\n".join(body if is_code else [line.removeprefix("#").removeprefix(" ") for line in body])
        cells.append(Cell(start + 1, is_code, text.strip("\n")))
    return cells


def execute(script: Path, folder: Path) -> list[Output]:
    """Run a script in this process: the output of each cell of code. Pictures are written to the folder."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    outputs, drawn = [], 0
    show, plt.show = plt.show, lambda *_, **__: None
    try:
        with plt.rc_context(STYLE):
            for cell in (cell for cell in cells_of(script) if cell.is_code):
                with redirect_stdout(StringIO()) as printed:
                    exec(compile("\n" * cell.line + cell.text, str(script), "exec"), names)
                pictures = []
                for figure in map(plt.figure, plt.get_fignums()):
                    drawn += 1
                    titles = [figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)]
                    picture = Picture(f"{script.stem}-{drawn}.png", "; ".join(filter(None, titles)))
                    figure.savefig(folder / picture.file, metadata={"Software": None})
                    pictures.append(picture)
                plt.close("all")
                outputs.append(Output(printed.getvalue(), tuple(pictures)))
    finally:
        plt.show = show
        plt.close("all")
    return outputs


def page(script: Path, outputs: Sequence[Output] | None = None) -> str:
    """The page of an example. outputs: of each cell of code; None: without any"""
    cells, parts = cells_of(script), []
    shown = iter(outputs or [])
    for cell in cells:
        parts.append(f"```python\n{cell.text}\n```\n" if cell.is_code else f"{_as_in_the_site(cell.text)}\n")
        if cell.is_code and outputs is not None:
            output = next(shown)
            parts += [f"{PRINTED}{output.printed.rstrip()}\n```\n"] if output.printed.strip() else []
            parts += [f"![{picture.alt}]({picture.file})\n" for picture in output.pictures]
    source = f"examples/{script.name}"
    parts.append(f"*The script: [{source}](../../{source}). More: [the gallery](index.md).*\n")
    return "\n".join(parts)


def _as_in_the_site(text: str) -> str:
    """Links of examples/ as they are right in docs/gallery/."""
    return re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", text.replace("](../docs/", "](../"))


def without_outputs(text: str) -> str:
    """Strip the printed text and the pictures from a page."""
    return re.sub(rf"\n{re.escape(PRINTED)}.*?\n```\n|\n!\[[^\n]*\]\([\w-]+\.png\)\n", "", text, flags=re.S)


def index(folder: Path) -> str:
    """docs/gallery/index.md: a card for each example, with its last picture. folder: docs/gallery"""
    cards = []
    for name in ORDER:
        title, paragraph = cells_of(EXAMPLES / f"{name}.py")[0].text.split("\n\n")[:2]
        title, words = title.removeprefix("# "), " ".join(_as_in_the_site(paragraph).split())
        pictures = sorted(folder.glob(f"{name}-*.png"))
        picture = f"[![{title}]({pictures[0].name})]({name}.md)\n\n    " if pictures else ""
        cards.append(f"-   {picture}**[{title}]({name}.md)**\n\n    {words}\n")
    return f'{INTRODUCTION}<div class="grid cards" markdown>\n\n' + "\n".join(cards) + "\n</div>\n"


def write(name: str, folder: Path) -> None:
    """Run an example in a process of its own, and write its page and pictures."""
    script, began = EXAMPLES / f"{name}.py", time.perf_counter()
    for picture in folder.glob(f"{name}-*.png"):
        picture.unlink()
    run = subprocess.run(
        [sys.executable, __file__, str(folder), name, "--here"], stdout=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": "0", "POLARS_FMT_MAX_ROWS": "12"},
    )  # fmt: skip
    if run.returncode:
        raise SystemExit(f"{script}: ended with code {run.returncode}; its page is as it was")
    outputs = [
        Output(each["printed"], tuple(Picture(**p) for p in each["pictures"])) for each in json.loads(run.stdout)
    ]
    (folder / f"{name}.md").write_text(page(script, outputs), encoding="utf-8")
    print(f"{folder / name}.md: {time.perf_counter() - began:.1f} s")


def main() -> None:
    """Write the pages that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", type=Path, help="the folder of the documents; pages are written to gallery/ in it")
    parser.add_argument("names", nargs="*", choices=[*ORDER, []], help="examples to run; default: all")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        from dataclasses import asdict

        json.dump([asdict(each) for each in execute(EXAMPLES / f"{chosen.names[0]}.py", chosen.docs)], sys.stdout)
        return
    folder = chosen.docs / "gallery"
    folder.mkdir(exist_ok=True)
    for name in chosen.names or ORDER:
        write(name, folder)
    (folder / "index.md").write_text(index(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
