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
from concf.model.encoders import Encoder
from concf.model.heads import DotHead
from concf.model.objectives import FIVE, Objective
from concf.training.config.presets import PRESETS, choose_settings, preset
from concf.training.config.settings import ConCFSettings
from concf.training.train import train
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")

COLUMNS = ("paper", "released", "reference")
EVERYONE: tuple[str, ...] = ()
COLUMN_WISE = ("multinomial-users",)
ROWS: dict[str, tuple[Any, Any, Any]] = {
    "consensus.temperature": (10, 10, 10),
    "consensus.consistency_temperature": (10, 100, 100),
    "consensus.every": (20, 10, 20),
    "consensus.window": (5, 5, 10),
    "consensus.weight": (0.01, 0.005, 0.005),
    "training.epochs": (500, 200, 500),
    "training.patience": (20, None, 20),
    "consensus.top_k": (100, 100, 100),
    "consensus.kept": (500, 500, 500),
    "consensus.length": (50, 50, 50),
    "consensus.tail": (50, 50, 50),
    "consensus.window_moves": (True, False, True),
    "consensus.newest_votes": (True, False, True),
    "consensus.first_consensus_epoch": (
        5 * 20,
        5 * 10 + 1,
        9 * 20 + 1,
    ),  # the Q-th ranking is made after epoch (Q - 1) p
    "consensus.non_voting": (COLUMN_WISE, EVERYONE, EVERYONE),
    "consensus.undistilled": (COLUMN_WISE, COLUMN_WISE, COLUMN_WISE),
    "objectives": (FIVE, FIVE, FIVE),
    "balance.on": (True, True, True),
    "balance.update": ("batch", "batch", "batch"),
    "balance.ratio_of": ("whole", "own", "own"),
    "balance.exponent": (1, 0.15, 0.15),
    "balance.settle": (0, 10, 10),
    "balance.total": (1, None, None),
    "balance.floor": (1e-4, 0.01, 0.01),
    "balance.optimiser": ("descent", "adam", "adam"),
    "balance.learning_rate": (1e-4, 0.01, 0.01),
    "balance.norm": ("joint", "sides", "sides"),
    "balance.item_share": (0.5, 0.5, 0.5),
    "consensus.weight_range": (None, (0.5, 2), (0.5, 2)),
    "losses.distance": ("plain", "squared", "squared"),
    "losses.margin": (1, 1, 1),
    "losses.distance_scale": (1, 10, 10),
    "losses.error_scale": (0.5, 1, 1),
    "consensus.clip": (None, 40, None),
    "consensus.clipped": (("bpr", "multinomial"),) * 3,
    "model.initial_std": (None, 0.01, 0.01),
    "model.dropout": (0, 0.1, 0.1),
    "training.weight_decay": (0, 1e-5, 1e-5),
    "model.dimensions": (64, 64, 64),
    "model.encoder": ("mlp", "mlp", "mlp"),
    "model.sharing": ("embedding", "embedding", "embedding"),
    "training.learning_rate": (0.01, 0.01, 0.01),
    "training.batch": (1024, 1024, 1024),
    "training.metric": ("auto", "auto", "auto"),
    "training.validate_every": (1, 1, 1),
    "training.watch": ("all", "all", "all"),
}


def setting(chosen: ConCFSettings, name: str) -> Any:
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


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_presets(name: str) -> None:
    assert tuple(setting(preset(column), name) for column in COLUMNS) == ROWS[name]


def test_every_setting_that_two_presets_do_not_share_has_its_row() -> None:
    chosen = [PRESETS[column].model_dump() for column in COLUMNS]
    for part in ("losses", "model", "consensus", "balance", "training"):
        for name in chosen[0][part]:
            values = [each[part][name] for each in chosen]
            if values != values[:1] * 3 and name != "begins":  # which is read as `first_consensus_epoch`
                assert f"{part}.{name}" in ROWS


def test_the_default_is_strong_and_of_one_objective_alone_the_reference() -> None:
    assert choose_settings() == preset("strong") == ConCF().settings
    assert ConCFSettings() == preset("reference")
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
    for wrong in ('"papers"', "3", '""', "false", "[]"):
        file.write_text(f"preset = {wrong}\n", encoding="utf-8")
        for base in (None, preset("paper")):
            with pytest.raises(ConfigError, match="unknown preset"):
                choose_settings(base, file=file)
    with pytest.raises(ConfigError, match="unknown preset ''"):
        choose_settings("")


