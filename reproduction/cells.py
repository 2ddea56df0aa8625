"""One cell of an experiment: a variant on a split under a preset, trained and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from concf.consensus.consensus import consensus
from concf.data.split import Split
from concf.evaluation.complementarity import Pairs, complementary_hit_ratio, hits_of, per_map
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors, ListFunction
from concf.evaluation.validation import Validation, fitting_metric
from concf.models import train
from concf.reference.run import ReferenceRun
from concf.reference.settings import ReferenceSettings
from concf.reference.train import train_reference
from concf.reference.trainer import Parts, Trainer
from concf.runs.run import Best, Run
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.provenance import provenance
from reproduction.ablations import ABLATIONS, Teacher
from reproduction.consistency import consistency_by_rank
from reproduction.controls import tuned
from reproduction.plan import Cell, choose_reference
from reproduction.sensitivity import StartsFrom, best_als
from reproduction.user_level import quantiles, user_level
from reproduction.variants import FROM_ALS, LIKELIHOODS, LOUDER, PAPERS_FIVE, SIDE_BY_SIDE, SIZES, VARIANTS

AT_EPOCH = 50  # where the paper looks at consistency
CURVE_EVERY = 5  # epochs between two points of a curve
GROUP = ("users", "activity", "recall@50")  # what the paper reports of a group of users


@dataclass(frozen=True)
class _Setup:
    """A cell about to be measured. words: its settings over the preset."""

    cell: Cell
    data: Split
    words: tuple[str, ...]
    device: str

    def settings(self, *words: str) -> ReferenceSettings:
        return choose_reference(self.cell.preset, [*words, *self.words])

    def train(self, settings: ReferenceSettings, **parts: Any) -> ReferenceRun:
        replaced = replace(ABLATIONS.get(self.cell.variant, Parts()), **parts)
        data = self.data.known.weighted(settings.weights)
        return train_reference(data, settings, self.cell.seed, torch.device(self.device), parts=replaced)

    def evaluate(self, recommender: Any) -> Evaluation:
        return evaluate(recommender, self.data, device=self.device)

    def of_lists(self, lists: Tensor) -> Evaluation:
        """Test figures of lists [users, ...]."""
        listed = lists.cpu().numpy()
        return self.evaluate(ListFunction(lambda users, _: torch.from_numpy(listed[users])))

    def controls(self, best: Best) -> dict[str, Any]:
        """What the rankings of a consensus give when they are voted otherwise, see `controls.tuned`."""
        assert best.lists is not None
        settings = self.settings()
        validation = Validation(self.data, fitting_metric(settings.training.metric, self.data), best.lists.device)
        shape = self.data.train.shape[1], best.lists.shape[1]

        def validated(lists: Tensor) -> float:
            return validation.of_its_users(lists[validation.users])

        return tuned(best.votes, settings.consensus, *shape, validated, self.of_lists)

    def row(self, run: Run, name: str, evaluation: Evaluation | None = None) -> dict[str, Any]:
        """A row of the line: validation and epoch of the run's best, test figures, groups of users."""
        best = run.best[name]
        return self.row_of(evaluation or self.evaluate(run.recommender(name)), best.validation, best.epoch)

    def row_of(self, evaluation: Evaluation, validation: float, epoch: int | None = None) -> dict[str, Any]:
        """A row of the line from its test figures."""
        row = {"validation": validation, "epoch": epoch, "test": evaluation.means()}
        groups = [{figure: group[figure] for figure in GROUP} for group in evaluation.by_activity()]
        return row | {"groups": groups} if self.cell.in_detail else row


def measure(cell: Cell, data: Split, device: str = "cpu", changes: Sequence[str] = ()) -> dict[str, Any]:
    """Train the cell's variant and measure it on the test part: a line of results."""
    words = VARIANTS[cell.variant]
    begin = time.perf_counter()
    setup = _Setup(cell, data, (*words, *changes), device)
    return {
        "cell": asdict(cell),
        "split_hash": data.hash,
        "changes": [*words, *changes],
        "settings": setup.settings().model_dump(mode="json"),
        **SPECIAL.get(cell.variant, _trained)(setup),
        "seconds": round(time.perf_counter() - begin, 2),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "provenance": provenance(),
    }


