"""ConCF as one object: fit it to a log, ask it for recommendations, keep it in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from concf.data.prepare import split_of
from concf.data.scan import Format
from concf.deploy.frames import Library, library_of
from concf.deploy.recommender import Recommender
from concf.errors import ConfigError
from concf.learning.checkpoint import RunFolder
from concf.learning.presets import DEFAULT, choose_settings
from concf.learning.run import Run
from concf.learning.train import train


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
        self,
        data: Any,
        *,
        out: str | Path | None = None,
        user: str | None = None,
        item: str | None = None,
        rating: str | None = None,
        min_rating: float | None = None,
        count: str | None = None,
        timestamp: str | None = None,
        time_format: str | None = None,
        format: Format | None = None,
        separator: str | None = None,
        header: bool | None = None,
        min_user: int | None = None,
        min_item: int | None = None,
        counts: Literal["raw", "distinct"] | None = None,
        core: bool | None = None,
        protocol: str | None = None,
        valid: Any = None,
        test: Any = None,
        at_least: int | None = None,
        last: int | None = None,
        valid_from: float | None = None,
        test_from: float | None = None,
    ) -> Self:
        """Learn from a frame, a sparse matrix, a pair of arrays, a file, a prepared folder or a `Split`.

        A log is divided at random: a tenth of each user's items stops the run, another tenth is left to test on, one
        item at least of everyone with three or more. What is None is as `concf train` has it. A prepared folder and a
        `Split` are divided already: there only `out` can be said.

        out:  a folder for history and checkpoints while it runs, and for what is learned
        user, item, count, timestamp: columns; if not said, found by their usual names. In a file without header a place
              from 0. rating, count or timestamp "none": the column is not looked at
        rating, min_rating: column of an explicit rating, and the least that counts as positive; without `min_rating`
              every row does
        time_format: of times as text that are not ISO 8601, such as "%d/%m/%Y"
        format, separator, header: of a file, where looking at it does not tell; see `Reading`
        min_user, min_item: users and items with fewer interactions are left out, for little can be learned of them;
              if not said, items with fewer than 5. counts, core: how it is counted, see `Filter`
        protocol: random (if not said), leave-last, time, released, paper, or given
        valid, test: the shares to stop by and to test on (0.1 each); with `given`, two more logs
        at_least: `random`: items that are held out of every user who has enough, in each part (1)
        last: `leave-last`: how many of the newest; valid_from, test_from: `time`: when the parts begin
        """
        split = split_of(
            data, self.seed, user=user, item=item, rating=rating, min_rating=min_rating, count=count,
            timestamp=timestamp, time_format=time_format, format=format, separator=separator, header=header,
            min_user=min_user, min_item=min_item, counts=counts, core=core, protocol=protocol, valid=valid, test=test,
            at_least=at_least, last=last, valid_from=valid_from, test_from=test_from,
        )  # fmt: skip
        split.note_if_few()
        if out is not None:
            home = RunFolder(out)
            home.refuse_occupied()
            home.keep(split)
        run = train(split, self.settings, seed=self.seed, device=self.device, out=out)
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
