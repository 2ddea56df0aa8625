"""The presets row by row, how settings are layered, and what users bring of their own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipe import assert_same, small, trained
from small_recipe import data as small_log
from torch import Tensor

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError
from concf.inference.estimator import ConCF
from concf.models import PRESETS, choose_settings, preset, train
from concf.reference.encoders import Encoder
from concf.reference.heads import DotHead
from concf.reference.objectives import FIVE, Objective
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

pytestmark = pytest.mark.usefixtures("on_one_thread")

COLUMNS = ("paper", "released", "reference")
EVERYONE: tuple[str, ...] = ()
COLUMN_WISE = ("multinomial-users",)
ROWS: dict[str, tuple[Any, Any, Any]] = {  # those that differ between the columns, and what is the paper's in all
    "consensus.consistency_temperature": (10, 100, 100), "consensus.every": (20, 10, 20),
    "consensus.weight": (0.01, 0.005, 0.005), "consensus.window_moves": (True, False, True),
    "consensus.window": (5, 5, 10),
    "consensus.newest_votes": (True, False, True), "consensus.non_voting": (COLUMN_WISE, EVERYONE, EVERYONE),
    "consensus.first_consensus_epoch": (100, 51, 181),  # the Q-th ranking is made after epoch (Q - 1) p
    "consensus.weight_range": (None, (0.5, 2), (0.5, 2)), "consensus.clip": (None, 40, None),
    "training.epochs": (500, 200, 500), "training.patience": (20, None, 20), "training.weight_decay": (0, 1e-5, 1e-5),
    "balance.ratio_of": ("whole", "own", "own"), "balance.exponent": (1, 0.15, 0.15), "balance.settle": (0, 10, 10),
    "balance.total": (1, None, None), "balance.floor": (1e-4, 0.01, 0.01), "balance.norm": ("joint", "sides", "sides"),
    "balance.optimiser": ("descent", "adam", "adam"), "balance.learning_rate": (1e-4, 0.01, 0.01),
    "losses.distance": ("plain", "squared", "squared"), "losses.distance_scale": (1, 10, 10),
    "losses.error_scale": (0.5, 1, 1), "model.initial_std": (None, 0.01, 0.01), "model.dropout": (0, 0.1, 0.1),
} | {name: (value,) * 3 for name, value in {
    "consensus.temperature": 10, "consensus.top_k": 100, "consensus.kept": 500, "consensus.length": 50,
    "consensus.tail": 50, "consensus.undistilled": COLUMN_WISE, "consensus.clipped": ("bpr", "multinomial"),
    "objectives": FIVE, "balance.on": True, "balance.update": "batch", "balance.item_share": 0.5, "losses.margin": 1,
    "model.dimensions": 64, "model.encoder": "mlp", "model.sharing": "embedding", "training.learning_rate": 0.01,
    "training.batch": 1024, "training.metric": "auto", "training.validate_every": 1, "training.watch": "all",
}.items()}  # fmt: skip


def setting(chosen: RunSettings, name: str) -> Any:
    found: Any = chosen
    for part in name.split("."):
        found = getattr(found, part)
    return found


def tiny() -> Split:
    return prepare(Simulation(users=12, items=15, events=120, tastes=3).draw(1), protocol="random")


QUICK: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"every": 1, "window": 2, "top_k": 6, "kept": 8, "length": 3, "tail": 2},
    "training": {"epochs": 4, "batch": 32, "metric": "recall@3"},
}


def test_the_rows_of_the_presets() -> None:
    for name, row in ROWS.items():
        assert tuple(setting(preset(column), name) for column in COLUMNS) == row, name


def test_the_default_is_strong_and_of_one_objective_alone_the_reference() -> None:
    assert choose_settings() == preset("strong") == ConCF().settings
    assert RunSettings() == preset("reference")
    assert set(PRESETS) == {*COLUMNS, "strong"}


def test_settings_are_layered(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    lines = ["[consensus]", "weight = 0.2", "every = 7", 'tail = "None"', "[training]", "batch = 64", "epochs = 9"]
    file.write_text("\n".join(lines), encoding="utf-8")
    changes = {"consensus": {"every": 8}, "training": {"epochs": 10}}
    words = ["training.epochs=11", "training.patience=none", "model.sharing = layer", "consensus.weight_range=[0.1, 3]"]
    found = choose_settings("paper", changes, file=file, words=words, single="cml")
    expected = preset("paper").model_dump()
    expected["consensus"] |= {"weight": 0.2, "every": 8, "tail": None, "weight_range": (0.1, 3.0)}
    expected["training"] |= {"batch": 64, "epochs": 11, "patience": None, "watch": "cml"}
    expected["model"]["sharing"] = "layer"
    assert found.model_dump() == expected | {"objectives": ("cml",)}


def test_a_file_may_say_which_preset_it_is_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "paper"\n[training]\nepochs = 9\n', encoding="utf-8")
    expected = choose_settings("paper", {"training": {"epochs": 9}})
    assert choose_settings(file=file) == choose_settings("paper", file=file) == expected
    with pytest.raises(ConfigError, match="are over the preset 'paper', but 'strong' was asked for"):
        choose_settings("strong", file=file)
    for wrong in ('"papers"', "3"):
        file.write_text(f"preset = {wrong}\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="unknown preset"):
            choose_settings(file=file)


def test_a_single_head_watches_itself_whatever_was_said() -> None:
    watched = {"training": {"watch": "cml"}}
    for found in (
        choose_settings("reference", changes=watched, single="bpr"),
        choose_settings("reference", words=["training.watch=cml"], single="bpr"),
        preset("reference").single("bpr"),
    ):
        assert found == preset("reference").single("bpr")
        assert (found.objectives, found.training.watch, found.several) == (("bpr",), "bpr", False)


@pytest.mark.parametrize("word", [
    "consensus.alpha=3", "consensus.weight=-1", "consensus.weight=loud", "consensus=3", "model.dimensions=30",
    "balance.norm=both", 'objectives=["bpr", "bpr"]', "training.watch=hinge", f"consensus.non_voting={list(FIVE)}",
    f"consensus.undistilled={list(FIVE)}", "rate=1", "consensus.warm_up=0", "losses.softmax_power=1.5",
])  # fmt: skip
def test_nonsense_is_refused_by_its_name(word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_settings("reference", words=[word])
    assert word.partition("=")[0] in str(refused.value)


@pytest.mark.parametrize("word", ["consensus.weight", "=3", "model.sharing=none", "objectives=bpr,all"])
def test_words_that_say_nothing_or_contradict_each_other_are_refused(word: str) -> None:
    with pytest.raises(ConfigError):
        choose_settings("reference", words=[word])


def test_a_file_that_is_no_toml_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("weight: 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml: cannot be read"):
        choose_settings(file=file)


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


OWN_NAME = f"{__name__}:HINGE"
FORWARD = QUICK | {"model": {"dimensions": 8, "encoder": f"{__name__}:turned"}, "objectives": ("bpr", OWN_NAME)}


def test_an_objective_and_an_encoder_of_one_s_own_are_named_by_module() -> None:
    data = tiny()
    named, passed = (
        Trainer(data, choose_settings("reference", changes=FORWARD)),
        QUICK | {"objectives": ("bpr", "hinge")},
    )
    valued = Trainer(data, choose_settings("reference", changes=passed), objectives={"hinge": HINGE}, encoder=turned)
    for epoch in range(3):
        records = [trainer.epoch(epoch) for trainer in (named, valued)]
        assert list(records[0]["loss"].values()) == list(records[1]["loss"].values())
        for trainer in (named, valued):
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


def test_what_only_algorithm_1_reads_is_noted_over_a_recipe() -> None:
    unread = {
        "losses": {"unobserved": 0.3}, "model": {"dropout": 0.4, "initial_std": 0.5, "layers": 3},
        "consensus": {"weight": 0.5, "every": 3, "window": 4, "consistency_temperature": 3.0},
        "training": {"epochs": 2, "learning_rate": 0.1, "batch": 7, "weight_decay": 0.1, "patience": 1},
    }  # fmt: skip
    with pytest.warns(ConcfWarning, match=r"consensus.every, .*training.weight_decay: without effect, since only"):
        changed = choose_settings(small(), unread)
    assert_same(trained(), train(small_log(), changed, seed=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_settings("strong", {"weights": {"half_life": 3.0}, "budget": "fast", "model": {"dimensions": 8}})
        choose_settings("strong", words=["consensus.shown=30", "training.metric=recall@5", "consensus.top_k=40"])
        choose_settings("reference", unread)
