"""What ConCF is compared with: peers (PCL), one head a pair (ConCF-S), one objective several times; their settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import literal_branch
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError
from concf.experiments.paper.ablations import ABLATIONS, Selector, ensemble_divergence
from concf.model.model import Model
from concf.model.objectives import FIVE
from concf.runtime.seeds import derive_seed
from concf.training.batches import Sampler
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.train import train as train_anywhere
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")

train = partial(train_anywhere, device="cpu")

SEED = 5
PCL, SELECTED = ABLATIONS["PCL"], ABLATIONS["ConCF-S"]
PEERS = tuple(f"multinomial#{start}" for start in range(1, 6))
double = torch.float64


@pytest.fixture
def in_double() -> Iterator[None]:
    torch.set_default_dtype(double)
    yield
    torch.set_default_dtype(torch.float32)


def tiny() -> Split:
    return prepare(Simulation(users=8, items=12, events=70, tastes=3).draw(1), protocol="random")


def small(**changes: Any) -> ConCFSettings:
    """`reference` on the tiny data: one batch an epoch, the first epoch with consensus loss in epoch 2."""
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "initial_std": 0.3, "dropout": 0.0, "layers": 2},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "kept": 8, "length": 3, "tail": 6},
        "training": {"epochs": 3, "batch": 1000, "metric": "recall@3"},
    }
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings("reference", chosen)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Peers


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


def test_the_divergence_of_peers_and_its_gradient_are_those_of_the_formula() -> None:
    logits = 2 * torch.randn(3, 4, 5, generator=generator(0), dtype=double)
    weight = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=double)
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    found, expected = ensemble_divergence(leaves[0], weight), written_out(leaves[1], weight)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    mix = torch.tensor([1.0, -0.3, 2.0], dtype=double)
    gradients = [
        torch.autograd.grad(value @ mix, leaf)[0] for value, leaf in zip((found, expected), leaves, strict=True)
    ]
    assert torch.allclose(*gradients, rtol=0, atol=1e-12)
    assert gradients[0].abs().max() > 0.1


@given(st.integers(0, 10**6), st.floats(0, 30))
def test_no_head_is_nearer_to_the_ensemble_than_the_ensemble(seed: int, spread: float) -> None:
    logits = spread * torch.randn(4, 3, 7, generator=generator(seed), dtype=double)
    assert (ensemble_divergence(logits, torch.ones(3, dtype=double)) >= -1e-12).all()


def test_heads_that_agree_have_nothing_to_learn_whatever_their_offset() -> None:
    same = torch.randn(1, 3, 6, generator=generator(1), dtype=double).expand(4, -1, -1)
    logits = (same + torch.arange(4.0)[:, None, None]).requires_grad_()  # a constant is no opinion
    found = ensemble_divergence(logits, torch.ones(3, dtype=double))
    assert found.abs().max() < 1e-12
    assert torch.autograd.grad(found.sum(), logits)[0].abs().max() < 1e-12


@pytest.mark.parametrize("kind", [torch.float32, double])
def test_the_divergence_is_finite_at_extremes(kind: torch.dtype) -> None:
    logits = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]], [[1e4, 1e4, -1e4]]], dtype=kind, requires_grad=True)
    found = ensemble_divergence(logits, torch.ones(1, dtype=kind))
    assert found.isfinite().all()
    assert torch.autograd.grad(found.sum(), logits)[0].isfinite().all()
    # the mean logits are 1e4 / 3 twice and -1e4 / 3: the ensemble is (1/2, 1/2, 0)
    assert found.tolist() == pytest.approx([0.5 * 2e4 + log(0.5), 0.5 * 2e4 + log(0.5), 0.0], rel=1e-6, abs=1e-6)


def logits_of(model: Model, train: Any, layers: int = 2) -> list[Tensor]:
    """[users, items] of each multinomial head, from the parameters."""
    found = []
    for place, name in enumerate(model.names):
        user, _ = literal_branch.tables(model, place, train, layers)
        found.append(model.head(name).table(literal_branch.encoding(model, place, user)))
    return found


@pytest.mark.parametrize("encoder", ["mlp", "mf", "lightgcn"])
def test_a_consensus_loss_of_peers_is_their_distance_from_the_mean_of_all_logits(in_double: None, encoder: str) -> None:
    data = tiny()
    chosen = small(objectives=PEERS, model={"encoder": encoder}, consensus={"weight": 0.4})
    trainer, twin = (Trainer(data, chosen, SEED, parts=PCL) for _ in range(2))
    twin = twin.model
    trainer.consensus.update()
    record = trainer.epoch(2)
    users = sorted(set(Sampler(data.train).epoch(SEED, 2).user.tolist()))
    logits = torch.stack(logits_of(twin, data.train))[:, users]
    consensus_target, dense = (
        written_out(logits, torch.ones(len(users))),
        torch.from_numpy(data.train.toarray() > 0)[users],
    )
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


@pytest.mark.parametrize("non_voting", [(), PEERS[1:3]])
def test_the_consensus_of_peers_ranks_by_the_mean_of_the_voters_logits(
    in_double: None, non_voting: tuple[str, ...]
) -> None:
    data = tiny()
    trainer = Trainer(data, small(objectives=PEERS, consensus={"non_voting": non_voting}), SEED, parts=PCL)
    lists = trainer.consensus.update()
    assert list(lists) == [*PEERS, "consensus"]
    voting = [
        each for name, each in zip(PEERS, logits_of(trainer.model, data.train), strict=True) if name not in non_voting
    ]
    expected = ranked_by(sum(voting) / len(voting), data.train)
    assert [[item for item in row if item >= 0] for row in lists["consensus"].tolist()] == expected


def test_peers_come_nearer_to_each_other_and_there_is_no_r_consensus() -> None:
    last = {}
    for weight in (1e-6, 50.0):
        chosen = small(objectives=PEERS, consensus={"weight": weight}, training={"epochs": 12})
        run = train(tiny(), chosen, parts=PCL)
        assert run.rows() == [*PEERS, "consensus"]
        assert [any(record["consensus_loss"].values()) for record in run.history] == [False, False, *[True] * 10]
        last[weight] = sum(run.history[-1]["consensus_loss"].values())
    assert last[50.0] < 0.5 * last[1e-6]


# One head a pair


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
        found, expected = (torch.autograd.grad((each * cost).sum(), parameter)[0] for each in (drawn, soft))
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        assert found.abs().max() > 1e-3


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


# Settings


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
