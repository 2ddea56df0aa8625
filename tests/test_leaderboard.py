"""The leaderboard: every entry has its form, and a run is placed only on the split that it was trained on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import SMALL, small_data

from concf.data.prepare import prepare
from concf.data.split import Split
from concf.errors import DataError
from concf.experiments.leaderboard import board
from concf.training.config.presets import choose_settings
from concf.training.train import train

CLI = Callable[..., tuple[int, str, str]]
ENTRIES = sorted((Path(board.__file__).parent / "entries").iterdir())


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
def test_an_entry_has_its_form(path: Path) -> None:
    entry = board._read(path.name, tomllib.loads(path.read_text(encoding="utf-8")))
    assert path.suffix == ".toml"
    assert path.stem.startswith(f"{entry.data}-")
    assert entry.commit is None, "ours come from benchmarks/results"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recal": 0.1}, "mine.toml: recal: Extra inputs"),
        ({"recall": 18.2}, "recall: .* less than or equal to 1"),
        ({"split": "0" * 64}, "split 0000000000000000 is not the public one of gowalla"),
        ({"chosen_by": "luck"}, "chosen_by"),
        ({"seconds": 5.0}, "seconds need the machine"),
        ({"source": ""}, "source"),
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, object], message: str) -> None:
    right = tomllib.loads(ENTRIES[0].read_text(encoding="utf-8"))
    with pytest.raises(DataError, match=message):
        board._read("mine.toml", right | change)


def test_the_table_is_that_of_the_entries(concf: CLI) -> None:
    code, out, _ = concf("leaderboard", "yelp2018", "--json")
    found = json.loads(out)
    assert (code, found["split"]) == (0, board.SPLITS["yelp2018"])
    methods = [each["method"] for each in found["lines"]]
    assert "NESCL" in methods
    assert any(each.startswith("strong, consensus") for each in methods)
    assert len(set(methods)) == len(methods)
    figures = [each["ndcg"] for each in found["lines"]]
    assert figures == sorted(figures, reverse=True)
    code, out, _ = concf("leaderboard", "gowalla")
    assert (code, "ChebyCF" in out, "0.1616" in out) == (0, True, True)


def test_a_run_is_placed_on_its_split_and_refused_on_another(
    concf: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Split.load(small_data(tmp_path / "data"))
    run = train(data, choose_settings("reference", words=SMALL), out=tmp_path / "run", data_folder=tmp_path / "data")
    code, _, err = concf("leaderboard", "gowalla", "--run", tmp_path / "run")
    assert code == 2
    assert "was trained on another split" in err
    assert "concf prepare gowalla --protocol given" in err
    monkeypatch.setitem(board.SPLITS, "gowalla", board.public_hash(data))
    monkeypatch.setattr(board, "entries", lambda data: [])
    code, out, err = concf("leaderboard", "gowalla", "--run", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    means = run.evaluate(at=[20], metrics=["recall", "ndcg"])
    shown = {each["method"].rpartition(", ")[2]: (each["recall"], each["ndcg"]) for each in json.loads(out)["lines"]}
    assert shown.keys() == {"consensus", run.best_head()}
    for name, figures in shown.items():
        assert figures == tuple(means[name].means()[figure] for figure in ("recall@20", "ndcg@20"))
    assert "<- this run" in concf("leaderboard", "gowalla", "--run", tmp_path / "run")[1]


@pytest.mark.usefixtures("real_data")
def test_the_hash_is_of_the_published_files_whatever_validates() -> None:
    assert board.public_hash(prepare("gowalla", protocol="given", valid=0.1, seed=3)) == board.SPLITS["gowalla"]
