"""Models of the library `rectools`, which know users and items by their ids, and a history by its `Dataset`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def lists(fitted: tuple[Any, Any], users: NDArray[Any], k: int) -> Any:
    """user_id, item_id, score, rank: a pandas frame of the first k items of users [n]. fitted: a model, its dataset"""
    model, dataset = fitted
    known = np.isin(np.asarray(users), np.asarray(dataset.user_id_map.external_ids))
    return model.recommend(users=np.asarray(users)[known], dataset=dataset, k=k, filter_viewed=True)
