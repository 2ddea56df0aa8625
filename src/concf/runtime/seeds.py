"""Seeds: one for each purpose, derived from the run's."""

from __future__ import annotations

import numpy as np


def derive_seed(*key: int) -> int:
    """A seed for one purpose: from the run's seed, the epoch and what it is for."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
