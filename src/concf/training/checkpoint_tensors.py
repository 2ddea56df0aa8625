"""The tensors of a checkpoint: what a run leaves behind, and what else its next epoch depends on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from concf.runtime.process_group import ProcessGroup
from concf.training.embeddings.sharded_file import Division
from concf.training.run import Best, Run
from concf.training.trainer import Trainer

TO_GO_ON = ("trainer/", "ranking/")  # tensors that only a run that goes on needs
KEPT = ("weights", "initial", "consensus_target")  # tensors of a trainer
RANKINGS = {r"ranking/\d+": (1, "user")}  # name: the dimension that processes divide, and what it counts
TABLES = RANKINGS | {
    r"(model|best/.+/state)/user": (1, "user"),
    r"(model|best/.+/state)/item": (1, "item"),
    r"trainer/optimiser/0/exp_avg(_sq)?": (1, "user"),  # the model's first two parameters are its tables
    r"trainer/optimiser/1/exp_avg(_sq)?": (1, "item"),
    r"best/.+/lists": (0, "user"),
    r"best/.+/votes/(items|consistency)": (1, "user"),
}


def divisions(names: Iterable[str], run: Run, group: ProcessGroup) -> dict[str, Division]:
    """How those of the tensors that no process has whole are divided."""
    counts = {"user": run.model.n_users, "item": run.model.n_items}
    known = TABLES if group.sharded else RANKINGS if group.several else {}
    found = {}
    for name in names:
        for pattern, (dim, what) in known.items():
            if re.fullmatch(pattern, name):
                found[name] = Division(dim, counts[what])
    return found


def distinct(rankings: Iterable[Tensor]) -> list[Tensor]:
    """Each ranking once: a window that stands still shares some with the queue."""
    return list({id(ranking): ranking for ranking in rankings}.values())


def places(wanted: list[Tensor], rankings: list[Tensor]) -> list[int]:
    """Which of the rankings those are."""
    return [next(place for place, each in enumerate(rankings) if each is ranking) for ranking in wanted]


def numbered(rankings: list[Tensor]) -> dict[str, Tensor]:
    """By the names that they have in a checkpoint."""
    return {f"ranking/{place}": each for place, each in enumerate(rankings)}


def results(run: Run) -> dict[str, Tensor]:
    """What a run leaves behind."""
    tensors = {f"model/{name}": tensor for name, tensor in run.model.state_dict().items()}
    for name, best in run.best.items():
        tensors |= {f"best/{name}/state/{part}": tensor for part, tensor in best.state.items()}
        tensors |= {f"best/{name}/lists": best.lists} if best.lists is not None else {}
        tensors |= {f"best/{name}/votes/{part}": tensor for part, tensor in best.votes.items()}
    return tensors


def restore_results(run: Run, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Bring the run to where they were taken."""
    run.model.load_state_dict(_under("model/", tensors))
    for name, best in state["best"].items():
        found = _under(f"best/{name}/state/", tensors)
        lists, votes = tensors.get(f"best/{name}/lists"), _under(f"best/{name}/votes/", tensors)
        run.best[name] = Best(best["validation"], best["epoch"], best["rose"], found, lists, votes)
    run.epoch, run.finished = state["epoch"], state["finished"]


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """What else the next epoch depends on, but for the rankings."""
    tensors = {f"trainer/{name}": getattr(trainer, name) for name in KEPT}
    for kind, optimiser in _optimisers(trainer).items():
        for place, parts in optimiser.state_dict()["state"].items():
            tensors |= {f"trainer/{kind}/{place}/{name}": part for name, part in parts.items() if part is not None}
    return tensors


def restore_state(trainer: Trainer, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Bring the trainer to where they were taken."""
    for name in KEPT:
        getattr(trainer, name).copy_(tensors[f"trainer/{name}"])
    for kind, optimiser in _optimisers(trainer).items():
        parts: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(f"trainer/{kind}/", tensors).items():
            place, _, part = name.partition("/")
            parts.setdefault(int(place), {})[part] = tensor
        optimiser.load_state_dict({"state": parts, "param_groups": optimiser.state_dict()["param_groups"]})
    mine = {int(place): ranking.contiguous() for place, ranking in _under("ranking/", tensors).items()}
    agreement = trainer.agreement
    agreement.n_rankings = state["rankings"]
    agreement.queue, agreement.window = ([mine[place] for place in state[name]] for name in ("queue", "window"))


def _optimisers(trainer: Trainer) -> dict[str, torch.optim.Optimizer]:
    return {"optimiser": trainer.optimiser, "weight_optimiser": trainer.weight_optimiser}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
