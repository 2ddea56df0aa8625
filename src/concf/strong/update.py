"""Bring a finished run up to date with a newer log, in a fraction of the time of training anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from pydantic import ValidationError

from concf.data.join import join
from concf.data.prepare import ReadingOptions
from concf.data.reading.times import When
from concf.errors import ConfigError, note, option
from concf.evaluation.validation import AUTO, fitting_metric
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job, as_watchers, device_of
from concf.runs.run import Run
from concf.runs.watchers import Watch
from concf.strong.run import StrongRun
from concf.strong.train import check_memory, train_from
from concf.strong.update_stages import Update, UpdateSettings


class UpdateOptions(ReadingOptions, total=False):
    """Options to read the newer log, to join it to the log of the run, and to learn from it."""

    drop_before: When | None  # forget pairs whose last event is older: a date, or a time in the log's own unit
    min_item: int  # leave out new items with fewer users
    hold: float  # how far known users and items are held where they were: 0 (default) not at all, 1: they do not move
    rerank: Literal["refit", "carry"]  # the re-ranker's weights: fitted to the new pairs (default), or as before
    refresh: bool  # train nothing but the student: users with new events are folded in, trends and lists renewed
    final: bool  # learn from the test part too, from now on


def update(
    run: Run,
    log: Any,
    *,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    watch: Watch | Sequence[Watch] | None = None,
    **options: Unpack[UpdateOptions],
) -> StrongRun:
    """Make a new run that has learned from a newer log too; the run itself stays as it was.

    log:     the newer log, in any form that `prepare` reads; columns are read as those of the first log, or as you say
    out:     a folder for the new run; `train` can resume it from its first checkpoint on
    device, watch: as for `train`
    options: see `UpdateOptions`. With `drop_before`, users and items without a pair left leave the run, and items that
             a user chose before then may be recommended again. `rerank`: the fewer known users have new pairs, the
             less the weights move; to carry them over is faster. `refresh`, faster still, keeps all weights and item
             vectors: voters with vectors do not list new items before the next update
    """
    run = _checked(run)
    reading: dict[str, Any] = dict(options)
    final = reading.pop("final", False)
    how = _settings({name: reading.pop(name) for name in UpdateSettings.model_fields if name in reading})
    job = Job(None if out is None else RunFolder(out), watchers=as_watchers(watch))
    if job.folder is not None:
        job.folder.refuse_occupied()
    settings = run.settings.changed({"refit": "everything"}) if final else run.settings
    joined = join(run.data.whole or run.data, log, learned=settings.learned, **reading)
    split, chosen_device = joined.split, device_of(device)
    if settings.training.metric == AUTO and not (len(split.validated) and fitting_metric(AUTO, split) == run.metric):
        note(f"the metric stays {run.metric}, by which the run's settings were chosen")
        settings = settings.changed({"training": {"metric": run.metric}})
    check_memory(split, settings, chosen_device)
    stages = Update(StrongRun(split, settings, run.seed, chosen_device), how)
    stages.carry(run, joined)
    return train_from(stages, job, update=how.model_dump())


def _settings(given: dict[str, Any]) -> UpdateSettings:
    try:
        return UpdateSettings(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{option(str(problem['loc'][0]), problem['input'])}: {problem['msg']}") from None


def _checked(run: Any) -> StrongRun:
    """Check that a run can be updated, and return it."""
    if not isinstance(run, Run):
        raise ConfigError(f"expected a run to update, such as concf.load_run(folder), found {type(run).__name__}")
    if not isinstance(run, StrongRun):
        problem = "the run was trained by Algorithm 1, and only runs of the preset strong can be updated"
        raise ConfigError(f"{problem}. Train again on both logs together, or train and update the preset strong")
    if run.settings.foreign:
        problem = f"voters from outside ({', '.join(run.settings.foreign)}) know nothing of a newer log"
        raise ConfigError(f"{problem}. Fit them and combine them again (concf combine)")
    if run.data.has_new_users:
        problem = "the run was trained on some of the users, to test on the others (protocol 'new-users')"
        raise ConfigError(f"{problem}. Train on all of the log first, and update that run")
    if not run.finished:
        raise ConfigError("the run is not finished. Finish it first (concf train --resume --out RUN), then update it")
    return run
