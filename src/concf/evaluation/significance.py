"""Significance of differences: paired t-test, Holm's correction, bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # scipy.stats, which takes a second to import, is loaded on first use
from numpy.typing import NDArray

from concf.errors import ConfigError
from concf.runtime.arguments import check_seed

BLOCK = 1 << 22  # drawn numbers held at a time


def paired_t(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """Two-sided p of Student's paired t-test of values [n] and [n]: 1 if they are equal, 0 if a constant apart."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1 or len(ours) < 2:
        raise ConfigError(f"a paired test needs the same 2 or more users or seeds, found {ours.shape}, {theirs.shape}")
    difference = ours - theirs
    rounding = 8 * np.finfo(np.float64).eps * np.abs([ours, theirs]).max()
    if np.ptp(difference) <= rounding:
        return 1.0 if np.abs(difference).max() <= rounding else 0.0
    return float(scipy.stats.ttest_1samp(difference, 0.0).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m is multiplied by m - k + 1, kept ascending, at most 1."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return list(stepped[np.argsort(order)].tolist())


def bootstrap_interval(
    values: NDArray[np.float64], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of values [n]."""
    rng, values = np.random.default_rng(check_seed(seed)), np.asarray(values, np.float64)
    n, step = len(values), max(1, BLOCK // len(values))
    blocks = [values[rng.integers(0, n, (min(step, draws - done), n))].mean(1) for done in range(0, draws, step)]
    low, high = np.quantile(np.concatenate(blocks), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
