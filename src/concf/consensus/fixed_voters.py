"""Fixed voters: other recommenders that vote in the consensus without learning from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from scipy.sparse import csr_array
from torch import Tensor

from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.model.baselines.table import Baseline, candidate
from concf.runtime.settings import named


@dataclass(frozen=True)
class FixedVoter:
    """A baseline that is fitted once, on the training part alone, before the heads begin."""

    model: Baseline

    def ranking(self, train: csr_array, length: int, seed: int, users: slice = slice(None)) -> Tensor:
        """[users, length] int32 each user's best items that it has not used, -1 where there are fewer."""
        fitted = self.model.fit(train, seed)
        lists = rank(fitted, np.arange(train.shape[0])[users], length, seen=train)
        return torch.from_numpy(lists).to(torch.int32)


def fixed_voter(name: str) -> FixedVoter:
    """`rp3beta`, or with settings and a name of its own: `rp3beta-a=rp3beta(beta=0.2, alpha=0.5)`."""
    parsed = re.fullmatch(r"([a-z0-9]+)(?:\((.*)\))?", named(name)[1].strip())
    if parsed is None:
        raise ConfigError(f"fixed voter {name!r}: expected a baseline, such as rp3beta(beta=0.2)")
    chosen = candidate(parsed[1])
    chosen.refuse_if_absent()
    try:
        return FixedVoter(chosen.make(**_settings(parsed[2] or "")))
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"fixed voter {name!r}: {error}") from None


def _settings(text: str) -> dict[str, Any]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {name.strip(): float(value) if "." in value else int(value) for name, _, value in pairs}
