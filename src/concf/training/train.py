"""Algorithm 1: train the heads, let them agree on a ranking, distil it, keep the best.

The lines of the algorithm are numbered here and in `trainer.py`, as in docs/paper.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError, DataError, option
from concf.evaluation.validation import refuse_blind
from concf.model.encoders import EncoderMaker
from concf.model.objectives import Objective
from concf.runtime.arguments import check_seed
from concf.runtime.process_group import ALONE, ProcessGroup, fingerprint
from concf.runtime.progress import shows, working
from concf.runtime.provenance import VERSION
from concf.training.checkpoint import Resumable, RunFolder
from concf.training.config.presets import choose_settings
from concf.training.config.settings import EVERYTHING, ConCFSettings
from concf.training.memory import kept_memory, refuse_too_large
from concf.training.recipe.combine import Combine
from concf.training.recipe.recipe import Recipe
from concf.training.recipe.update import Update, UpdateSettings
from concf.training.run import Run, make_model
from concf.training.tracking.watchers import ProgressLines, StageLines, Watch, note_of, watched
from concf.training.trainer import Parts, Trainer

WatchRankings = Callable[[int, Trainer, dict[str, Tensor]], None]


def train(
    data: Split,
    settings: ConCFSettings | Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 30.0,
    objectives: Mapping[str, Objective] | None = None,
    encoder: EncoderMaker | None = None,
    teacher: Tensor | NDArray[np.int32] | None = None,
    verbose: bool = False,
    watch: Watch | Sequence[Watch] | None = None,
    watch_rankings: WatchRankings | None = None,
    parts: Parts | None = None,
    data_folder: str | Path | None = None,
    group: ProcessGroup = ALONE,
) -> Run:
    """Train on the training part; every head and the consensus is kept at the epoch of its best validation.

    settings:   all of them, or changes to the preset such as {"consensus": {"weight": 0}}
    preset:     reference, paper, released or strong, which is the default
    seed:       0 by default
    device:     cpu or cuda; by default a GPU if there is one
    out:        a folder for history and checkpoints
    resume:     go on with the run in `out`, to exactly the same end as if it had not been killed; settings,
                seed and device default to the run's own
    checkpoint_seconds: a checkpoint after the first epoch that ends so long after the last one, and at the end
    objectives, encoder: your own, by the names in `settings.objectives`, and in place of `settings.model.encoder`
    teacher:    [users, L] ranked items, -1 at an empty place, taught from the first epoch on in place of the consensus
                (two-stage distillation); the heads agree all the same, but are not taught what they agree on
    verbose:    where no progress bar shows, a line of standard error for every ranking
    watch:      called with the record of every epoch or stage; a `Watcher`, such as `TensorBoard` or `MLflow`, also at
                the beginning and the end; one or several
    watch_rankings: called with every ranking: the epoch, the trainer (`trainer.consensus.queue` holds the newest
                rankings) and the lists [users, ...] of each head and consensus; of several processes each has its own
                users'
    parts:      parts of a step that an ablation replaces, see `reproduction/ablations.py`
    data_folder: where `data` is, for those who load the run
    group:      the processes that train together, see `process_group.joined`; all must be given the same, and `out`
                must be one folder for all: the first of them writes there
    """
    if not isinstance(data, Split):
        raise ConfigError(
            f"expected a Split, found {type(data).__name__}. Make one with concf.prepare(log), or use ConCF().fit(log)"
        )
    seed, data = None if seed is None else check_seed(seed), data.known
    folder = RunFolder(out) if out is not None else None
    before: dict[str, Any] = {}
    if resume:
        if folder is None:
            raise ConfigError("to resume, say `out`: the folder of the run")
        before = folder.description() | {"settings": folder.settings()}
    if parts is not None and (folder is not None or group.several):
        raise ConfigError("parts of a step are replaced in one process and in memory: leave `out` and `group` out")
    if isinstance(settings, ConCFSettings) and preset is not None:
        raise ConfigError(f"preset {preset!r} and all the settings were given: say one of them")
    base = before.get("settings") if preset is None else preset
    chosen = settings if isinstance(settings, ConCFSettings) else choose_settings(base, settings)
    seed, here = before.get("seed", 0) if seed is None else seed, device_of(device, before.get("device"), group)
    data = data.weighted(chosen.weights)
    if group.several:
        if group.size > (users := data.interactions.n_users):
            raise ConfigError(f"{group.size} processes for {users} users: expected no more processes than users")
        data.share(group)
    if not resume:
        refuse_too_large(data, chosen, here, group, objectives)
    watchers = [] if watch is None else [watch] if callable(watch) else list(watch)
    home = None if folder is None else folder.path
    if chosen.recipe is not None:
        own = {"objectives": objectives, "encoder": encoder, "teacher": teacher, "parts": parts}
        _refuse_own([name for name, each in own.items() if each is not None])
        if chosen.recipe.refit == "everything" and data.has_new_users:
            raise ConfigError(
                "recipe.refit = everything (--final): the users that protocol 'new-users' holds out are never trained "
                "on. To train on everyone, choose another protocol"
            )
        run = Run(data, chosen, seed, make_model(data, chosen).to(here))
        if group.several:
            run.share_log(group)
        recipe = _stages(run, here, before, group)
        with _begun(run, recipe, folder, resume, data_folder), watched(run, home, watchers):
            group.refuse_difference(_beginning(run, recipe))
            all_stages(run, recipe, folder, verbose, watchers)
            group.barrier()  # the last checkpoint is there for all of them
        return run
    trainer = Trainer(
        data, chosen, seed, here, objectives=objectives, encoder=encoder,
        teacher=None if teacher is None else torch.as_tensor(teacher), parts=parts, group=group,
    )  # fmt: skip
    run = Run(data, chosen, trainer.seed, trainer.model)
    if group.is_main:
        refuse_blind(run.metric, data)
    with (
        _begun(run, trainer, folder, resume, data_folder, trainer.consensus.teacher), watched(run, home, watchers),
    ):  # fmt: skip
        _refuse_other_processes(run, trainer)
        if verbose and group.is_main and not shows():
            watchers.append(ProgressLines(run.metric, chosen.training.epochs))
        _all_epochs(run, trainer, folder, checkpoint_seconds, watchers, watch_rankings)
        trainer.end()
        group.barrier()  # the last checkpoint is there for all of them
    return run


@contextmanager
def _begun(
    run: Run, trainer: Resumable, folder: RunFolder | None, resume: bool, data_folder: str | Path | None,
    teacher: str | None = None,
) -> Iterator[None]:  # fmt: skip
    """A run that goes on, or a new one in its folder, held while it trains."""
    with folder.held() if folder is not None and trainer.group.is_main else nullcontext():
        if folder is not None and resume:
            folder.resume(run, trainer, teacher)
        elif folder is not None and trainer.group.is_main:
            folder.begin(run, None if data_folder is None else str(Path(data_folder).absolute()), teacher)
        yield


def _stages(run: Run, device: torch.device, before: Mapping[str, Any], group: ProcessGroup) -> Recipe:
    """The recipe of a new run, or of the one that goes on. before: its description"""
    if group.several and ("update" in before or "combine" in before):
        raise ConfigError("an update, and a run of concf combine, goes on in one process. Leave --processes out")
    if "update" in before:
        return Update(run, device, UpdateSettings.model_validate(before["update"]))
    if group.is_main:
        refuse_blind(run.metric, run.data)
    if "combine" in before:
        return Combine(run, device)
    assert run.settings.recipe is not None
    if run.settings.recipe.foreign:
        raise ConfigError("recipe.given, recipe.given_vectors: voters from outside are for concf combine")
    return Recipe(run, device, group)


def _refuse_own(given: Sequence[str]) -> None:
    """What the recipe has no place for."""
    if given:
        raise ConfigError(
            f"{given[0]}: for Algorithm 1, and the preset strong has a recipe. Choose the preset reference"
        )


def all_stages(
    run: Run,
    recipe: Recipe,
    folder: RunFolder | None,
    verbose: bool,
    watchers: Sequence[Watch],
) -> None:
    """The stages that are left, with a checkpoint after each."""
    group = recipe.group
    if verbose and group.is_main and not shows():
        watchers = [*watchers, StageLines(run.metric)]
    with working("training", len(recipe.stages)) as advance, kept_memory(run.model):
        advance(run.epoch)
        while not run.finished:
            group.refuse_orphan()
            record = recipe.stage(run.epoch)
            group.refuse_difference({"result of a stage": fingerprint(recipe.tables())})
            run.history.append(record)
            run.epoch += 1
            run.finished = run.epoch == len(recipe.stages)
            if folder is not None:
                if group.is_main:
                    folder.record(record)
                folder.save(run, recipe)
            for watch in watchers:
                watch(record)
            advance(1, note_of(record, run.metric))


def _all_epochs(
    run: Run, trainer: Trainer, folder: RunFolder | None, checkpoint_seconds: float,
    watchers: Sequence[Watch], watch_rankings: WatchRankings | None,
) -> None:  # fmt: skip
    """Algorithm 1, lines 3 to 15, with a checkpoint every now and then."""
    group, saved = trainer.group, time.monotonic()
    with working("training", run.settings.training.epochs) as advance, kept_memory(run.model):
        advance(run.epoch)
        while not run.finished:  # line 3: for t = 0, 1, ..., T_E
            group.refuse_orphan()
            record = _epoch(run, trainer, watch_rankings)
            if folder is not None:
                if group.is_main:
                    folder.record(record)
                if run.finished or group.broadcast_flag(time.monotonic() - saved >= checkpoint_seconds):
                    folder.save(run, trainer)
                    saved = time.monotonic()
            for watch in watchers:
                watch(record)
            advance(1, note_of(record, run.metric))


def _epoch(run: Run, trainer: Trainer, watch_rankings: WatchRankings | None) -> dict[str, Any]:
    """One epoch, and every p epochs a consensus; each head and consensus is kept where its validation is best."""
    epoch, period, last = run.epoch, run.settings.consensus.every, run.epoch == run.settings.training.epochs - 1
    record = trainer.epoch(epoch)  # lines 4 to 12
    begin = time.perf_counter()
    _refuse_infinite(run)
    if epoch % period == 0 or last:  # line 13
        trainer.group.refuse_difference({"model": fingerprint(list(trainer.model.parameters()))})
        lists = trainer.consensus.update()  # lines 14, 15
        record["validation"] = trainer.consensus.validate(lists)
        record["agreement"] = trainer.consensus.agreement(lists)
        run.notice(epoch, record["validation"], lists, trainer.consensus.votes, trainer.consensus.whole)
        record["ranking_seconds"] = time.perf_counter() - begin
        if watch_rankings is not None:
            watch_rankings(epoch, trainer, lists)
    elif epoch % run.settings.training.validate_every == 0:
        record["validation"] = trainer.consensus.validate_heads()
        run.notice(epoch, record["validation"], {}, dict)
        record["ranking_seconds"] = time.perf_counter() - begin
    run.history.append(record)
    run.epoch += 1
    run.finished = last or ("validation" in record and _patience_is_over(run, epoch))
    return record


def _beginning(run: Run, trainer: Trainer | Recipe) -> dict[str, str]:
    """What all processes must begin with."""
    return {
        "version of concf": VERSION,
        "data set": run.data.hash,
        "settings": run.settings.model_dump_json(),
        "seed": str(run.seed),
        "kind of device": trainer.device.type,
        "checkpoint": str(run.epoch),
    }


def _refuse_other_processes(run: Run, trainer: Trainer) -> None:
    """All must begin as one."""
    trainer.group.refuse_difference(
        _beginning(run, trainer)
        | {
            "teacher": str(trainer.consensus.teacher),
            "model": fingerprint(list(trainer.model.parameters())),
        }
    )


def device_of(
    wanted: str | torch.device | None, before: str | None = None, group: ProcessGroup = ALONE
) -> torch.device:
    """The device that is asked for, or as before, if it is there. Of several processes each has a GPU of its own."""
    try:
        device = torch.device(wanted or before or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"device {wanted!r}: choose cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {str(device)!r}: choose cpu or cuda")
    if device.type == "cuda" and group.several:
        device = torch.device("cuda", group.local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {str(device)!r}: PyTorch {torch.__version__} finds {torch.cuda.device_count()} GPUs here. "
            f"Say {option('device', 'cpu')}, or install PyTorch for your GPU"
        )
    if device.type == "cuda" and group.several:
        torch.cuda.set_device(device)
    return device


def _refuse_infinite(run: Run) -> None:
    """A step may have ruined what no later batch of the epoch has looked at."""
    names, parameters = zip(*run.model.named_parameters(), strict=True)
    broken = torch.stack([~parameter.detach().isfinite().all() for parameter in parameters])
    if broken.any():
        name = names[int(broken.nonzero()[0])]
        raise DataError(
            f"the parameter {name!r} is not finite after the last batch of epoch {run.epoch}. "
            "The last good checkpoint is left as it was; try a lower training.learning_rate"
        )


def _patience_is_over(run: Run, epoch: int) -> bool:
    """Whether nothing that is watched has risen for long enough: `patience` epochs, of a consensus two rankings too."""
    chosen, period = run.settings.training, run.settings.consensus.every
    if chosen.patience is None:
        return False
    one = chosen.watch if run.settings.several else run.model.names[0]
    first = run.settings.consensus.first_consensus_epoch - 1  # of all runs, so that a single head has as much time
    for name in run.best if chosen.watch == EVERYTHING else (one,):
        rests = chosen.patience if name in run.model.names else max(chosen.patience, 2 * period)
        if epoch - max(first, run.best[name].rose) < rests:
            return False
    return True
