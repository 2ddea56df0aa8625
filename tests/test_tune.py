"""`concf tune`: finds what is planted, stops what is bad, goes on after a kill, and never looks at the test part."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
import typer
from skipping import posix
from small_run import QUIET, SMALL, small_data

import concf.experiments.trials as trials
import concf.experiments.tune as tuning
from concf.cli.commands.tune import tune as command
from concf.data.protocols import TEST
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.experiments.study import BEST, LOCK, STUDY
from concf.experiments.tune import Trial, Tuning, tune
from concf.runtime.locks import held
from concf.training.checkpoint import RUN
from concf.training.config.presets import choose_settings
from concf.training.train import train
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread", "quick_collections")

CLI = Callable[..., tuple[int, str, str]]
QUICK = (*SMALL, "objectives=bpr,multinomial", "model.encoder=mf", "training.epochs=6", "training.batch=256")
SETS = [word for each in QUICK for word in ("--set", each)]
RATE = "training.learning_rate"
RATES: dict[str, Any] = {RATE: {"low": 1e-3, "high": 0.1, "log": True}, "consensus.weight": {"low": 0.0, "high": 0.1}}
WRITTEN = f"{RATE} = {{ low = 1e-3, high = 0.1, log = true }}\nconsensus.weight = {{ low = 0, high = 0.1 }}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def data(folder: Path) -> Split:
    return Split.load(folder)


@pytest.fixture(scope="module")
def whole(data: Split, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A search that nothing came between."""
    torch.set_num_threads(1)
    return tune(data, tmp_path_factory.mktemp("whole") / "search", words=QUICK, space=RATES, trials=5)


@pytest.fixture
def cli(concf: CLI, monkeypatch: pytest.MonkeyPatch) -> CLI:
    """The program with `tune` alone."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    app.command()(command)
    monkeypatch.setattr("concf.cli.app.app", app)
    return concf


def outcomes(search: Tuning) -> list[dict[str, Any]]:
    """The trials, but for how long they took."""
    return [dataclasses.asdict(dataclasses.replace(each, seconds=0.0)) for each in search.trials]


def journal(folder: Path) -> list[optuna.trial.FrozenTrial]:
    storage = optuna.storages.journal.JournalFileBackend(str(folder / STUDY))
    return optuna.load_study(study_name="concf", storage=optuna.storages.JournalStorage(storage)).trials


def test_finds_what_is_planted_and_trains_nothing_twice(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    monkeypatch.setattr(trials, "train", lambda *args, **more: (trained.append(args), train(*args, **more))[1])
    space = {RATE: {"choices": [1e-9, 0.03]}}
    search = tune(data, tmp_path / "search", words=[*QUICK, f"{RATE}=1e-9"], space=space, trials=8)
    assert search.best.changes == {RATE: 0.03}
    assert search.settings.training.learning_rate == 0.03
    assert search.best.validation is not None
    assert search.best.validation > (search.trials[0].validation or 0) + 0.05
    assert len(search.trials) == 8
    assert len(trained) == len(search.ranked()) == sum(not each.repeats for each in search.trials) == 2


def test_the_first_trial_is_the_preset_so_that_the_best_is_no_worse(data: Split, whole: Tuning) -> None:
    base, first = choose_settings("reference", words=QUICK), whole.trials[0]
    assert first.changes == {RATE: base.training.learning_rate, "consensus.weight": base.consensus.weight}
    run = train(data, base)
    assert (first.validation, first.epochs) == (run.best["consensus"].validation, run.epoch)
    assert whole.best.validation == max(each.validation or 0 for each in whole.ranked()) >= (first.validation or 0)


def test_the_first_trial_is_the_preset_where_the_space_leaves_it_out_too(data: Split, tmp_path: Path) -> None:
    space = {RATE: {"low": 0.02, "high": 0.03}, "consensus.consistency_temperature": {"choices": ["none", 10.0]}}
    words = [*QUICK, "consensus.consistency_temperature=none"]
    search = tune(data, tmp_path / "search", words=words, space=space, trials=2)
    assert search.trials[0].changes == {
        "consensus.consistency_temperature": "none"
    }  # the learning rate 0.01 cannot be drawn
    assert search.trials[1].changes.keys() == space.keys()
    run = train(data, choose_settings("reference", words=words))
    assert search.trials[0].validation == run.best["consensus"].validation


def test_the_target_may_be_a_head(data: Split, tmp_path: Path) -> None:
    run = train(data, choose_settings("reference", words=QUICK))
    search = tune(data, tmp_path / "search", words=QUICK, space=RATES, trials=1, target="bpr")
    assert (search.target, search.best.validation) == ("bpr", run.best["bpr"].validation)
    alone = [*QUICK, "objectives=bpr", "training.watch=bpr"]
    search = tune(data, tmp_path / "alone", words=alone, space=RATES, trials=1)
    assert search.target == "bpr"


def test_a_bad_trial_is_stopped_early(data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = []
    epoch = Trainer.epoch
    monkeypatch.setattr(Trainer, "epoch", lambda trainer, number: (epochs.append(number), epoch(trainer, number))[1])
    monkeypatch.setattr("concf.experiments.study.FINISHED_BEFORE_PRUNING", 1)
    words = [*QUICK, "training.epochs=12", f"{RATE}=0.03"]
    search = tune(data, tmp_path / "search", words=words, space={RATE: {"choices": [0.03, 1e-9]}}, trials=6)
    bad = next(each for each in search.trials if each.changes == {RATE: 1e-9})
    assert (search.trials[0].state, bad.state) == ("finished", "stopped")
    first_consensus_epoch = search.settings.consensus.first_consensus_epoch
    assert (
        bad.epochs == first_consensus_epoch + 1 + first_consensus_epoch % 2 == 5
    )  # the first ranking with consensus targets, p = 2
    assert len(epochs) == search.trials[0].epochs + bad.epochs
    assert search.best == search.trials[0]


def test_none_is_stopped_before_enough_are_finished(whole: Tuning) -> None:
    assert [each.state for each in whole.trials] == ["finished"] * 5


def test_same_seed_same_trials(data: Split, whole: Tuning, tmp_path: Path) -> None:
    again = tune(data, tmp_path / "again", words=QUICK, space=RATES, trials=3)
    assert outcomes(again) == outcomes(whole)[:3]
    other = tune(data, tmp_path / "other", words=QUICK, space=RATES, trials=2, seed=1)
    assert other.trials[0].changes == whole.trials[0].changes
    assert other.trials[1].changes != whole.trials[1].changes


KILLED = """
import sys, time, typer
import concf.cli.app
from concf.cli.commands.tune import tune
from concf.training.trainer import Trainer

