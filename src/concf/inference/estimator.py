"""ConCF as one object: fit it to a log, ask it for recommendations, keep it in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from concf.data.prepare import split_of
from concf.data.reading.scan import Format
from concf.errors import ConfigError
from concf.inference.frames import Frame, Library, library_of
from concf.inference.lookup import Histories, Id, ItemIds, ItemsByUser, UnknownItems, UnknownUsers, UserIds
from concf.inference.recommender import Recommender
from concf.runtime.arguments import check_seed
from concf.training.checkpoint import RunFolder
from concf.training.config.presets import DEFAULT, choose_settings
from concf.training.run import Run
from concf.training.train import train


class ConCF:
    """Heads of several objectives that agree, and learn from what they agree on.

        model = concf.ConCF(model={"dimensions": 128}).fit(frame)
        model.recommend(["alice", "bob"], k=10)

    settings: changes to the preset, by group, as for `concf.train`
    """

    def __init__(self, preset: str = DEFAULT, *, seed: int = 0, device: str | None = None, **settings: Any) -> None:
        self.settings = choose_settings(preset, settings)
        self.seed, self.device = check_seed(seed), device
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
        verbose: bool = False,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> Self:
        """Learn from a frame, a sparse matrix, a pair of arrays, a file, a prepared folder or a `Split`.

        A log is divided at random: a tenth of each user's items stops the run, another tenth is left to test on, one
        item at least of everyone with three or more. What is None is as `concf train` has it. A prepared folder and a
        `Split` are divided already: there only `out`, `verbose` and `watch` can be said.

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
        verbose: where no progress bar shows (it does on a terminal), a line of standard error for every ranking
        watch: called with every epoch's record: its number, losses, seconds, and at a ranking the validation figures
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

    def recommend(
        self,
        users: UserIds | None = None,
        k: int = 10,
        *,
        by: str | None = None,
        filter_viewed: bool = True,
        items: ItemsByUser | None = None,
        exclude: ItemsByUser | None = None,
        unknown: UnknownUsers = "raise",
        unknown_items: UnknownItems = "ignore",
        history: Histories | None = None,
        frame: Library | None = None,
    ) -> Frame:
        """The best k items of each user, best first.

            model.recommend("alice")
            model.recommend(["alice", "bob"], k=5, exclude=["sold out"])
            model.recommend(history=["a", "c"])

        Gives a frame `user_id, item_id, score, rank` (from 1) in the library of the log that was fitted, or with
        frame="arrays" (ids, scores), each [users, k], empty places -1 (text: None) and -inf.

        users:   an id, several, or None for everyone
        k:       the length of the lists, 1 or more
        by:      consensus, R-consensus or a head; if not said, the consensus
        filter_viewed: leave out what the user has used, held-out items too. If not, a consensus is by rank alone:
                 the lists that it keeps do not have what was trained on
        items:   only these may be shown, for everyone or as a mapping of users to items
        exclude: these may not be shown, for everyone or as a mapping
        unknown: what becomes of a user whom the log does not have: "raise" an error, or what is "popular"
        unknown_items: what becomes of items of `items`, `exclude` and `history` that the log does not have, or that a
                 filter left out: "ignore" leaves them out with a `ConcfWarning`, "error" raises
        history: what a new user has used: items, or a mapping of names to items for several. A user of the log has
                 used these too. With no known item the list is the average user's
        frame:   polars, pandas, arrow or arrays
        """
        return self.recommender.recommend(
            users, k, by=by, filter_viewed=filter_viewed, items=items, exclude=exclude, unknown=unknown,
            unknown_items=unknown_items, history=history, frame=frame,
        )  # fmt: skip

    def similar_items(
        self,
        items: ItemIds,
        k: int = 10,
        *,
        head: str | None = None,
        unknown_items: UnknownItems = "ignore",
        frame: Library | None = None,
    ) -> Frame:
        """The k items nearest to each by the cosine of a head's vectors: `item_id, similar_id, score, rank`.

        items: an id, or several
        head:  whose vectors; if not said, the best head's
        unknown_items: what becomes of items among several that the log does not have: "ignore" leaves them out with a
               `ConcfWarning` (with frame="arrays" their places are empty), "error" raises. A single one is an error
        frame: polars, pandas, arrow or arrays
        """
        return self.recommender.similar_items(items, k, head=head, unknown_items=unknown_items, frame=frame)

    def similar_users(
        self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Library | None = None
    ) -> Frame:
        """The k users nearest to each by the cosine of a head's vectors: `user_id, similar_id, score, rank`.

        users: an id, or several, of the log
        head:  whose vectors; if not said, the best head's
        frame: polars, pandas, arrow or arrays
        """
        return self.recommender.similar_users(users, k, head=head, frame=frame)

    def explain(self, user: Id, item: Id) -> dict[str, Any]:
        """Why an item stands where it stands in a user's consensus: see `Recommender.explain`."""
        return self.recommender.explain(user, item)

    def user_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[users, d + 1] vectors whose inner product with the items' is the head's score; of the best head, if none."""
        return self.recommender.user_factors(head)

    def item_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[items, d + 1] the items' vectors, their bias last."""
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
