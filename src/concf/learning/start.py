"""The model before training."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from concf.data.split import Split
from concf.learning.settings import ConCFSettings
from concf.learning.world import ALONE, World
from concf.model.encoders import EncoderMaker
from concf.model.model import Model
from concf.model.objectives import Objective, choose


def make_model(
    data: Split,
    settings: ConCFSettings,
    objectives: Mapping[str, Objective] | None = None,
    encoder: EncoderMaker | None = None,
    seed: int = 0,
    world: World = ALONE,
) -> Model:
    """The model before training, drawn on the CPU: the same on every device. objectives, encoder: your own, if any.

    world: where it divides tables, this process's rows of them
    """
    made, shape = settings.model, data.train.shape
    held = (world.share(shape[0]), world.share(shape[1])) if world.divided else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(
            data.train, choose(settings.objectives, settings.losses, objectives), dimensions=made.dimensions,
            encoder=encoder or made.make_encoder(), sharing=made.sharing, spread=made.spread,
            selects=settings.training.selection == "one" and settings.several,
            held=held,
        )  # fmt: skip
