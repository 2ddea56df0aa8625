"""ConCF as an estimator: fit it to a log, recommend, update, save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from concf.data.prepare import split_of
from concf.errors import ConfigError
from concf.inference.frames import Library, library_of
from concf.inference.recommender import Recommender
from concf.models import DEFAULT, choose_settings, load_run, train
from concf.runs.checkpoint import RunFolder
from concf.runs.job import as_watchers
from concf.runs.watchers import Lines, Watch
from concf.runtime.arguments import check_seed
from concf.strong.update import UpdateOptions, update

if TYPE_CHECKING:
    from concf.data.options import LogOptions


class ConCF(Recommender):
    """Several recommenders that vote on one ranking, and one model that learns their consensus.

        import concf

        model = concf.ConCF(dimensions=128).fit(frame)  # a frame with a user and an item column
        model.recommend(["alice", "bob"], k=10)  # user_id, item_id, score, rank
        model.similar_items("a")  # item_id, similar_id, score, rank
        model.explain("alice", "a")  # a dictionary: who voted for it, and how
        model.save("runs/mine")
        model = concf.ConCF.load("runs/mine")

    preset:   strong (the default), reference, paper or released; see `concf.PRESETS`
    seed:     random seed of the initial weights, the order of batches, the negatives, and the split of a log
    device:   "cpu" or "cuda"; None: a GPU if there is one
    settings: changes to the preset, as for `concf.train`: budget="fast", weights={"function": "log",
              "half_life": "90d"}; of the preset reference also objectives="bpr,cml", consensus={"weight": 0.1}

    A model is saved by `save`, not pickled; `copy.copy` copies it.

    `fit` returns the model itself. Before `fit` or `load` every other method raises `ConfigError`; afterwards there are
    also the attributes `run` (history, settings, data, evaluation), `user_ids` and `item_ids`.
    """

    def __init__(self, preset: str = DEFAULT, *, seed: int = 0, device: str | None = None, **settings: Any) -> None:
        self.settings, self.seed, self.device = choose_settings(preset, settings), check_seed(seed), device

    def fit(
        self, data: Any, *, out: str | Path | None = None, final: bool = False, verbose: bool = False,
        watch: Watch | Sequence[Watch] | None = None, **options: Unpack[LogOptions],
    ) -> Self:  # fmt: skip
        """Learn from a frame, a file, a matrix, a list of tuples, a prepared folder or a `Split`.

            model.fit("ratings.csv", min_rating=4, protocol="leave-last", out="runs/mine")
            model.fit([("alice", "a"), ("alice", "b"), ("bob", "b"), ("bob", "c")])

        A frame is of polars, pandas, or any library with the Arrow PyCapsule interface; a matrix [users, items] is
        sparse, its cells counts; a tuple is (user, item[, count][, time]).
        A log with times is split by time: its newest tenth for testing, the tenth before for validation (of a small
        log, each user's newest items); without times, a tenth of each user's items for either (docs/time.md). An option
        that is None has the default of `concf train`. A prepared folder and a `Split` take no options.

        final:   refit on everything, the test part too: for production; the model then has no test metrics
        out:     a folder for the history, checkpoints and the model
        verbose: print a line to standard error for every stage or ranking, where there is no progress bar
        watch:   one function or several, called with the record of every stage or epoch: its number, seconds, losses or
                 chosen settings, and validation metrics if any

        options: to read, filter and split the log, see `concf.data.options.LogOptions`
        """
        settings = choose_settings(self.settings, {"refit": "everything"}) if final else self.settings
        split = split_of(data, self.seed, **options)
        split.note_if_few()
        if out is not None:
            home = RunFolder(out)
            home.refuse_occupied()
            home.keep(split)
        run = train(split, settings, seed=self.seed, device=self.device, out=out, watch=_watchers(watch, verbose))
        Recommender.__init__(self, run, library_of(data))
        return self

    def update(
        self, data: Any, *, out: str | Path | None = None, verbose: bool = False,
        watch: Watch | Sequence[Watch] | None = None, **options: Unpack[UpdateOptions],
    ) -> Self:  # fmt: skip
        """Learn from a newer log too, in a fraction of the time of `fit`; the chosen settings stay.

            model.update("tuesday.csv", out="runs/tuesday")

        See `concf.strong.update.update` for the options. If the update fails, the model stays as it was.
        """
        run = update(self.run, data, out=out, device=self.device, watch=_watchers(watch, verbose), **options)
        self.settings = run.settings
        Recommender.__init__(self, run, self.frame)
        return self

    def save(self, folder: str | Path) -> None:
        """Write the model and its log into a new folder, for `load`."""
        run, home = self.run, RunFolder(folder)
        home.refuse_occupied()
        home.keep(run.data)
        home.begin(run)
        for record in run.history:
            home.record(record)
        home.save(run)

    @classmethod
    def load(cls, folder: str | Path, data: str | Path | None = None, frame: Library = "polars") -> Self:
        """Load a model from a folder of `save`, `concf train`, or `fit` with `out`; see `Recommender.load`."""
        run = load_run(folder, data)
        model = cls(seed=run.seed)
        model.settings = run.settings
        Recommender.__init__(model, run, frame)
        return model

    def __copy__(self) -> Self:
        """Copy the model; fitting or updating one leaves the other as it is."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> Any:
        raise ConfigError("a model is not pickled: a pickle runs code. Use model.save(folder) and ConCF.load(folder)")

    def __repr__(self) -> str:
        preset, changes = self.settings.nearest_preset()
        changed = "".join(f", {name}={value!r}" for name, (value, _) in changes.items())
        state = "not fitted"
        if self._ranker is not None:
            log = self.run.data.interactions
            state = f"fitted to {log.n_users:,} users, {log.n_items:,} items and {len(log):,} pairs"
        return f"{type(self).__name__}({preset!r}, seed={self.seed}{changed})  # {state}"


def _watchers(watch: Watch | Sequence[Watch] | None, verbose: bool) -> tuple[Watch, ...]:
    return (*as_watchers(watch), *([Lines()] if verbose else []))
