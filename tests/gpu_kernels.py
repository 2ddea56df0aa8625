"""The GPU's path against the CPU's in float64. Not collected by itself: `pytest tests/gpu_kernels.py` with a GPU.

It needs no reader of logs, so that it runs where little is installed (with --noconftest not even hypothesis).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import consensus
from concf.consensus.listwise import listwise
from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.protocols import Random
from concf.data.recipe import SplitRecipe
from concf.data.split import Split
from concf.evaluation.ranking import Seen, rank_everyone
from concf.evaluation.scorers import Factors
from concf.models import choose_settings
from concf.reference import trainer as training
from concf.reference.kernels import Sparse, listed_scores, log_partition, sum_of_gradients, two_layers
from concf.reference.objectives import OBJECTIVES
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")

TF32 = 2e-3  # of the greatest figure: products inside a tile have 10 bits of mantissa
EXACT = 1e-5
training.TF32 = False
for name in ("cml", "squared-error"):
    OBJECTIVES[f"only-votes-{name}"] = lambda *chosen, row=OBJECTIVES[name]: replace(row(*chosen), distilled=False)


@pytest.fixture(autouse=True)
def seeded_and_on_one_thread():
    """Threads of the CPU's small operations would only wait for each other."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def near(found: Tensor, expected: Tensor, share: float) -> None:
    """Equal up to a share of the greatest expected figure."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.shape == expected.shape
    if expected.numel():
        assert (found - expected).abs().max() <= share * max(expected.abs().max().item(), 1e-30)


def same(function: Callable[..., Tensor], share: float, *parts: Tensor) -> None:
    """Values and gradients on the GPU in float32, and on the CPU in float64."""
    results, upstream = [], None
    for device, kind in (("cuda", torch.float32), ("cpu", torch.float64)):
        leaves = [part.to(device, kind).requires_grad_() for part in parts]
        value = function(*leaves)
        upstream = torch.randn_like(value) if upstream is None else upstream.to(device, kind)
        results.append([value, *torch.autograd.grad(value, leaves, upstream)])
    for found, expected in zip(*results, strict=True):
        near(found, expected, share)


def placed(lists: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda beside: lists.to(beside.device)


@pytest.mark.parametrize(
    ("rows", "n", "size"), [(1, 1, 1), (7, 63, 16), (64, 64, 64), (65, 4097, 33), (1024, 25181, 16)]
)
def test_log_partition(rows: int, n: int, size: int) -> None:
    same(log_partition, TF32, torch.randn(rows, size), torch.randn(n, size), torch.randn(n))


def test_columns_that_count_for_nothing_may_fill_a_tile() -> None:
    bias = torch.randn(200)
    bias[:70] = bias[130:] = -1e9
    same(lambda rows, table: log_partition(rows, table, bias.to(rows)), TF32, torch.randn(9, 16), torch.randn(200, 16))


def test_a_log_partition_does_not_overflow() -> None:
    rows = torch.tensor([[1.0], [-1.0]], device="cuda", requires_grad=True)
    table = torch.tensor([[8192.0], [0.0], [-8192.0]], device="cuda")
    found = log_partition(rows, table, torch.zeros(3, device="cuda"))
    found.sum().backward()
    assert found.tolist() == [8192, 8192]
    assert rows.grad.tolist() == [[8192], [-8192]]


@pytest.mark.parametrize(
    ("groups", "rows", "n", "size", "length", "kind"),
    [(1, 1, 1, 1, 1, torch.int32), (3, 1, 200, 18, 100, torch.int64), (6, 129, 1000, 64, 101, torch.int32)],
)
def test_listed_scores(groups: int, rows: int, n: int, size: int, length: int, kind: torch.dtype) -> None:
    lists = placed(torch.randint(n, (rows, length), dtype=kind))
    parts = torch.randn(groups, rows, size), torch.randn(groups, rows), torch.randn(groups, n, size)
    same(lambda user, *rest: listed_scores(user, *rest, lists(user)), EXACT, *parts, torch.randn(groups, n))


@pytest.mark.parametrize("columns", [1, 65])
def test_sparse_products(columns: int) -> None:
    dense = torch.randn(70, 90) * (torch.rand(70, 90) < 0.1)
    matrix = {kind: Sparse(csr_array(dense.numpy()), kind) for kind in (torch.float32, torch.float64)}
    for both, rows in ((lambda m: m, 90), (lambda m: m.T, 70)):
        same(lambda right, b=both: b(matrix[right.dtype].to(right.device)) @ right, EXACT, torch.randn(rows, columns))


@pytest.mark.parametrize("groups", [(1, 1, 1), (1, 6, 6), (6, 6, 6), (6, 1, 6)])
@pytest.mark.parametrize(("n", "d", "k", "m"), [(1, 8, 4, 2), (301, 64, 32, 16)])
def test_two_layers(n: int, d: int, k: int, m: int, groups: tuple[int, int, int]) -> None:
    g, one, two = groups
    parts = torch.randn(g, n, d), torch.randn(one, d, k) / d**0.5, torch.randn(one, 1, k)
    more = torch.randn(two, k, m) / k**0.5, torch.randn(two, 1, m)
    same(lambda rows, w, b, v, c: two_layers(rows, (w, b), (v, c)), 5 * TF32, *parts, *more)


def test_dropout_and_its_gradient_leave_out_the_same() -> None:
    """With unit matrices the gradient of the sum is what became of a one."""
    rows = torch.ones(3, 500, 16, device="cuda", requires_grad=True)
    eye, zero = torch.eye(16, device="cuda").repeat(3, 1, 1), torch.zeros(3, 1, 16, device="cuda")
    noise = torch.Generator("cuda").manual_seed(1)
    first = two_layers(rows, (eye, zero), (eye, zero), 0.2, noise)
    second = two_layers(rows, (eye, zero), (eye, zero), 0.2, noise)
    assert torch.allclose(torch.autograd.grad(first.sum(), rows)[0], first.detach(), rtol=TF32)
    assert (first == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert first.mean().item() == pytest.approx(1.0, abs=0.03)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("taught", [True, False])
def test_sum_of_gradients(taught: bool) -> None:
    own, more = torch.randn(6, 333, 18), torch.randn(2, 333, 18) if taught else None
    found = sum_of_gradients(own.cuda(), None if more is None else more.cuda(), 3)
    expected = sum_of_gradients(own.double(), None if more is None else more.double(), 3)
    for value, exact in zip(found, expected, strict=True):
        near(value, exact, EXACT)


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize(("rows", "places", "length"), [(1, 1, 1), (50, 100, 50), (7, 33, 40)])
def test_listwise(rows: int, places: int, length: int, size: float) -> None:
    scores = torch.empty(3, rows, places).uniform_(-size, size)
    scores[0, :, places - places // 4 :] = scores[1, rows // 2 :, places // 2 :] = scores[2, 0] = -torch.inf
    weight = torch.rand(rows)
    share = max(EXACT, size * 1e-6)
    same(lambda each: listwise(each, length, weight.to(each)), share, scores)


def test_everyone_is_ranked_as_on_the_cpu() -> None:
    user, item = torch.randint(-2, 3, (40, 3)).float(), torch.randint(-2, 3, (70, 3)).float()
    factors, seen = Factors(user, item, torch.zeros(70)), csr_array((torch.rand(40, 70) < 0.3).float().numpy())
    lists = [rank_everyone(factors.to(device), 90, Seen(seen, device)).cpu() for device in ("cuda", "cpu")]
    assert torch.equal(*lists)


def test_the_consensus_is_the_cpu_s() -> None:
    lists = torch.rand(4, 5, 60, 200).argsort(3)[..., :80].to(torch.int32)
    lists[:, :, :9, 30:] = -1
    found = [
        [each.cpu() for each in consensus(lists[-1].to(device), list(lists.to(device)), 200, 120, top_k=50)]
        for device in ("cuda", "cpu")
    ]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def small(users: int = 60, items: int = 80) -> Split:
    """Six tastes."""
    rng = np.random.default_rng(0)
    there = rng.random((users, items)) < np.where(np.arange(users)[:, None] % 6 == np.arange(items) % 6, 0.6, 0.08)
    user, item = (side.astype(np.int32) for side in there.nonzero())
    ids = Ids(np.arange(users)), Ids(np.arange(items))
    recipe = SplitRecipe(source={"name": "drawn"}, protocol=Random(), seed=0)
    return Split.make(Interactions(*ids, user, item, np.ones(len(user))), recipe)


def settings(preset: str, **parts: Any) -> RunSettings:
    changes: dict[str, Any] = {
        "model": {"dimensions": 24, "dropout": 0.0, "initial_std": 0.3},
        "consensus": {"every": 1, "window": 2, "top_k": 20, "length": 20},
        "training": {"epochs": 4, "batch": 64, "metric": "recall@10"},
    }
    for name, part in parts.items():
        changes[name] = changes.get(name, {}) | part if isinstance(part, dict) else part
    return choose_settings(preset, changes)


def with_a_student(**parts: Any) -> RunSettings:
    """Two heads with a table each, that vote without learning from the consensus, as a student does."""
    apart = {"encoder": "mf", "sharing": "none", "dimensions": 24, "dropout": 0.0, "initial_std": 0.3}
    consensus = {"every": 1, "window": 2, "top_k": 20, "length": 20}
    heads = "squares=only-votes-squared-error", "cml=only-votes-cml", "student=bpr"
    more: dict[str, Any] = {"consensus": consensus | {"non_voting": ("student",)}, "balance": {"on": False}}
    return settings("reference", objectives=heads, **more, **parts | {"model": apart | parts.get("model", {})})


def close(one: dict[str, Any], other: dict[str, Any], share: float) -> None:
    """Losses up to a share; weights and gradients are more sensitive: of seven rounds one gradient was 1.2 % off."""
    for name, times in (("loss", 1), ("consensus_loss", 1), ("gradient", 20), ("weight", 10)):
        expected = pytest.approx(list(other[name].values()), rel=times * share, abs=1e-6)
        assert list(one[name].values()) == expected, name


def follow(trainer: Trainer, leader: Trainer) -> None:
    """Bring a trainer to where another is, in place.

    Distances do not change when everything moves alike, so the gradient of the metric head's bias is nothing but
    rounding while all points are in the ball. Adam makes whole steps of it: two runs part within a few epochs.
    """
    for mine, theirs in zip(*map(moving, (trainer, leader)), strict=True):
        mine.copy_(theirs)


def moving(trainer: Trainer) -> list[Tensor]:
    optimisers = (trainer.optimiser, trainer.balance.optimiser)
    states = [part for optimiser in optimisers for state in optimiser.state.values() for part in state.values()]
    parameters = [parameter.data for parameter in trainer.model.parameters()]
    return [*parameters, trainer.weights, trainer.balance.initial, trainer.consensus.target, *states]


@pytest.mark.parametrize(
    ("preset", "encoder"),
    [("paper", "mlp"), ("released", "lightgcn"), ("reference", "mlp"), ("reference", "mf"), ("student", "mf")],
)
def test_epochs_equal_those_on_the_cpu(preset: str, encoder: str) -> None:
    """Each epoch from the CPU's state, so that two items that all but tie, or a gradient of 0, do not decide."""
    model, data = {"dimensions": 24, "dropout": 0.0, "initial_std": 0.3, "encoder": encoder}, small()
    chosen = with_a_student(model=model) if preset == "student" else settings(preset, model=model)
    first, second = (Trainer(data, chosen, 3, device) for device in ("cuda", "cpu"))
    for epoch in range(4):
        close(first.epoch(epoch), second.epoch(epoch), 1e-3)
        for trainer in (first, second):
            trainer.consensus.update()
        follow(first, second)
    if second.distils(3):
        assert any(teaching for _, teaching in first.step.graphs)
