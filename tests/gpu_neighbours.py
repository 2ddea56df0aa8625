"""Baselines on a GPU against the CPU. Not collected by itself: `pytest tests/gpu_neighbours.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from concf.baselines import als, neighbours
from concf.baselines.ease import EASE
from concf.baselines.neighbours import ItemKNN, RP3beta, UserKNN
from concf.baselines.table import BASELINES
from concf.comparison.compare import compare
from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.protocols import TimeCut
from concf.data.recipe import SplitRecipe
from concf.data.split import Split
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import as_scorer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
als.SHORT = 1 << 30  # on the CPU too, long rows are solved exactly

CLOSE = 1e-5  # of the greatest score: float32 sums in any order
SETTINGS = [ItemKNN(neighbours=30), RP3beta(neighbours=40), RP3beta(neighbours=5000, beta=-0.2), UserKNN(neighbours=50)]


def some_matrix() -> csr_array:
    """[700, 400] random; the last user and the last item have nothing."""
    dense = np.random.default_rng(0).random((700, 400)) < 0.05
    dense[-1], dense[:, -1] = False, False
    return csr_array(dense.astype(np.float32))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("cells", [1 << 26, 5000])
def test_neighbours_and_scores_are_those_of_the_cpu(settings, cells, monkeypatch):
    monkeypatch.setattr(neighbours, "GPU_CELLS", cells)
    train, users = some_matrix(), torch.arange(700)
    there, here = settings.fit(train, device="cuda"), settings.fit(train)
    assert there.into.values.device.type == "cuda"
    both = [model.into.matrix.toarray() for model in (there.to("cpu"), here)]
    assert ((both[0] > 0) == (both[1] > 0)).mean() > 0.9999  # ties of sums in another order may fall differently
    expected = here.scores(users)
    scores = there.scores(users.to("cuda"))
    assert (scores.cpu() - expected).abs().max() <= CLOSE * expected.max()
    same = rank(there, np.arange(700), 20, seen=train, device="cuda") == rank(here, np.arange(700), 20, seen=train)
    assert same.mean() > 0.99


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("regularisation", [10.0, 500.0])
def test_ease_is_that_of_the_cpu_by_both_routes(turned, regularisation):
    train = csr_array(some_matrix().T.tocsr()) if turned else some_matrix()
    there, here = (EASE(regularisation=regularisation).fit(train, device=device) for device in ("cuda", "cpu"))
    users = torch.arange(train.shape[0])
    scores, expected = there.scores(users), here.scores(users)
    assert scores.device.type == "cuda"
    assert (scores.cpu() - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.timed])
def test_timed_baselines_are_those_of_the_cpu(name):
    train, random = some_matrix(), np.random.default_rng(1)
    times = csr_array((random.integers(0, 30, train.nnz).astype(float), train.indices, train.indptr), train.shape)
    there, here = (
        as_scorer(BASELINES[name].make().fit(train, device=device, times=times)) for device in ("cuda", "cpu")
    )
    scores, expected = (model.scores(torch.arange(700)).cpu() for model in (there, here))
    assert (scores - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_a_comparison_on_a_gpu_ranks_as_one_on_a_cpu(monkeypatch):
    train, random = some_matrix()[:-1, :-1].tocoo(), np.random.default_rng(2)
    user, item = (np.asarray(each, np.int32) for each in (train.row, train.col))
    times, (n_users, n_items) = random.integers(0, 500, train.nnz), train.shape
    ids = (Ids(np.arange(n)) for n in (n_users, n_items))
    log = Interactions(*ids, user, item, np.ones(train.nnz), times, times)
    data = Split.make(log, SplitRecipe(source={"name": "random"}, protocol=TimeCut()))
    models = [name for name, each in BASELINES.items() if each.library is None]
    there = compare(data, models, seeds=1)
    monkeypatch.setattr("concf.comparison.measure.device", lambda: "cpu")
    for one, other in zip(there.entrants, compare(data, models, seeds=1).entrants, strict=True):
        assert one.tests[0] == pytest.approx(other.tests[0], rel=0.05)
