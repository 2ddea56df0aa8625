"""`concf train`, `evaluate` and mistakes of a hurried user: what is printed and refused; no file is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from small_run import CLI, SETS, SMALL, history

import concf as library
from concf.data.split import Split
from concf.models import choose_settings, train
from concf.reference.objectives import FIVE
from concf.reference.trainer import Trainer
from concf.runs.checkpoint import RUN

ROWS = [*FIVE, "R-consensus", "consensus"]
RANKED = [0, 2, 4, 6, 8, 9]  # epochs


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
    assert [epoch for epoch, metrics in by_epoch.items() if "consensus" in metrics] == RANKED
    for row in report["recommenders"]:
        metrics = {epoch: each[row["name"]] for epoch, each in by_epoch.items() if row["name"] in each}
        best = max(metrics.values())
        assert (row["validation"], row["epoch"]) == (best, max(e for e, figure in metrics.items() if figure == best))

    code, printed, err = concf("evaluate", out, "--at", "5,10", "--metrics", "recall,ndcg,coverage", "--json")
    assert (code, err) == (0, "")
    tested, loaded = json.loads(printed), library.load_run(out, Split.load(data))
    assert (tested["on"], tested["split_hash"]) == ("test", Split.load(data).hash)
    for row, trained in zip(tested["recommenders"], report["recommenders"], strict=True):
        model = loaded.recommender(row["name"])
        evaluation = library.evaluate(model, Split.load(data), at=(5, 10), metrics=("recall", "ndcg", "coverage"))
        assert row == trained | {"means": evaluation.means()}


def test_data_that_is_missing_is_asked_for(concf: CLI, data: Path, whole: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    for words in (["train", *out], ["train", tmp_path, *out], ["train", data], ["evaluate", tmp_path],
                  ["evaluate", whole, "--on", "train"], ["evaluate", whole, "--at", "many"]):  # fmt: skip
        assert concf(*words)[0] == 2
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    Split.load(data).save(moved)
    shutil.copytree(whole, elsewhere)
    description = json.loads((whole / RUN).read_text())
    (elsewhere / RUN).write_text(json.dumps(description | {"data_folder": str(tmp_path / "gone")}))
    code, _, err = concf("evaluate", elsewhere)
    assert (code, f"was in {tmp_path / 'gone'}" in err) == (2, True)
    assert concf("evaluate", elsewhere, "--data", moved)[1] == concf("evaluate", whole)[1]


def test_a_run_is_not_resumed_with_another_log(concf: CLI, tmp_path: Path) -> None:
    log, other, out = tmp_path / "log.csv", tmp_path / "other.csv", tmp_path / "run"
    log.write_text("u,i\n" + "".join(f"{user},{item}\n" for user in range(20) for item in range(user % 5, 40, 3)))
    other.write_text(log.read_text() + "1,2\n")
    words = ("train", "--protocol", "random", "--user", "u", "--item", "i", *SETS, "--out", out)
    assert concf(*words, log)[0] == 0
    assert concf("train", log, "--resume", "--out", out)[0] == 0
    code, _, err = concf("train", other, "--resume", "--out", out)
    assert (code, "not the log" in err) == (2, True)


def test_ctrl_c_says_how_to_go_on(concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(trainer: Trainer, epoch: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "epoch", interrupted)
    code, out, err = concf("train", data, "--out", tmp_path / "run", *SETS)
    assert (code, out) == (130, "")
    assert "concf: stopped. " in err


def test_a_watcher_gets_what_the_history_holds(data: Path) -> None:
    seen = list[dict[str, object]]()
    run = train(Split.load(data), choose_settings("reference", words=SMALL), watch=seen.append)
    assert seen == run.history


def test_recommendations_replace_no_log(whole: Path, tmp_path: Path, concf: CLI) -> None:
    texts = {"log.csv": "user_id,item_id\n1,2\n", "log.jsonl": "12\n", "log.parquet": "no Parquet"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        code, _, err = concf("recommend", whole, "--users", 1, "-k", 3, "--out", tmp_path / name)
        assert (code, "it is left alone" in err) == (2, True)
        assert (tmp_path / name).read_text(encoding="utf-8") == text


def test_recommendations_replace_those_of_before(whole: Path, tmp_path: Path, concf: CLI) -> None:
    for kind, read in {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}.items():
        out = tmp_path / f"recs.{kind}"
        out.touch()  # an empty file is replaced too
        for k in (5, 3):
            assert concf("recommend", whole, "--users", "1,2", "-k", k, "--out", out)[0] == 0
            assert len(read(out)) == 2 * k


@pytest.mark.parametrize(("line", "key"), [
    ("train DATA --out NEW --set consensus.wieght=1", "consensus.wieght"),
    ("train DATA --out NEW --set consensus", "name=value"),
    ("train DATA --out NEW --set consensus.weight=-1", "consensus.weight"),
    ("train DATA --out NEW --single hinge", "'hinge'"), ("train DATA --out NEW --preset best", "'best'"),
    ("train DATA --out NEW --preset reference --set model.sharing=none", "balance.on"),
    ("train DATA --out NEW --config nowhere.toml", "nowhere.toml"),
    ("train DATA --out NEW --device cuda:99", "--device cpu"),
    ("train DATA --out NEW --preset reference --set model.dimensions=10000000000", "memory"),
    ("compare DATA --metrics ,", "no metric"), ("compare DATA --models ,", "no model"),
    ("evaluate RUN --metrics ,", "no metric"),
    ("recommend RUN --users 1 -k 99999999", "consensus.shown"), ("recommend RUN --users ,", "names no user"),
    ("recommend RUN --users 1 --items ,", "--items"), ("serve", "concf: Missing argument 'RUN'. See concf serve"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_and_writes_nothing(
    line: str, key: str, data: Path, whole: Path, tmp_path: Path, concf: CLI
) -> None:
    places = {"DATA": data, "RUN": whole, "NEW": tmp_path / "new"}
    code, out, err = concf(*(places.get(word, word) for word in line.split()))
    assert (code, out, key in err, "Traceback" in err) == (2, "", True, False), err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("message", "known"),
    [("DefaultCPUAllocator: can't allocate memory: you tried to allocate 16000 bytes.", True),
     ("CUDA out of memory. Tried to allocate 149.01 GiB.", True), ("shapes do not fit", False)],
)  # fmt: skip
def test_an_allocation_that_pytorch_refuses_ends_in_words(
    message: str, known: bool, monkeypatch: pytest.MonkeyPatch, concf: CLI
) -> None:
    def refused(**_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr("concf.cli.app.app", refused)
    if known:
        code, _, err = concf("train")
        assert (code, "not enough memory" in err) == (2, True)
    else:
        with pytest.raises(RuntimeError, match=message):
            concf("train")
