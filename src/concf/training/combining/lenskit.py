"""Pipelines of the library `lenskit` (2025), which know users and items by their ids."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray


def lists(pipeline: Any, users: NDArray[Any], k: int) -> Any:
    """user_id, item_id, score, rank: a frame of the first k items of users [n]. pipeline: trained, to recommend"""
    recommend = import_module("lenskit.batch").recommend
    return recommend(pipeline, np.asarray(users).tolist(), k, n_jobs=1).to_df()  # several would start Python anew
