"""One cell of an experiment: a variant on a split under a preset, trained and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from concf.consensus.complementarity import (
    Pairs,
    chr_of_each,
    hits_of,
    per_map,
    quantiles,
    steadiness_by_rank,
    user_level,
)
from concf.consensus.consensus import consensus
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.ranking import rank
from concf.experiments.paper.ablations import ABLATIONS
from concf.experiments.paper.plan import Cell
from concf.experiments.paper.variants import PAPERS_FIVE, SIDE_BY_SIDE, SIZES, VARIANTS
from concf.model.scorers import ListFunction
from concf.runtime.provenance import provenance
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run
from concf.training.train import train
from concf.training.trainer import Trainer

AT_EPOCH = 50  # where the paper looks at consistency
OF_A_GROUP = ("users", "activity", "recall@50")  # what the paper tells of user groups
CURVE_EVERY = 5  # epochs between two points of a curve


@dataclass(frozen=True)
class _Setup:
    """A cell about to be measured. words: its settings over the preset."""

    cell: Cell
    data: Split
    words: tuple[str, ...]
    device: str

    def settings(self, *words: str) -> ConCFSettings:
        return choose_settings(self.cell.preset, words=[*words, *self.words])

    def train(self, settings: ConCFSettings, **options: Any) -> Run:
        parts = ABLATIONS.get(self.cell.variant)
        return train(self.data, settings, seed=self.cell.seed, device=self.device, parts=parts, **options)

    def evaluate(self, recommender: Any) -> Evaluation:
        return evaluate(recommender, self.data, device=self.device)


def measure(cell: Cell, data: Split, device: str = "cpu", changes: Sequence[str] = ()) -> dict[str, Any]:
    """Train the cell's variant and measure it on the test part: a line of results."""
    words = VARIANTS[cell.variant]
    begin = time.perf_counter()
    setup = _Setup(cell, data, (*words, *changes), device)
    found = SPECIAL.get(cell.variant, _trained)(setup)
    return {
        "cell": asdict(cell),
        "split_hash": data.hash,
        "changes": [*words, *changes],
        "settings": setup.settings().model_dump(mode="json"),
        **found,
        "seconds": round(time.perf_counter() - begin, 2),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "provenance": provenance(),
    }


def _trained(setup: _Setup, **options: Any) -> dict[str, Any]:
    run = setup.train(setup.settings(), **options)
    found = {name: setup.evaluate(run.recommender(name)) for name in run.rows()}
    heads = [name for name in run.model.names if name in PAPERS_FIVE or "#" in name]
    known = {name: hits_of(found[name], setup.data) for name in heads}
    drawn = setup.cell.variant == "SingleCF" and setup.cell.in_detail
    more = {"user_chr": _user_chr(known, setup.data)} if drawn else {}
    described = _described(run, found) | _complementary(known) | more
    if not setup.cell.in_detail:
        described["rows"] = {
            name: {part: row[part] for part in row if part != "groups"} for name, row in described["rows"].items()
        }
    return described


def _described(run: Run, found: dict[str, Evaluation]) -> dict[str, Any]:
    embeddings = run.model.user.numel() + run.model.item.numel()
    return {
        "rows": {name: _row(run, name, each) for name, each in found.items()},
        "best_head": run.best_head(),
        "parameters": {"all": sum(each.numel() for each in run.model.parameters()), "embeddings": embeddings},
        "epochs": run.epoch,
    }


def _row(run: Run, name: str, found: Evaluation) -> dict[str, Any]:
    best = run.best[name]
    groups = [{figure: group[figure] for figure in OF_A_GROUP} for group in found.by_activity()]
    return {"validation": best.validation, "epoch": best.epoch, "test": found.means(), "groups": groups}


def _complementary(hits: dict[str, Pairs]) -> dict[str, Any]:
    """PER and CHR of each among all of them (Eq. 6, 7)."""
    return {"per": per_map(hits), "chr": chr_of_each(hits)}


def _user_chr(hits: dict[str, Pairs], data: Split) -> dict[str, list[float]]:
    """The CDF of user-level CHR: of the models that the paper draws it for, since it is long."""
    return {name: quantiles(user_level(hits[name], hits.values(), data.train.shape[1])) for name in hits}


def _statistics(setup: _Setup) -> dict[str, Any]:
    data = setup.data
    parts = {name: int(part.nnz) for name, part in (("train", data.train), ("valid", data.valid), ("test", data.test))}
    counts = data.interactions.statistics()
    whole = {name: counts[name] for name in ("users", "items", "interactions", "events")}
    return {"statistics": whole | parts | {"evaluated_users": len(data.evaluated)}}


