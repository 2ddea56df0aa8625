"""Tracking by MLflow: settings, metrics by epoch or stage, the report, and the folder of the run as artifacts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from concf.errors import ConfigError, MissingExtraError, note
from concf.report.gather import gather
from concf.runs.checkpoint import CARD, CHECKPOINT, DATA, HISTORY, ITEMS, RUN, USERS, RunFolder
from concf.runs.run import Run
from concf.runs.watchers import metrics_of
from concf.runtime.files import new_file
from concf.runtime.provenance import VERSION, provenance
from concf.runtime.settings import flat

ARTIFACTS = (RUN, CARD, HISTORY, CHECKPOINT, USERS, ITEMS, DATA)
ID = "mlflow.txt"  # in the folder of the run: the id of its run in MLflow
MOST_PARAMS = 100  # of one request
LONGEST = 6000  # characters of a parameter


class MLflow:
    """A watcher for `train(..., watch=MLflow("mlruns"))`; see `concf.runs.watchers.Watcher`.

    store:      a folder, or the address of a tracking server such as http://localhost:5000
    experiment: its name in MLflow; made if it is not there

    A run that goes on continues its run in MLflow. Every epoch is logged once: those that are missing there, because
    the server was away or the run began without MLflow, are logged with the next one.
    """

    id: str

    def __init__(self, store: str | Path, experiment: str = "concf") -> None:
        for library in ("mlflow", "jinja2", "matplotlib"):
            if not find_spec(library):
                raise MissingExtraError(library, "mlflow", "--mlflow")
        self.store = str(store) if "://" in str(store) else Path(store).absolute().as_uri()
        self.experiment = experiment
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        if self.store.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without it newer versions refuse a folder
        from mlflow import MlflowClient

        with self._guarded():  # before a folder of a run is made
            self.client = MlflowClient(self.store)
            self.client.get_experiment_by_name(experiment)

    def begin(self, run: Run, folder: Path | None) -> None:
        """Find the run in MLflow, or make one with all settings."""
        self.run, self.folder = run, folder
        with self._guarded():
            self.id = self._before() or self._new()
            self.logged = {each.step for each in self.client.get_metric_history(self.id, f"seconds/{run.unit[:-1]}")}
            self._log_missing()

    @contextmanager
    def _guarded(self, later: str = "") -> Iterator[None]:
        """Turn a failure of the store into an error; into a note if `later` says what to do: the run matters more."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            if not later:
                raise ConfigError(f"MLflow at {self.store}: {reason}. Correct --mlflow, or leave it out") from None
            note(f"MLflow at {self.store}: {later} ({reason})")

    def __call__(self, record: dict[str, Any]) -> None:
        """Log an epoch or stage, and those that could not be logged before."""
        with self._guarded(f"epoch {record['epoch']} will be logged with the next one"):
            self._log_missing()

    def end(self) -> None:
        """Log how the run ended, and the report and folder of a finished run."""
        from concf.report.page import page

        run, name, about = self.run, "run", {"device": str(self.run.device), "provenance": provenance()}
        with self._guarded("log the rest with concf train --resume --mlflow"):
            self._log_missing()
            if run.finished and self.folder is not None:
                name, about = self.folder.resolve().name, RunFolder(self.folder).description()
                for path in (self.folder / each for each in ARTIFACTS):
                    if path.exists():
                        self.client.log_artifact(self.id, str(path), "run")
            if run.finished:
                self.client.log_dict(self.id, run.summary(), "summary.json")
                self.client.log_text(self.id, page(gather(run, about, name=name)), "report.html")
            self.client.set_terminated(self.id, "FINISHED" if run.finished else "KILLED")

    def _before(self) -> str | None:
        """Return the id of the run that the folder names, if it is in this store."""
        from mlflow.exceptions import MlflowException

        if self.folder is None or not (self.folder / ID).is_file():
            return None
        known = (self.folder / ID).read_text(encoding="utf-8").strip()
        try:
            self.client.update_run(known, status="RUNNING")
        except MlflowException:
            return None
        return known

    def _new(self) -> str:
        from mlflow.entities import Param

        run, data = self.run, self.run.data
        known = self.client.get_experiment_by_name(self.experiment)
        experiment = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        tags = {"concf.version": VERSION, "concf.metric": run.metric, "concf.split_hash": data.hash}
        name = None if self.folder is None else self.folder.resolve().name
        made = str(self.client.create_run(experiment, tags=tags, run_name=name).info.run_id)
        about = {"seed": run.seed, "data.source": data.recipe.source.get("name", "")}
        settings = flat(run.settings.model_dump(mode="json") | about | {"data": data.recipe.protocol.model_dump()})
        params = [Param(_name(key), str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(made, params=params[start : start + MOST_PARAMS])
        if self.folder is not None:
            with new_file(self.folder / ID) as fresh:
                fresh.write_text(f"{made}\n", encoding="utf-8")
        return made

    def _log_missing(self) -> None:
        from mlflow.entities import Metric, Param, RunTag

        for record in self.run.history:
            step, now = record["epoch"], int(time.time() * 1000)
            if step not in self.logged:
                chosen = flat({"chosen": record.get("chosen", {})})
                self.client.log_batch(
                    self.id,
                    metrics=[Metric(_name(name), value, now, step) for name, value in metrics_of(record).items()],
                    params=[Param(_name(name), str(value)) for name, value in chosen.items()],
                    tags=[RunTag(f"concf.stage.{step}", record["stage"])] if "stage" in record else [],
                )
                self.logged.add(step)


def _name(text: str) -> str:
    """Replace characters that MLflow does not allow: a head may be called bpr#1, a metric recall@50."""
    return re.sub(r"[^\w\-. /]", "_", text, flags=re.ASCII)
