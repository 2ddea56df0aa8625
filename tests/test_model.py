"""The model's branches against literal encoders and heads on dense tables, and what is left when one is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from literal_branch import Branch
from scipy.sparse import csr_array
from torch import Tensor

from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.models import choose_settings
from concf.reference.batches import Batch
from concf.reference.encoders import ENCODERS, Sharing, mlp
from concf.reference.head_losses import HeadLosses
from concf.reference.heads import ItemTableHead, UserTableHead
from concf.reference.model import Model
from concf.reference.objectives import OBJECTIVES, choose, minus_distance

pytestmark = pytest.mark.usefixtures("in_double")

TRAIN = csr_array((np.random.default_rng(0).random((9, 13)) < 0.3).astype(np.float32))
USERS, ITEMS = TRAIN.shape
SHARING: list[Sharing] = ["full", "layer", "embedding", "none"]
PAIRS = [("mlp", "full"), ("mlp", "layer"), ("mf", "embedding"), ("lightgcn", "none")]
SETTINGS = choose_settings("reference")
NAMES = tuple(name for name in OBJECTIVES if not name.startswith("only-votes"))  # rows of process_worker.py


def model(encoder: str, sharing: Sharing = "embedding", names: tuple[str, ...] = NAMES) -> Model:
    torch.manual_seed(3)
    return Model(TRAIN, choose(names), dimensions=16, encoder=ENCODERS[encoder], sharing=sharing, initial_std=1.0)


@torch.no_grad()
def literal_scores(made: Model, name: str) -> Tensor:
    return Branch(made, name, TRAIN, SETTINGS).scores


@pytest.mark.parametrize(("encoder", "sharing"), PAIRS)
def test_every_head_ranks_by_its_exported_vectors(encoder: str, sharing: Sharing) -> None:
    made = model(encoder, sharing)
    for name, factors in made.factors().items():
        table = literal_scores(made, name).numpy()
        ranked = rank(factors, np.arange(USERS), ITEMS)
        assert ranked.tolist() == np.argsort(-table, axis=1, kind="stable").tolist(), name


@pytest.mark.parametrize("name", NAMES)
def test_vectors_offset_and_bias_make_the_score_that_the_loss_sees(name: str) -> None:
    made = model("mlp")
    place = made.names.index(name)
    user, item = (made.encode(table)[place] for table in made.encoder.propagate(made.user, made.item))
    for users, items in ((torch.arange(USERS), torch.arange(ITEMS)), (torch.tensor([4, 1, 4]), torch.tensor([7, 0]))):
        vectors, offset = made.head(name).user(user[users], users)
        item_vectors, bias = made.head(name).item(item[items], items)
        table = vectors @ item_vectors.T + offset[:, None] + bias
        assert torch.allclose(table, literal_scores(made, name)[users][:, items], rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_two_table_heads_are_log_probabilities_of_items_and_of_users() -> None:
    """CF-E: log p(i | u) up to the user's partition. CF-E': log p(u | i), with the item's partition in its bias."""
    rows, columns = ItemTableHead(4, USERS, ITEMS), UserTableHead(4, USERS, ITEMS)
    h_user, h_item = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    for head, encoding in ((rows, h_user), (columns, h_item)):
        (user, offset), (item, bias) = head.user(h_user), head.item(h_item)
        scores = user @ item.T + offset[:, None] + bias  # [users, items]
        logits = torch.tensor([[float(h @ v + b) for v, b in zip(head.table.weight, head.table.bias, strict=True)]
                               for h in encoding])  # fmt: skip
        if head is rows:
            assert torch.allclose(scores, logits)
            assert torch.allclose(scores - head.partition(encoding)[:, None], logits.log_softmax(1))
        else:
            assert torch.allclose(scores, logits.log_softmax(1).T)


