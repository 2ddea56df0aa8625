"""Evaluation at rolling cuts: fit models to the pairs before a cut, test them on the next window, and move on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Unpack

import numpy as np
import polars as pl

from concf.comparison.compare import compare
from concf.comparison.measure import Fit
from concf.comparison.models import PREFIX, Trained, named_models
from concf.data.catalogue import is_catalogued
from concf.data.options import LogOptions
from concf.data.prepare import chosen, filter_of, filtered_and_split, filters_of, read_source, reading_of
from concf.data.protocols import TimeCut
from concf.data.reading.times import moment
from concf.data.recipe import SplitRecipe
from concf.data.split import Split
from concf.errors import ConfigError, DataError, MissingExtraError, option
from concf.evaluation.evaluate import at_lengths
from concf.runs.settings import CONSENSUS
from concf.runtime.arguments import check_count
from concf.runtime.text_tables import short
from concf.strong.run import StrongRun
from concf.strong.update import update as update_run

METRICS = ("ndcg@10", "hit@10", "recall@50")
KINDS = ("warm", "everyone")  # of users


@dataclass
class Rolling:
    """Test metrics of models at several cuts."""

    windows: list[dict[str, Any]]  # of each cut: from, to (dates, if times are since 1970), counts of `Split.held_out`
    models: dict[str, list[dict[str, Any]]]  # name -> at each cut: warm and everyone (metric -> mean), seconds
    metrics: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return everything that was measured."""
        return {"windows": self.windows, "models": self.models, "metrics": self.metrics}

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of a table: mean ± standard deviation over the cuts, of warm users and of everyone."""
        header = ["model", *map(short, self.metrics), *(f"{short(metric)}, everyone" for metric in self.metrics), "s"]
        rows = []
        for name, cells in self.models.items():
            values = [[cell[users][metric] for cell in cells] for users in KINDS for metric in self.metrics]
            means = [f"{mean(each):.4f} ± {stdev(each) if len(each) > 1 else 0.0:.4f}" for each in values]
            rows.append([name, *means, f"{mean(cell['seconds'] for cell in cells):.1f}"])
        return header, rows

    def plot(self, path: str | Path) -> None:
        """Draw the first metric of every model over the cuts into a .svg, .png or .pdf file."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise MissingExtraError("matplotlib", "report", "a plot") from None
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes, metric = figure.subplots(), self.metrics[0]
        for name, cells in self.models.items():
            axes.plot([cell["warm"][metric] for cell in cells], marker="o", label=name)
        axes.set_xticks(range(len(self.windows)), [f"{each['from']}\nto {each['to']}" for each in self.windows])
        axes.set(ylabel=f"{short(metric)} of warm users", ylim=(0, None))
        axes.legend()
        figure.savefig(Path(path))


def evaluate_rolling(
    source: Any, models: Sequence[str] = (f"{PREFIX}strong",), *, cuts: int = 3, update: bool = False,
    metrics: Sequence[str] = METRICS, log: str | Path | None = None, **options: Unpack[LogOptions],
) -> Rolling:  # fmt: skip
    """Evaluate models at several cuts of a log; each is tuned on the window before the cut and fitted to all before it.

    source:  a log with times, as for `prepare`
    models:  as for `compare`
    cuts:    number of test windows, which end with the log and lie one behind the other
    update:  models of the preset strong are also trained once, before the first cut, and then updated; an update
             filters nothing, so that their warm users may be a few more
    metrics: by the first, on validation, settings are chosen
    log:     JSON lines of the measurements; those that it holds are not repeated
    options: see `LogOptions`; `test` is the length of a window, such as 28d or a share of the pairs (default 0.1)
    """
    settings, names = chosen(options), at_lengths(metrics)
    splits = rolling_splits(source, cuts, settings)
    cells: dict[str, list[dict[str, Any]]] = {}
    for split in splits:
        for entrant in compare(split, models, seeds=1, metrics=names, log=log).entrants:
            cell = {"warm": entrant.tests[0], "everyone": entrant.everyone[0], "seconds": entrant.fit_seconds[0]}
            cells.setdefault(entrant.name, []).append(cell)
    for name, model in named_models(list(models)).items() if update else ():
        fitted = next(iter(model.settings()))
        if isinstance(fitted, Trained) and fitted.refits and fitted.ship == CONSENSUS:
            cells |= _updated(name.removesuffix(f" {CONSENSUS}"), fitted, splits, names)
    ends = [moment(float(np.asarray(split.interactions.timestamp).max())) for split in splits]
    windows = [split.held_out()[1] | {"to": end} for split, end in zip(splits, ends, strict=True)]
    return Rolling(windows, cells, names)


