"""Algorithm 1: train the heads, compute their consensus, distil it, keep the best epochs.

The lines of the algorithm are numbered here, in `trainer.py` and in `step.py`, as in the paper.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.validation import refuse_blind
from concf.reference import kernels
from concf.reference.head_losses import HeadLosses
from concf.reference.objectives import choose
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.run import ReferenceRun
from concf.reference.settings import ReferenceSettings
from concf.reference.trainer import Parts, Trainer
from concf.runs import job as jobs
from concf.runs.job import Job
from concf.runs.memory import FLOAT, INT, Tables, refuse_too_large
from concf.runs.watchers import note_of
from concf.runtime.process_group import ALONE, ProcessGroup, fingerprint
from concf.runtime.progress import working

CPU = torch.device("cpu")
DRAWN = 12  # bytes of a pair of an epoch: user, positive and negative item


def train_reference(
    data: Split, settings: ReferenceSettings, seed: int = 0, device: torch.device = CPU, job: Job | None = None,
    parts: Parts | None = None,
) -> ReferenceRun:  # fmt: skip
    """Train by Algorithm 1; with `job.resume` the run in its folder is continued. parts: see `Parts`, for ablations"""
    job, parts = job or Job(), parts or Parts()
    replaced = (parts.head_losses, parts.consensus, parts.trainer) != (HeadLosses, RankingConsensus, None)
    if replaced and (job.folder is not None or job.group.several):
        raise ConfigError("parts of a step are replaced in one process and in memory: leave the folder and group out")
    if not job.resume:
        tables = large_tables(data, settings, job.group)
        refuse_too_large(tables, data.train.shape, settings, device, job.group)
    make = parts.trainer or Trainer
    trainer = make(data, settings, seed, device, parts=parts, group=job.group)  # lines 1, 2
    run = ReferenceRun(data, settings, seed, device, trainer.model)
    if job.group.is_main:
        refuse_blind(run.metric, data)
    with job.begun(run, trainer):
        job.group.refuse_difference({"model": fingerprint(list(trainer.model.parameters()))})
        _all_epochs(run, trainer, job, parts)
        trainer.end()
    return run


def _all_epochs(run: ReferenceRun, trainer: Trainer, job: Job, parts: Parts) -> None:
    """Run lines 3 to 15, with a checkpoint every `CHECKPOINT_SECONDS`."""
    group, saved = trainer.group, time.monotonic()
    with working("training", run.settings.training.epochs) as advance:
        advance(run.epoch)
        while not run.finished:  # line 3: for t = 0, 1, ..., T_E
            group.refuse_orphan()
            record, last = _epoch(run, trainer, parts)
            job.record(run, record)
            run.finished = last
            if run.finished or group.any(group.is_main and time.monotonic() - saved >= jobs.CHECKPOINT_SECONDS):
                job.save(run, trainer)
                saved = time.monotonic()
            job.tell(record)
            advance(1, note_of(record, run.metric))


def _epoch(run: ReferenceRun, trainer: Trainer, parts: Parts) -> tuple[dict[str, Any], bool]:
    """Train an epoch, and every p epochs compute a consensus; keep the best epoch of each head and consensus.

    The last epoch ranks too, also where t mod p is not 0. Returns its record, and whether training ends.
    """
    epoch, period, last = run.epoch, run.settings.consensus.every, run.epoch == run.settings.training.epochs - 1
    record = trainer.epoch(epoch)  # lines 4 to 12
    begin = time.perf_counter()
    if epoch % period == 0 or last:  # line 13
        trainer.group.refuse_difference({"model": fingerprint(list(trainer.model.parameters()))})
        lists = trainer.consensus.update()  # lines 14, 15
        record["validation"] = trainer.consensus.validate(lists)
        record["ranked"] = True
        run.notice(epoch, record["validation"], lists, trainer.consensus.votes, trainer.consensus.whole)
    else:
        record["validation"] = trainer.consensus.validate_heads()
        run.notice(epoch, record["validation"], {}, dict)
    record["ranking_seconds"] = time.perf_counter() - begin
    if "ranked" in record and parts.watch_rankings is not None:
        parts.watch_rankings(epoch, trainer, lists)
    return record, last or _patience_is_over(run, epoch)


def _patience_is_over(run: ReferenceRun, epoch: int) -> bool:
    """Whether no validation metric has risen for `patience` epochs, that of a consensus for at least two rankings."""
    chosen, period = run.settings.training, run.settings.consensus.every
    if chosen.patience is None:
        return False
    first = run.settings.first_consensus_epoch - 1  # a SingleCF has as much time
    for name, best in run.best.items():
        patience = chosen.patience if name in run.heads else max(chosen.patience, 2 * period)
        if epoch - max(first, best.rose) < patience:
            return False
    return True


def large_tables(data: Split, settings: ReferenceSettings, group: ProcessGroup = ALONE) -> Tables:
    """Largest tables of a process: the model with gradients and optimiser, its best states, rankings, a batch."""
    objectives = choose(settings.objectives, settings.losses, settings.form)
    model, consensus, training = settings.model, settings.consensus, settings.training
    (users, items), d, heads, several = data.train.shape, model.dimensions, len(objectives), settings.several
    rows, local = users + items, users // group.size
    first = heads if model.sharing in ("embedding", "none") else 1
    layers = first * d * d // 2 + (1 if model.sharing == "full" else heads) * d * d // 8
    size = d // 4 if model.encoder == "mlp" else d
    outputs = sum({"items": items, "users": users}.get(loss.needs, 0) for loss in objectives.values()) * (size + 1)
    embeddings, others = (heads if model.sharing == "none" else 1) * rows * d, outputs
    others += layers if model.encoder == "mlp" else 0
    taught = several and consensus.weight > 0 and training.epochs > settings.first_consensus_epoch
    students = sum(objective.distilled for objective in objectives.values()) if taught else 0
    copies = (heads + students) * rows * d
    k, kept = (min(n or items, items) for n in (consensus.top_k, consensus.kept))
    window = min(max(consensus.window or training.epochs, 2), 1 + training.epochs // consensus.every) if several else 0
    batch = min(training.batch, data.train.nnz) // group.size
    softmax = {"items", "users"} & {objective.needs for objective in objectives.values()}
    logits = min(batch * items, kernels.KEPT) if softmax else 0
    listed = students * min(batch, users) * min(consensus.target_length or items, items)
    stored = min(max(consensus.shown + 2 * int(np.diff(data.valid.indptr).max()), k), items)
    agreed = users * (2 * stored * INT + 3 * heads * k * INT) if several else 0
    by_dimensions = ("model.dimensions",)
    return {  # table: bytes, settings that make it smaller
        "embeddings of users and items": (embeddings * FLOAT, by_dimensions),
        "layers and output tables of the heads": (others * FLOAT, by_dimensions),
        "gradients of each head": ((copies + embeddings + others) * FLOAT, by_dimensions),
        "moments of Adam": (2 * (embeddings + others) * FLOAT, by_dimensions),
        "best state of each head":
            ((heads * rows * d + outputs + several * (embeddings + others)) * FLOAT, by_dimensions),
        "rankings of the window": ((window + 1) * heads * local * kept * INT, ("consensus.window", "consensus.top_k")),
        "lists and votes of the consensus": (agreed, ("consensus.top_k", "consensus.shown")),
        "pairs and encodings of a batch":
            (data.train.nnz * DRAWN + (3 * heads * batch * d + listed + logits) * FLOAT,
             ("training.batch", "model.dimensions")),
    }  # fmt: skip