@pytest.mark.parametrize("encoder", ["mlp", "mf"])
def test_head_losses_of_a_batch_are_those_of_its_pairs_rows_and_columns(encoder: str) -> None:
    """A user twice in the batch, an item both positive and negative."""
    made, batch = model(encoder), [[4, 1, 4], [7, 0, 2], [5, 7, 12]]
    head_losses = HeadLosses(made, choose(NAMES), TRAIN.astype(np.float64))
    copies = (table.detach().expand(len(NAMES), -1, -1) for table in (made.user, made.item))
    found = head_losses.own(*copies, Batch(*map(torch.tensor, batch)))
    expected = [Branch(made, name, TRAIN, SETTINGS).own_loss(*batch) for name in NAMES]
    assert torch.allclose(found, torch.stack(expected), rtol=1e-12)


def count(made: Model) -> dict[str, int]:
    parts = {"embeddings": [made.user, made.item], "encoder": list(made.encoder.parameters())}
    return {name: sum(tensor.numel() for tensor in tensors) for name, tensors in parts.items()}


def test_sharing_counts_its_parameters() -> None:
    heads, embeddings, first, second = len(NAMES), 16 * (USERS + ITEMS), 16 * 8 + 8, 8 * 4 + 4
    expected = {
        "full": (embeddings, first + second),
        "layer": (embeddings, first + heads * second),
        "embedding": (embeddings, heads * (first + second)),
        "none": (heads * embeddings, heads * (first + second)),
    }
    for sharing in SHARING:
        assert tuple(count(model("mlp", sharing)).values()) == expected[sharing]


def storages(made: Model) -> Iterator[int]:
    """Where the model's tensors lie; of a sparse one, its three parts."""
    for tensor in (*made.parameters(), *made.buffers()):
        sparse = tensor.layout == torch.sparse_csr
        for part in (tensor.values(), tensor.crow_indices(), tensor.col_indices()) if sparse else (tensor,):
            yield part.untyped_storage().data_ptr()


@pytest.mark.parametrize(("encoder", "sharing"), PAIRS)
def test_a_head_that_is_kept_is_a_single_model(encoder: str, sharing: Sharing) -> None:
    """Its scores are the head's; in names and sizes it is a fresh SingleCF, and nothing is shared."""
    made = model(encoder, sharing)
    for name, factors in made.factors().items():
        kept, fresh = made.keep(name), model(encoder, sharing, (name,))
        found = kept.factors()[name]
        for part in ("user", "item", "bias"):
            assert torch.allclose(getattr(found, part), getattr(factors, part), rtol=0, atol=1e-12), (name, part)
        shapes = [{part: tensor.shape for part, tensor in each.state_dict().items()} for each in (kept, fresh)]
        assert shapes[0] == shapes[1]
        assert not set(storages(kept)) & set(storages(made))
        assert kept.names == [name]


def test_only_a_head_that_is_there_can_be_kept() -> None:
    with pytest.raises(ConfigError, match="unknown head 'hinge'; available: bpr, cml"):
        model("mf").keep("hinge")


def test_dropout_comes_with_noise_alone_and_does_not_reach_the_export() -> None:
    torch.manual_seed(0)
    made = Model(TRAIN, choose(("bpr",)), dimensions=16, encoder=partial(mlp, dropout=0.5), initial_std=1.0)
    made.train()
    rows = made.user.detach()
    assert torch.equal(made.encode(rows), made.encode(rows))
    assert torch.equal(made.factors()["bpr"].user, made.factors()["bpr"].user)
    noise = torch.Generator().manual_seed(1)
    first, second = made.encode(rows, noise), made.encode(rows, noise)
    assert not torch.equal(first, made.encode(rows))
    assert not torch.equal(first, second)
    assert torch.equal(first, made.encode(rows, torch.Generator().manual_seed(1)))


def test_minus_a_distance_is_a_root_that_is_flat_at_nothing() -> None:
    scores = torch.tensor([-4.0, -0.25, 0.0, 1e-17], requires_grad=True)
    found = minus_distance(scores)
    assert found.tolist() == pytest.approx([-2, -0.5, 0, 0], abs=1e-5)
    found.sum().backward()
    assert scores.grad.tolist() == pytest.approx([0.25, 1.0, 0, 0])
