"""Weights of interactions: a function of the count, halved with every half-life of age."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from concf.data.interactions import Interactions
from concf.data.reading.times import DURATION, ticks_in
from concf.errors import DataError, note, option
from concf.runtime.settings import Settings

LEAST = 1e-6  # least weight: with 0 a pair would not be an interaction


class Weighting(Settings):
    """Weights of interactions in training.

        w = f(count) 2^(-age / half-life),  divided by the mean of all w

    The age is the time from the last (or first) event of the pair to the newest of the log that is trained on.
    """

    function: Literal["none", "linear", "log"] = Field(
        "none", description="f of the count of a pair: none: 1; linear: the count; log: ln(1 + count)"
    )
    half_life: str | None = Field(
        None, description="age at which an interaction counts half: 90d (s, h, d, w, y), or in the log's unit of time"
    )
    age: Literal["first", "last"] = Field("last", description="event from which the age of a pair counts")
    dislike: float = Field(1.0, gt=0, description="weight of a dislike, which ALS fits as an observed zero")

    @field_validator("half_life", mode="before")
    @classmethod
    def _is_a_duration(cls, value: object) -> str | None:
        text = None if value is None else str(value).strip()
        if text is None or text in ("inf", "infinity"):
            return None
        match = DURATION.fullmatch(text)
        if match is None or not float(match[1]):
            raise ValueError("expected a duration above 0 such as 90d, 12h, 8w or 1.5y, or inf")
        return text

    def __call__(
        self, log: Interactions, rows: NDArray[np.bool_], held_out_from: NDArray[np.float64] | None = None
    ) -> NDArray[np.float32] | None:
        """[m] weights of the pairs of the mask `rows` [n], 1 on average; None: all are equal.

        held_out_from: [users] time from which pairs are held out; a last event from then on is not used
        """
        if self.function == "none" and self.half_life is None:
            return None
        weight = np.ones(np.count_nonzero(rows))
        if self.function != "none":
            count = log.count[rows]
            weight = np.log1p(count) if self.function == "log" else count
            if len(count) and count.min() == count.max():
                note(f"weights by the count: every pair has {count[0]:g}. Is a column of counts missing?")
        if self.half_life is not None:
            if log.timestamp is None:
                fix = f"Set {option('timestamp')}, or leave half_life out"
                raise DataError(f"half_life {self.half_life} needs times and the log has none. {fix}")
            time = np.asarray(log.timestamp[rows], np.float64)
            if self.age == "last" and log.later is not None:
                last = log.later[rows]
                known = last < (np.inf if held_out_from is None else held_out_from[log.user[rows]])
                time = np.where(known, last, time)
            newest = time.max(initial=-np.inf)
            half_life = ticks_in(self.half_life, newest, f"half_life {self.half_life}")
            weight = weight * np.exp2((time - newest) / half_life)
        if not len(weight) or weight.min() == weight.max():
            return None
        return np.asarray(np.maximum(weight / weight.mean(), LEAST), np.float32)


UNWEIGHTED = Weighting()
