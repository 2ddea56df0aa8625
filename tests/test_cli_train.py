"""`concf train` and `concf evaluate`: what they print, what they refuse, and that they say what Python says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_run import SETS, SMALL, history, small_data

import concf as library
from concf.data.split import Split
from concf.models import choose_settings, train
from concf.reference.objectives import FIVE
from concf.reference.trainer import Trainer
from concf.runs.checkpoint import HISTORY, RUN
from concf.runs.watchers import TensorBoard

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
ROWS = [*FIVE, "R-consensus", "consensus"]
RANKED = [0, 2, 4, 6, 8, 9]  # epochs


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
    assert [line.partition(":")[0] for line in err.splitlines()] == [f"epoch {n} of at most 10" for n in RANKED]
    assert [row["name"] for row in report["recommenders"]] == ROWS
    assert (report["seed"], report["epochs"], report["finished"], report["folder"]) == (3, 10, True, str(out))
    heads = {row["name"]: row["validation"] for row in report["recommenders"] if row["name"] in FIVE}
    assert heads[report["best_head"]] == max(heads.values())
    by_epoch = {record["epoch"]: record["validation"] for record in history(out)}
    assert [epoch for epoch, figures in by_epoch.items() if "consensus" in figures] == RANKED
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


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--set consensus.wieght=1", "consensus.wieght"), ("--set consensus", "name=value"),
        ("--set consensus.weight=-1", "consensus.weight"), ("--set consensus.weight=loud", "'loud'"),
        ("--preset reference --set model.sharing=none", "balance.on"), ("--set training.metric=recall", "metric"),
        ("--preset reference --set model.encoder=tower", "'tower'"), ("--single hinge", "'hinge'"),
        ("--preset best", "'best'"), ("--config nowhere.toml", "nowhere.toml"), ("--device tpu", "'tpu'"),
        ("--device cuda:99", "--device cpu"),
    ],
)  # fmt: skip
def test_wrong_words_are_answered_and_write_nothing(
    concf: CLI, data: Path, tmp_path: Path, words: str, key: str
) -> None:
    code, out, err = concf("train", data, "--out", tmp_path / "run", *words.split())
    assert (code, out, key in err, err.count("\n")) == (2, "", True, 1)
    assert not (tmp_path / "run").exists()


def test_data_that_is_missing_is_asked_for(concf: CLI, data: Path, run: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    for words in (["train", *out], ["train", tmp_path, *out], ["train", data], ["evaluate", tmp_path],
                  ["evaluate", run, "--on", "train"], ["evaluate", run, "--at", "many"]):  # fmt: skip
        assert concf(*words)[0] == 2
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    Split.load(data).save(moved)
    shutil.copytree(run, elsewhere)
    description = json.loads((run / RUN).read_text())
    (elsewhere / RUN).write_text(json.dumps(description | {"data_folder": str(tmp_path / "gone")}))
    code, _, err = concf("evaluate", elsewhere)
    assert (code, f"was in {tmp_path / 'gone'}" in err) == (2, True)
    assert concf("evaluate", elsewhere, "--data", moved)[1] == concf("evaluate", run)[1]


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
    assert list(shown["validation/consensus"]) == RANKED  # ... and the consensus when it is made
