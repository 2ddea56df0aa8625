"""A loss or a parameter that is not finite ends a run by name, and the last good checkpoint stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from small_run import (
    SETS,
    SMALL,
    small_data,
)

from concf.data.split import Split
from concf.errors import DataError
from concf.model import losses
from concf.model.heads import DotHead
from concf.model.objectives import Objective
from concf.training.checkpoint import CHECKPOINT, load_run
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


def test_a_loss_that_is_not_finite_ends_the_run_by_name(concf: CLI, data: Path, tmp_path: Path) -> None:
    code, out, err = concf("train", data, "--out", tmp_path / "run", *SETS, "--set", "training.learning_rate=1e30")
    assert (code, out) == (2, "")
    assert "of head 'bpr' is nan in epoch 0, batch 1. " in err
    assert "try a lower training.learning_rate" in err


def ruined_after(batches: int) -> Objective:
    """BPR whose loss is NaN from then on."""
    calls = []

    def loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return losses.bpr(positive, negative) * (1 if len(calls) <= batches else float("nan"))

    return Objective(loss, lambda size, users, items: DotHead(size))


def test_the_last_good_checkpoint_outlives_a_loss_that_is_not_finite(data: Path, tmp_path: Path) -> None:
    split, chosen = (
        Split.load(data),
        choose_settings("reference", words=[*SMALL, "training.batch=64", 'objectives=["cml", "mine"]']),
    )
    batches = -(-split.train.nnz // 64)
    own = {"mine": ruined_after(4 * batches + 2)}
    with pytest.raises(DataError, match="the loss of head 'mine' is nan in epoch 4, batch 2"):
        train(split, chosen, out=tmp_path / "run", checkpoint_seconds=0, objectives=own, data_folder=data)
    run = load_run(tmp_path / "run", objectives=own)
    assert (run.epoch, run.finished, len(run.history)) == (4, False, 4)
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    assert set(run.evaluate(at=[5])) == {"cml", "mine", "R-consensus", "consensus"}


def test_a_step_that_ruins_a_parameter_leaves_no_checkpoint(
    concf: CLI, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.training.train.train", partial(train, checkpoint_seconds=0))
    words = ["--set", "training.batch=4096", "--set", "training.learning_rate=1e39"]
    code, _, err = concf("train", data, "--out", tmp_path / "run", "--single", "bpr", *SETS, *words)
    assert (code, "'user' is not finite after the last batch of epoch 0" in err) == (2, True), err
    assert not (tmp_path / "run" / CHECKPOINT).exists()
