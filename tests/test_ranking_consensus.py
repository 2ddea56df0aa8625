"""How much of the consensus a head names too: against sets, its laws, and in the history of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concf.consensus.settings import CONSENSUS
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation import validation
from concf.evaluation.validation import shared_items
from concf.training.config.presets import choose_settings
from concf.training.train import train
from concf.training.trainer import Parts, Trainer
from reproduction.ablations import ABLATIONS

pytestmark = pytest.mark.usefixtures("on_one_thread")

FEW = (
    "training.epochs=3", "training.batch=64", "training.metric=recall@5", "model.dimensions=8", "model.initial_std=0.3",
    "consensus.every=2", "consensus.window=2", "consensus.top_k=8", "consensus.kept=12", "consensus.shown=12",
)  # fmt: skip
one_list = st.lists(st.integers(0, 9), unique=True, max_size=7).map(lambda items: items + [-1] * (7 - len(items)))
tables = st.integers(1, 5).flatmap(lambda users: st.lists(one_list, min_size=users, max_size=users))


def literal(lists: list[list[int]], agreed: list[list[int]], n: int) -> float:
    pairs = [(set(mine[:n]) - {-1}, set(theirs[:n]) - {-1}) for mine, theirs in zip(lists, agreed, strict=True)]
    return sum(len(mine & theirs) for mine, theirs in pairs) / max(sum(len(theirs) for _, theirs in pairs), 1)


@pytest.mark.parametrize("cells", [validation.CELLS, 22])  # all users at once, or two
@given(draw=st.data(), n=st.integers(1, 7))
def test_shared_items_against_sets(draw: Any, n: int, cells: int) -> None:
    agreed = draw.draw(tables)
    lists = {name: draw.draw(st.lists(one_list, min_size=len(agreed), max_size=len(agreed))) for name in ("a", "b")}
    given_lists = {name: torch.tensor(each, dtype=torch.int32) for name, each in lists.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "CELLS", cells)
        found = shared_items(given_lists, torch.tensor(agreed, dtype=torch.int32), n, 10)
    assert found == {name: pytest.approx(literal(each, agreed, n)) for name, each in lists.items()}


def test_the_same_items_in_any_order_agree_wholly_and_others_not_at_all() -> None:
    agreed = torch.tensor([[3, 1, 2, 9], [5, 4, 0, 9]], dtype=torch.int32)
    lists = {"same": agreed[:, [2, 0, 1, 3]], "others": agreed + 10, "nothing": torch.full_like(agreed, -1)}
    assert shared_items(lists, agreed, 3, 20) == {"same": 1.0, "others": 0.0, "nothing": 0.0}
    assert shared_items({"same": agreed}, torch.full_like(agreed, -1), 3, 20) == {"same": 0.0}  # nothing to agree with


@pytest.mark.parametrize(
    ("words", "parts"), [((), None), (("objectives=multinomial#1,multinomial#2",), ABLATIONS["PCL"])]
)
def test_the_history_says_how_much_heads_agree_whenever_they_rank(words: tuple[str, ...], parts: Parts | None) -> None:
    data = prepare(Simulation(users=25, items=30, events=400, tastes=3).draw(2), protocol="random")
    seen: dict[int, dict[str, float]] = {}

    def look(epoch: int, trainer: Trainer, lists: dict[str, torch.Tensor]) -> None:
        seen[epoch] = {name: literal(lists[name].tolist(), lists[CONSENSUS].tolist(), 5) for name in trainer.names}

    run = train(data, choose_settings("reference", words=[*FEW, *words]), watch_rankings=look, parts=parts)
    assert {each["epoch"]: each["agreement"] for each in run.history if "agreement" in each} == {
        epoch: pytest.approx(each) for epoch, each in seen.items()
    }
    assert list(seen) == [0, 2]
    assert all(0 < value <= 1 for each in seen.values() for value in each.values())


def test_one_head_has_nothing_to_agree_with() -> None:
    data = prepare(Simulation(users=25, items=30, events=400, tastes=3).draw(2), protocol="random")
    run = train(data, choose_settings("reference", words=FEW).single("bpr"))
    assert [each.get("agreement") for each in run.history] == [{}, None, {}]
