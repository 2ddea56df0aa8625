"""The model's branches against literal encoders and heads, written out for one pair at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from literal import Branch
from scipy.sparse import csr_array

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


def literal_score(made: Model, name: str) -> Callable[[int, int], float]:
    branch = Branch(made, name, TRAIN, layers=2)

    @torch.no_grad()
    def score(u: int, i: int) -> float:
        return branch.score(u, i).item()

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
            assert table[u, i].item() == pytest.approx(score(u, i), abs=1e-12)


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
