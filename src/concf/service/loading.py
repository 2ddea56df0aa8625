"""From a folder to a run that answers at once: read, checked, and what a first request would wait for made ready."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from concf.consensus.settings import CONSENSUS
from concf.errors import DataError
from concf.inference.recommender import Recommender
from concf.inference.titles import Catalogue
from concf.service.engine import Served
from concf.training.checkpoint import load_run
from concf.training.run import Run


@dataclass(frozen=True)
class Loader:
    """How runs are loaded. data: where a run's data set is, if it has moved; catalogue: a file of titles."""

    data: Path | None = None
    catalogue: Catalogue | None = None

    def __call__(self, folder: Path, version: int) -> Served:
        """The run in a folder, ready."""
        run = load_run(folder, self.data)
        leave_the_file(run)
        model = Recommender(run, frame="arrays")
        make_ready(model)
        titles: dict[Any, str] = {}
        if self.catalogue is not None:
            titles, note = self.catalogue.read(model.item_ids)
            typer.echo(f"note: {note}", err=True)
        return Served(model, folder, titles, version)


def leave_the_file(run: Run) -> None:
    """Tensors are read from the file when they are used; a file that is overwritten meanwhile would end the process."""
    for best in run.best.values():
        best.state = {name: tensor.clone() for name, tensor in best.state.items()}
        best.votes = {name: tensor.clone() for name, tensor in best.votes.items()}
        best.lists = None if best.lists is None else best.lists.clone()


def make_ready(model: Recommender) -> None:
    """Work out now what is kept for every request; refuse figures that are none."""
    ranker = model.ranker
    if not ranker.names:
        raise DataError("the run has no epoch yet; wait for its first validation")
    _ = model.viewed
    vectors = {name: ranker.factors(name) for name in ranker.heads}
    if CONSENSUS in ranker.names:
        vectors |= {f"{name} at the consensus' best": factors for name, factors in ranker.voters.items()}
    for name, factors in vectors.items():
        parts = (factors.user, factors.item, *(() if factors.bias is None else (factors.bias,)))
        if not all(bool(torch.isfinite(each).all()) for each in parts):
            raise DataError(f"the vectors of {name} are not finite: the run diverged. Train it again")
    for name in ranker.names:  # what new users are folded in by is solved for
        model.recommend(history=[], k=1, by=name)