def _trained(setup: _Setup, **parts: Any) -> dict[str, Any]:
    run = setup.train(setup.settings(), **parts)
    evaluations = {name: setup.evaluate(run.recommender(name)) for name in run.rows()}
    heads = [name for name in run.heads if name in PAPERS_FIVE or "#" in name]
    hits = {name: hits_of(evaluations[name], setup.data) for name in heads}
    parameters = sum(each.numel() for each in run.model.parameters())
    line = {
        "rows": {name: setup.row(run, name, evaluation) for name, evaluation in evaluations.items()},
        "best_head": run.best_head(),
        "parameters": {"all": parameters, "embeddings": run.model.user.numel() + run.model.item.numel()},
        "epochs": run.epoch,
        **_complementarity(hits),
    }
    if setup.cell.in_detail and run.best.get(CONSENSUS, Best()).votes:
        line["controls"] = setup.controls(run.best[CONSENSUS])
    if setup.cell.variant == "SingleCF" and setup.cell.in_detail:  # long, and drawn for these alone
        n_items = setup.data.train.shape[1]
        line["user_chr"] = {name: quantiles(user_level(hits[name], hits.values(), n_items)) for name in hits}
    return line


def _complementarity(hits: dict[str, Pairs]) -> dict[str, Any]:
    """PER and CHR of each among all of them (Eq. 6, 7)."""
    return {"per": per_map(hits), "chr": {y: complementary_hit_ratio(hits[y], hits.values()) for y in hits}}


def _statistics(setup: _Setup) -> dict[str, Any]:
    data = setup.data
    parts = {name: int(part.nnz) for name, part in (("train", data.train), ("valid", data.valid), ("test", data.test))}
    counts = data.interactions.statistics()
    whole = {name: counts[name] for name in ("users", "items", "interactions", "events")}
    return {"statistics": whole | parts | {"evaluated_users": len(data.evaluated)}}


def _model_sizes(setup: _Setup) -> dict[str, Any]:
    """BPR alone with other dimensions; PER and CHR of each among all of them."""
    rows, hits = {}, {}
    for size in SIZES:
        run = setup.train(setup.settings().changed({"model": {"dimensions": size}}).single("bpr"))
        name, evaluation = f"bpr d={size}", setup.evaluate(run.recommender("bpr"))
        rows[name], hits[name] = setup.row(run, "bpr", evaluation), hits_of(evaluation, setup.data)
    return {"rows": rows, "best_head": max(rows, key=lambda name: rows[name]["validation"]), **_complementarity(hits)}


