"""The recipe on a GPU against the CPU. Not collected by itself: `pytest --noconftest tests/gpu_recipe.py` with a GPU.

In float64 both must agree but for the order of sums. In float32, in which the recipe works, the bounds are shares of
the greatest score; two items that all but tie may change places, so that lists are compared by what they share. A stage
begins where the CPU's stage before it has ended: a difference does not grow from stage to stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu_kernels import near, small
from literal_reranker import Table
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines import als
from concf.baselines.als import Pairs
from concf.consensus import voters as voting
from concf.consensus.fitting import Weights, fitted
from concf.consensus.voters import Voter, by_factors, by_scores
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.evaluation.scorers import Factors
from concf.models import choose_settings, train
from concf.runs.settings import CONSENSUS, RunSettings
from concf.strong import softmax
from concf.strong.recipe import Recipe
from concf.strong.reranker import TOP, Context, Reranker
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT
from concf.strong.students import solve_student, teach_student

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
als.SHORT = 1 << 30  # on the CPU too, long rows are solved exactly

GPU, CPU = torch.device("cuda"), torch.device("cpu")
USERS, ITEMS, SIZE, TOP_K = 200, 90, 12, 30
EXACT = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the greatest figure: nothing but the order of sums
LEARNED = {torch.float64: 1e-6, torch.float32: 3e-3}  # after steps of Adam or Newton, each by what came before
FIGURE = 0.02  # of a validation figure, between 0 and 1
SHARED = 0.95  # of the items of two lists


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    """Threads of the CPU's small operations would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=list(EXACT), ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def log() -> csr_array:
    """The first user has used nothing, the last one everything."""
    used = np.random.default_rng(1).random((USERS, ITEMS)) < 0.2
    used[0], used[-1] = False, True
    return csr_array(used.astype(np.float32))


def drawn(seed: int, *size: int) -> Tensor:
    """The same for every device and in every precision."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def placed(parts: list[Tensor], device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    return [part.to(device, dtype) for part in parts]


def shared(one: Tensor, other: Tensor) -> float:
    """The share of the items of lists [users, k] that other lists hold too."""
    one, other = (each.cpu().numpy() for each in (one, other))
    both = sum(len(np.intersect1d(a[a >= 0], b[b >= 0])) for a, b in zip(one, other, strict=True))
    return both / max(int((one >= 0).sum()), 1)


def everyone(device: torch.device) -> Tensor:
    return torch.arange(USERS, device=device)


def voters_on(device: torch.device, dtype: torch.dtype) -> list[Voter]:
    """Two with vectors and one without, that know something of each other's taste."""
    user, item, bias, noise = drawn(2, USERS, SIZE), drawn(3, ITEMS, SIZE), drawn(4, ITEMS), drawn(5, USERS, SIZE)
    table = user @ item.T + drawn(6, USERS, ITEMS)
    one, two = (
        Factors(*placed([vectors, item, bias], device, dtype)) for vectors in (user + noise / 2, user - noise / 2)
    )
    users, scorer = everyone(device), Table(table.to(device, dtype))
    return [
        by_factors("one", one, log(), users, TOP_K),
        by_scores("table", scorer, log(), users, TOP_K),
        by_factors("two", two, log(), users, TOP_K),
    ]


@pytest.mark.parametrize("cells", [1 << 26, 7 * ITEMS])
def test_voters_are_the_cpu_s(dtype: torch.dtype, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voting, "GPU_CELLS", cells)
    for there, here in zip(voters_on(GPU, dtype), voters_on(CPU, torch.float64), strict=True):
        assert there.lists.device.type == GPU.type
        assert shared(there.lists, here.lists) >= (1 if dtype == torch.float64 else SHARED)
        if here.listed is not None and there.listed is not None:
            same = (there.lists.cpu() == here.lists)[..., None]
            assert same.float().mean() > SHARED
            near(there.listed.cpu() * same, here.listed * same, EXACT[dtype])


def reranked(device: torch.device, dtype: torch.dtype) -> tuple[Reranker, Weights]:
    """Fitted on what a drawn taste holds out."""
    voters = voters_on(device, dtype)
    context = Context.of(log(), [each.factors for each in voters if each.factors is not None], device)
    reranker = Reranker(
        log(), everyone(device), voters, [1.0, 0.7, 0.4], length=50, top_k=TOP_K, temperature=8.0, context=context
    )
    liked = drawn(2, USERS, SIZE) @ drawn(3, ITEMS, SIZE).T
    held_out = (liked > liked.quantile(0.8)).to(device)
    lists = reranker.lists[:, :TOP].long()
    return reranker, fitted(reranker.training(held_out.gather(1, lists.clamp(min=0)) & (lists >= 0)))


def test_a_reranker_is_the_cpu_s(dtype: torch.dtype) -> None:
    here, expected = reranked(CPU, dtype)
    there, fitted = reranked(GPU, dtype)
    assert shared(there.lists, here.lists) >= (1 if dtype == torch.float64 else SHARED)
    if torch.equal(there.lists.cpu(), here.lists):
        (found, gaps), (wanted, _) = there.features(everyone(GPU)), here.features(everyone(CPU))
        near(found.masked_fill(gaps[..., None], 0), wanted.masked_fill(gaps.cpu()[..., None], 0), EXACT[dtype])
    for one, other in zip(fitted, expected, strict=True):
        assert one.device.type == GPU.type
        near(one, other, LEARNED[dtype])
    for cross_fitted in (False, True):
        lists, scores = there.rerank(fitted, cross_fitted=cross_fitted)
        same = lists[:, :10].cpu() == here.rerank(expected, cross_fitted=cross_fitted)[0][:, :10]
        assert same.float().mean() >= (1 if dtype == torch.float64 else SHARED)
        assert not scores.isnan().any()


