"""Item-to-item models: an item is scored by the user's items that resemble it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array, diags_array

from concf.model.scorers import ScoreFunction
from concf.runtime.settings import Settings


class ItemKNN(Settings):
    """Cosine similarity with shrinkage, the k nearest neighbours of each item.

    s_ij = |U_i & U_j| / (sqrt(|U_i| |U_j|) + shrink);  score(u, i) = sum_{j in I_u} s_ij
    """

    neighbours: int = Field(200, ge=1)  # kept for each item
    shrink: float = Field(50.0, ge=0)  # pulls similarities that rest on few users towards 0

    def fit(self, train: csr_array, seed: int = 0) -> ScoreFunction:  # noqa: ARG002
        """Count co-occurrences. train: [users, items]."""
        together = (train.T @ train).tocsr()
        norm = np.sqrt(together.diagonal().astype(np.float64))
        row = np.repeat(np.arange(together.shape[0]), np.diff(together.indptr))
        together.data = (together.data / (norm[row] * norm[together.indices] + self.shrink)).astype(np.float32)
        return by_neighbours(train, nearest(together, self.neighbours))


class RP3beta(Settings):
    """A random walk of three steps, user -> item -> user -> item, its popular ends held back (Paudel et al., 2017).

    score(u, i) = sum_{j != i, v} (P_uj P_jv P_vi)^alpha / |U_i|^beta;  P_uj = 1 / |I_u|, P_jv = 1 / |U_j|.
    """

    alpha: float = Field(0.7, ge=0)  # below 1: rare paths count for more
    beta: float = 0.2  # above 0: popular items are held back
    neighbours: int = Field(1000, ge=1)  # kept for each item

    def fit(self, train: csr_array, seed: int = 0) -> ScoreFunction:  # noqa: ARG002
        """Multiply the transition matrices. train: [users, items]."""
        per_user = np.maximum(np.diff(train.indptr), 1).astype(np.float64)
        per_item = np.maximum(np.bincount(train.indices, minlength=train.shape[1]), 1).astype(np.float64)
        from_user = (diags_array(per_user**-self.alpha) @ train).tocsr()  # [users, items] P_ui ^ alpha
        from_item = (diags_array(per_item**-self.alpha) @ train.T).tocsr()  # [items, users] P_iu ^ alpha
        walks = (from_item @ from_user @ diags_array(per_item**-self.beta)).tocsr()  # [items, items] j -> i
        walks.data = walks.data.astype(np.float32)
        into = nearest(walks.T.tocsr(), self.neighbours)  # row i: the items j that lead to i
        return by_neighbours(from_user.astype(np.float32), into)


def nearest(similarity: csr_array, k: int) -> csr_array:
    """[items, items] the k highest entries of each row, without the diagonal; ties to the lower column."""
    similarity.setdiag(0.0)
    similarity.eliminate_zeros()
    similarity.sort_indices()
    lengths = np.diff(similarity.indptr)
    row = np.repeat(np.arange(similarity.shape[0]), lengths)
    cut = np.flatnonzero((lengths > k)[row])  # only long rows need sorting
    order = cut[np.lexsort((similarity.indices[cut], -similarity.data[cut], row[cut]))]
    place = np.arange(len(order)) - np.repeat(
        np.cumsum(lengths[lengths > k]) - lengths[lengths > k], lengths[lengths > k]
    )
    similarity.data[order[place >= k]] = 0.0
    similarity.eliminate_zeros()
    return similarity


def by_neighbours(profile: csr_array, similarity: csr_array) -> ScoreFunction:
    """score(u, i) = sum_j profile_uj similarity_ij. profile: [users, items]; similarity: [items, items]."""
    into = similarity.T.tocsr()

    def scores(users: NDArray[np.int64]) -> NDArray[np.float32]:
        block: NDArray[np.float32] = (profile[users] @ into).toarray()
        return block

    return ScoreFunction(scores)
