"""Stored consensus lists in the front's memory, which it answers without a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from concf.data.ids import Ids
from concf.inference.lookup import position_of
from concf.service.loading import known_index, spelt

KEPT_LISTS, KEPT_BYTES = 1 << 13, 1 << 12  # answers that are kept as JSON: how many, how long at most
Key = tuple[str, int, str | None]  # user, k, by


class Stored:
    """Ids, titles, and the stored lists of the users whose rows have arrived.

    facts: of the run, see `worker.facts`; packed: its ids and titles, see `worker._ids`
    items, scores: [users, stored], of which the first `filled` rows are there
    """

    def __init__(self, facts: dict[str, Any], packed: bytes) -> None:
        self.run_id, self.by, self.length = facts["run"], facts["by"], facts["stored"]
        about = from_json(packed)
        self.user_ids = Ids(np.array(about["users"], object if isinstance(about["users"][0], str) else np.int64))
        self.names, self.titles = about["items"], about["titles"]
        shape = (len(self.user_ids), self.length)
        self.items, self.scores, self.filled = np.empty(shape, np.int32), np.empty(shape, np.float32), 0
        self.kept: dict[Key, bytes] = {}
        self.allowed: NDArray[np.bool_] | None = None  # [items] by the standing rule

    def allow(self, mask: bytes) -> None:
        """Apply the standing rule. mask: [items] as bytes of 0 and 1; empty: all may be shown"""
        self.allowed = np.frombuffer(mask, bool) if mask else None
        self.kept.clear()

    def fill(self, begin: int, end: int, block: bytes) -> None:
        """Add the rows of a block of users."""
        half = len(block) // 2
        shape = (end - begin, self.length)
        self.items[begin:end] = np.frombuffer(block[:half], np.int32).reshape(shape)
        self.scores[begin:end] = np.frombuffer(block[half:], np.float32).reshape(shape)
        self.filled = end

    def answer(self, text: str, k: int, popular: bool) -> bytes | None:
        """Return the list of a user as JSON; None if a worker must compute it; an unknown user is a 404."""
        user = spelt(self.user_ids, text)
        if popular and position_of(self.user_ids, user) < 0:
            return None
        row = known_index("user", self.user_ids, user, "path.user")
        if row >= self.filled or k > self.length:
            return None
        items, scores = self.items[row, :k], self.scores[row, :k]
        if self.allowed is not None:
            may = (self.items[row] >= 0) & self.allowed[self.items[row]]
            items, scores = self.items[row][may][:k], self.scores[row][may][:k]
            if len(items) < k:  # a worker fills the list up
                return None
        listed = [
            {"item": self.names[at], "rank": rank, "score": score, "title": self.titles[at]}
            for rank, (at, score) in enumerate(zip(items.tolist(), scores.tolist(), strict=True), 1)
            if at >= 0
        ]
        return to_json({"user": user, "by": self.by, "note": None, "items": listed})

    def keep(self, key: Key, answer: bytes) -> bytes:
        """Keep an answer of usual size; the oldest makes room. Returns the answer."""
        if len(answer) <= KEPT_BYTES:
            if len(self.kept) >= KEPT_LISTS:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = answer
        return answer
