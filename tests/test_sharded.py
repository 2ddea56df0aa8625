"""What sharded tables are made of, without other processes; test_processes.py trains with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.evaluation.ranking import rank, rank_blocks
from concf.model.model import drawn_rows
from concf.model.scorers import Factors
from concf.runtime.process_group import ProcessGroup
from concf.training.config.presets import choose_settings
from concf.training.embeddings.sharded import refuse_unshardable
from concf.training.trainer import Trainer


@pytest.mark.parametrize(("groups", "n", "dimensions"), [(1, 7, 1), (1, 50, 8), (3, 41, 5), (2, 33, 16)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_rows_are_drawn_as_of_the_whole_table(monkeypatch, groups: int, n: int, dimensions: int, kind) -> None:
    monkeypatch.setattr("concf.model.model.DRAWN", 32)
    torch.set_default_dtype(kind)
    try:
        torch.manual_seed(3)
        whole, after = torch.randn(groups, n, dimensions), torch.rand(1)
        for rows in (ProcessGroup(rank, size).share(n) for size in (2, 3) for rank in range(size)):
            torch.manual_seed(3)
            assert torch.equal(drawn_rows(groups, n, dimensions, rows), whole[:, rows])
            assert torch.equal(torch.rand(1), after)  # what is drawn next is the same too
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("k", [1, 4, 30])
@pytest.mark.parametrize("block", [1, 7, 30])
def test_blocks_of_items_rank_as_all_of_them(k: int, block: int) -> None:
    """With ties, which the lower item wins, and users who have seen all but a few items."""
    random = np.random.default_rng(k)
    seen = csr_array(random.random((25, 30)) < np.linspace(0, 1, 25)[:, None])
    vectors = Factors.of(*(random.integers(-1, 2, size).astype(np.float64) for size in ((25, 3), (30, 3), (30,))))
    assert vectors.bias is not None
    parts = [(begin, vectors.item[begin : begin + block], vectors.bias[begin : begin + block])
             for begin in range(0, 30, block)]  # fmt: skip
    lists = rank_blocks(vectors.user, parts, k, seen)
    assert lists.tolist() == rank(vectors, np.arange(25), k, seen=seen).tolist()


@pytest.mark.parametrize("samples", [None, 9, 12, 30])
def test_a_cosine_softmax_is_sharded_only_where_it_is_sampled(samples: int | None) -> None:
    data = prepare(Simulation(users=20, items=9, events=90).draw(0), protocol="random")
    chosen = choose_settings(
        "reference", changes={"objectives": ("cosine-softmax", "bpr"), "losses": {"softmax_samples": samples}}
    )
    with pytest.raises(ConfigError, match=r"'cosine-softmax' looks at all items .*softmax_samples below 9"):
        refuse_unshardable(ProcessGroup(0, 2, shards=True), Trainer(data, chosen).head_losses)


def test_what_stands_for_all_items_is_sharded() -> None:
    data = prepare(Simulation(users=20, items=9, events=90).draw(0), protocol="random")
    chosen = choose_settings(
        "reference", changes={"objectives": ("cosine-softmax", "bpr"), "losses": {"softmax_samples": 8}}
    )
    refuse_unshardable(ProcessGroup(0, 2, shards=True), Trainer(data, chosen).head_losses)
