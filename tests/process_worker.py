"""One of several processes, started by torchrun: trains every case, and process 0 writes what came of it.

torchrun ... process_worker.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.learning.presets import choose_settings
from concf.learning.run import Run
from concf.learning.settings import ConCFSettings
from concf.learning.train import train
from concf.learning.world import ALONE, World, joined

SEED = 5
STRONG = ("weighted-squares@0.02", "cosine-softmax@0.2", "weighted-squares@0.05#pupil")
CASES: dict[str, dict[str, Any]] = {
    "mlp": {},
    "mf": {"model": {"encoder": "mf"}},
    "lightgcn": {"model": {"encoder": "lightgcn"}},
    "paper": {"preset": "paper"},
    "released": {"preset": "released", "training": {"epochs": 5}},
    "all is shared": {"model": {"sharing": "full"}},
    "nothing is shared": {"model": {"sharing": "none"}, "balance": {"on": False}},
    "everyone is taught": {"consensus": {"untaught": ()}},
    "everything is ranked and taught": {"consensus": {"places": None, "kept": None, "tail": None}},
    "batches of two": {"training": {"batch": 2}},
    "one batch": {"training": {"batch": 4096}},
    "all unobserved pairs": {"objectives": ("bpr", "squared-error-everywhere", "multinomial")},
    "weighted squares and cosines": {"objectives": STRONG, "losses": {"unobserved": 0.2}},
    "strong": {
        "preset": "strong",
        "model": {"encoder": "mf", "sharing": "none", "spread": 0.3},
        "consensus": {"warm_up": 2},
        "balance": {"on": False},
        "training": {"steps": None, "order": "users"},
    },
    "users in order": {"training": {"order": "users"}},
    "one head": {"objectives": ("multinomial",), "training": {"watch": "multinomial"}},
    "peers": {"objectives": ("bpr", "cml", "multinomial"), "consensus": {"by": "softmax"}},
    "the weights move once an epoch": {"balance": {"update": "epoch"}},
    "the lesson carries the weight": {"consensus": {"weight_range": None, "weight": 0.3}},
    "a frozen window": {"consensus": {"window_moves": False, "newest_votes": False}, "training": {"epochs": 5}},
    "voices by validation": {"consensus": {"guests": ("rp3beta(beta=0.1)",), "trust": 0.5}},
}


def data() -> Split:
    return prepare(Simulation(users=11, items=14, events=110, tastes=3).draw(1), protocol="random")


def settings(case: str) -> ConCFSettings:
    """A preset scaled down, as in test_train.py: no dropout; decay, so that no true gradient is zero."""
    changes = dict(CASES[case])
    preset = changes.pop("preset", "reference")
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "encoder": "mlp", "dropout": 0.0, "layers": 2},
        "consensus": {"every": 1, "window": 2, "places": 6, "kept": 8, "length": 3, "tail": 6},
        "training": {"epochs": 3, "batch": 16, "weight_decay": 1e-3, "metric": "recall@3"},
    }
    if preset != "paper":
        chosen["model"]["spread"], chosen["balance"] = 0.3, {"settle": 2}
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings(preset, chosen)


def trained(case: str, world: World = ALONE) -> Run:
    return train(data(), settings(case), seed=SEED, device="cpu", world=world)


def tensors(run: Run) -> dict[str, torch.Tensor]:
    """The model, and the lists and votes of every consensus at its best."""
    found = dict(run.model.state_dict())
    for name, best in run.best.items():
        found |= {f"{name}/{part}": each for part, each in best.state.items()}
        found |= {f"{name}/lists": best.lists} if best.lists is not None else {}
        found |= {f"{name}/votes/{part}": each for part, each in best.votes.items()}
    return {name: each.contiguous().clone() for name, each in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    folder = Path(sys.argv[1])
    with joined(60) as world:
        for case in CASES:
            run = trained(case, world)
            name = case.replace(" ", "-")
            if world.writes:
                (folder / f"{name}.json").write_text(json.dumps(run.history))
            save_file(tensors(run), folder / f"{name}.{world.rank}.safetensors")


if __name__ == "__main__":
    main()
