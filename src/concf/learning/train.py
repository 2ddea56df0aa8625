"""Algorithm 1: train the heads, let them agree, teach them what they agree on, keep the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from concf.data.split import Split
from concf.learning.checkpoint import RunFolder
from concf.learning.presets import choose_settings
from concf.learning.run import Run
from concf.learning.settings import ConCFSettings
from concf.learning.trainer import Trainer
from concf.model.encoders import EncoderMaker
from concf.model.objectives import Objective
from concf.progress import working


def train(
    data: Split,
    settings: ConCFSettings | Mapping[str, Any] | None = None,
    *,
    preset: str = "reference",
    seed: int = 0,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 30.0,
    objectives: Mapping[str, Objective] | None = None,
    encoder: EncoderMaker | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    data_folder: str | None = None,
) -> Run:
    """Train on the training part; every head and the consensus is kept at the epoch of its best validation.

    settings:   all of them, or changes to the preset such as {"consensus": {"weight": 0}}
    device:     None: a GPU if there is one
    out:        a folder for history and checkpoints; with `resume` a killed run goes on to exactly the same end
    checkpoint_seconds: a checkpoint after the first epoch that ends so long after the last one, and at the end
    objectives, encoder: your own, by the names in `settings.objectives`, and in place of `settings.model.encoder`
    watch:      called with every epoch's record
    """
    chosen = settings if isinstance(settings, ConCFSettings) else choose_settings(preset, settings)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    run = Run(Trainer(data, chosen, seed, device, objectives=objectives, encoder=encoder))
    folder = RunFolder(out) if out is not None else None
    if folder is not None:
        if resume:
            folder.resume(run)
        else:
            folder.begin(run, data_folder)
    saved = time.monotonic()
    with working("training", chosen.training.epochs) as advance:
        advance(run.epoch)
        while not run.finished:
            record = _epoch(run)
            if folder is not None:
                folder.record(record)
                if run.finished or time.monotonic() - saved >= checkpoint_seconds:
                    folder.save(run)
                    saved = time.monotonic()
            if watch is not None:
                watch(record)
            advance(1, _figures(record))
    return run


def _epoch(run: Run) -> dict[str, Any]:
    """One epoch, and every p epochs the heads' agreement."""
    trainer, chosen = run.trainer, run.settings
    epoch, last = run.epoch, run.epoch == chosen.training.epochs - 1
    record = trainer.epoch(epoch)
    if epoch % chosen.consensus.every == 0 or last:
        begin = time.perf_counter()
        lists = trainer.agree()
        record["validation"] = trainer.validate(lists)
        run.notice(epoch, record["validation"], lists)
        record["ranking_seconds"] = time.perf_counter() - begin
    run.history.append(record)
    run.epoch += 1
    run.finished = last or ("validation" in record and _patience_is_over(run, epoch))
    return record


def _patience_is_over(run: Run, epoch: int) -> bool:
    patience, watched = run.settings.training.patience, run.best[_watched(run)]
    first = run.settings.consensus.first_lesson - 1 if run.settings.teaches else 0
    return patience is not None and epoch - max(watched.epoch, first) >= patience


def _watched(run: Run) -> str:
    """Whose validation decides; a single head watches itself."""
    return run.settings.training.watch if run.settings.several else run.model.names[0]


def _figures(record: dict[str, Any]) -> str:
    """For the progress bar."""
    figures = record.get("validation", {})
    return "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
