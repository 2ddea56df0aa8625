"""A run as large as wanted, without training: what a service's speed depends on is there, what it says is chance."""

from __future__ import annotations

from pathlib import Path

import torch

from concf.consensus.consensus import consensus
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation.ranking import rank
from concf.reference.run import ReferenceRun
from concf.reference.settings import ReferenceSettings
from concf.runs.checkpoint import RunFolder
from concf.runs.settings import CONSENSUS, R_CONSENSUS

PLACES = 100  # K


def make(folder: Path, users: int, items: int, seed: int = 0) -> Path:
    """A finished run of untrained heads and their consensus, with its data set inside."""
    log = Simulation(users=users, items=items, events=40 * users, popularity=0.3).draw(seed)
    data = prepare(log, protocol="random", seed=seed)
    settings = ReferenceSettings().changed({"model": {"initial_std": 1.0}})
    run = ReferenceRun(data, settings, seed, torch.device("cpu"))
    heads = run.model.factors()
    everyone = torch.arange(data.interactions.n_users).numpy()
    newest = torch.stack([torch.from_numpy(rank(each, everyone, PLACES, seen=data.train)) for each in heads.values()])
    consistency = torch.rand(newest.shape, generator=torch.Generator().manual_seed(seed))
    _, agreed = consensus(newest, [], data.interactions.n_items, settings.consensus.shown, top_k=PLACES)
    figures = {name: 0.1 + place / 100 for place, name in enumerate([*heads, R_CONSENSUS, CONSENSUS])}
    both = {CONSENSUS: agreed, R_CONSENSUS: agreed}
    run.notice(0, figures, both, lambda: {"items": newest.clone(), "consistency": consistency})
    run.epoch, run.finished = 1, True
    home = RunFolder(folder)
    home.begin(run)
    home.keep(data)
    home.save(run)
    return folder
