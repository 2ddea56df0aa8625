"""A run in MLflow, in its own file store: settings, figures once for every epoch or stage, report, artifacts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_recipe import data as recipe_data
from small_recipe import small
from small_run import CLI, SETS, SMALL, Killed, die_after, often

from concf.data.split import Split
from concf.errors import ConcfWarning
from concf.inference.estimator import ConCF
from concf.models import choose_settings, load_run, train
from concf.report.mlflow import ID, MLflow
from concf.runs.checkpoint import CARD, CHECKPOINT, HISTORY

FEW = choose_settings("reference", words=[*SMALL, "training.epochs=4", "objectives=bpr,bpr#2"])


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")  # here, and not in every worker that collects this file
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture
def short_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.report.page.page", lambda content: "<html>")


def stored(store: Path) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(store.as_uri())
    experiment = client.get_experiment_by_name("concf")
    return client, client.search_runs([experiment.experiment_id])


def steps(client: Any, run: Any, name: str) -> dict[int, float]:
    """Step -> value; each step must be there once."""
    found = client.get_metric_history(run.info.run_id, name)
    assert len({each.step for each in found}) == len(found), name
    return {each.step: each.value for each in found}


def test_epochs_settings_report_and_folder_are_in_the_store(concf: CLI, data: Path, tmp_path: Path) -> None:
    out, store = tmp_path / "first", tmp_path / "store"
    words = ("--set", "training.epochs=3", "--set", "objectives=bpr,cml")
    code, _, err = concf("train", data, "--out", out, *SETS, *words, "--mlflow", store)
    assert code == 0, err
    client, (run,) = stored(store)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert (run.info.run_id, run.data.tags["concf.split_hash"]) == (
        (out / ID).read_text().strip(), Split.load(data).hash,
    )  # fmt: skip
    settings = run.data.params
    assert (settings["model.dimensions"], settings["training.epochs"], settings["seed"]) == ("8", "3", "0")
    assert settings["data.name"] == "random"
    records = [json.loads(line) for line in (out / HISTORY).read_text().splitlines()]
    for kind in ("loss", "consensus_loss", "gradient", "weight", "validation"):
        for name in records[0][kind]:
            expected = {each["epoch"]: each[kind][name] for each in records if name in each.get(kind, {})}
            assert steps(client, run, f"{kind}/{name}") == expected, (kind, name)
    assert steps(client, run, "seconds/epoch") == {each["epoch"]: each["seconds"] for each in records}
    folder = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    for name in (CARD, CHECKPOINT, HISTORY):
        assert (folder / "run" / name).read_bytes() == (out / name).read_bytes()
    assert json.loads((folder / "summary.json").read_text()) == load_run(folder / "run", data).summary()
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("short_report")
def test_stages_and_what_they_chose_and_a_run_that_loads_from_the_store(tmp_path: Path) -> None:
    model = ConCF("strong", seed=3)
    model.settings = small(budget="fast")
    model.fit(recipe_data(), out=tmp_path / "run", watch=[MLflow(tmp_path / "store")])
    client, (run,) = stored(tmp_path / "store")
    history = model.run.history
    assert [run.data.tags[f"concf.stage.{each['epoch']}"] for each in history] == [each["stage"] for each in history]
    assert steps(client, run, "seconds/stage") == {each["epoch"]: each["seconds"] for each in history}
    for voter, chosen in model.run.chosen.items():
        for name, value in chosen.items():
            assert run.data.params[f"chosen.{voter}.{name}"] == str(value)
    folder = Path(client.download_artifacts(run.info.run_id, "run", str(tmp_path)))
    assert load_run(folder).summary() == model.run.summary()  # with the data set, which the run keeps itself


@pytest.mark.usefixtures("short_report")
@pytest.mark.parametrize("with_it", [True, False], ids=["begun with it", "without it"])
def test_a_run_that_goes_on_has_every_epoch_once(data: Path, tmp_path: Path, with_it: bool) -> None:
    class Mine:
        def begin(self, run: Any, folder: Path | None) -> None:
            self.run, self.seen = run, ["begin", folder]

        def __call__(self, record: dict[str, Any]) -> None:
            assert record is self.run.history[-1]
            self.seen.append(record["epoch"])

        def end(self) -> None:
            self.seen.append("finished" if self.run.finished else "stopped")

    out, split, mine, store = tmp_path / "run", Split.load(data), Mine(), tmp_path / "store"
    watch = [*[MLflow(store)] * with_it, mine, die_after(1)]
    with pytest.raises(Killed), often() if with_it else nullcontext():
        train(split, FEW, out=out, watch=watch)
    assert mine.seen == ["begin", out, 0, 1, "stopped"]  # a watcher of one's own
    assert not with_it or stored(store)[1][0].info.status == "KILLED"
    for left in ([2, 3], []) if with_it else ([0, 1, 2, 3],):  # the second has nothing to do
        run = train(split, out=out, resume=True, watch=[MLflow(store), mine])
        assert mine.seen == ["begin", out, *left, "finished"]
        client, (logged,) = stored(store)
        assert logged.info.status == "FINISHED"
        expected = {each["epoch"]: each["validation"]["bpr#2"] for each in run.history}
        assert steps(client, logged, "validation/bpr_2") == expected
        assert list(expected) == [0, 1, 2, 3]


@pytest.mark.usefixtures("short_report")
def test_a_store_that_fails_for_a_while_loses_no_epoch(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    log_batch, calls = MlflowClient.log_batch, []

    def failing(self: Any, *rest: Any, **more: Any) -> Any:
        if "metrics" in more:
            calls.append(more["metrics"][0].step)
            if len(calls) in (2, 3):
                raise MlflowException("away for lunch.")
        return log_batch(self, *rest, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", failing)
    with pytest.warns(ConcfWarning, match=r"epoch 1 will be logged with the next one \(away for lunch\)"):
        train(Split.load(data), FEW, watch=MLflow(tmp_path / "store"))
    assert calls == [0, 1, 1, 1, 2, 3]
    client, (logged,) = stored(tmp_path / "store")
    assert list(steps(client, logged, "seconds/epoch")) == [0, 1, 2, 3]


def test_a_store_that_cannot_be_used_is_an_error_before_training(
    concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("a file")
    for said in ("Correct --mlflow, or leave it out", "pip install 'concf[mlflow]'"):
        code, _, err = concf("train", data, "--out", tmp_path / "run", *SETS, "--mlflow", tmp_path / "store")
        assert (code, said in err, "Traceback" in err) == (2, True, False)
        assert not (tmp_path / "run").exists()  # the same command with another store begins anew
        monkeypatch.setattr("concf.report.mlflow.find_spec", lambda name: None)
