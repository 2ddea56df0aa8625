"""`concf train` and `concf evaluate`: what they print, what they refuse, and that they say what Python says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import on_a_terminal
from skipping import posix
from small_run import QUIET, SETS, SMALL, contents, history, small_data

import concf as library
from concf.data.split import Split
from concf.errors import ConfigError, MissingExtraError
from concf.model.objectives import FIVE
from concf.training.checkpoint import HISTORY, RUN
from concf.training.config.presets import choose_settings
from concf.training.tracking.watchers import TensorBoard
from concf.training.train import train
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
ROWS = [*FIVE, "R-consensus", "consensus"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "run"
    train(Split.load(data), choose_settings("reference", words=SMALL), out=folder, data_folder=data)
    return folder


def test_train_then_evaluate(concf: CLI, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, printed, err = concf("train", data, "--preset", "reference", "--out", out, *SETS, "--seed", 3, "--json")
    assert code == 0
    report = json.loads(printed)
    lines = err.splitlines()  # one a ranking, where no terminal shows a bar
    assert [line.partition(":")[0] for line in lines] == [f"epoch {n} of at most 10" for n in (0, 2, 4, 6, 8, 9)]
    validation = history(out)[-1]["validation"]
    best = max(FIVE, key=validation.__getitem__)
    shown = f"validation R@5 consensus {validation['consensus']:.4f}, {best} {validation[best]:.4f}; "
    assert re.search(rf": {re.escape(shown)}\d+ s$", lines[-1])
    assert [row["name"] for row in report["recommenders"]] == ROWS
    assert (report["seed"], report["epochs"], report["finished"], report["folder"]) == (3, 10, True, str(out))
    heads = {row["name"]: row["validation"] for row in report["recommenders"] if row["name"] in FIVE}
    assert heads[report["best_head"]] == max(heads.values())
    by_epoch = {record["epoch"]: record["validation"] for record in history(out)}
    assert [epoch for epoch, figures in by_epoch.items() if "consensus" in figures] == [0, 2, 4, 6, 8, 9]
    for row in report["recommenders"]:
        figures = {epoch: each[row["name"]] for epoch, each in by_epoch.items() if row["name"] in each}
        best = max(figures.values())
        assert (row["validation"], row["epoch"]) == (best, max(e for e, figure in figures.items() if figure == best))

    code, printed, err = concf("evaluate", out, "--at", "5,10", "--metrics", "recall,ndcg,coverage", "--json")
    assert (code, err) == (0, "")
    tested, loaded = json.loads(printed), library.load_run(out, Split.load(data))
    assert (tested["on"], tested["split_hash"]) == ("test", Split.load(data).hash)
    for row, trained in zip(tested["recommenders"], report["recommenders"], strict=True):
        model = loaded.recommender(row["name"])
        evaluation = library.evaluate(model, Split.load(data), at=(5, 10), metrics=("recall", "ndcg", "coverage"))
        assert row == trained | {"means": evaluation.means()}


def test_on_validation_each_is_as_good_as_when_it_was_kept(concf: CLI, run: Path) -> None:
    words = ("--on", "valid", "--at", 5, "--metrics", "recall", "--json")
    for row in json.loads(concf("evaluate", run, *words)[1])["recommenders"]:
        assert row["means"]["recall@5"] == pytest.approx(row["validation"], abs=1e-12)


def test_tables_mark_the_best_head(concf: CLI, data: Path, run: Path, tmp_path: Path) -> None:
    best = library.load_run(run).best_head()
    trained = concf("train", data, "--out", tmp_path / "run", *SETS)[1]
    for out in (trained, concf("evaluate", run, "--at", "5")[1]):
        marked = [line for line in out.splitlines() if "best head" in line]
        assert len(marked) == 1
        assert best in marked[0]
        assert all(name in out for name in ROWS)
    assert f"Test it with: concf evaluate {tmp_path / 'run'}" in trained


def test_one_objective_alone_has_no_consensus(concf: CLI, data: Path, tmp_path: Path) -> None:
    code, out, _ = concf("train", data, "--single", "cml", "--out", tmp_path / "run", *SETS, "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["recommenders"]] == ["cml"]
    assert "cml" in concf("evaluate", tmp_path / "run")[1]


def test_settings_come_from_the_preset_then_the_file_then_the_words(concf: CLI, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[consensus]\nweight = 0.5\nclip = "none"\n[training]\nepochs = 3\n[model]\nencoder = "mf"\n')
    words = ["--set", "training.epochs=1", "--set", "model.dimensions=8", "--set", "training.patience=none"]
    code, _, err = concf("train", data, "--preset", "released", "--config", file, *words, "--out", tmp_path / "run")
    assert (code, len(err.splitlines())) == (0, 1)
    chosen = json.loads((tmp_path / "run" / RUN).read_text())["settings"]
    assert (chosen["consensus"]["weight"], chosen["consensus"]["clip"]) == (0.5, None)
    assert (chosen["training"]["epochs"], chosen["training"]["patience"]) == (1, None)
    assert (chosen["model"]["encoder"], chosen["consensus"]["newest_votes"]) == ("mf", False)


def test_none_is_a_level_of_sharing_too() -> None:
    chosen = choose_settings(
        "reference", words=["model.sharing=none", "balance.on=false", "consensus.consistency_temperature=none"]
    )
    assert (chosen.model.sharing, chosen.consensus.consistency_temperature) == ("none", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "consensus.wieght=1"], "unknown setting 'consensus.wieght'; there are weight, every, window"),
        (["--set", "volume=1"], "unknown setting 'volume'; there are objectives, losses"),
        (["--set", "consensus.weight=-1"], "consensus.weight = -1: Input should be greater than or equal to 0"),
        (["--set", "consensus.weight=loud"], "consensus.weight = 'loud': Input should be a valid number"),
        (["--set", "consensus"], "--set 'consensus': expected name=value, such as consensus.weight=0"),
        (
            ["--preset", "reference", "--set", "model.sharing=none"],
            "no shared embedding to balance on: set balance.on = false",
        ),
        (["--set", "training.metric=recall"], "training.metric = 'recall': expected one of recall, "),
        (
            ["--preset", "reference", "--set", "model.encoder=tower"],
            "unknown encoder 'tower'; choose from mlp, mf, lightgcn",
        ),
        (["--single", "hinge"], "unknown objective 'hinge'; choose from bpr, cml"),
        (["--preset", "best"], "unknown preset 'best'; choose from paper, released, reference"),
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read as TOML"),
        (["--device", "tpu"], "device 'tpu': choose cpu or cuda"),
        (["--device", "cuda:99"], "Say --device cpu, or install PyTorch for your GPU"),
    ],
)
def test_wrong_words_are_answered_and_write_nothing(
    concf: CLI, data: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    code, out, err = concf("train", data, "--out", tmp_path / "run", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("concf: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there_is_missed_at_once(concf: CLI, data: Path, tmp_path: Path) -> None:
    code, _, err = concf("train", data, "--out", tmp_path / "run", "--device", f"cuda:{torch.cuda.device_count()}")
    assert (code, f"finds {torch.cuda.device_count()} GPUs here" in err) == (2, True)


def test_data_that_is_missing_is_asked_for(concf: CLI, data: Path, run: Path, tmp_path: Path) -> None:
    code, _, err = concf("train", "--out", tmp_path / "run")
    assert (code, "no data set was named. Try: concf train DATA --out RUN" in err) == (2, True)
    code, _, err = concf("train", tmp_path, "--out", tmp_path / "run")
    assert (code, "not a prepared data set" in err) == (2, True)
    code, _, err = concf("evaluate", tmp_path)
    assert (code, "not a run (no run.json)" in err) == (2, True)
    assert concf("train", data)[0] == 2
    moved = tmp_path / "moved"
    Split.load(data).save(moved)
    description = json.loads((run / RUN).read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, content in contents(run).items():
        (elsewhere / name).write_bytes(content)
    (elsewhere / RUN).write_text(json.dumps(description | {"data_folder": str(tmp_path / "gone")}))
    code, _, err = concf("evaluate", elsewhere)
    assert (code, f"was in {tmp_path / 'gone'}, where it is no longer. Say where it is now" in err) == (2, True)
    assert concf("evaluate", elsewhere, "--data", moved)[1] == concf("evaluate", run)[1]


def test_evaluate_refuses_what_it_cannot_do(concf: CLI, run: Path) -> None:
    assert "'train' is not one of" in concf("evaluate", run, "--on", "train")[2]
    assert "unknown metric 'luck'" in concf("evaluate", run, "--metrics", "luck")[2]
    assert "expected lengths of lists such as 20,50" in concf("evaluate", run, "--at", "many")[2]
    code, _, err = concf("evaluate", run, "--at", "25")
    assert (code, err) == (0, "note: the consensus lists have 12 items (consensus.shown); longer ones are cut there\n")


def test_ctrl_c_says_how_to_go_on(concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(trainer: Trainer, epoch: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "epoch", interrupted)
    code, out, err = concf("train", data, "--out", tmp_path / "run", *SETS)
    assert (code, out) == (130, "")
    assert err == f"concf: stopped. Go on with: concf train --resume --out {tmp_path / 'run'}\n"


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: {each.step: each.value for each in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_shows_what_the_history_holds(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    chosen = choose_settings("reference", words=SMALL)
    train(Split.load(data), chosen, out=out, watch=TensorBoard(out / "tensorboard"))
    shown = scalars(out / "tensorboard")
    records = [json.loads(line) for line in (out / HISTORY).read_text().splitlines()]
    for kind in ("loss", "consensus_loss", "gradient", "weight", "validation"):
        for name in records[0][kind]:
            expected = {each["epoch"]: each[kind][name] for each in records if name in each.get(kind, {})}
            assert shown[f"{kind}/{name}"] == pytest.approx(expected, rel=1e-6), (kind, name)
    assert shown["seconds/epoch"] == pytest.approx({each["epoch"]: each["seconds"] for each in records}, rel=1e-6)
    assert list(shown["seconds/ranking"]) == list(range(10))  # heads are validated after every epoch ...
    assert list(shown["validation/consensus"]) == [0, 2, 4, 6, 8, 9]  # ... and the consensus when it is made


def test_tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.training.tracking.watchers.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        TensorBoard(tmp_path)


WATCHED = """
import sys
import concf.cli.app, concf.runtime.progress
concf.runtime.progress.PATIENCE = 0.0
concf.cli.app.main()
"""


@posix
def test_the_progress_bar_tells_how_good_it_is_in_80_columns(data: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", WATCHED, "train", data, "--out", tmp_path / "run", *SETS]
    size = {"COLUMNS": "80", "LINES": "25", "TERM": "xterm"}
    shown, _, code = on_a_terminal(words, env=QUIET | size)
    assert code == 0
    assert b"training  R@5 consensus ." in shown
    assert "…".encode() not in shown
    assert re.search(rb"left.{0,20}0:00:0", shown)
    assert b"epoch 0 of" not in shown  # the bar has said it


def test_the_example_in_python(data: Path) -> None:
    split = Split.load(data)
    run = library.train(split, choose_settings("reference", words=SMALL), seed=0)
    assert library.evaluate(run.recommender("consensus"), split, at=5).means()["recall@5"] > 0
    alone = run.keep(run.best_head())
    assert alone.names == [run.best_head()]
    means = library.evaluate(alone.factors()[run.best_head()], split, at=5).means()
    assert means == library.evaluate(run.recommender(run.best_head()), split, at=5).means()
    assert library.PRESETS["reference"] == library.ConCFSettings()
    with pytest.raises(ConfigError, match="device 'abacus'"):
        library.train(split, device="abacus")


def test_every_name_of_the_package_has_an_example() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    examples = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert set(library.__all__) <= set(re.findall(r"\bconcf\.(\w+)", examples))


def test_names_of_the_package_stay_what_they_are() -> None:
    first: dict[str, Any] = {name: getattr(library, name) for name in library.__all__}
    assert all(getattr(library, name) is value for name, value in first.items())
    assert set(dir(library)) == set(library.__all__)
    assert callable(library.compare)
