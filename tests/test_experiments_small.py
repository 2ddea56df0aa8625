"""Cells measured on a small split: every variant gives a whole line, and lines that must agree do."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import ListFunction
from concf.reference.train import train_reference as train
from concf.reference.trainer import Parts, Trainer
from reproduction.ablations import ABLATIONS, Teacher
from reproduction.cells import measure
from reproduction.plan import Cell, choose_reference
from reproduction.sensitivity import keep_share
from reproduction.variants import SIDE_BY_SIDE, VARIANTS

SMALL = (
    "training.epochs=2", "training.batch=256", "model.dimensions=8", "consensus.every=1",
    "consensus.window=1", "consensus.length=5",
)  # fmt: skip
PER_RUN = {"provenance", "seconds"}
METRICS = {"recall@20", "ndcg@20", "recall@50", "ndcg@50"}
CONSENSUSES = ("R-consensus", "consensus")
TRAINED = [name for name in VARIANTS if name != "statistics"]
STUDENTS = ("SingleCF", "ConCF best head", "ConCF consensus")


def cell(variant: str) -> Cell:
    return Cell(variant, "small", "random", 0)


def measured_again(line: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when and where."""
    return {name: value for name, value in line.items() if name not in PER_RUN}


@cache
def data() -> Split:
    """Some held-out pairs of it are of items that never train."""
    split = prepare(Simulation(users=40, items=150, events=1300, tastes=4).draw(3), protocol="random")
    assert split.counts()["unevaluated"] > 0
    return split


@cache
def line_of(variant: str) -> dict[str, Any]:
    line = measure(cell(variant), data(), changes=SMALL)
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    return line


@pytest.mark.parametrize("variant", TRAINED)
def test_every_row_is_measured_over_all_users_and_by_their_activity(variant: str) -> None:
    line = line_of(variant)
    assert (line["split_hash"], line["changes"]) == (data().hash, [*VARIANTS[variant], *SMALL])
    assert line["rows"]
    for row in line["rows"].values():
        assert row["test"].keys() == METRICS
        users = [group["users"] for group in row["groups"]]
        assert (len(users), sum(users)) == (4, len(data().evaluated))
        weighted = sum(group["users"] * group["recall@50"] for group in row["groups"]) / sum(users)
        assert row["test"]["recall@50"] == pytest.approx(weighted, rel=1e-12)


def test_curves_are_the_test_recall_of_the_lists_of_that_epoch() -> None:
    words = [*(word for word in SMALL if not word.startswith("training.epochs")), "training.epochs=8"]
    curves = measure(cell("consistency"), data(), changes=words)["curves"]
    drawn: dict[int, dict[str, float]] = {}

    def look(epoch: int, trainer: Trainer, lists: dict[str, torch.Tensor]) -> None:
        drawn[epoch] = {}
        for name in ("bpr", *CONSENSUSES):
            shown = lists[name].numpy().copy()
            drawn[epoch][name] = evaluate(ListFunction(lambda users, _, of=shown: of[users]), data()).means()[
                "recall@50"
            ]

    train(data(), cell("consistency").settings(words), parts=Parts(watch_rankings=look))
    assert curves["epoch"] == [0, 5]
    assert curves["one"]["R"] == [drawn[epoch]["bpr"] for epoch in (0, 5)]
    assert curves["all"]["R"] == [drawn[epoch]["R-consensus"] for epoch in (0, 5)]
    assert curves["all"]["RC"] == [drawn[epoch]["consensus"] for epoch in (0, 5)]
    assert curves["one"]["RC"][0] == curves["one"]["R"][0]  # after one ranking everything is as steady
    assert [each.keys() for each in curves["tuned"]] == [{"R", "R + C", "R + 1"}] * 2


def test_ways_to_vote_are_tuned_on_validation_and_those_of_the_run_are_its_own() -> None:
    best = train(data(), choose_reference("reference", SMALL)).best["consensus"]
    found = line_of("ConCF")["controls"]
    assert found["R + C"]["untuned"]["validation"] == pytest.approx(best.validation)
    assert found["R + C"]["untuned"]["test"] == line_of("ConCF")["rows"]["consensus"]["test"]
    for kind, each in found.items():
        assert each["validation"] >= each["untuned"]["validation"]
        assert (each["T_c"] is None) == (kind != "R + C")


def test_lines_are_those_of_a_run_by_hand() -> None:
    run = train(data(), cell("ConCF-S").settings(SMALL), parts=ABLATIONS["ConCF-S"])
    for name, row in line_of("ConCF-S")["rows"].items():
        evaluation = evaluate(run.recommender(name), data())
        assert row == {
            "validation": run.best[name].validation, "epoch": run.best[name].epoch, "test": evaluation.means(),
            "groups": [
                {name: group[name] for name in ("users", "activity", "recall@50")} for group in evaluation.by_activity()
            ],
        }  # fmt: skip


def test_students_are_taught_by_the_best_single_model_or_by_all_of_them() -> None:
    chosen, rows = choose_reference("reference", SMALL), line_of("distillation")["rows"]
    teachers = train(data(), choose_reference("reference", [*SIDE_BY_SIDE, *SMALL]))
    best = rank(
        teachers.recommender(teachers.best_head()), np.arange(len(data().train.indptr) - 1), 10, seen=data().train
    )
    for name, lists in (("T1", torch.from_numpy(best)), ("T2", teachers.best["consensus"].lists)):
        taught = Parts(consensus=partial(Teacher, lists))
        alone, together = (train(data(), each, parts=taught) for each in (chosen.single("multinomial"), chosen))
        students = ((alone, "multinomial"), (together, together.best_head()), (together, "consensus"))
        for student, (run, which) in zip(STUDENTS, students, strict=True):
            evaluation = evaluate(run.recommender(which), data())
            assert rows[f"{name} > {student}"]["test"] == evaluation.means()
            assert rows[f"{name} > {student}"]["validation"] == run.best[which].validation


def test_keeping_the_share_brings_every_head_to_it() -> None:
    """With norms that stay: the consensus gradient of each head has the same scale, relative to the head's own."""
    own, norms = torch.tensor([5.0, 0.4, 36.0, 0.0]), torch.tensor([100.0, 40.0, 200.0, 7.0])
    weights = first = torch.tensor([0.005, 0.01, 0.0025, 0.005])
    for _ in range(200):
        weights = keep_share(weights, own, weights * norms, 0.3)
    assert torch.allclose((weights * norms / own)[:3], torch.tensor(0.3), rtol=1e-4)
    assert weights[3] == first[3]  # a head without a gradient of its own
    assert (keep_share(weights, own * 1e6, weights * norms, 1.0) <= 1).all()
