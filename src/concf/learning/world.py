"""Which part of the work this process does: the one place that knows of other processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`. Randomness is tied to the global batch, so that it is the same in all of them."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """The users, or rows of a global batch, of this process: n divided into `size` runs as equal as can be."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)


ALONE = World()