epochs, epoch = [], Trainer.epoch

def hangs(trainer, number):
    epochs.append(number)
    if len(epochs) == 2 * 6 + 4:  # within the third trial
        print("ready", flush=True)
        time.sleep(600)
    return epoch(trainer, number)

Trainer.epoch = hangs
concf.cli.app.app = typer.Typer()
concf.cli.app.app.command()(tune)
concf.cli.app.main()
"""


@posix
def test_a_killed_search_goes_on_to_the_same_end(folder: Path, data: Split, whole: Tuning, tmp_path: Path) -> None:
    space, out = tmp_path / "space.toml", tmp_path / "search"
    space.write_text(WRITTEN)
    words = [sys.executable, "-c", KILLED, folder, "--out", out, "--space", space, "--trials", "5", *SETS]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=QUIET)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    out_, noted = process.communicate(timeout=60)
    assert (first, out_, noted.startswith(b"note: only"), noted.count(b"\n")) == (b"ready\n", b"", True, 1)
    assert process.returncode == -signal.SIGKILL
    assert [each.state.name for each in journal(out)] == ["COMPLETE", "COMPLETE"]  # the third was under way
    assert (out / BEST).exists()
    search = tune(data, out, words=QUICK, space=RATES, trials=5)
    assert outcomes(search) == outcomes(whole)
    assert len({json.dumps(each.changes) for each in search.trials}) == 5
    assert [each.state.name for each in journal(out)] == ["COMPLETE"] * 5


class Interrupted(Exception):
    """Stands for a process that ended there."""


@pytest.mark.parametrize("moment", ["it was being drawn", "it was under way", "it was not written yet"])
def test_a_search_that_ended_at_any_moment_of_a_trial_goes_on(
    data: Split, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def end(*args: Any, **more: Any) -> None:
        raise Interrupted

    owner, name = {
        "it was being drawn": (optuna.Study, "ask"),
        "it was under way": (Trainer, "epoch"),
        "it was not written yet": (optuna.Study, "add_trial"),
    }[moment]
    out = tmp_path / "search"
    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, end)
            with pytest.raises(Interrupted):
                tune(data, out, words=QUICK, space=RATES, trials=number)
        assert out.exists() == (number > 1)  # a search without a trial leaves nothing
        if number > 1:
            with (out / STUDY).open("ab") as file:
                file.write(b'{"op_code":9,"worker')  # a line cut short
            (out / f"{STUDY}.lock").touch()
            (out / LOCK).touch()
        search = tune(data, out, words=QUICK, space=RATES, trials=number)
        assert outcomes(search) == outcomes(whole)[:number]


def test_settings_that_refuse_and_losses_that_are_not_finite_end_their_trial_alone(data: Split, tmp_path: Path) -> None:
    space = {RATE: {"choices": [0.01, 1e30]}, "consensus.top_k": {"choices": [8, 20]}}
    search = tune(data, tmp_path / "search", words=QUICK, space=space, trials=12)
    by_state: dict[str, list[Trial]] = {}
    for each in search.trials:
        by_state.setdefault(each.state, []).append(each)
    assert by_state.keys() == {"finished", "refused", "failed"}
    assert all("only kept = 12" in each.reason and each.epochs == 0 for each in by_state["refused"])
    assert all("try a lower training.learning_rate" in each.reason for each in by_state["failed"])
    assert search.best == search.trials[0]
    with pytest.raises(DataError, match=r"no trial came to a figure: .* try a lower training\.learning_rate"):
        tune(
            data,
            tmp_path / "bad",
            words=[*QUICK, f"{RATE}=1e30"],
            space={"model.dropout": {"low": 0, "high": 0.5}},
            trials=1,
        )


def test_the_test_part_is_not_touched(data: Split, whole: Tuning, tmp_path: Path) -> None:
    item = data.interactions.item.copy()
    rows = np.flatnonzero(data.parts == TEST)
    item[rows] = np.random.default_rng(0).permutation(item[rows])
    shuffled = dataclasses.replace(data, interactions=dataclasses.replace(data.interactions, item=item))
    assert shuffled.hash != data.hash
    search = tune(shuffled, tmp_path / "search", words=QUICK, space=RATES, trials=3)
    assert outcomes(search) == outcomes(whole)[:3]


def test_best_settings_are_read_by_train(concf: CLI, folder: Path, whole: Tuning, tmp_path: Path, data: Split) -> None:
    best = whole.folder / BEST
    assert choose_settings(file=best) == whole.settings
    assert train(data, choose_settings(file=best)).best["consensus"].validation == whole.best.validation
    assert whole.command("data") == f"concf train data --config {best} --seed 0 --out RUN"
    assert concf("train", folder, "--config", best, "--seed", 0, "--out", tmp_path / "run")[0] == 0
    chosen = json.loads((tmp_path / "run" / RUN).read_text())["settings"]
    assert chosen == whole.settings.model_dump(mode="json")


def refused(answer: tuple[int, str, str], message: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("concf: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "best"], "unknown preset 'best'"),
        (["--set", "consensus.wieght=1"], "unknown setting 'consensus.wieght'"),
        (["--set", "training.metric=luck@5"], "training.metric = 'luck@5': expected one of recall, "),
        (["--target", "hinge"], "target 'hinge': choose from consensus, R-consensus, bpr"),
        (["--device", "tpu"], "device 'tpu': choose cpu or cuda"),
        (["--space", "nowhere.toml"], "nowhere.toml: cannot be read as TOML"),
    ],
)
def test_wrong_words_are_answered_and_leave_nothing(
    cli: CLI, folder: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    refused(cli("tune", folder, "--out", tmp_path / "search", *words), message)
    assert not (tmp_path / "search").exists()


def test_an_unknown_setting_in_the_space_is_named_with_what_there_is(cli: CLI, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("consensus.wieght = { low = 0, high = 1 }")
    answer = cli("tune", folder, "--out", tmp_path / "search", "--space", tmp_path / "space.toml")
    refused(answer, "unknown setting 'consensus.wieght'; there are consensus.weight, consensus.every, ")
    assert not (tmp_path / "search").exists()


def test_another_search_in_the_same_folder_is_refused(cli: CLI, folder: Path, whole: Tuning, tmp_path: Path) -> None:
    other = small_data(tmp_path / "other")
    Split.load(folder).with_seed(5).save(other, overwrite=True)
    space, narrow = tmp_path / "space.toml", tmp_path / "narrow.toml"
    space.write_text(WRITTEN)
    narrow.write_text(WRITTEN.splitlines()[0])
    usual = ["--out", whole.folder, "--space", space, *SETS]
    before = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    refused(cli("tune", other, *usual, "--trials", 9), "holds another search, whose split_hash is ")
    refused(cli("tune", folder, *usual, "--space", narrow), "whose space.consensus.weight is ")
    refused(cli("tune", folder, *usual, "--seed", 1), "whose seed is 0 and not 1. Continue with the same, or")
    refused(cli("tune", folder, *usual, "--preset", "paper"), "whose preset is reference and not paper")
    refused(cli("tune", folder, *usual, "--set", "training.epochs=7"), "whose settings.training.epochs is 6 and not 7")
    refused(cli("tune", folder, *usual, "--target", "bpr"), "whose target is consensus and not bpr")
    refused(cli("tune", folder, *usual, "--trials", 5), "5 trials are done, no more were asked for. Try: --trials 10")
    assert {path.name: path.read_bytes() for path in whole.folder.iterdir()} == before
    with held(whole.folder / LOCK, "is searching here"):
        refused(cli("tune", folder, *usual, "--trials", 9), "is searching here. Wait until it has ended, or stop it")
    refused(cli("tune", folder, "--out", tmp_path), "is neither empty nor a search; it is left alone")


def test_a_damaged_journal_is_named(data: Split, tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text("{not ours}\n" * 3)
    with pytest.raises(DataError, match=f"{STUDY}: damaged"):
        tune(data, tmp_path, words=QUICK, space=RATES, trials=9)


def test_what_is_printed(
    cli: CLI, folder: Path, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "FINISHED_BEFORE_IMPORTANCE", 3)
    (tmp_path / "space.toml").write_text(WRITTEN)
    words = ("tune", folder, "--out", tmp_path / "search", "--space", tmp_path / "space.toml", *SETS, "--seconds", 1000)
    code, out, err = cli(*words, "--trials", 4)
    assert (code, err) == (0, "")
    assert "4 trials: 4 finished. The best 4 of the finished ones:" in out
    assert "validation R@5 of consensus" in out
    assert "the preset: learning_rate 0.01, weight 0.005" in out
    assert "Importance for the best tenth of the trials (PED-ANOVA): " in out
    best = tmp_path / "search" / BEST
    assert f"Train with: concf train {folder} --config {best} --seed 0 --out RUN" in out
    code, out, err = cli(*words, "--trials", 5, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert [each["changes"] for each in report["trials"]] == [each.changes for each in whole.trials]
    assert (report["metric"], report["target"], report["best"]["number"]) == (
        "recall@5",
        "consensus",
        whole.best.number,
    )
    assert sum(report["importance"].values()) == pytest.approx(1)
    assert report["importance"].keys() == RATES.keys()
    assert report["changes"] == json.loads(json.dumps(whole.changes()))


def test_time_that_is_over_and_ctrl_c(
    cli: CLI, folder: Path, data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(tune(data, tmp_path / "search", words=QUICK, space=RATES, trials=9, seconds=1e-9).trials) == 1

    def interrupted(trainer: Trainer, epoch: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "epoch", interrupted)
    code, out, err = cli("tune", folder, "--out", tmp_path / "other", *SETS)
    assert (code, out, err) == (130, "", "concf: stopped. The same command continues\n")


def test_optuna_is_asked_for(cli: CLI, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.experiments.tune.find_spec", lambda name: None)
    refused(cli("tune", folder, "--out", tmp_path / "search"), "Try: pip install 'concf[tune]'")
    assert not (tmp_path / "search").exists()


def test_the_preset_must_be_one_that_can_be_trained(data: Split, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown encoder"):
        tune(data, tmp_path / "search", words=[*QUICK, "model.encoder=tower"], space=RATES)
    assert not (tmp_path / "search").exists()