def test_settings_may_be_changed_too() -> None:
    once = choose_settings("paper", {"training": {"epochs": 3}})
    assert choose_settings(once, {"training": {"batch": 7}}) == choose_settings(
        "paper", {"training": {"epochs": 3, "batch": 7}}
    )


def test_the_last_of_two_words_counts() -> None:
    assert choose_settings("reference", words=["training.epochs=3", "training.epochs=4"]).training.epochs == 4


def test_a_single_head_watches_itself_whatever_was_said() -> None:
    watched = {"training": {"watch": "cml"}}
    for found in (
        choose_settings(single="bpr"),
        choose_settings("reference", changes=watched, single="bpr"),
        choose_settings("reference", words=["training.watch=cml"], single="bpr"),
        preset("reference").single("bpr"),
    ):
        assert found == preset("reference").single("bpr")
        assert (found.objectives, found.training.watch, found.several) == (("bpr",), "bpr", False)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("consensus.alpha=3", "consensus.alpha"),
        ("consensus.weight=-1", "consensus.weight"),
        ("consensus.weight=loud", "consensus.weight"),
        ("consensus=3", "consensus"),
        ("model.dimensions=30", "model.dimensions"),
        ("model.dropout=1", "model.dropout"),
        ("balance.norm=both", "balance.norm"),
        ("losses.distance=cubic", "losses.distance"),
        ("training.epochs=0", "training.epochs"),
        ("objectives=[]", "objectives"),
        ('objectives=["bpr", "bpr"]', "objectives"),
        ("model.sharing=none", "balance.on = false"),
        ("training.watch=hinge", "training.watch = 'hinge'"),
        (f"consensus.non_voting={list(FIVE)}", "consensus.non_voting"),
        (f"consensus.undistilled={list(FIVE)}", "consensus.undistilled"),
        ("rate=1", "rate"),
        ("consensus.weight", "'consensus.weight': expected name=value"),
        ("=3", "'=3': expected name=value"),
    ],
)
def test_nonsense_is_refused_by_its_name(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_settings("reference", words=[word])
    assert message in str(refused.value)


def test_a_file_that_is_no_toml_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    with pytest.raises(ConfigError, match=r"bad\.toml: cannot be read"):
        choose_settings(file=file)
    file.write_text("weight: 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml: cannot be read"):
        choose_settings(file=file)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'papper'; choose from paper, released, reference"):
        choose_settings("papper")


def test_training_takes_changes_to_a_preset() -> None:
    run = train(tiny(), QUICK, preset="paper")
    assert run.settings == choose_settings("paper", QUICK)
    assert len(run.history) == 4


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


def test_an_objective_and_an_encoder_of_one_s_own_are_passed_as_values() -> None:
    run = train(
        tiny(),
        QUICK | {"objectives": ("bpr", "hinge")},
        preset="reference",
        objectives={"hinge": HINGE},
        encoder=turned,
    )
    assert run.rows() == ["bpr", "hinge", "R-consensus", "consensus"]
    assert isinstance(run.model.encoder, Turned)
    assert len(run.keep("hinge").encoder.matrix) == 1
    assert all(record["consensus_loss"]["hinge"] > 0 for record in run.history[2:])


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


def test_an_objective_of_one_s_own_may_take_the_place_of_a_known_one() -> None:
    trainer = Trainer(tiny(), choose_settings("reference", changes=QUICK), objectives={"bpr": HINGE})
    assert trainer.head_losses.objectives["bpr"] is HINGE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": ("bpr", "hinge")}, "unknown objective 'hinge'"),
        ({"objectives": ("bpr", f"{__name__}:nowhere")}, f"'{__name__}:nowhere' cannot be imported"),
        ({"objectives": ("bpr", "no_such_module:x")}, "'no_such_module:x' cannot be imported"),
        ({"objectives": ("bpr", f"{__name__}:hinge")}, "function, not an Objective"),
        ({"model": {"encoder": "transformer"}}, "unknown encoder 'transformer'; choose from mlp, mf, lightgcn"),
        ({"model": {"encoder": f"{__name__}:QUICK"}}, f"unknown encoder '{__name__}:QUICK'"),
        ({"model": {"encoder": "no_such_module:x"}}, "'no_such_module:x' cannot be imported"),
    ],
)
def test_what_cannot_be_found_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tiny(), changes, preset="reference")
    assert message in str(refused.value)


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
        choose_settings(
            "strong", {"weights": {"half_life": 3.0}, "recipe": {"budget": "fast"}, "model": {"dimensions": 8}}
        )
        choose_settings("strong", words=["consensus.shown=30", "training.metric=recall@5", "consensus.top_k=40"])
        choose_settings("reference", unread)