@pytest.mark.parametrize("cells", [1 << 28, 11 * ITEMS])
def test_the_gradient_of_the_softmax_is_the_cpu_s(
    dtype: torch.dtype, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "GPU_CELLS", cells)
    pairs, results = Pairs.observed(log(), CPU), []
    for device, kind in ((GPU, dtype), (CPU, torch.float64)):
        user, item = placed([drawn(7, USERS, SIZE), drawn(8, ITEMS, SIZE)], device, kind)
        users, items = pairs.user.to(device), pairs.item.to(device)
        weight = (1 + torch.arange(len(items), device=device) % 3).to(kind)
        results.append(softmax.gradients(user, item, everyone(device), users, items, weight, 0.1))
    for found, expected in zip(*results, strict=True):
        near(found, expected, EXACT[dtype])


@pytest.mark.parametrize("epochs", [0, 3])
def test_a_student_is_the_cpu_s(dtype: torch.dtype, epochs: int) -> None:
    """Of the same lists, some of which are shorter: solved alone, and taught by the consensus loss after that."""
    lists, scores = voters_on(CPU, torch.float64)[0].lists, []
    for device, kind in ((GPU, dtype), (CPU, torch.float64)):
        observed, users, mine = Pairs.observed(log(), device, kind), everyone(device), lists.to(device)
        start = placed([drawn(8, USERS, SIZE) / 10, drawn(9, ITEMS, SIZE) / 10], device, kind)
        solved = solve_student(observed, users, mine, (start[0], start[1]), 2)
        user, item = teach_student(*solved, users, mine, epochs, 3)
        scores.append(user @ item.T)
    near(*scores, LEARNED[dtype])


def split() -> Split:
    return small(300, 120)


def chosen(budget: str = "default", refit: str = "validation") -> RunSettings:
    changes: dict[str, Any] = {
        "dimensions": 16,
        "consensus": {"top_k": 40, "shown": 40},
        "training": {"metric": "recall@10"},
        "budget": budget,
        "refit": refit,
    }
    return choose_settings("strong", changes)


def begun(data: Split, settings: RunSettings, device: torch.device) -> Recipe:
    return Recipe(StrongRun(data, settings, 3, device))


def moved(state: Any, device: torch.device) -> Any:
    """A state, with its tensors on another device."""
    if isinstance(state, dict):
        return {name: moved(each, device) for name, each in state.items()}
    if isinstance(state, tuple):
        return tuple(moved(each, device) for each in state)
    return state.to(device) if isinstance(state, Tensor) else state


def test_every_stage_is_the_cpu_s() -> None:
    """Scores of vectors are compared where both devices have chosen the same settings, which they nearly always do."""
    data, settings = split(), chosen()
    there, here = (begun(data, settings, device) for device in (GPU, CPU))
    compared = set()
    for number, stage in enumerate(here.stages):
        before = {head: vectors[1] for head, vectors in here.vectors.items()}
        found, expected = there.stage(number), here.stage(number)
        assert found["stage"] == expected["stage"] == stage
        for name, figure in expected.get("validation", {}).items():
            assert found["validation"][name] == pytest.approx(figure, abs=FIGURE), (stage, name)
        new = [head for head, (_, item) in here.vectors.items() if item is not before.get(head)]
        for head in (each for each in new if found.get("chosen") == expected.get("chosen")):
            scores = [user @ item.T for user, item in (there.vectors[head], here.vectors[head])]
            assert scores[0].device.type == GPU.type
            near(*scores, 1e-3 if head.startswith("als") else 2e-2)
            compared.add(head)
        if stage != list(here.stages)[-1]:
            there.load_state_dict(moved(here.state_dict(), GPU))
            there._cache.clear()
    assert {"als-a", "als-b", STUDENT} <= compared
    lists, plain, votes = there.agreed()
    assert {each.device.type for each in (lists, plain, votes["items"], votes["reranked"])} == {GPU.type}
    assert shared(plain[:, :20], here.agreed()[1][:, :20]) > SHARED
    assert shared(lists[:, :20], here.agreed()[0][:, :20]) > SHARED


def assert_alike(there: StrongRun, here: StrongRun) -> None:
    """Two whole runs: what was chosen may differ where figures all but tie."""
    assert there.rows() == here.rows()
    for name in here.rows():
        assert there.best[name].validation == pytest.approx(here.best[name].validation, abs=FIGURE), name
        means = [evaluate(run.recommender(name), run.data, at=10).means()["recall@10"] for run in (there, here)]
        assert means[0] == pytest.approx(means[1], abs=FIGURE), name
    first = [torch.as_tensor(run.best[CONSENSUS].lists)[:, :10] for run in (there, here)]
    assert shared(*first) > 0.9


@pytest.mark.parametrize(("budget", "refit"), [("fast", "none"), ("thorough", "validation")])
def test_a_whole_run_comes_close_to_the_cpu_s(budget: str, refit: str) -> None:
    data, settings = split(), chosen(budget, refit)
    there, here = (train(data, settings, seed=3, device=device) for device in (GPU, CPU))
    assert there.device.type == GPU.type
    assert_alike(there, here)
