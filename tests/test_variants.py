"""The settings of the paper's variants: what is refused, and one objective several times."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_ablations import SEED, small, tiny

from concf.errors import ConfigError
from concf.model.objectives import FIVE
from concf.training.config.presets import choose_settings
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consensus.warm_up=0"], "consensus.warm_up = 0: Input should be greater than or equal to 1"),
        (["training.watch=everyone"], "training.watch = 'everyone': no head of that name, and not the consensus"),
        (["objectives=bpr,all"], "a head cannot be called 'all'"),
        (["objectives=bpr#1,bpr#1"], "expected one or more, each once"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_settings("reference", words=words)


@pytest.mark.parametrize("name", ["hinge#1", "#1", "multinomia#2", "my:own#1"])
def test_a_kind_that_does_not_exist_is_refused_by_its_whole_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'"):
        Trainer(tiny(), small(objectives=("bpr", name)))


@pytest.mark.parametrize("kind", [*FIVE, "squared-error-everywhere"])
@pytest.mark.parametrize("sharing", ["full", "embedding", "none"])
def test_an_objective_several_times_starts_differently_each_time(kind: str, sharing: str) -> None:
    names = [f"{kind}#{start}" for start in range(1, 6)]
    chosen = choose_settings(
        small(), words=[f"objectives={','.join(names)}", f"model.sharing={sharing}", "balance.on=false"]
    )
    trainer = Trainer(tiny(), chosen, SEED)
    assert trainer.names == names
    scores = [factors.scores(torch.arange(8)) for factors in trainer.model.factors().values()]
    assert all(not torch.allclose(scores[x], scores[y]) for x in range(5) for y in range(x))
    assert len({*trainer.epoch(0)["loss"].values()}) == 5


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_warm_up_stands_in_for_the_window_in_the_first_consensus_loss_alone(
    warm_up: int, window: int, every: int
) -> None:
    for begins in ("full-window", "warm-up", "after-warm-up"):
        base = choose_settings("reference", {"consensus": {"every": every, "begins": begins}})
        given_both = choose_settings(base, {"consensus": {"window": window, "warm_up": warm_up}})
        as_window = choose_settings(base, {"consensus": {"window": warm_up}})
        assert given_both.consensus.first_consensus_epoch == as_window.consensus.first_consensus_epoch
        back = given_both.consensus.model_copy(update={"window": warm_up, "warm_up": None})
        assert back == as_window.consensus
