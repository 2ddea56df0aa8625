"""ConCF-S: a pair trains the one head that is drawn for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import literal_branch
import pytest
import torch
from small_ablations import SEED, generator, small, tiny
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.model.model import Model
from concf.model.objectives import FIVE
from concf.runtime.seeds import derive_seed
from concf.training.batches import Batch, Sampler
from concf.training.config.settings import ConCFSettings
from concf.training.head_losses import HeadLosses
from concf.training.train import train as train_anywhere
from concf.training.trainer import Parts, Trainer
from reproduction.ablations import ABLATIONS, Selector

pytestmark = pytest.mark.usefixtures("on_one_thread")

train = partial(train_anywhere, device="cpu")
SELECTED, PLAIN = ABLATIONS["ConCF-S"], Parts()


def a_selector(dimensions: int, heads: int) -> Selector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Selector(dimensions, heads)


def test_a_selector_draws_one_head_a_pair() -> None:
    selector, pairs = a_selector(4, 5), torch.randn(2, 20_000, 4, generator=generator(3))
    drawn = selector(*pairs, generator(7)).detach()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}  # not nearly: a pair that is not drawn costs nothing
    assert (drawn.sum(1) == 1).all()
    assert torch.equal(selector(*pairs, generator(7)), selector(*pairs, generator(7)))
    assert not torch.equal(selector(*pairs, generator(8)).detach(), drawn)


def logits_by_hand(selector: Selector, user: Tensor, item: Tensor) -> Tensor:
    """[B, heads] each head's linear map of both embeddings, standardised over the batch."""
    mapped = torch.cat([user, item], 1) @ selector.map.weight.T
    columns = []
    for column in mapped.unbind(1):
        mean = sum(column) / len(column)
        deviation = (sum((each - mean) ** 2 for each in column) / len(column)) ** 0.5
        columns.append((column - mean) / (deviation + 1e-6))
    return torch.stack(columns, 1)


def test_heads_are_drawn_as_often_as_the_softmax_says(in_double: None) -> None:
    times, selector, rows = 40_000, a_selector(3, 4), torch.randn(2, 5, 3, generator=generator(1))
    repeated = rows.repeat(1, times, 1)
    share = selector(*repeated, generator(11)).detach().view(times, 5, 4).mean(0)
    expected = logits_by_hand(selector, *rows).softmax(1)
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / times).sqrt()).all()
    assert expected.max() > 0.6  # it is no even draw


def test_the_choice_is_hard_and_its_gradient_that_of_the_soft_choice(in_double: None) -> None:
    selector, (user, item) = a_selector(3, 4), torch.randn(2, 6, 3, generator=generator(2)).unbind()
    cost, uniform = (torch.rand(6, 4, generator=generator(seed)) for seed in (4, 9))
    soft = torch.softmax(logits_by_hand(selector, user, item) - torch.log(-torch.log(uniform)), 1)
    drawn = selector(user, item, generator(9))
    assert drawn.argmax(1).tolist() == soft.argmax(1).tolist()
    for parameter in selector.parameters():
        gradient, expected = (torch.autograd.grad((each * cost).sum(), parameter)[0] for each in (drawn, soft))
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-3


def test_the_size_of_a_heads_logits_is_no_reason_to_draw_it() -> None:
    selector, pairs = a_selector(4, 3), torch.randn(2, 5000, 4, generator=generator(5))
    before = selector(*pairs, generator(6)).detach()
    with torch.no_grad():
        selector.map.weight.mul_(torch.tensor([1e3, 1.0, 7.0])[:, None])
    after = selector(*pairs, generator(6)).detach()
    assert (after.argmax(1) == before.argmax(1)).float().mean() > 0.999
    assert (before.sum(0) > 1000).all()


@pytest.mark.parametrize(
    "pairs", [torch.ones(2, 1, 4), torch.ones(2, 6, 4), torch.zeros(2, 6, 4), 1e20 * torch.ones(2, 6, 4)]
)
def test_pairs_that_are_all_alike_are_drawn_for_evenly(pairs: Tensor) -> None:
    selector = a_selector(4, 3)
    drawn = selector(*pairs, generator(0))
    assert (drawn.sum(1) == 1).all()
    (gradient,) = torch.autograd.grad((drawn * torch.arange(3.0)).sum(), selector.map.weight)
    assert gradient.isfinite().all()


def cost_of_pair(branch: literal_branch.Branch, u: int, i: int, j: int) -> Tensor:
    """What an observed pair (u, i) with the unobserved (u, j) costs a head by itself."""
    if branch.name == "multinomial":
        return branch.scores[u].exp().sum().log() - branch.scores[u, i]
    if branch.name == "multinomial-users":
        return -branch.scores[u, i]  # log p(u | i) = s_iu - log Z_i
    return branch.own_loss([u], [i], [j])


def costs_of_pairs(model: Model, chosen: ConCFSettings, data: Split, epoch: int) -> Tensor:
    """[B, heads] for every pair of the epoch."""
    drawn = Sampler(data.train).epoch(SEED, epoch)
    triples = list(zip(drawn.user.tolist(), drawn.positive.tolist(), drawn.negative.tolist(), strict=True))
    head_losses = [literal_branch.Branch(model, name, data.train, chosen) for name in model.names]
    return torch.stack([torch.stack([cost_of_pair(branch, *each) for branch in head_losses]) for each in triples])


