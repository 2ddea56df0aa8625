"""The examples run as they are and do what they say; their pages in the gallery are those of the scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import gallery
import pytest
from document_runner import ROOT

import concf

FOLDER = ROOT / "docs" / "gallery"
SAYS = {  # a line of what it prints
    "first_recommendations": r"'als-a': ",
    "is_it_better": r"concf, consensus +against what you have: +\+[\d.]+%",
    "explain_a_list": r"^item \d+: because of (item \d+ \(\d+%\)(, )?){3}$",
    "new_users_and_items": r"┆ novels",
    "daily_update": r"[1-9]\d* \D*[1-9]\d*",
    "combine_models": r"^consensus: recall@20 0\.\d+",
    "own_voter": r"'graph-filter': \d+",
    "own_objective": r"alone: .*smooth-hinge +0\.[2-9]",
    "paper_figure": r"('CF-[A-E]': 0\.\d+\W*){5}",
    "ten_million_rows": r"at least",
    "serve_vectors": r"\[\d+( +\d+){4}\]",
}


@pytest.fixture(autouse=True)
def tables_as_before() -> Iterator[None]:
    """Rows that an example adds to a table are gone after it."""
    with patch.dict(concf.BASELINES), patch.dict(concf.OBJECTIVES):
        yield


def smaller(script: Path, folder: Path) -> Path:
    """A copy with half the users and events."""
    halved = re.sub(
        r"\b(users=|events=|EPOCHS = |ROWS = )([\d_]+)", lambda found: f"{found[1]}{int(found[2]) // 2}",
        script.read_text(encoding="utf-8"),
    )  # fmt: skip
    (folder / script.name).write_text(halved, encoding="utf-8")
    return folder / script.name


def pictures(name: str) -> list[str]:
    return re.findall(r"^!\[[^\n]+\]\((.+)\)$", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", gallery.ORDER)
def test_an_example_runs_and_its_page_is_that_of_the_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gallery.STYLE, "figure.dpi", 40)
    script, text = ROOT / "examples" / f"{name}.py", (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert gallery.without_outputs(text) == gallery.page(script), f"run: python tools/gallery.py docs {name}"
    assert not re.search(r"Traceback|Warning", text)
    assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text))
    as_it_is = name == "daily_update"  # with half of them some days would be empty
    outputs = gallery.execute(script if as_it_is else smaller(script, tmp_path), tmp_path)
    assert [picture.file for output in outputs for picture in output.pictures] == pictures(name)
    printed = "".join(output.printed for output in outputs)
    assert re.search(SAYS[name], printed, re.MULTILINE), printed
    if name == "serve_vectors":  # NumPy gives the list of the library
        ours, theirs = (line.partition(": ")[2] for line in printed.splitlines()[-2:])
        assert ours == theirs


def test_every_example_is_in_the_gallery_and_the_site() -> None:
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.is_file()}
    site = re.findall(r"gallery/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert names == set(gallery.ORDER)
    assert site == ["index", *gallery.ORDER]
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == gallery.index(FOLDER), "run: make gallery"