def _model_sizes(setup: _Setup) -> dict[str, Any]:
    """BPR alone with other dimensions; CHR of each among all of them."""
    found, rows = {}, {}
    for size in SIZES:
        sized = choose_settings(setup.settings(), {"model": {"dimensions": size}}, single="bpr")
        run = setup.train(sized)
        name = f"bpr d={size}"
        found[name] = setup.evaluate(run.recommender("bpr"))
        rows[name] = _row(run, "bpr", found[name])
    return {"rows": rows, "best_head": max(rows, key=lambda name: rows[name]["validation"])} | _complementary(
        {name: hits_of(each, setup.data) for name, each in found.items()}
    )


def _steadiness(setup: _Setup) -> dict[str, Any]:
    """How consistently right and wrong predictions are ranked, and what consistency adds to a consensus over time."""
    curves: dict[str, Any] = {"epoch": [], "one": {"R": [], "RC": []}, "all": {"R": [], "RC": []}}
    bins: dict[str, Any] = {}
    chosen = setup.settings().consensus

    def recall(lists: Tensor) -> float:
        listed = lists.cpu().numpy()
        return setup.evaluate(ListFunction(lambda users, _: torch.from_numpy(listed[users]))).means()["recall@50"]

    def look(epoch: int, trainer: Trainer, lists: dict[str, Tensor]) -> None:
        if epoch == min(AT_EPOCH, trainer.settings.training.epochs - 1):
            places = [trainer.names.index(name) for name in PAPERS_FIVE]
            heads = [
                steadiness_by_rank(
                    trainer.consensus.queue[-1][place], [each[place] for each in trainer.consensus.queue],
                    setup.data.test,
                    setup.data.valid, setup.data.evaluated,
                    temperature=chosen.consistency_temperature or chosen.temperature,
                )
                for place in places
            ]  # fmt: skip
            bins["one"] = heads[0]
            bins["all"] = {
                kind: [_mean([head[kind][place] for head in heads]) for place in range(len(heads[0][kind]))]
                for kind in heads[0]
            }
        if epoch % CURVE_EVERY == 0:
            one, _ = consensus(
                trainer.consensus.queue[-1], trainer.consensus.window, trainer.model.n_items,
                trainer.consensus.target.shape[1] + 100,
                voters=[0], top_k=chosen.top_k or trainer.model.n_items, temperature=chosen.temperature,
                consistency_temperature=chosen.consistency_temperature,
            )  # fmt: skip
            curves["epoch"].append(epoch)
            drawn = {"one": (lists[trainer.names[0]], one), "all": (lists[R_CONSENSUS], lists[CONSENSUS])}
            for name, (by_rank, both) in drawn.items():
                curves[name]["R"].append(recall(by_rank))
                curves[name]["RC"].append(recall(both))

    return _trained(setup, watch_rankings=look) | {"consistency": bins, "curves": curves}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _distillation(setup: _Setup) -> dict[str, Any]:
    """Two stages: the SingleCF models, then students of the best of them (T1) or of their RC-consensus (T2)."""
    chosen = setup.settings()
    teachers = setup.train(setup.settings(*SIDE_BY_SIDE))
    best, length = teachers.best_head(), chosen.consensus.length + (chosen.consensus.tail or 0)
    everyone, lists = torch.arange(setup.data.train.shape[0]).numpy(), teachers.best[CONSENSUS].lists
    assert lists is not None
    taught = {
        "T1": rank(teachers.recommender(best), everyone, length, seen=setup.data.train, device=setup.device),
        "T2": lists.cpu().numpy(),
    }
    rows = {
        "T1": _row(teachers, best, setup.evaluate(teachers.recommender(best))),
        "T2": _row(teachers, CONSENSUS, setup.evaluate(teachers.recommender(CONSENSUS))),
    }
    for name, consensus_target in taught.items():
        alone = setup.train(chosen.single("multinomial"), teacher=consensus_target)
        together = setup.train(chosen, teacher=consensus_target)
        students = ((f"{name} > SingleCF", alone, "multinomial"),
                    (f"{name} > ConCF best head", together, together.best_head()),
                    (f"{name} > ConCF consensus", together, CONSENSUS))  # fmt: skip
        for row, run, which in students:
            rows[row] = _row(run, which, setup.evaluate(run.recommender(which)))
    return {"rows": rows, "best_head": best}


SPECIAL: dict[str, Callable[[_Setup], dict[str, Any]]] = {
    "statistics": _statistics,
    "model sizes": _model_sizes,
    "consistency": _steadiness,
    "distillation": _distillation,
}
