"""ConCF-S: a pair trains the one head that is drawn for it."""

from __future__ import annotations

import literal_branch
import pytest
import torch
from small_ablations import SEED, generator, small, tiny
from torch import Tensor

from concf.data.split import Split
from concf.reference.batches import Batch, Sampler
from concf.reference.head_losses import HeadLosses
from concf.reference.model import Model
from concf.reference.objectives import FIVE
from concf.reference.settings import ReferenceSettings
from concf.reference.trainer import Parts, Trainer
from concf.runtime.arguments import derive_seed
from reproduction.ablations import ABLATIONS, Selector

SELECTED, PLAIN = ABLATIONS["ConCF-S"], Parts()


def a_selector(dimensions: int, heads: int) -> Selector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Selector(dimensions, heads)


def logits_by_hand(selector: Selector, user: Tensor, item: Tensor) -> Tensor:
    """[B, heads] each head's linear map of both embeddings, standardised over the batch."""
    mapped = torch.cat([user, item], 1) @ selector.map.weight.T
    columns = []
    for column in mapped.unbind(1):
        mean = sum(column) / len(column)
        deviation = (sum((each - mean) ** 2 for each in column) / len(column)) ** 0.5
        columns.append((column - mean) / (deviation + 1e-6))
    return torch.stack(columns, 1)


def test_the_choice_is_hard_and_its_gradient_that_of_the_soft_choice(in_double: None) -> None:
    selector, (user, item) = a_selector(3, 4), torch.randn(2, 6, 3, generator=generator(2)).unbind()
    cost, uniform = (torch.rand(6, 4, generator=generator(seed)) for seed in (4, 9))
    soft = torch.softmax(logits_by_hand(selector, user, item) - torch.log(-torch.log(uniform)), 1)
    drawn = selector(user, item, generator(9))
    assert drawn.argmax(1).tolist() == soft.argmax(1).tolist()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}  # exactly: a pair that is not drawn has no loss
    for parameter in selector.parameters():
        gradient, expected = (torch.autograd.grad((each * cost).sum(), parameter)[0] for each in (drawn, soft))
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-3


def cost_of_pair(branch: literal_branch.Branch, u: int, i: int, j: int) -> Tensor:
    """What an observed pair (u, i) with the unobserved (u, j) costs a head by itself."""
    if branch.name == "multinomial":
        return branch.scores[u].exp().sum().log() - branch.scores[u, i]
    if branch.name == "multinomial-users":
        return -branch.scores[u, i]  # log p(u | i) = s_iu - log Z_i
    return branch.own_loss([u], [i], [j])


def costs_of_pairs(model: Model, chosen: ReferenceSettings, data: Split, epoch: int) -> Tensor:
    """[B, heads] for every pair of the epoch."""
    drawn = Sampler(data.train).epoch(SEED, epoch)
    triples = list(zip(drawn.user.tolist(), drawn.positive.tolist(), drawn.negative.tolist(), strict=True))
    head_losses = [literal_branch.Branch(model, name, data.train, chosen) for name in model.names]
    return torch.stack([torch.stack([cost_of_pair(branch, *each) for branch in head_losses]) for each in triples])


@pytest.mark.parametrize(("encoder", "formulation"), [("mlp", "reference"), ("lightgcn", "paper")])
def test_a_pair_trains_the_head_that_is_drawn_for_it_alone(in_double: None, encoder: str, formulation: str) -> None:
    data = tiny()
    chosen = small(model={"encoder": encoder}, formulation=formulation)
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
