"""Voters from outside for the log of `small_recipe`, and the runs that come of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_array
from small_recipe import SMALL, data

from concf.baselines.ease import EASE
from concf.baselines.neighbours import RP3beta
from concf.evaluation.ranking import rank
from concf.runs.run import Run
from concf.strong.combine import combine

K = 12  # consensus.top_k of the small settings


def frame(model: Any, log: csr_array, k: int = 15, seen: csr_array | None = None) -> pl.DataFrame:
    """The lists of a model as others would write them: user, item, rank."""
    lists = rank(model, np.arange(log.shape[0]), k, seen=log if seen is None else seen)
    user, place = (lists >= 0).nonzero()
    ids = data().interactions.user_ids.values, data().interactions.item_ids.values
    return pl.DataFrame({"user_id": ids[0][user], "item_id": ids[1][lists[user, place]], "rank": place + 1})


def vectors(seed: int = 0, d: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a truncated singular value decomposition of the training part."""
    u, s, v = np.linalg.svd(data().train.toarray() + 1e-3 * seed)
    return torch.from_numpy(u[:, :d] * s[:d]).float(), torch.from_numpy(v[:d].T.copy()).float()


@cache
def voters(*parts: str) -> dict[str, Any]:
    """Lists, scores and vectors."""
    log = data().log(parts or ("train",))
    return {"walks": frame(RP3beta().fit(log), log), "ease": EASE(regularisation=50.0).fit(log), "svd": vectors()}


@cache
def combined(with_own: bool = False, refitted: bool = False) -> Run:
    final = {**voters("train", "valid"), "svd": vectors(1)} if refitted else None
    return combine(data(), voters(), final_voters=final, with_own=with_own, settings=SMALL, seed=3)
