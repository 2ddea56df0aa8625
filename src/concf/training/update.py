"""Bring a finished run up to date with a newer log, in a fraction of the time of training anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from pydantic import ValidationError

from concf.data.join import join
from concf.data.options import ReadingOptions
from concf.data.reading.times import When
from concf.errors import ConfigError, note, option
from concf.evaluation.validation import AUTO, fitting_metric
from concf.runtime.files import new_folder
from concf.training.checkpoint import RUN, RunFolder
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.memory import refuse_too_large
from concf.training.recipe.update import Update, UpdateSettings
from concf.training.run import Run, make_model
from concf.training.tracking.watchers import Watch, watched
from concf.training.train import all_stages, device_of, train


def update(
    run: Run,
    log: Any,
    *,
    out: str | Path | None = None,
    hold: float = 0.0,
    rerank: Literal["refit", "carry"] = "refit",
    final: bool = False,
    drop_before: When | None = None,
    older: bool = False,
    min_item: int = 1,
    device: str | torch.device | None = None,
    verbose: bool = False,
    watch: Watch | Sequence[Watch] | None = None,
    **options: Unpack[ReadingOptions],
) -> Run:
    """A new run that has learned from a newer log too; the run itself stays as it was.

    log:     what came since, in any form that `prepare` reads; columns are read as those of the first log were, unless
             `options` say otherwise
    out:     a folder for the new run; it can be resumed by `train` once it is there
    hold:    how far known users and items are held where they were: 0 (default) not at all, 1: they do not move
    rerank:  the re-ranker's weights: refit (default) them to the new pairs, ranked by the run as it was, or carry them
             over, which is faster; the fewer known users have new pairs, the less they move
    final:   learn from the test part too, from now on
    drop_before: a date, or a time in the log's own unit: what is older is forgotten. Users and items of whom nothing is
             left leave the run, and items that a user chose before then may be recommended again
    older:   add a log even if all of its pairs are older than the newest that the run knows
    min_item: leave out new items with fewer users
    device, verbose, watch: as for `train`
    """
    _refuse(run)
    how = _settings(hold=hold, rerank=rerank)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.refuse_occupied()
    settings = choose_settings(run.settings, {"recipe": {"refit": "everything"}}) if final else run.settings
    learned = Run(run.data, settings, run.seed, run.model).learned
    joined = join(
        run.data, log, learned=learned, drop_before=drop_before, older=older, min_item=min_item, **options
    )  # fmt: skip
    settings, here = _with_metric(settings, run, joined.split), device_of(device)
    refuse_too_large(joined.split, settings, here)
    fresh = Run(joined.split, settings, run.seed, make_model(joined.split, settings).to(here))
    stages = Update(fresh, here, how)
    stages.carry(run, joined)
    watchers = [] if watch is None else [watch] if callable(watch) else list(watch)
    if folder is None:
        with watched(fresh, None, watchers):
            all_stages(fresh, stages, None, verbose, watchers)
        return fresh
    with new_folder(folder.path, marker=RUN) as beside:
        home = RunFolder(beside)
        home.keep(joined.split)
        home.begin(fresh, update=how.model_dump())
        home.save(fresh, stages)
    return train(joined.split, device=here, out=out, resume=True, verbose=verbose, watch=watchers)


def _settings(**given: Any) -> UpdateSettings:
    try:
        return UpdateSettings(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{option(str(problem['loc'][0]), problem['input'])}: {problem['msg']}") from None


def _refuse(run: Any) -> None:
    """Refuse what is no run, and a run that cannot be updated."""
    if not isinstance(run, Run):
        raise ConfigError(f"expected a run to update, such as concf.load_run(folder), found {type(run).__name__}")
    if run.settings.recipe is None:
        raise ConfigError(
            "the run was trained by Algorithm 1, and only runs of the preset strong can be updated. Train again on the "
            "old and the new log together, or train the preset strong once and update that"
        )
    if run.settings.recipe.foreign:
        raise ConfigError(
            f"voters from outside ({', '.join(run.settings.recipe.foreign)}) know nothing of a newer log. Fit them "
            "again, and combine them again (concf combine)"
        )
    if run.data.has_new_users:
        raise ConfigError(
            "the run was trained on some of the users, to measure how it serves the others (protocol 'new-users'). "
            "Train on all of the log first, and update that run"
        )
    if not run.finished:
        raise ConfigError("the run is not finished. Finish it first (concf train --resume --out RUN), then update it")


def _with_metric(settings: ConCFSettings, run: Run, data: Any) -> ConCFSettings:
    """The settings, with the metric that the figures which are carried over were measured by."""
    if settings.training.metric != AUTO or (len(data.validated) and fitting_metric(AUTO, data) == run.metric):
        return settings
    note(f"figures stay those of {run.metric}, by which the run's settings were chosen")
    return choose_settings(settings, {"training": {"metric": run.metric}})
