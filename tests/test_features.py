"""What a head says to a re-ranker: the literal figures, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from literal_features import features
from scipy.sparse import csr_array

from concf.evaluation.scorers import Factors
from concf.strong import features as module
from concf.strong.features import HeadFeatures, Histories

USERS, ITEMS, SIZE = 9, 11, 4
CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request: pytest.FixtureRequest) -> Factors:
    draw = torch.Generator().manual_seed(3)
    user, item, bias = (
        torch.randn(*size, generator=draw).double() for size in ((USERS, SIZE), (ITEMS, SIZE), (ITEMS,))
    )
    return Factors(user, item, bias if request.param else None)


def log() -> csr_array:
    """User 4 used nothing, item 7 was used by nobody."""
    used = np.random.default_rng(5).random((USERS, ITEMS)) < 0.4
    used[4], used[:, 7] = False, False
    return csr_array(used.astype(np.float32))


def heard(head: Factors, train: csr_array, users: slice = slice(0, USERS)) -> torch.Tensor:
    """[users, items, 8] of all pairs."""
    witness = HeadFeatures(head, Histories(train, users, CPU))
    mine = torch.arange(users.stop - users.start)
    return witness(mine, torch.arange(ITEMS).expand(len(mine), -1))


def expected(head: Factors, train: csr_array, **part: list[int]) -> torch.Tensor:
    used, scores = torch.from_numpy(train.toarray() > 0), head.scores(torch.arange(USERS))
    rows = [[features(scores, head.item, used, u, i, **part) for i in range(ITEMS)] for u in range(USERS)]
    return torch.tensor(rows, dtype=torch.float64)


def test_figures_are_the_literal_ones(head: Factors) -> None:
    assert torch.allclose(heard(head, log()), expected(head, log()), rtol=0, atol=1e-9)


def test_a_process_says_the_same_of_its_users(head: Factors) -> None:
    assert torch.allclose(heard(head, log(), slice(3, 7)), heard(head, log())[3:7], rtol=0, atol=1e-12)


def test_the_unit_of_scores_does_not_matter(head: Factors) -> None:
    scaled = replace(head, user=head.user * 1000, bias=None if head.bias is None else head.bias * 1000)
    assert torch.allclose(heard(scaled, log()), heard(head, log()), rtol=0, atol=1e-9)


def test_a_long_history_is_looked_at_evenly(head: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    used = np.zeros((USERS, ITEMS), np.float32)
    used[:, 1:10] = 1
    monkeypatch.setattr(module, "LONGEST_HISTORY", 3)
    found, literal = heard(head, csr_array(used)), expected(head, csr_array(used), history=[1, 4, 7])
    assert torch.allclose(found, literal, rtol=0, atol=1e-9)


def test_a_sample_stands_for_all_items(head: Factors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLED_ITEMS", 4)
    assert torch.allclose(heard(head, log()), expected(head, log(), others=[0, 2, 5, 8]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("length", [0.0, 1e-22, 1e-30])
def test_vectors_that_have_vanished_say_nothing_but_break_nothing(length: float) -> None:
    user, item = length * torch.ones(USERS, SIZE), length * torch.randn(ITEMS, SIZE)
    said = heard(Factors(user, item), log())
    assert said.isfinite().all()
    assert said[..., [0, 1, 4, 7]].abs().max() < 1e-6
    some = torch.cat([item[:3], torch.randn(ITEMS - 3, SIZE)])  # only some of them
    assert heard(Factors(torch.randn(USERS, SIZE), some), log()).isfinite().all()


def test_blocks_hold_every_user_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_USERS", 2)
    users, histories = torch.tensor([8, 0, 4, 3, 1]), Histories(log(), slice(0, USERS), CPU)
    blocks = list(histories.blocks(users))
    assert [len(block) for block in blocks] == [2, 2, 1]
    lengths = torch.from_numpy(np.diff(log().indptr))[users[torch.cat(blocks)]]
    assert (lengths.diff() >= 0).all()
    assert sorted(torch.cat(blocks).tolist()) == list(range(5))