def rolling_splits(source: Any, cuts: int, options: dict[str, Any]) -> list[Split]:
    """Return the splits of a log at rolling cuts, the earliest first; each ends where the next one's test part begins.

    The validation part of a split is the window before its test part, which is the test part of the split before.
    """
    cuts, reading = check_count("cuts", cuts), reading_of(options)
    others = {"protocol", "valid", "valid_from", "test_from", "newest", "at_least", "last", "target_share"}
    if reading.ordered:
        raise ConfigError(f"{option('ordered', True)}: rolling cuts need times, and positions in a line are not times")
    if unused := options.keys() & others:
        raise ConfigError(f"{option(min(unused))}: rolling cuts have only {option('cuts')} and {option('test')}")
    whole, origin = read_source(source, reading)
    if whole.timestamp is None:
        raise DataError(f"{origin['name']}: rolling cuts need times and the log has none. Set {option('timestamp')}")
    own_filter = filter_of(options if is_catalogued(source) else {"min_item": 5} | options)
    filters, applied = filters_of(source, own_filter, TimeCut()), 0
    for step in filters:
        if not step.before_test:  # that of a catalogue's papers, which counts the whole log
            whole, applied = step.apply(whole), applied + 1
    times, splits = np.asarray(whole.timestamp, np.float64), []
    length = options.get("test", 0.1)
    starts = [TimeCut(test=length).start(times, n) for n in range(cuts + 1, 0, -1)]
    if not all(start < later for start, later in pairwise(starts)) or starts[0] <= times.min():
        fix = f"Choose fewer {option('cuts')} or a shorter {option('test')}"
        raise DataError(f"{cuts + 1} windows of {length}, one of them to validate, leave nothing to train on. {fix}")
    for valid_from, test_from, end in zip(starts, starts[1:], [*starts[2:], np.inf], strict=False):
        until, log = {"until": end} if end < np.inf else {}, whole.keep(times < end)
        if log.later is not None and log.timestamp is not None:  # of a later event, nothing is known
            log = replace(log, last=np.where(log.later < end, log.later, log.timestamp))
        recipe = SplitRecipe(
            source=origin | until, reading=reading.model_dump(exclude_defaults=True), filters=filters,
            protocol=TimeCut(valid_from=valid_from, test_from=test_from),
        )  # fmt: skip
        try:
            splits.append(filtered_and_split(log, recipe, applied))
        except DataError as error:
            raise DataError(f"the window from {moment(test_from)} on: {error}") from None
    return splits


def _updated(name: str, model: Trained, splits: list[Split], metrics: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Train before the first cut, update at every later one, and measure the consensus and the best head."""
    cells: dict[str, list[dict[str, Any]]] = {}
    measured = Fit({}, tuple(metrics), keep_users=False)
    run: Any = None
    for split in splits:
        begin = time.perf_counter()
        run = model.train(split, metrics[0]) if run is None else _next(run, split)
        seconds = time.perf_counter() - begin
        for ship, recommender in ((CONSENSUS, CONSENSUS), ("head", run.best_head())):
            cell = measured.measure(run.recommender(recommender), run.data, "test")
            row = {"warm": cell["mean"], "everyone": cell["everyone"], "seconds": seconds}
            cells.setdefault(f"{name} {ship} updated", []).append(row)
    return cells


def _next(run: StrongRun, split: Split) -> StrongRun:
    """Update a run by the new pairs of a later split, whose windows it takes over."""
    log, times = split.interactions, np.asarray(split.interactions.timestamp)
    rows = times > np.asarray(run.data.interactions.timestamp).max()
    columns = {"user": log.user_ids.values[log.user[rows]], "item": log.item_ids.values[log.item[rows]]}
    numbers = {"count": log.count[rows], "timestamp": times[rows]}
    fresh = pl.DataFrame({name: column.tolist() for name, column in columns.items()} | numbers)
    changed = {"protocol": split.recipe.protocol, "reading": {}}  # the frame is no file of the user's
    run.data = replace(run.data, recipe=run.data.recipe.model_copy(update=changed))
    return update_run(run, fresh, device=run.device)
