"""An objective of one's own, alone and beside two others that it agrees with: python examples/own_objective.py"""

import torch

import concf
from concf.model.heads import DotHead


def smooth_hinge(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """sum [1 - s_ui + s_uj]_+^2: the further a pair is in the wrong order, the more it costs. Scores: [B]."""
    return torch.relu(1 - positive + negative).square().sum()


mine = {"smooth-hinge": concf.Objective(smooth_hinge, lambda size, *_: DotHead(size))}
settings = concf.choose_settings(
    "reference",
    {"objectives": ["bpr", "multinomial", *mine], "training": {"epochs": 15}, "consensus": {"every": 3, "window": 2}},
)
data = concf.prepare(concf.Simulation(users=300, items=200, events=9000).draw(seed=0), protocol="random", seed=0)

alone = concf.train(data, settings.single("smooth-hinge"), objectives=mine)
together = concf.train(data, settings, objectives=mine)
for scheme, run in (("alone", alone), ("together", together)):
    for name, result in run.evaluate(at=[20], metrics=["recall"]).items():
        print(f"{scheme:>8}: test recall@20 of {name:<13} {result.means()['recall@20']:.4f}")