@pytest.mark.parametrize("encoder", ["mlp", "lightgcn"])
@pytest.mark.parametrize("distance", ["squared", "plain"])
def test_a_pair_trains_the_head_that_is_drawn_for_it_alone(in_double: None, encoder: str, distance: str) -> None:
    data = tiny()
    chosen = small(model={"encoder": encoder}, losses={"distance": distance})
    trainer, twin = (Trainer(data, chosen, SEED, parts=SELECTED) for _ in range(2))
    twin = twin.model
    record = trainer.epoch(0)
    batch = Sampler(data.train).epoch(SEED, 0)
    drawn = twin.selector(twin.user.detach()[0, batch.user], twin.item.detach()[0, batch.positive],
                          generator(derive_seed(SEED, 0, 1)))  # fmt: skip
    each = costs_of_pairs(twin, chosen, data, 0)
    costs = drawn.detach() * each
    relative = (each / each.mean(0)).detach()  # the choice is moved by what a pair costs beside others, not by its size
    assert len({*drawn.argmax(1).tolist()}) == len(FIVE)
    assert list(record["loss"].values()) == pytest.approx(costs.sum(0).tolist(), rel=1e-9)
    names, parameters = zip(*twin.named_parameters(), strict=True)
    gradients = torch.autograd.grad((costs + drawn * relative).sum(), parameters, materialize_grads=True)
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.allclose(trainer.model.get_parameter(name).grad, gradient, rtol=0, atol=1e-9), name
    assert trainer.model.selector.map.weight.grad.abs().max() > 0


class Always(torch.nn.Module):
    """Draws one head for everything."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.head = head

    def forward(self, user: Tensor, item: Tensor, noise: torch.Generator | None = None) -> Tensor:
        return torch.eye(len(FIVE))[[self.head] * len(user)]


@pytest.mark.parametrize("head", FIVE)
def test_a_head_that_is_always_drawn_is_trained_by_all_pairs(in_double: None, head: str) -> None:
    data, chosen = tiny(), small()
    trainer, plain = Trainer(data, chosen, SEED, parts=SELECTED), Trainer(data, chosen, SEED)
    expected = costs_of_pairs(plain.model, chosen, data, 0).sum(0)[FIVE.index(head)].item()
    trainer.head_losses.selector = Always(FIVE.index(head))
    losses, without = trainer.epoch(0)["loss"], plain.epoch(0)["loss"]
    assert losses.pop(head) == pytest.approx(expected, rel=1e-12)
    assert set(losses.values()) == {0.0}
    if not head.startswith("multinomial"):  # which are sums over users' or items' rows when nothing is drawn
        assert expected == pytest.approx(without[head], rel=1e-12)


@pytest.mark.parametrize("name", ["ConCF-S", "ConCF-S, all heads taught"])
def test_a_pair_teaches_the_consensus_to_the_head_that_it_trains(in_double: None, name: str) -> None:
    """The list of a user counts for a head by the mean probability that its pairs are drawn for it, or wholly."""
    data, chosen = tiny(), small()
    trainer = Trainer(data, chosen, SEED, parts=ABLATIONS[name])
    trainer.consensus.update()
    losses, batch = trainer.head_losses, Sampler(data.train).epoch(SEED, 0)
    tables = [side.detach().expand(len(FIVE), -1, -1) for side in (trainer.model.user, trainer.model.item)]
    students = trainer.students
    slices = losses.student_slices(students)
    copies = [table[each] for table, each in zip(tables, slices, strict=True)]
    target, length = trainer.consensus.target, chosen.consensus.length
    found = losses.consensus(*copies, batch, target, length, students)
    likely = logits_by_hand(losses.selector, tables[0][0, batch.user], tables[1][0, batch.positive]).softmax(1)
    expected = dict.fromkeys(FIVE, 0.0)
    for user in set(batch.user.tolist()):
        mine = (batch.user == user).nonzero()[:, 0]
        alone = Batch(*(getattr(batch, part)[mine[:1]] for part in ("user", "positive", "negative")))
        costs = HeadLosses.consensus(
            Trainer(data, chosen, SEED, parts=PLAIN).head_losses, *copies, alone, target, length, students
        )
        for head, each in enumerate(FIVE):
            share = likely[mine, head].mean().item() if name == "ConCF-S" else 1.0
            expected[each] += share * costs[head].item()
    assert found.tolist() == pytest.approx(list(expected.values()), rel=1e-9)


def test_an_objective_that_is_no_sum_over_pairs_is_refused() -> None:
    chosen = small(objectives=("bpr", "squared-error-everywhere"))
    with pytest.raises(ConfigError, match="'squared-error-everywhere' is no sum over observed pairs; leave it out"):
        train(tiny(), chosen, parts=SELECTED)


@pytest.mark.parametrize("change", [{"losses": {"softmax_samples": 4}}, {"model": {"sharing": "none"}}])
def test_a_pair_is_chosen_by_the_shared_embedding_and_by_all_items(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ConCF-S chooses by the shared embedding"):
        train(tiny(), small(balance={"on": False}, **change), parts=SELECTED)


def test_an_ablation_trains_in_one_process_and_in_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in one process and in memory"):
        train(tiny(), small(), parts=SELECTED, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("encoder", ["mlp", "mf", "lightgcn"])
def test_what_is_kept_of_a_head_that_was_chosen_is_a_single_model(encoder: str) -> None:
    data, chosen = tiny(), small(model={"encoder": encoder})
    run = train(data, chosen, parts=SELECTED)
    assert any(name.startswith("selector.") for name in run.model.state_dict())
    for name in FIVE:
        kept, single = run.keep(name), Trainer(data, chosen.single(name)).model
        assert {part: tensor.shape for part, tensor in kept.state_dict().items()} == {
            part: tensor.shape for part, tensor in single.state_dict().items()
        }
        now = run.model.keep(name).factors()[name]
        assert torch.equal(now.user @ now.item.T, run.model.factors()[name].user @ run.model.factors()[name].item.T)
