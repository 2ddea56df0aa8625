"""PCL: peers that learn from the mean of all heads' logits."""

from __future__ import annotations

from functools import partial
from math import exp, log
from typing import Any

import literal_branch
import pytest
import torch
from small_ablations import PEERS, SEED, small, tiny
from torch import Tensor

from concf.models import train as train_anywhere
from concf.reference.batches import Sampler
from concf.reference.model import Model
from concf.reference.trainer import Trainer
from reproduction.ablations import ABLATIONS, ensemble_divergence

train = partial(train_anywhere, device="cpu")
PCL = ABLATIONS["PCL"]
double = torch.float64


def written_out(logits: Tensor, weight: Tensor) -> Tensor:
    """[heads] the sum over users of KL(ensemble || head), one head, user and item at a time; plain for autograd."""
    heads, users, items = logits.shape
    costs = []
    for x in range(heads):
        cost = torch.zeros((), dtype=double)
        for u in range(users):
            mean = [sum(logits[y, u, i].item() for y in range(heads)) / heads for i in range(items)]
            teacher = [exp(each) / sum(map(exp, mean)) for each in mean]
            for i in range(items):
                mine = torch.exp(logits[x, u, i]) / sum(torch.exp(logits[x, u, j]) for j in range(items))
                cost = cost + weight[u] * teacher[i] * (log(teacher[i]) - torch.log(mine))
        costs.append(cost)
    return torch.stack(costs)


def test_the_divergence_is_finite_at_extremes() -> None:
    logits = torch.tensor(
        [[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]], [[1e4, 1e4, -1e4]]], dtype=torch.float32, requires_grad=True
    )
    cost = ensemble_divergence(logits, torch.ones(1, dtype=torch.float32))
    assert cost.isfinite().all()
    assert torch.autograd.grad(cost.sum(), logits)[0].isfinite().all()
    # the mean logits are 1e4 / 3 twice and -1e4 / 3: the ensemble is (1/2, 1/2, 0)
    assert cost.tolist() == pytest.approx([0.5 * 2e4 + log(0.5), 0.5 * 2e4 + log(0.5), 0.0], rel=1e-6, abs=1e-6)


def logits_of(model: Model, train: Any) -> list[Tensor]:
    """[users, items] of each multinomial head, from the parameters."""
    tables = []
    for place, name in enumerate(model.names):
        user, _ = literal_branch.tables(model, place, train)
        tables.append(model.head(name).table(literal_branch.encoding(model, place, user)))
    return tables


@pytest.mark.parametrize("encoder", ["mlp", "lightgcn"])
def test_a_consensus_loss_of_peers_is_their_distance_from_the_mean_of_all_logits(in_double: None, encoder: str) -> None:
    data = tiny()
    chosen = small(objectives=PEERS, model={"encoder": encoder}, consensus={"weight": 0.4})
    trainer, twin = (Trainer(data, chosen, SEED, parts=PCL) for _ in range(2))
    twin = twin.model
    trainer.consensus.update()
    record = trainer.epoch(2)
    users = sorted(set(Sampler(data.train).epoch(SEED, 2).user.tolist()))
    logits = torch.stack(logits_of(twin, data.train))[:, users]
    consensus_target = written_out(logits, torch.ones(len(users)))
    dense = torch.from_numpy(data.train.toarray() > 0)[users]
    assert list(record["consensus_loss"].values()) == pytest.approx(consensus_target.tolist(), rel=1e-9)
    assert min(record["consensus_loss"].values()) > 1e-3
    own = -(logits.log_softmax(2) * dense).sum((1, 2))
    assert list(record["loss"].values()) == pytest.approx(own.tolist(), rel=1e-9)
    names, parameters = zip(*twin.named_parameters(), strict=True)
    gradients = torch.autograd.grad((own + 0.4 * consensus_target).sum(), parameters, materialize_grads=True)
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.allclose(trainer.model.get_parameter(name).grad, gradient, rtol=0, atol=1e-9), name


def ranked_by(scores: Tensor, train: Any) -> list[list[int]]:
    dense = train.toarray()
    unseen = [[i for i in range(dense.shape[1]) if not dense[u, i]] for u in range(len(dense))]
    return [sorted(items, key=lambda i, u=u: (-scores[u, i].item(), i)) for u, items in enumerate(unseen)]


def test_the_consensus_of_peers_ranks_by_the_mean_of_the_voters_logits(in_double: None) -> None:
    data, non_voting = tiny(), PEERS[1:3]
    trainer = Trainer(data, small(objectives=PEERS, consensus={"non_voting": non_voting}), SEED, parts=PCL)
    lists = trainer.consensus.update()
    assert list(lists) == [*PEERS, "consensus"]
    voting = [
        each for name, each in zip(PEERS, logits_of(trainer.model, data.train), strict=True) if name not in non_voting
    ]
    expected = ranked_by(sum(voting) / len(voting), data.train)
    assert [[item for item in row if item >= 0] for row in lists["consensus"].tolist()] == expected
