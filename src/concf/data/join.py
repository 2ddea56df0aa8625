"""Join a newer log to a data set: known ids and pairs keep their order, known pairs their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from concf.data.ids import find
from concf.data.interactions import SIDES, Interactions, merge
from concf.data.options import ReadingOptions
from concf.data.parts import PARTS, TRAIN, origin
from concf.data.prepare import chosen, read_source
from concf.data.protocols import Known
from concf.data.reading.scan import Reading, files_of
from concf.data.reading.times import When, in_unit_of, moment, ticks_of
from concf.data.split import UPDATES, Split
from concf.errors import ConfigError, DataError, note, option
from concf.runtime.arguments import check_count

NEAR = 10  # median times that differ by a smaller factor have the same unit, whatever it is


class Joined(NamedTuple):
    """Data set of an update."""

    split: Split
    users: NDArray[np.int64]  # [users] position of each in the old data set; -1: new
    items: NDArray[np.int64]  # [items] position of each in the old data set; -1: new
    fresh: NDArray[np.bool_]  # [pairs] whether the run has not learned from a pair: it is new, or was a test pair


def join(
    old: Split, source: Any, *, learned: Sequence[str], drop_before: When | None = None,
    min_item: int = 1, **options: Unpack[ReadingOptions],
) -> Joined:  # fmt: skip
    """Join a log to a data set.

    The counts of pairs that are in both are added, and these pairs keep their part. The protocol assigns the others as
    in the first log; a protocol by time assigns all pairs anew. No filter is applied again.

    learned:     the parts that a model was fitted to, whose pairs never become test pairs
    drop_before: a date, or a time in the log's own unit: pairs whose last event is older are forgotten, with users and
                 items left with none
    min_item:    new items with fewer users are left out
    options:     how to read the log; by default as the first one
    """
    known, recipe, min_item = old.interactions, old.recipe, check_count("min_item", min_item)
    unknown = options.keys() - Reading.model_fields.keys()
    if unknown:
        raise ConfigError(f"{option(min(unknown))}: not an option of an update, which only says how to read a log")
    reading = Reading(**recipe.reading | {"ordered": False} | chosen(options))  # the order only served to split it
    new, source_of_new = read_source(source, reading)
    name = str(source_of_new["name"])
    for log in (recipe.source, *recipe.source.get(UPDATES, [])):
        if log.get("sha256") and set(log["sha256"].values()) == set(source_of_new.get("sha256", {}).values()):
            raise DataError(f"{name}: nothing new: the run has learned from this log already, as {log['name']}")
    new = _alike(known, new, files_of(source) is not None, name)
    if all((getattr(known, ids).positions(getattr(new, ids)) < 0).all() for ids in ("user_ids", "item_ids")):
        note(f"{name}: the run knows none of its users and items. Are ids written as in the first log?")
    if known.last is not None and new.last is not None:
        newest, late = known.last.max(), int((new.last < known.last.max()).sum())
        if late:
            when = f"older than the newest that the run knows ({moment(newest)})"
            note(f"{name}: {late:,} of {len(new):,} pairs are {when}; they are added")
    kept = np.ones(len(known), bool)
    if drop_before is not None:
        kept, recent = _since(drop_before, known, new, name)
        new = new.keep(recent)
    rare = (known.item_ids.positions(new.item_ids) < 0) & (new.per_item() < min_item)
    if rare.all():
        raise DataError(f"{name}: nothing is left of it. Lower {option('min_item')}")
    if rare.any():
        note(f"{name}: {rare.sum():,} new items with fewer than {min_item} users are left out ({option('min_item')})")
        new = new.keep(~rare[new.item])
    interactions = merge((known if kept.all() else known.keep(kept), new))[0]
    users, items = known.user_ids.positions(interactions.user_ids), known.item_ids.positions(interactions.item_ids)
    user, item = users[interactions.user], items[interactions.item]
    row = find(known.cells, np.where((user >= 0) & (item >= 0), user * known.n_items + item, -1))
    fresh = row < 0
    if not fresh.any() and kept.all():
        raise DataError(f"{name}: nothing new: the run knows each of its {len(new):,} pairs already")
    before = origin(np.where(fresh, TRAIN, old.parts[row]).astype(np.uint8))
    was_learned = ~fresh & np.isin(before, [PARTS[part] for part in learned])
    parts = recipe.protocol.extend(interactions, Known(before, fresh, was_learned), recipe.seed)
    learns = np.isin(origin(parts), [PARTS[part] for part in learned]) & ~was_learned
    if kept.all() and not learns.any():
        raise DataError(f"{name}: every new pair is a test pair. To learn them all, set {option('final', True)}")
    entry = source_of_new | {"pairs": int(fresh.sum()), "dropped": int((~kept).sum()), "before": old.hash}
    recipe = recipe.model_copy(update={"source": recipe.source | {UPDATES: [*recipe.source.get(UPDATES, []), entry]}})
    return Joined(Split(interactions, parts, recipe, weights=old.weights), users, items, ~was_learned)


def _alike(known: Interactions, new: Interactions, from_files: bool, name: str) -> Interactions:
    """Return the new log with ids of the known type, and without times if the known log has none.

    Integers in a file may be text ids; times in another unit are refused.
    """
    for side in SIDES:
        before, now = getattr(known, f"{side}_ids"), getattr(new, f"{side}_ids")
        if before.are_integers == now.are_integers:
            continue
        if before.are_integers or not from_files:
            kind = f"{'integers' if now.are_integers else 'text'} (for example {now.values[0]!r}), unlike the run's"
            raise DataError(f"{name}: the {side} ids are {kind}. Is it the right column ({option(side)})?")
        new = new.with_text_ids(side)
    if known.timestamp is None:
        if new.timestamp is not None:
            note(f"{name}: its times are left out, since the run's log has none")
        return replace(new, timestamp=None)
    if new.timestamp is None:
        raise DataError(f"{name}: no column of times, and the run's log has one. Set {option('timestamp')}")
    was, now = float(np.median(known.timestamp)), float(np.median(new.timestamp))
    if ticks_of(was) != ticks_of(now) and not was / NEAR < now < was * NEAR:
        problem = f"times such as {now:.15g} are in another unit than the run's, such as {was:.15g}"
        raise DataError(f"{name}: {problem}. Convert them, or name another column with {option('timestamp')}")
    return new


def _since(
    when: When, known: Interactions, new: Interactions, name: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """([known pairs], [new pairs]) whether each pair's last event is not older than a date."""
    label, known_times, new_times = option("drop_before", when), known.last, new.last
    if known_times is None or new_times is None:
        raise ConfigError(f"{label}: the run's log has no times, so that nothing is older. Leave it out")
    since = in_unit_of(float(known_times.max()), when, label)
    kept, recent = known_times >= since, new_times >= since
    for rows, log, times in ((recent, name, new_times), (kept, "the run's log", known_times)):
        if not rows.any():
            raise ConfigError(f"{label}: later than all of {log}, whose newest time is {moment(times.max())}")
    return kept, recent
