"""Metrics of ranked lists: trec_eval is the oracle; test_evaluate.py compares them with loops over users."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from concf.evaluation.metrics import ACCURACY, average_popularity, coverage, gini, hits, novelty

ITEMS = 14


def matrix(held_out, n_items=ITEMS):
    dense = np.zeros((len(held_out), n_items), np.float32)
    for row, items in enumerate(held_out):
        dense[row, list(items)] = 1
    return csr_array(dense)


def accuracy(name, lists, held_out):
    return ACCURACY[name](hits(lists, matrix(held_out)), np.array([float(len(items)) for items in held_out]))


@pytest.mark.parametrize("name", list(ACCURACY))
def test_accuracy_agrees_with_trec_eval(name):
    """48 lists that `ir_measures` 0.4.3 re-ranked through trec_eval, which has no wheel for Linux on ARM64."""
    reranked = json.loads((Path(__file__).parent / "trec_eval.json").read_text(encoding="utf-8"))
    for case in reranked:
        row = case["list"] + [-1] * (case["width"] - len(case["list"]))
        figures = accuracy(name, np.array([row], np.int32), [set(case["held_out"])])
        assert figures == pytest.approx([case[name]], abs=1e-6), case


def test_an_empty_rank_is_no_hit_of_the_user_before():
    assert hits(np.array([[5, -1], [-1, -1]], np.int32), matrix([{5, ITEMS - 1}, {0}])).tolist() == [[1, 0], [0, 0]]


def test_empty_lists_cover_nothing_and_spread_nothing():
    empty, popularity = np.full((3, 4), -1, np.int32), np.ones(ITEMS)
    assert coverage(empty, popularity) == 0.0
    assert gini(empty, popularity) == 0.0
    assert novelty(empty, popularity, 5).tolist() == [0.0] * 3
    assert average_popularity(empty, popularity, 5).tolist() == [0.0] * 3
