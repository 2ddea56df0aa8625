"""The two models: `strong`, the default, and `reference`, the paper's. Presets and training of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from concf.data.split import Split
from concf.errors import ConfigError
from concf.loading import load_run as load_run
from concf.loading import run_settings
from concf.reference.settings import ReferenceSettings
from concf.reference.train import train_reference
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job, as_watchers, device_of
from concf.runs.run import Run
from concf.runs.settings import RunSettings, from_word
from concf.runs.watchers import Watch
from concf.runtime.arguments import check_seed
from concf.runtime.settings import flat, read_toml
from concf.strong.settings import StrongSettings
from concf.strong.train import train_strong

MODELS: dict[str, type[RunSettings]] = {each.kind: each for each in (StrongSettings, ReferenceSettings)}
PRESETS: dict[str, RunSettings] = ReferenceSettings.presets | StrongSettings.presets
OPTIONS = {"budget": "budget (--budget)", "refit": "refit (--final)"}  # settings with an option of their own
DEFAULT, DEFAULT_OF_ONE = "strong", "reference"  # presets by default, and for one objective alone


def train(
    data: Split, settings: RunSettings | Mapping[str, Any] | None = None, *, preset: str | None = None,
    seed: int | None = None, device: str | torch.device | None = None, out: str | Path | None = None,
    resume: bool = False, watch: Watch | Sequence[Watch] | None = None,
) -> Run:  # fmt: skip
    """Train on the training part; every head and the consensus is kept at its best validation.

    settings: all of them, or changes to the preset such as {"budget": "fast"}
    preset:   strong (the default), reference, paper or released
    seed:     0 by default
    device:   cpu or cuda; by default a GPU if there is one
    out:      a folder for history and checkpoints
    resume:   continue the run in `out`, to exactly the same result as if it had not been killed; settings, seed and
              device default to the run's own
    watch:    called with the record of every epoch or stage; one function or several
    """
    if resume and out is None:
        raise ConfigError("to resume, set out= to the folder of the run")
    if isinstance(settings, RunSettings) and preset is not None:
        raise ConfigError(f"preset {preset!r} and all the settings were given. Leave one of them out")
    folder = None if out is None else RunFolder(out)
    if not isinstance(settings, RunSettings):
        before = run_settings(folder) if resume and folder is not None and preset is None else preset
        settings = choose_settings(before, settings)
    return train_job(data, settings, Job(folder, resume, watchers=as_watchers(watch)), seed, device)


def train_job(
    data: Split, settings: RunSettings, job: Job, seed: int | None = None, device: str | torch.device | None = None
) -> Run:
    """Train a model in the circumstances of a job. seed, device: by default those of a resumed run"""
    if not isinstance(data, Split):
        raise ConfigError(f"expected a Split, found {type(data).__name__}. concf.prepare(log) makes one")
    before = job.folder.description() if job.resume and job.folder is not None else {}
    seed = before.get("seed", 0) if seed is None else check_seed(seed)
    data, device = data.known.weighted(settings.weights), device_of(device, before.get("device"), job.group)
    if job.group.size > (users := data.interactions.n_users):
        raise ConfigError(f"{job.group.size} processes for {users} users: expected no more processes than users")
    if isinstance(settings, StrongSettings):
        return train_strong(data, settings, seed, device, job)
    assert isinstance(settings, ReferenceSettings)
    return train_reference(data, settings, seed, device, job)


def choose_settings(
    base: str | RunSettings | None = None, changes: Mapping[str, Any] | None = None, *,
    file: str | Path | None = None, words: Iterable[str] = (), single: str | None = None,
) -> RunSettings:  # fmt: skip
    """Return a preset or settings with changes: a TOML file, then nested `changes`, then words as `consensus.weight=0`.

    single: an objective that is trained alone. A file may name its preset: `preset = "reference"`. If none is named, it
    is strong, or with `single` reference.
    """
    layer = read_toml(Path(file)) if file else {}
    over = layer.pop("preset", None)
    if isinstance(base, str) and over not in (None, base):
        raise ConfigError(f"{file}: its settings are over the preset {over!r}, but {base!r} was named. Name none")
    if base is None:
        base = (DEFAULT if single is None else DEFAULT_OF_ONE) if over is None else over
    if not isinstance(base, RunSettings):
        if not isinstance(base, str) or base not in PRESETS:
            raise ConfigError(f"unknown preset {base!r}; choose from {', '.join(PRESETS)}")
        base = PRESETS[base]
    layers = [layer, changes or {}, *map(from_word, words)]
    if single is not None and not isinstance(base, ReferenceSettings):
        raise ConfigError(f"one objective alone ({single}) is trained by Algorithm 1: choose the preset reference")
    other = next(each for each in MODELS.values() if not isinstance(base, each))
    own, theirs = (flat(each.model_dump()) for each in (base, next(iter(other.presets.values()))))
    foreign = sorted({name for each in layers for name in flat(each)} - own.keys())
    if foreign and set(foreign) <= theirs.keys():
        settings = ", ".join(OPTIONS.get(name, name) for name in foreign)
        fix = f"Choose a preset of that model (--preset {other.kind}, in Python preset={other.kind!r}), or leave it out"
        raise ConfigError(f"{settings}: of the model {other.kind}, and this is {base.kind}. {fix}")
    if single is not None:
        layers.append({"objectives": (single,)})
    return base.changed(*layers)
