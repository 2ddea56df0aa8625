"""The examples run as they are and do what they say; their pages in the gallery are those of the scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gallery
import pytest
from document_runner import ROOT

pytestmark = pytest.mark.usefixtures("on_one_thread")

FOLDER = ROOT / "docs" / "gallery"
each_example = pytest.mark.parametrize("name", gallery.ORDER)
Run = Callable[[str], list[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """What an example prints, line by line; it draws as many pictures as its page has."""

    def run(name: str) -> list[str]:
        outputs = gallery.execute(ROOT / "examples" / f"{name}.py", tmp_path)
        drawn = [picture.file for output in outputs for picture in output.pictures]
        assert drawn == pictures(name)
        assert all(picture.alt for output in outputs for picture in output.pictures), "a picture has no title"
        return "".join(output.printed for output in outputs).splitlines()

    return run


def pictures(name: str) -> list[str]:
    return re.findall(r"^!\[[^\n]*\]\((.+)\)$", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)


def figures(lines: list[str]) -> dict[str, float]:
    """Name -> figure, of lines such as `student: recall@20 0.520`."""
    return {line.partition(":")[0]: float(line.split()[-1]) for line in lines if ": recall@20 " in line}


def test_a_log_becomes_lists_reasons_and_a_newcomers_list(run: Run) -> None:
    lines = run("first_recommendations")
    ranks = [match[1] for line in lines if (match := re.search(r"┆ (\d+) +│$", line))]
    assert ranks == ["1", "2", "3"] * 3  # two users and the newcomer
    assert any("'als-a': " in line for line in lines)


def test_what_you_have_is_beaten_and_popularity_is_not_enough(run: Run) -> None:
    lines = [line for line in run("is_it_better") if "against" in line]
    changes = {line.partition(" against")[0].strip(): float(re.findall(r"([-+][\d.]+)%", line)[0]) for line in lines}
    assert changes["popularity"] < 0 < changes["concf, one head"]
    assert changes["concf, consensus"] > 0


def test_items_of_the_history_speak_for_a_recommended_one(run: Run) -> None:
    lines = run("explain_a_list")
    assert len(lines) == 4
    assert all(re.fullmatch(r"item \d+: because of (item \d+ \(\d+%\)(, )?){3}", line) for line in lines)


def test_new_items_reach_those_who_like_their_kind(run: Run) -> None:
    novels, jazz = "\n".join(run("new_users_and_items")).split("User 1,")
    assert (novels.count("┆ novels"), novels.count("┆ jazz")) == (2, 0)
    assert (jazz.count("┆ novels"), jazz.count("┆ jazz")) == (0, 2)


def test_an_update_brings_what_came(run: Run) -> None:
    users, items = map(int, re.findall(r"\d+", run("daily_update")[-1]))
    assert users > 0
    assert items > 0


def test_models_of_several_libraries_agree(run: Run) -> None:
    lines = run("combine_models")
    found = figures(lines)
    assert list(found)[-3:] == ["student", "R-consensus", "consensus"]
    assert found["consensus"] > max(found[name] for name in ("als", "bpr", "als-a"))
    assert all(f"'{name}': " in lines[-2] for name in ("als-a", "als", "bpr", "rp3beta", "ease"))


def test_the_objective_of_ones_own_learns_alone_and_together(run: Run) -> None:
    lines = [line.split() for line in run("own_objective")]
    heads = ["bpr", "multinomial", "smooth-hinge", "R-consensus", "consensus"]
    assert [(line[0], line[4]) for line in lines] == [
        ("alone:", "smooth-hinge"),
        *(("together:", head) for head in heads),
    ]
    assert all(float(line[5]) > 0.2 for line in lines)  # a list of 20 of 200 items by chance: 0.1


def test_every_objective_misses_hits_of_the_others(run: Run) -> None:
    missed = re.findall(r"'CF-[A-E]': ([\d.]+)", run("paper_figure")[-1])
    assert len(missed) == 5
    assert all(0.05 < float(share) < 0.95 for share in missed)


def test_memory_is_told_first_and_everyone_has_a_list(run: Run) -> None:
    lines = run("ten_million_rows")
    default, fast = (float(line.split()[-2]) for line in lines if "at least" in line)
    assert default > fast > 0
    rows, users = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", lines[-1]))
    assert rows == 10 * users


def test_numpy_gives_the_list_of_the_library(run: Run) -> None:
    ours, theirs = (line.partition(": ")[2] for line in run("serve_vectors")[-2:])
    assert ours == theirs
    assert len(ours.strip("[]").split()) == 5


def test_every_example_is_in_the_gallery_the_site_and_the_tests() -> None:
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.is_file()}
    tested = re.findall(r'run\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8"))
    site = re.findall(r"gallery/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert names == set(gallery.ORDER) == set(tested)
    assert site == ["index", *gallery.ORDER]


@each_example
def test_a_page_of_the_gallery_is_that_of_its_script(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert gallery.without_outputs(text) == gallery.page(ROOT / "examples" / f"{name}.py"), (
        f"docs/gallery/{name}.md is old; run: python tools/gallery.py docs {name}"
    )
    assert all((FOLDER / picture).is_file() for picture in pictures(name))
    assert not re.search(r"Traceback|Warning|(?<![\w.:/<*])/[a-z]+/[\w.]", text)
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert (FOLDER / link).exists(), link


def test_the_grid_of_the_gallery_is_up_to_date() -> None:
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == gallery.index(FOLDER), "run: make gallery"
    left = {path.name for path in FOLDER.iterdir()} - {"index.md"}
    assert left == {f"{name}.md" for name in gallery.ORDER} | {
        each for name in gallery.ORDER for each in pictures(name)
    }


def test_cells_are_cut_where_they_are_marked(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(
        "# %% [markdown]\n# # Title\n#\n# See [x](../docs/x.md).\n\n# %%\nprint(1 + 1)\n", encoding="utf-8"
    )
    assert [cell.text for cell in gallery.cells_of(script)] == [
        "# Title\n\nSee [x](../docs/x.md).",
        "print(1 + 1)",
    ]
    (output,) = gallery.execute(script, tmp_path)
    assert output == gallery.Output("2\n")
    written = gallery.page(script, [output])
    assert "See [x](../x.md)." in written
    assert '```text title="printed"\n2\n```\n' in written
    assert gallery.without_outputs(written) == gallery.page(script)
    script.write_text("print(1)\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"small\.py:1: an example begins with a cell"):
        gallery.cells_of(script)
