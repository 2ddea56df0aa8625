"""The presets, how settings are layered, and what users bring of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from concf.baselines.ease import EASE
from concf.baselines.table import BASELINES, Candidate, Vote
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError
from concf.inference.estimator import ConCF
from concf.inference.explain import about
from concf.inference.recommender import Recommender
from concf.models import PRESETS, choose_settings, load_run, train
from concf.reference.encoders import ENCODERS, Encoder
from concf.reference.heads import DotHead
from concf.reference.objectives import FIVE, OBJECTIVES, Objective
from concf.reference.settings import ReferenceSettings
from concf.reference.trainer import Trainer
from concf.strong.settings import StrongSettings


def tiny() -> Split:
    return prepare(Simulation(users=12, items=15, events=120, tastes=3).draw(1), protocol="random")


QUICK: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"every": 1, "window": 2, "top_k": 6, "length": 3},
    "training": {"epochs": 4, "batch": 32, "metric": "recall@3"},
}


def test_the_default_is_strong_and_of_one_objective_alone_the_reference() -> None:
    assert choose_settings() == PRESETS["strong"] == StrongSettings() == ConCF().settings
    assert choose_settings(single="bpr") == ReferenceSettings().single("bpr")
    assert ReferenceSettings() == PRESETS["reference"]
    assert set(PRESETS) == {"paper", "released", "reference", "strong"}


def test_settings_are_layered(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    lines = ["[consensus]", "weight = 0.2", "every = 7", 'top_k = "None"', "[training]", "batch = 64", "epochs = 9"]
    file.write_text("\n".join(lines), encoding="utf-8")
    changes = {"consensus": {"every": 8}, "training": {"epochs": 10}}
    words = ["training.epochs=11", "training.patience=none", "model.sharing = layer", "formulation=released"]
    found = choose_settings("paper", changes, file=file, words=words, single="cml")
    expected = PRESETS["paper"].model_dump()
    expected["consensus"] |= {"weight": 0.2, "every": 8, "top_k": None}
    expected["training"] |= {"batch": 64, "epochs": 11, "patience": None}
    expected["model"]["sharing"] = "layer"
    assert found.model_dump() == expected | {"objectives": ("cml",), "formulation": "released"}


def test_a_file_may_say_which_preset_it_is_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "paper"\n[training]\nepochs = 9\n', encoding="utf-8")
    expected = choose_settings("paper", {"training": {"epochs": 9}})
    assert choose_settings(file=file) == choose_settings("paper", file=file) == expected
    with pytest.raises(ConfigError, match="are over the preset 'paper', but 'strong' was named"):
        choose_settings("strong", file=file)
    for text, message in (('preset = "papers"', "unknown preset"), ("weight: 3", r"mine\.toml: cannot be read")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            choose_settings(file=file)


@pytest.mark.parametrize("word", [
    "consensus.alpha=3", "consensus.weight=-1", "consensus.weight", "consensus=3", "model.dimensions=30", "=3",
    'objectives=["bpr", "bpr"]', "consensus.non_voting=hinge", f"consensus.non_voting={list(FIVE)}",
    "model.sharing=none", "formulation=papers",
])  # fmt: skip
def test_nonsense_is_refused_by_its_name(word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_settings("reference", words=[word])
    assert word.partition("=")[0].rpartition(".")[2] in str(refused.value)


def hinge(positive: Tensor, negative: Tensor) -> Tensor:
    return torch.relu(0.5 - positive + negative).sum()


HINGE = Objective(hinge, lambda size, users, items: DotHead(size))


class Turned(Encoder):
    """Embeddings of users and items turned by a matrix of each head."""

    def __init__(self, dimensions: int, heads: int) -> None:
        super().__init__(dimensions)
        self.matrix = torch.nn.Parameter(torch.eye(dimensions).repeat(heads, 1, 1))

    def forward(self, rows: Tensor, noise: torch.Generator | None = None) -> Tensor:
        return rows @ self.matrix


def turned(dimensions: int, heads: int, sharing: str, train: Any) -> Encoder:
    return Turned(dimensions, heads)


MODULE = {"model": {"dimensions": 8, "encoder": f"{__name__}:turned"}, "objectives": ("bpr", f"{__name__}:HINGE")}
ROW = {"model": {"dimensions": 8, "encoder": "turned"}, "objectives": ("bpr", "hinge")}


def test_an_objective_and_an_encoder_of_one_s_own_are_named_by_module_or_are_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OBJECTIVES, "hinge", HINGE)
    monkeypatch.setitem(ENCODERS, "turned", turned)
    trainers = [Trainer(tiny(), ReferenceSettings().changed(QUICK, own)) for own in (MODULE, ROW)]
    for epoch in range(3):
        by_module, by_row = (trainer.epoch(epoch) for trainer in trainers)
        assert list(by_module["loss"].values()) == list(by_row["loss"].values())
        for trainer in trainers:
            trainer.consensus.update()


@pytest.mark.parametrize("changes", [
    {"objectives": ("bpr", "hinge")}, {"objectives": ("bpr", "no_such_module:x")},
    {"objectives": ("bpr", f"{__name__}:hinge")}, {"model": {"encoder": "transformer"}},
    {"model": {"encoder": f"{__name__}:QUICK"}}, {"objectives": ("bpr", "hinge#1")},
])  # fmt: skip
def test_what_cannot_be_found_is_refused_by_its_name(changes: dict[str, Any]) -> None:
    name = changes["model"]["encoder"] if "model" in changes else changes["objectives"][1]
    with pytest.raises(ConfigError, match=f"'{name}'"):
        train(tiny(), changes, preset="reference")


def test_a_voter_of_one_s_own_votes_from_its_budget_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The order is that of the table, so that votes of runs before stay where they are."""
    assert StrongSettings(budget="thorough").own_fixed == ("rp3beta", "userknn", "ease")
    monkeypatch.setitem(BASELINES, "mine", Candidate(EASE, vote=Vote({"regularisation": (50.0,)}, budget="default")))
    budgets = {budget: StrongSettings().changed({"budget": budget}) for budget in ("fast", "default", "thorough")}
    assert budgets["fast"].fixed_voters == ("rp3beta",)
    assert budgets["default"].fixed_voters == ("rp3beta", "mine")
    assert budgets["thorough"].fixed_voters == ("rp3beta", "userknn", "ease", "mine")
    data, chosen = tiny(), budgets["default"].changed({"dimensions": 8, "training": {"metric": "recall@3"}})
    run = train(data, chosen, device="cpu", out=tmp_path / "run")
    assert run.chosen["mine"] == {"regularisation": 50.0}
    assert "mine" in {each["head"] for each in Recommender(run).explain(0, 0)["heads"]}
    assert run.recommender("consensus", data.train[:2]).function(np.arange(2), 3).shape[0] == 2  # by its fold_in
    monkeypatch.setitem(BASELINES, "later", BASELINES["mine"])
    loaded = load_run(tmp_path / "run", data)
    assert (loaded.chosen, loaded.fixed_voters) == (run.chosen, ("rp3beta", "mine"))  # not the later one
    assert Recommender(loaded).explain(0, 0) == Recommender(run).explain(0, 0)
    assert [about(loaded, name) for name in ("mine", "userknn")] == ["regularisation 50", "similar users"]
    monkeypatch.delitem(BASELINES, "mine")
    with pytest.raises(ConfigError, match=r"with a voter 'mine'.*BASELINES"):
        load_run(tmp_path / "run", data)
