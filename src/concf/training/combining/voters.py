"""Whatever a caller has that ranks, as a voter: a file or a frame of lists, vectors, scores, a model of a library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.voters import by_factors, by_scores, moments_of_lists
from concf.data.reading.lists import Lists, read_lists
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.model.scorers import Factors, ListFunction, Scorer, as_scorer
from concf.training.combining import implicit, lenskit, rectools
from concf.training.recipe.combine import GivenLists, Vectors

LARGEST = 1e15  # score, whose square must have room in 32 bits, beside others
SMALLER = "Divide them by a constant: the order stays the same"
HOW = (
    "expected a file or a frame of lists (user, item, score or rank), (user vectors, item vectors), a model with "
    "factors() or scores(users), a model of implicit, a pipeline of LensKit, or (model, dataset) of RecTools"
)


def as_voter(
    name: str, source: Any, data: Split, seen: csr_array, k: int, device: torch.device
) -> GivenLists | Vectors:
    """A voter of all users, with what they have not used.

    source: see `HOW`; vectors, scores and implicit's models number users and items as `data.train` does
    """
    library = _library(source)
    if isinstance(source, type):
        raise ConfigError(f"voter {name!r}: the class {source.__name__} cannot vote. Make a model of it, and fit it")
    if isinstance(source, str | Path) or hasattr(source, "__arrow_c_stream__") or library == "polars":
        return _listed(read_lists(source, name, data.interactions, seen, k), data, device)
    if library == "implicit" and not implicit.has_vectors(source):
        try:
            return _listed(_checked(implicit.lists(source, seen, k), name), data, device)
        except DataError as error:
            raise DataError(f"voter {name!r}: {str(error).removeprefix(f'voter {name!r}: ')}") from None
    if library in ("lenskit", "rectools"):
        ids, longest = data.interactions.user_ids.values, k + int(np.diff(seen.indptr).max())
        frame = lenskit.lists(source, ids, longest) if library == "lenskit" else rectools.lists(source, ids, longest)
        return _listed(read_lists(frame, name, data.interactions, seen, k), data, device)
    try:
        scorer = implicit.vectors(source) if library == "implicit" else as_scorer(source)
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


def ranking(voter: GivenLists | Vectors, seen: csr_array, k: int) -> Tensor:
    """[users, k] what a voter lists."""
    if isinstance(voter, GivenLists):
        return voter.lists
    users = torch.arange(seen.shape[0], device=voter[0].device)
    return by_factors("", Factors(*voter), seen, users, k).lists


def _library(source: Any) -> str:
    """The first part of the module that a model, or the first of a pair, is of."""
    model = source[0] if isinstance(source, tuple) and source else source
    return type(model).__module__.partition(".")[0]


def _listed(lists: Lists, data: Split, device: torch.device) -> GivenLists:
    items, scores = (torch.from_numpy(each).to(device) for each in lists)
    return GivenLists(items, scores, moments_of_lists(items, scores, data.interactions.n_items))


def _checked(lists: Lists, name: str) -> Lists:
    if not (lists.items >= 0).any() or not np.isfinite(lists.scores).all():
        raise DataError(
            f"voter {name!r}: its model recommends nothing, or with scores that are not finite. Fit it again"
        )
    return lists


def _vectors(factors: Factors, name: str, seen: csr_array, device: torch.device) -> Vectors:
    """([users, d], [items, d]), a bias as one more dimension; as many rows as the log has users and items."""
    shape = len(factors.user), len(factors.item)
    if shape != seen.shape:
        raise DataError(
            f"voter {name!r}: vectors of {shape[0]:,} users and {shape[1]:,} items, and the log has "
            f"{seen.shape[0]:,} and {seen.shape[1]:,}. Fit the model on data.train, whose rows and columns it must have"
        )
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
    return user.clone().to(device), item.clone().to(device)  # the caller's may change


class _Checked:
    """A scorer whose scores are looked at: [b, items], none of them NaN; -inf becomes the lowest of its user."""

    def __init__(self, scorer: Scorer, name: str, n_items: int) -> None:
        self.scorer, self.name, self.n_items = scorer, name, n_items

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]."""
        scores = self.scorer.scores(users).float()
        if scores.shape != (len(users), self.n_items):
            expected, found = [len(users), self.n_items], list(scores.shape)
            raise DataError(f"voter {self.name!r}: expected scores {expected}, found {found}. Fit it on data.train")
        if scores.isnan().any() or (scores == torch.inf).any():
            raise DataError(f"voter {self.name!r}: its scores are infinite or not a number (NaN)")
        if float(scores.masked_fill(scores == -torch.inf, 0).abs().max()) > LARGEST:
            raise DataError(f"voter {self.name!r}: some of its scores exceed {LARGEST:g}. {SMALLER}")
        finite = scores.isfinite()
        lowest = scores.masked_fill(~finite, torch.inf).min(1, keepdim=True).values
        return scores.where(finite, lowest.where(lowest.isfinite(), 0.0))
