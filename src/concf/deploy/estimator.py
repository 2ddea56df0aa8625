"""ConCF as one object: fit it to a log, ask it for recommendations, keep it in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from concf.data.filters import Filter
from concf.data.split import Split
from concf.deploy.frames import Library, library_of
from concf.deploy.recommender import Recommender
from concf.errors import ConfigError
from concf.learning.checkpoint import RunFolder
from concf.learning.presets import DEFAULT, choose_settings
from concf.learning.run import Run
from concf.learning.train import train

HELD_OUT = 0.1  # of each user's items, to stop by; as much again to test on
ENOUGH = 5  # users of an item


class ConCF:
    """Heads of several objectives that agree, and learn from what they agree on.

        model = concf.ConCF(model={"dimensions": 128}).fit(frame)
        model.recommend(["alice", "bob"], k=10)

    settings: changes to the preset, by group, as for `concf.train`
    """

    def __init__(self, preset: str = DEFAULT, *, seed: int = 0, device: str | None = None, **settings: Any) -> None:
        self.settings = choose_settings(preset, settings)
        self.seed, self.device = seed, device
        self._recommender: Recommender | None = None

    def fit(
        self, data: Any, *, min_item: int = ENOUGH, out: str | Path | None = None, verbose: bool = False,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> Self:  # fmt: skip
        """Learn from a frame, a sparse matrix, a pair of arrays, a file, a prepared folder or a `Split`.

        A log is divided at random: a tenth of each user's items stops the run, another tenth is left to test on.
        min_item: items of a log that fewer users have used are left out, for little can be learned of them
        out: a folder for history and checkpoints while it runs, and for what is learned
        verbose: where no progress bar shows (it does on a terminal), a line of standard error for every ranking
        watch: called with every epoch's record: its number, losses, seconds, and at a ranking the validation figures
        """
        split = data if isinstance(data, Split) else split_of(data, self.seed, min_item)
        if out is not None:
            home = RunFolder(out)
            home.refuse_occupied()
            home.keep(split)
        run = train(
            split, self.settings, seed=self.seed, device=self.device, out=out, verbose=verbose, watch=watch
        )  # fmt: skip
        self._recommender = Recommender(run, library_of(data))
        return self

    @property
    def recommender(self) -> Recommender:
        """What was learned."""
        if self._recommender is None:
            raise ConfigError("nothing was learned yet: call fit(data) first, or ConCF.load(folder)")
        return self._recommender

    @property
    def run(self) -> Run:
        """The run: history, and each head and consensus at its best."""
        return self.recommender.run

    def recommend(self, users: Any = None, k: int = 10, **options: Any) -> Any:
        """See `Recommender.recommend`."""
        return self.recommender.recommend(users, k, **options)

    def similar_items(self, items: Any, k: int = 10, **options: Any) -> Any:
        """See `Recommender.similar_items`."""
        return self.recommender.similar_items(items, k, **options)

    def similar_users(self, users: Any, k: int = 10, **options: Any) -> Any:
        """See `Recommender.similar_users`."""
        return self.recommender.similar_users(users, k, **options)

    def explain(self, user: Any, item: Any) -> dict[str, Any]:
        """See `Recommender.explain`."""
        return self.recommender.explain(user, item)

    def user_factors(self, head: str | None = None) -> Any:
        """See `Recommender.user_factors`."""
        return self.recommender.user_factors(head)

    def item_factors(self, head: str | None = None) -> Any:
        """See `Recommender.item_factors`."""
        return self.recommender.item_factors(head)

    def save(self, folder: str | Path) -> None:
        """What was learned and the log it was learned from, as a folder that holds all it needs."""
        run, home = self.run, RunFolder(folder)
        home.refuse_occupied()
        home.keep(run.data)
        home.begin(run)
        for record in run.history:
            home.record(record)
        home.save(run)

    @classmethod
    def load(cls, folder: str | Path, frame: Library = "polars") -> Self:
        """What `save`, or `fit` or `concf train` with an `out`, left in a folder."""
        recommender = Recommender.load(folder, frame=frame)
        model = cls(seed=recommender.run.seed)
        model.settings, model._recommender = recommender.run.settings, recommender
        return model


def split_of(data: Any, seed: int, min_item: int = ENOUGH) -> Split:
    """A prepared folder, or a log divided at random: a tenth of each user's items to stop by, a tenth to test on."""
    if isinstance(data, str | Path) and Path(data).is_dir():
        return Split.load(data)
    from concf.data.prepare import prepare

    return prepare(
        str(data) if isinstance(data, Path) else data, protocol="random", seed=seed, valid=HELD_OUT, test=HELD_OUT,
        filter=Filter(min_item=min_item) if min_item > 1 else None,
    )  # fmt: skip
