"""Convert a caller's model to a voter: a file or frame of lists, vectors, scores, or a model of a library."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from torch import Tensor

from concf.consensus.voters import by_scores, moments_of_lists
from concf.data.reading.lists import Lists, read_lists
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.scorers import Factors, ListFunction, Scorer, as_scorer
from concf.strong.combine_stages import GivenLists, Vectors

MORE = 16  # items to request from implicit beyond k, since some of its models return fewer
LARGEST = 1e15  # largest score, so that sums of squares do not overflow float32
REFIT = "Fit it on data.train, whose rows and columns it must have"
SMALLER = "Divide them by a constant: the order stays the same"
HOW = (
    "expected a file or a frame of lists (user, item, score or rank), (user vectors, item vectors), a model with "
    "factors() or scores(users), a model of implicit, a pipeline of LensKit, or (model, dataset) of RecTools"
)


def as_voter(
    name: str, source: Any, data: Split, seen: csr_array, k: int, device: torch.device
) -> GivenLists | Vectors:
    """Make a voter for all users from a caller's model; it lists items that they have not used.

    source: see `HOW`; vectors, scores and implicit's models number users and items as `data.train` does
    """
    model = source[0] if isinstance(source, tuple) and source else source
    library = type(model).__module__.partition(".")[0]
    if isinstance(source, type):
        raise ConfigError(f"voter {name!r}: the class {source.__name__} cannot vote. Make a model of it, and fit it")
    if isinstance(source, str | Path) or hasattr(source, "__arrow_c_stream__") or library == "polars":
        return _listed(read_lists(source, name, data.interactions, seen, k), data, device)
    if library == "implicit" and any(getattr(source, side, None) is None for side in ("user_factors", "item_factors")):
        return _listed(_lists_of_implicit(source, name, seen, k), data, device)
    if library in ("lenskit", "rectools"):
        ids, longest = data.interactions.user_ids.values, k + int(np.diff(seen.indptr).max())
        frame = (_lists_of_lenskit if library == "lenskit" else _lists_of_rectools)(source, ids, longest)
        return _listed(read_lists(frame, name, data.interactions, seen, k), data, device)
    try:
        scorer = vectors_of_implicit(source) if library == "implicit" else as_scorer(source)
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        why = error if isinstance(source, tuple) else f"{type(source).__name__} cannot vote; {HOW}"
        raise ConfigError(f"voter {name!r}: {why}") from None
    if isinstance(scorer, Factors):
        return _vectors(scorer, name, seen, device)
    if isinstance(scorer, ListFunction):
        raise ConfigError(f"voter {name!r}: give its lists as a frame of user, item and rank, with ids of the log")
    users = torch.arange(seen.shape[0], device=device)
    voter = by_scores(name, _Checked(scorer, name, seen.shape[1]), seen, users, min(k, seen.shape[1]))
    assert voter.listed is not None
    assert voter.of_items is not None
    scores, of_items = voter.listed[..., 2].contiguous(), voter.of_items.clone()
    named = scores[voter.lists >= 0]
    if not len(named) or named.min() == named.max():
        raise DataError(f"voter {name!r}: every score is the same, so that it ranks nothing")
    of_items[3] = 1.0  # the scores are divided by their deviation already
    return GivenLists(voter.lists, scores, of_items)


def _lists_of_lenskit(pipeline: Any, users: NDArray[Any], k: int) -> Any:
    """Frame of user_id, item_id, score and rank: the first k items for users [n], by their ids."""
    recommend = import_module("lenskit.batch").recommend
    return recommend(pipeline, np.asarray(users).tolist(), k, n_jobs=1).to_df()  # several would start Python anew


def _lists_of_rectools(fitted: tuple[Any, Any], users: NDArray[Any], k: int) -> Any:
    """Frame of the first k items for users [n] by a model of RecTools and its dataset."""
    model, dataset = fitted
    known = np.isin(np.asarray(users), np.asarray(dataset.user_id_map.external_ids))
    return model.recommend(users=np.asarray(users)[known], dataset=dataset, k=k, filter_viewed=True)


def vectors_of_implicit(model: Any) -> Factors:
    """Vectors of a model of implicit, also from a GPU; biases are among the dimensions."""
    tables = model.user_factors, model.item_factors
    return Factors.of(*(table.to_numpy() if hasattr(table, "to_numpy") else np.asarray(table) for table in tables))


def _lists_of_implicit(model: Any, name: str, seen: csr_array, k: int) -> Lists:
    """Lists of the first k unseen items of each user, by `recommend`. seen: [users, items]"""
    n_users, n_items = seen.shape
    similarity = getattr(model, "similarity", None)
    if similarity is None or similarity.shape[0] != n_items:
        state = "not fitted" if similarity is None else f"fitted on {similarity.shape[0]:,} items, of {n_items:,}"
        raise DataError(f"voter {name!r}: {type(model).__name__} is {state}. {REFIT}")
    rows, wanted = csr_matrix(seen), min(k + MORE, n_items)
    listed, scores = model.recommend(np.arange(n_users), rows, N=wanted, filter_already_liked_items=True)
    used = np.repeat(np.arange(n_users), np.diff(seen.indptr)) * np.int64(n_items) + seen.indices
    cells = np.arange(n_users, dtype=np.int64)[:, None] * n_items + listed
    usable = (listed >= 0) & (scores > np.finfo(np.float32).min) & ~np.isin(cells, used)
    order = np.argsort(~usable, axis=1, kind="stable")[:, :k]
    items = np.full((n_users, k), -1, np.int32)
    values = np.zeros((n_users, k), np.float32)
    kept = np.take_along_axis(usable, order, 1)
    lowest = scores[usable].min(initial=np.inf)
    items[:, : order.shape[1]] = np.where(kept, np.take_along_axis(listed, order, 1), -1)
    values[:, : order.shape[1]] = np.where(kept, np.take_along_axis(scores, order, 1) - lowest, 0)
    if not kept.any() or not np.isfinite(values).all():
        problem = "its model recommends nothing, or with scores that are not finite"
        raise DataError(f"voter {name!r}: {problem}. {REFIT}")
    return Lists(items, values)


def _listed(lists: Lists, data: Split, device: torch.device) -> GivenLists:
    items, scores = (torch.from_numpy(each).to(device) for each in lists)
    return GivenLists(items, scores, moments_of_lists(items, scores, data.interactions.n_items))


def _vectors(factors: Factors, name: str, seen: csr_array, device: torch.device) -> Vectors:
    """Check vectors against the log; returns ([users, d], [items, d]) with the bias as one more dimension."""
    shape = len(factors.user), len(factors.item)
    if shape != seen.shape:
        found, expected = (f"{users:,} users and {items:,} items" for users, items in (shape, seen.shape))
        raise DataError(f"voter {name!r}: vectors of {found}, and the log has {expected}. {REFIT}")
    user, item = factors.user.float(), factors.item.float()
    if factors.bias is not None:
        user = torch.cat([user, user.new_ones(len(user), 1)], 1)
        item = torch.cat([item, factors.bias.float()[:, None]], 1)
    if not (user.isfinite().all() and item.isfinite().all()):
        raise DataError(f"voter {name!r}: its vectors are not finite. Fit the model again, with a lower learning rate")
    if float(user.abs().max()) * float(item.abs().max()) * user.shape[1] > LARGEST:
        raise DataError(f"voter {name!r}: the inner products of its vectors exceed {LARGEST:g}. {SMALLER}")
    if not (item != item[0]).any():
        raise DataError(f"voter {name!r}: every item has the same vector, so that it ranks nothing")
    if not user.any():
        raise DataError(f"voter {name!r}: the vectors of all users are zero, so that it ranks nothing")
    return user.clone().to(device), item.clone().to(device)  # a copy, which the caller cannot change


class _Checked:
    """Scorer that checks shape and values of the scores; -inf becomes the user's lowest finite score."""

    def __init__(self, scorer: Scorer, name: str, n_items: int) -> None:
        self.scorer, self.name, self.n_items = scorer, name, n_items

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]."""
        scores = self.scorer.scores(users).float()
        if scores.shape != (len(users), self.n_items):
            expected, found = [len(users), self.n_items], list(scores.shape)
            raise DataError(f"voter {self.name!r}: expected scores {expected}, found {found}. {REFIT}")
        if scores.isnan().any() or (scores == torch.inf).any():
            raise DataError(f"voter {self.name!r}: its scores are infinite or not a number (NaN). Fit it again")
        if float(scores.masked_fill(scores == -torch.inf, 0).abs().max()) > LARGEST:
            raise DataError(f"voter {self.name!r}: some of its scores exceed {LARGEST:g}. {SMALLER}")
        finite = scores.isfinite()
        lowest = scores.masked_fill(~finite, torch.inf).min(1, keepdim=True).values
        return scores.where(finite, lowest.where(lowest.isfinite(), 0.0))
