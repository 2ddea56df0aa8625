"""The model's branches against literal encoders and heads, written out for one pair at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.model.encoders import EncoderMaker, Sharing, factorisation, lightgcn, mlp
from concf.model.model import Model
from concf.model.objectives import OBJECTIVES, objective

TRAIN = csr_array((np.random.default_rng(0).random((9, 13)) < 0.3).astype(np.float32))
USERS, ITEMS = TRAIN.shape
ENCODERS: dict[str, EncoderMaker] = {"mlp": mlp(), "mf": factorisation(), "lightgcn": lightgcn(2)}
SHARING: list[Sharing] = ["full", "layer", "embedding", "none"]


@pytest.fixture(autouse=True)
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def model(encoder: str, sharing: Sharing = "embedding") -> Model:
    torch.manual_seed(3)
    return Model(TRAIN, OBJECTIVES, dimensions=8, encoder=ENCODERS[encoder], sharing=sharing, spread=1.0)


def literal_tables(made: Model, place: int) -> tuple[Tensor, Tensor]:
    """One branch's own embedding tables, propagated with a dense graph where the encoder says so."""
    group = place if made.user.shape[0] > 1 else 0
    user, item = made.user[group], made.item[group]
    if not hasattr(made.encoder, "graph"):
        return user, item
    observed = torch.from_numpy(TRAIN.toarray()).double()
    adjacency = torch.zeros(USERS + ITEMS, USERS + ITEMS)
    adjacency[:USERS, USERS:], adjacency[USERS:, :USERS] = observed, observed.T
    root = adjacency.sum(1).clamp(min=1e-30).rsqrt()
    step = root[:, None] * adjacency * root
    nodes = [torch.cat([user, item])]
    for _ in range(2):
        nodes.append(step @ nodes[-1])
    mean = torch.stack(nodes).mean(0)
    return mean[:USERS], mean[USERS:]


def literal_encoding(made: Model, place: int, row: Tensor) -> Tensor:
    if not hasattr(made.encoder, "first"):
        return row
    first, second = made.encoder.first, made.encoder.second
    one, two = (place if layer.weight.shape[0] > 1 else 0 for layer in (first, second))
    hidden = torch.relu(row @ first.weight[one] + first.bias[one, 0])
    return hidden @ second.weight[two] + second.bias[two, 0]


def ball(vector: Tensor) -> Tensor:
    return vector / max(1.0, vector.norm().item())


def literal_score(made: Model, name: str) -> Callable[[int, int], float]:
    """s(u, i) of SPEC's table of heads, from scratch for every pair."""
    place, head = made.names.index(name), made.head(name)
    user, item = literal_tables(made, place)
    h_user = [literal_encoding(made, place, row) for row in user]
    h_item = [literal_encoding(made, place, row) for row in item]

    @torch.no_grad()
    def score(u: int, i: int) -> float:
        if name == "bpr":
            return float(head.map(h_user[u]) @ head.map(h_item[i]))
        if name == "cml":
            return -float((ball(head.map(h_user[u])) - ball(head.map(h_item[i]))).norm())
        if name in ("cross-entropy", "squared-error"):
            return float(head.map(h_user[u] * h_item[i]))
        if name == "multinomial":
            return float(head.table(h_user[u]).log_softmax(0)[i])
        return float(head.table(h_item[i]).log_softmax(0)[u])

    return score


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_head_ranks_by_its_exported_vectors(encoder: str, sharing: Sharing) -> None:
    made = model(encoder, sharing)
    for name, factors in made.factors().items():
        score = literal_score(made, name)
        table = np.array([[score(u, i) for i in range(ITEMS)] for u in range(USERS)])
        ranked = rank(factors, np.arange(USERS), ITEMS)
        assert ranked.tolist() == np.argsort(-table, axis=1, kind="stable").tolist(), name


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if not name.startswith("multinomial")])
def test_vectors_offset_and_bias_make_the_score_that_the_loss_sees(name: str) -> None:
    made = model("mlp")
    place, score = made.names.index(name), literal_score(made, name)
    user, item = (made.encode(table)[place] for table in made.tables())
    vectors, offset = made.head(name).user(user, torch.arange(USERS))
    item_vectors, bias = made.head(name).item(item, torch.arange(ITEMS))
    table = vectors @ item_vectors.T + offset[:, None] + bias
    for u in range(USERS):
        for i in range(ITEMS):
            expected = -(score(u, i) ** 2) if name == "cml" else score(u, i)
            assert table[u, i].item() == pytest.approx(expected, abs=1e-12)


def count(made: Model) -> dict[str, int]:
    parts = {"embeddings": [made.user, made.item], "encoder": list(made.encoder.parameters())}
    return {name: sum(tensor.numel() for tensor in tensors) for name, tensors in parts.items()}


def test_sharing_counts_its_parameters() -> None:
    heads, embeddings, first, second = len(OBJECTIVES), 8 * (USERS + ITEMS), 8 * 4 + 4, 4 * 2 + 2
    expected = {
        "full": (embeddings, first + second),
        "layer": (embeddings, first + heads * second),
        "embedding": (embeddings, heads * (first + second)),
        "none": (heads * embeddings, heads * (first + second)),
    }
    for sharing in SHARING:
        assert tuple(count(model("mlp", sharing)).values()) == expected[sharing]


def test_branches_that_share_nothing_do_not_touch_each_other() -> None:
    made = model("mlp", "none")
    before = made.factors()
    with torch.no_grad():
        made.user[0] += 1
        made.encoder.first.weight[0] *= 2
        made.heads[0].map.weight += 1
    after = made.factors()
    assert not torch.equal(before["bpr"].user, after["bpr"].user)
    for name in made.names[1:]:
        assert torch.equal(before[name].user, after[name].user)
        assert torch.equal(before[name].item, after[name].item)


def test_dropout_does_not_reach_the_export() -> None:
    torch.manual_seed(0)
    made = Model(TRAIN, {"bpr": OBJECTIVES["bpr"]}, dimensions=8, encoder=mlp(dropout=0.5))
    made.train()
    assert torch.equal(made.factors()["bpr"].user, made.factors()["bpr"].user)
    assert made.training
    rows = made.tables()[0]
    assert not torch.equal(made.encode(rows), made.encode(rows))


def test_the_unit_ball_holds_users_and_items() -> None:
    made = model("mlp")
    with torch.no_grad():
        made.user *= 50
    factors = made.factors()["cml"]
    assert (factors.user.norm(dim=1) <= 2 + 1e-12).all()
    assert (factors.item.norm(dim=1) <= 1 + 1e-12).all()


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ConfigError, match="bpr, cml"):
        objective("hinge")
