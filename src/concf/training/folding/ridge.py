"""New users without training: a user vector of each head from a history.

Every head ranks by <user vector, item vector> + bias. The user vectors of the training users are regressed on their
histories: U ~ D X W, where X [users, items] is who used what, D divides each row by the root of its length, and W
[items, d] has a vector for each item of a history. The vector of a new history is the sum of its items' vectors over
the root of its length. W solves (X' D^2 X + ridge I) W = X' D U, by conjugate gradients: no items x items matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

RIDGE = 3.0  # chosen on held-out users by benchmarks/bench_folding.py
STEPS, PRECISION = 200, 1e-5  # of conjugate gradients: the most steps, and the relative residual to stop at


@dataclass(frozen=True)
class Folding:
    """Vectors of histories for one head. weights: [items, d]; average: [d] of the training users."""

    weights: NDArray[np.float32]
    average: NDArray[np.float32]

    @classmethod
    def learn(cls, train: csr_array, users: NDArray[np.float32], ridge: float = RIDGE) -> Folding:
        """From the training users' histories [users, items] and their vectors [users, d]."""
        rows = _scaled(train)
        weights = _solve(rows, rows.T @ users.astype(np.float64), ridge)
        return cls(weights.astype(np.float32), users.mean(0, dtype=np.float64).astype(np.float32))

    def vectors(self, histories: csr_array) -> NDArray[np.float32]:
        """[b, d] of histories [b, items]; one without any item is the average user."""
        vectors = np.asarray(_scaled(histories) @ self.weights, np.float32)
        vectors[np.diff(histories.indptr) == 0] = self.average
        return vectors


def _scaled(histories: csr_array) -> csr_array:
    used = csr_array(histories > 0, dtype=np.float64)
    lengths = np.maximum(np.diff(used.indptr), 1)
    return csr_array(diags_array(lengths**-0.5) @ used)


def _solve(rows: csr_array, right: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """(rows' rows + ridge I)^-1 right, all columns at once."""
    solution = np.zeros_like(right)
    residual = right.copy()
    direction = residual.copy()
    size = (residual**2).sum(0)
    enough = PRECISION**2 * np.maximum(size, np.finfo(np.float64).tiny)
    for _ in range(STEPS):
        if (size <= enough).all():
            break
        product = rows.T @ (rows @ direction) + ridge * direction
        step = size / np.maximum((direction * product).sum(0), np.finfo(np.float64).tiny)
        solution += step * direction
        residual -= step * product
        smaller = (residual**2).sum(0)
        direction = residual + (smaller / np.maximum(size, np.finfo(np.float64).tiny)) * direction
        size = smaller
    return solution
