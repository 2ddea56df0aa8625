"""The sampled softmax by its laws: no bias of the sum, the full loss in the limit, draws by seed and epoch alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
import small_ablations
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.models import train
from concf.reference.batches import ITEMS, USERS, SampledSoftmax, distinct, proposal
from concf.reference.heads import Columns, ItemTableHead
from concf.runs.run import Run
from concf.runs.settings import RunSettings

pytestmark = pytest.mark.usefixtures("on_one_thread")

double = torch.float64
USED = csr_array(np.array([[1, 1, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]))  # two items have no user at all
EVERYTHING = [0, 1, 2, 3, 4]


def sampled(n: int, power: float, train: csr_array = USED) -> SampledSoftmax:
    return SampledSoftmax(train, n, power, torch.device("cpu"), double)


def columns(sample: SampledSoftmax, held: list[int], drawn: list[int] | Tensor, side: int = ITEMS) -> Columns:
    """Of a batch that holds such places."""
    places = torch.tensor(held)
    rows, weight = distinct(places, len(sample.log_counts[side]), double)
    return sample.columns(side, places[rows], weight, torch.as_tensor(drawn))


def softmax() -> tuple[ItemTableHead, Tensor]:
    """A table of five, and three rows."""
    torch.manual_seed(0)
    return ItemTableHead(4, 3, 5).to(double), 2 * torch.randn(3, 4, dtype=double)


@pytest.mark.parametrize(("power", "held", "side"), [(0.0, [1], ITEMS), (0.5, [3, 1, 3], ITEMS), (1.0, [2, 4], USERS)])
def test_the_mean_over_all_draws_is_the_sum_over_everything(power: float, held: list[int], side: int) -> None:
    sample = sampled(3, power, USED if side == ITEMS else csr_array(USED.T))
    chance, (head, rows) = proposal(USED.toarray().sum(0), power), softmax()
    mean, total = torch.zeros(3, dtype=double), 0.0
    for drawn in product(range(5), repeat=3):
        probability = float(np.prod(chance[list(drawn)]))
        mean += probability * head.partition(rows, columns(sample, held, list(drawn), side)).detach().exp()
        total += probability
    assert total == pytest.approx(1, rel=1e-12)
    assert mean.tolist() == pytest.approx(head.partition(rows).exp().tolist(), rel=1e-12)


def gradients(head: ItemTableHead, rows: Tensor, at: Columns | None) -> Tensor:
    """Of the log-partitions, by the table and its bias."""
    found = torch.autograd.grad(head.partition(rows, at).sum(), [head.table.weight, head.table.bias])
    return torch.cat([part.flatten() for part in found])


def test_gradients_go_to_the_full_ones_as_one_over_the_root_of_the_draws() -> None:
    head, rows = softmax()
    exact = gradients(head, rows, None)
    errors = []
    for n in (100, 10_000):
        sample = sampled(n, 0.5)
        found = [gradients(head, rows, columns(sample, [1], sample.draw(seed, 0, 0)[ITEMS])) for seed in range(5)]
        errors.append(torch.stack([(each - exact).norm() for each in found]).mean().item())
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.6)
    assert errors[1] < 2e-2 * exact.norm()


def test_a_batch_that_holds_everything_has_the_full_softmax_whatever_is_drawn() -> None:
    drawn = [4, 4, 0, 2]
    head, rows = softmax()
    at = columns(sampled(len(drawn), 0.5), [*EVERYTHING, 3, 3], drawn)
    assert head.partition(rows, at).tolist() == pytest.approx(head.partition(rows).tolist(), rel=1e-12)
    assert torch.allclose(gradients(head, rows, at), gradients(head, rows, None), rtol=0, atol=1e-12)


def test_weights_count_a_place_once_however_often_it_comes() -> None:
    """As on a GPU, where every row of the batch stands there with weight 1 / multiplicity."""
    head, rows = softmax()
    sample, drawn = sampled(2, 0.5), torch.tensor([0, 2])
    places, weight = torch.tensor([3, 1, 3, 3]), torch.tensor([1 / 3, 1, 1 / 3, 1 / 3], dtype=double)
    often = head.partition(rows, sample.columns(ITEMS, places, weight, drawn))
    assert often.tolist() == pytest.approx(head.partition(rows, columns(sample, [3, 1], drawn)).tolist(), rel=1e-12)
    spare = sample.columns(ITEMS, places, torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=double), drawn)
    assert head.partition(rows, spare).tolist() == pytest.approx(often.tolist(), rel=1e-12)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_everything_is_finite_in_float32_at_scores_of_ten_thousand(size: float) -> None:
    head = ItemTableHead(1, 3, 5)
    with torch.no_grad():
        head.table.weight.copy_(size * torch.tensor([[1.0], [-1.0], [1.0], [0.0], [1.0]]))
    sample = SampledSoftmax(USED, 3, 1.0, torch.device("cpu"), torch.float32)
    for drawn in ([1, 1, 1], [0, 2, 4]):  # all of them in the batch, none of them
        at = sample.columns(ITEMS, torch.tensor([1, 3]), torch.ones(2), torch.tensor(drawn))
        assert head.partition(torch.ones(1, 1), at).isfinite().all()
        assert gradients(head, torch.ones(1, 1), at).isfinite().all()


def test_draws_follow_the_proposal_and_depend_on_seed_epoch_and_batch_alone() -> None:
    sample = sampled(200_000, 0.5)
    drawn = sample.draw(1, 2, 3)
    for side, degree in ((ITEMS, USED.toarray().sum(0)), (USERS, USED.toarray().sum(1))):
        chance = proposal(degree, 0.5)
        assert chance.tolist() == pytest.approx((np.sqrt(1 + degree) / np.sqrt(1 + degree).sum()).tolist())
        found = np.bincount(drawn[side].numpy(), minlength=len(chance)) / 200_000
        assert np.all(np.abs(found - chance) < 5 * np.sqrt(chance / 200_000))
    assert torch.equal(drawn, sampled(200_000, 0.5).draw(1, 2, 3))
    assert not any(torch.equal(drawn, sample.draw(*key)) for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0)))


# Whole runs


def log() -> pl.DataFrame:
    return Simulation(users=8, items=12, events=70, tastes=3).draw(1)


def small(**losses: Any) -> RunSettings:
    """`reference` on a tiny log; the first epoch with consensus loss in epoch 2."""
    return small_ablations.small(
        objectives=("multinomial", "multinomial-users", "bpr"), losses=losses, model={"dropout": 0.2},
        training={"epochs": 4, "batch": 16, "patience": None},
    )  # fmt: skip


def told(run: Run) -> list[dict[str, Any]]:
    """The history without its times."""
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in run.history]


def test_the_order_of_the_log_and_the_number_of_threads_play_no_role() -> None:
    chosen = small(softmax_samples=3)
    first, second = (train(prepare(each, protocol="random"), chosen, seed=3) for each in (log(), log().reverse()))
    torch.set_num_threads(2)
    third = train(prepare(log(), protocol="random"), chosen, seed=3)
    assert told(first) == told(second) == told(third)
    assert told(first) != told(train(prepare(log(), protocol="random"), small(softmax_samples=4), seed=3))


def test_as_many_draws_as_there_are_items_and_users_is_the_full_softmax() -> None:
    data = prepare(log(), protocol="random")
    full = told(train(data, small()))
    assert told(train(data, small(softmax_samples=12))) == full
    assert told(train(data, small(softmax_samples=11))) != full