def _consistency(setup: _Setup) -> dict[str, Any]:
    """How consistently right and wrong predictions are ranked, and what consistency adds to a consensus over time."""
    curves: dict[str, Any] = {"epoch": [], "one": {"R": [], "RC": []}, "all": {"R": [], "RC": []}, "tuned": []}
    bins: dict[str, Any] = {}
    data, chosen = setup.data, setup.settings().consensus

    def by_rank(trainer: Trainer, head: int) -> dict[str, list[float | None]]:
        window = [rankings[head] for rankings in trainer.consensus.queue]
        temperature = chosen.consistency_temperature or chosen.temperature
        return consistency_by_rank(window[-1], window, data.test, data.valid, data.evaluated, temperature=temperature)

    def watch(epoch: int, trainer: Trainer, lists: dict[str, Tensor]) -> None:
        if epoch == min(AT_EPOCH, trainer.settings.training.epochs - 1):
            heads = [by_rank(trainer, trainer.names.index(name)) for name in PAPERS_FIVE]
            bins["one"] = heads[0]
            bins["all"] = {
                kind: [_mean(values) for values in zip(*(head[kind] for head in heads), strict=True)]
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
            for name, (r_consensus, rc_consensus) in drawn.items():
                curves[name]["R"].append(setup.of_lists(r_consensus).means()["recall@50"])
                curves[name]["RC"].append(setup.of_lists(rc_consensus).means()["recall@50"])
            voted = setup.controls(Best(lists=lists[CONSENSUS], votes=trainer.consensus.votes()))
            curves["tuned"].append({kind: each["test"]["recall@50"] for kind, each in voted.items()})

    return _trained(setup, watch_rankings=watch) | {"consistency": bins, "curves": curves}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _distillation(setup: _Setup) -> dict[str, Any]:
    """Two stages: the SingleCF models, then students of the best of them (T1) or of their RC-consensus (T2).

    CF-E hears its teacher by how large its own loss is, so that there are students for each way to count it.
    """
    chosen = setup.settings()
    teachers, lists = _teachers(setup)
    best, length = teachers.best_head(), 2 * chosen.consensus.length
    users = np.arange(setup.data.train.shape[0])
    targets = {
        "T1": torch.from_numpy(
            rank(teachers.recommender(best), users, length, seen=setup.data.train, device=setup.device)
        ),
        "T2": lists,
    }
    rows = {"T1": setup.row(teachers, best), "T2": setup.row(teachers, CONSENSUS)}
    for (name, target), (likelihood, words) in product(targets.items(), LIKELIHOODS.items()):
        counted = chosen.changed({"losses": {"likelihood": likelihood}})
        alone = setup.train(counted.single("multinomial"), consensus=partial(Teacher, target))
        rows[f"{name} > SingleCF{words}"] = setup.row(alone, "multinomial")
        if likelihood != "users":  # between the other two
            together = setup.train(counted, consensus=partial(Teacher, target))
            rows[f"{name} > ConCF best head{words}"] = setup.row(together, together.best_head())
            rows[f"{name} > ConCF consensus{words}"] = setup.row(together, CONSENSUS)
    return {"rows": rows, "best_head": best}


def _teachers(setup: _Setup) -> tuple[ReferenceRun, Tensor]:
    """The SingleCF models, and the lists of their RC-consensus."""
    teachers = setup.train(setup.settings(*SIDE_BY_SIDE))
    lists = teachers.best[CONSENSUS].lists
    assert lists is not None
    return teachers, lists.cpu()


def _taught(setup: _Setup) -> dict[str, Any]:
    """CF-E alone as a student of T2, by how loudly it hears its teacher."""
    teachers, lists = _teachers(setup)
    rows = {"T2": setup.row(teachers, CONSENSUS)}
    for name, words in LOUDER.items():
        parts = ABLATIONS.get(name, Parts())
        chosen = setup.settings(*words).single("multinomial")
        student = setup.train(chosen, consensus=partial(Teacher, lists), trainer=parts.trainer)
        rows[f"T2 > SingleCF, {name}"] = setup.row(student, "multinomial")
    return {"rows": rows, "best_head": teachers.best_head()}


def _from_als(setup: _Setup) -> dict[str, Any]:
    """Heads that start from the vectors of ALS, and ALS itself."""
    begin = time.perf_counter()
    known, size = setup.data.known, setup.settings().model.dimensions
    metric = fitting_metric("auto", known)

    def validation(factors: Factors) -> float:
        name, _, n = metric.partition("@")
        return evaluate(factors, known, device=setup.device, on="valid", at=int(n), metrics=name).means()[metric]

    base = best_als(known.train, size, setup.cell.seed, setup.device, validation)
    seconds = time.perf_counter() - begin
    line = _trained(setup, head_losses=partial(StartsFrom, base))
    line["rows"]["ALS"] = setup.row_of(setup.evaluate(base), validation(base))
    return line | {"base_seconds": round(seconds, 2)}


def _strong(setup: _Setup) -> dict[str, Any]:
    """The preset `strong`, which is no setting of Algorithm 1."""
    run = train(setup.data, preset="strong", seed=setup.cell.seed, device=setup.device)
    return {"rows": {name: setup.row(run, name) for name in run.rows()}, "best_head": run.best_head()}


SPECIAL: dict[str, Callable[[_Setup], dict[str, Any]]] = {
    "statistics": _statistics,
    "model sizes": _model_sizes,
    "consistency": _consistency,
    "distillation": _distillation,
    "taught CF-E": _taught,
    **dict.fromkeys(FROM_ALS, _from_als),
    "strong": _strong,
}
