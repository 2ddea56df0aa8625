"""Complementarity and consistency against Python sets and loops, and the laws of Eq. 6, 7 and 11."""

from __future__ import annotations

import json
from math import exp
from statistics import fmean, pstdev
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.evaluation.complementarity import complementary_hit_ratio, hits_of, per_map, union
from concf.evaluation.evaluate import Evaluation, evaluate
from reproduction import consistency as module
from reproduction.consistency import consistency_by_rank
from reproduction.user_level import quantiles, user_level

USERS, ITEMS = 6, 11

known_pairs = st.sets(st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1)))
models_of_pairs = st.lists(known_pairs, min_size=1, max_size=5)


def packed(pairs, n_items=ITEMS):
    return np.array(sorted(user * n_items + item for user, item in pairs), np.int64)


def named(models):
    return {f"model {x}": model for x, model in enumerate(models)}


def share(part, whole):
    return len(part) / len(whole) if whole else 0.0


def literal_chr(y, models):
    everything = set().union(*models)
    return share(everything - y, everything)


def matrix(pairs, n_users=USERS, n_items=ITEMS):
    dense = np.zeros((n_users, n_items), np.float32)
    for user, item in pairs:
        dense[user, item] = 1
    return csr_array(dense)


@st.composite
def lists_of_users(draw):
    """Some of the users, in any order, and a list [e, N + 2] of each that may end early."""
    users = draw(st.lists(st.integers(0, USERS - 1), unique=True))
    width = draw(st.integers(1, ITEMS))
    lists = np.full((len(users), ITEMS + 2), -1, np.int32)
    for row in lists:
        items = draw(st.permutations(range(ITEMS)))[: draw(st.integers(0, width))]
        row[: len(items)] = items
    return lists, np.array(users, np.int64)


@given(lists_of_users(), known_pairs, st.integers(1, ITEMS + 2))
def test_hits_are_the_held_out_items_in_the_first_places(drawn, held_out, n: int) -> None:
    lists, users = drawn
    expected = {
        (user, item)
        for user, row in zip(users.tolist(), lists.tolist(), strict=True)
        for item in row[:n]
        if (user, item) in held_out
    }
    evaluation = Evaluation(users, lists, {}, {}, np.ones(len(users)))
    pairs = hits_of(evaluation, SimpleNamespace(test=matrix(held_out)), n)  # type: ignore[arg-type]
    assert pairs.dtype == np.int64
    assert pairs.tolist() == packed(expected).tolist()


def test_hits_of_an_evaluation_are_what_its_recall_counts() -> None:
    split = prepare(Simulation(users=60, items=40, events=1500).draw(1), protocol="random")
    scores = np.random.default_rng(0).random(split.train.shape).astype(np.float32)
    evaluation = evaluate(lambda users: scores[users], split, at=(5, 50))  # 50: more than there are items
    total = np.diff(split.test.indptr)[evaluation.users]
    for n in (5, 50):
        hits = hits_of(evaluation, split, n)
        counted = np.bincount(hits // split.test.shape[1], minlength=split.test.shape[0])[evaluation.users]
        np.testing.assert_allclose(counted / total, evaluation.per_user[f"recall@{n}"])
    with pytest.raises(ConfigError, match="first 51 items need longer lists than 50; evaluate at 51"):
        hits_of(evaluation, split, 51)


@given(models_of_pairs)
def test_ratios_are_those_of_sets(models) -> None:
    arrays = named([packed(model) for model in models])
    sets = named(models)
    assert union(arrays.values()).tolist() == packed(set().union(*models)).tolist()
    assert per_map(arrays) == {x: {y: share(sets[x] - sets[y], sets[x]) for y in sets} for x in sets}
    missed = {y: complementary_hit_ratio(arrays[y], arrays.values()) for y in arrays}
    assert missed == {y: literal_chr(sets[y], models) for y in sets}


@given(models_of_pairs, known_pairs)
def test_user_level_is_the_ratio_of_each_user_by_itself(models, y) -> None:
    """Also for a y that is none of the models."""
    arrays = [packed(model) for model in models]
    expected = []
    for user in range(USERS):
        own = [{pair for pair in model if pair[0] == user} for model in models]
        if set().union(*own):
            expected.append(literal_chr({pair for pair in y if pair[0] == user}, own))
    assert user_level(packed(y), arrays, ITEMS).tolist() == expected
    assert complementary_hit_ratio(packed(y), arrays) == literal_chr(y, models)


@given(st.lists(st.integers(0, 8), max_size=230))
def test_quantiles_are_the_inverse_of_the_cdf(drawn) -> None:
    values = [value / 8 for value in drawn]
    values_at = quantiles(np.array(values))
    assert len(values_at) == 101
    assert values_at == sorted(values_at)
    for k, quantile in enumerate(values_at if values else []):
        reached = [value for value in values if 100 * sum(other <= value for other in values) >= k * len(values)]
        assert quantile == min(reached)


def literal_consistency(newest, window, test, valid, users, depth, bins, temperature):
    """Cell by cell: the rank of the item in every ranking of the window, then the mean of each bin."""
    cells = {kind: [[] for _ in range(bins)] for kind in ("correct", "incorrect")}
    for user in users:
        for rank, item in enumerate(newest[user][:depth]):
            if item == -1 or (user, item) in valid:
                continue
            past = [listed[user] for listed in window]
            ranks = [row.index(item) if item in row else len(row) for row in past]
            kind = "correct" if (user, item) in test else "incorrect"
            cells[kind][rank * bins // depth].append(exp(-pstdev(ranks) / temperature))
    return {kind: [fmean(cell) if cell else None for cell in row] for kind, row in cells.items()}


@st.composite
def rankings(draw):
    """Rankings over time [Q][users][M], some lists ending early, and disjoint test and validation items."""
    width = draw(st.integers(1, ITEMS))
    times = [
        [
            (draw(st.permutations(range(ITEMS)))[: draw(st.integers(0, width))] + [-1] * width)[:width]
            for _ in range(USERS)
        ]
        for _ in range(draw(st.integers(1, 4)))
    ]
    test, valid = draw(known_pairs), draw(known_pairs)
    users = sorted(draw(st.sets(st.integers(0, USERS - 1))))
    return times, test, valid - test, users


@pytest.mark.parametrize("cells", [1, module.RANKED_CELLS], ids=["one user a block", "all at once"])
@given(
    drawn=rankings(),
    shape=st.sampled_from([(1, 1), (4, 2), (6, 3), (10, 10), (12, 4)]),
    temperature=st.sampled_from([1.0, 10.0]),
)
def test_consistency_is_the_mean_over_cells(cells: int, drawn, shape, temperature: float) -> None:
    times, test, valid, users = drawn
    depth, bins = shape
    tensors = [torch.tensor(time, dtype=torch.int32) for time in times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANKED_CELLS", cells)
        by_rank = consistency_by_rank(
            tensors[-1], tensors, matrix(test), matrix(valid), np.array(users, np.int64),
            depth=depth, bins=bins, temperature=temperature,
        )  # fmt: skip
    expected = literal_consistency(times[-1], times, test, valid, users, depth, bins, temperature)
    assert by_rank["correct"] == pytest.approx(expected["correct"])
    assert by_rank["incorrect"] == pytest.approx(expected["incorrect"])
    json.dumps(by_rank, allow_nan=False)
