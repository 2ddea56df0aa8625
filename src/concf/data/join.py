"""A data set and a newer log joined: the same positions for the same ids, the same parts for the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.data.interactions import Dislikes, Interactions
from concf.data.options import ReadingOptions, chosen
from concf.data.prepare import read_source
from concf.data.protocols import (
    PARTS,
    TEST,
    TRAIN,
    UNEVALUATED,
    LeaveLast,
    NewItems,
    Paper,
    Parts,
    Random,
    Released,
    TimeCut,
    origin,
)  # fmt: skip
from concf.data.reading.files import files_of
from concf.data.reading.scan import Reading
from concf.data.reading.times import TICKS, When, in_unit_of, moment, ticks_of
from concf.data.split import UPDATES, Split, SplitRecipe
from concf.errors import ConfigError, DataError, note, option
from concf.runtime.arguments import check_count

NEAR = 10  # median times that differ by a smaller factor have the same unit, whatever it is


class Joined(NamedTuple):
    """The data set of an update.

    users, items: [n] the position that each had before, -1: it is new
    fresh:        [pairs] whether a pair is new; one that was forgotten and comes again is not, since it was learned
    """

    split: Split
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    fresh: NDArray[np.bool_]


def join(
    old: Split, source: Any, *, learned: Sequence[str], drop_before: When | None = None, older: bool = False,
    min_item: int = 1, **options: Unpack[ReadingOptions],
) -> Joined:  # fmt: skip
    """Join a log to a data set.

    Pairs that are in both are counted together and keep their part. The protocol draws parts for the others as it did
    for the first log, or by time anew; no filter is applied again.

    learned:     the parts that a model was fitted to, whose pairs never become test pairs
    drop_before: a date, or a time in the log's own unit: older pairs are forgotten, with users and items left with none
    older:       whether all pairs of a log may be older than the newest that is known
    min_item:    new items with fewer users are left out
    options:     how to read the log, where it is not read as the first one was
    """
    known, recipe, min_item = old.interactions, old.recipe, check_count("min_item", min_item)
    new, source_of_new = read_source(source, _reading(recipe, options))
    name = str(source_of_new["name"])
    _refuse_again(recipe, source_of_new, name)
    new = _timed_alike(known, _same_ids(known, new, files_of(source) is not None, name), name)
    if (places(known.user_ids, new.user_ids) < 0).all() and (places(known.item_ids, new.item_ids) < 0).all():
        note(
            f"{name}: the run knows none of its {new.n_users:,} users and none of its {new.n_items:,} items. Are ids "
            "written as in the first log?"
        )
    _check_order(known, new, older, name)
    kept = np.ones(len(known), bool)
    if drop_before is not None:
        kept, recent = _since(drop_before, known, new, name)
        new = new.keep(recent)
    new = _without_rare_items(known, new, min_item, name)
    interactions = _merged(known if kept.all() else known.keep(kept), new)
    row = _rows(known, interactions)
    fresh = row < 0
    if not fresh.any() and kept.all():
        raise DataError(f"{name}: nothing new: the run knows each of its {len(new):,} pairs already")
    parts = _parts(interactions, np.where(fresh, TRAIN, old.parts[row]).astype(np.uint8), fresh, old, learned)
    if kept.all() and not np.isin(origin(parts[fresh]), [PARTS[part] for part in learned]).any():
        raise DataError(
            f"{name}: every new pair falls into the test part (protocol {recipe.protocol.name!r}), so that there is "
            f"nothing to learn. Learn from everything: {option('final', True)}"
        )
    entry = source_of_new | {"pairs": int(fresh.sum()), "dropped": int((~kept).sum()), "before": old.hash}
    source_of_all = recipe.source | {UPDATES: [*recipe.source.get(UPDATES, []), entry]}
    return Joined(
        Split(interactions, parts, recipe.model_copy(update={"source": source_of_all}), weights=old.weights),
        places(known.user_ids, interactions.user_ids), places(known.item_ids, interactions.item_ids), fresh,
    )  # fmt: skip


def _reading(recipe: SplitRecipe, options: ReadingOptions) -> Reading:
    """How the first log was read, where the options do not say otherwise."""
    strange = options.keys() - Reading.model_fields.keys()
    if strange:
        raise ConfigError(f"{option(min(strange))}: not an option of an update, which only says how to read a log")
    before = {name: value for name, value in recipe.reading.items() if name != "ordered"}  # only what was split by it
    return Reading(**before | chosen(options))


def _refuse_again(recipe: SplitRecipe, origin: dict[str, Any], name: str) -> None:
    """Refuse a log that was joined already."""
    chain = [recipe.source, *recipe.source.get(UPDATES, [])]
    for log in chain:
        if log.get("sha256") and set(log["sha256"].values()) == set(origin.get("sha256", {}).values()):
            raise DataError(f"{name}: nothing new: the run has learned from this log already, as {log['name']}")


def _same_ids(known: Interactions, new: Interactions, from_files: bool, name: str) -> Interactions:
    """The new log with ids of the known type; integers in a file may be the text that all ids were before."""
    kinds = {True: "integers", False: "text"}
    for side in ("user", "item"):
        before, now = getattr(known, f"{side}_ids"), getattr(new, f"{side}_ids")
        if before.are_integers == now.are_integers:
            continue
        if before.are_integers or not from_files:
            example = now.named(np.arange(1))[0]
            raise DataError(
                f"{name}: the {side} ids are {kinds[now.are_integers]} (for example {example!r}), and the run knows "
                f"{kinds[before.are_integers]}. Is it the right column ({option(side)})? Write ids as in the first log"
            )
        new = _with_text(new, side)
    return new


def _with_text(log: Interactions, side: str) -> Interactions:
    """Integer ids of one side as text, whose order is another."""
    text = np.array([str(each) for each in getattr(log, f"{side}_ids").values.tolist()], dtype=object)
    order = np.argsort(text)
    place = np.argsort(order).astype(np.int32)
    columns = {**vars(log), f"{side}_ids": Ids(text[order]), side: place[getattr(log, side)]}
    if log.dislikes is not None:
        columns["dislikes"] = log.dislikes._replace(**{side: place[getattr(log.dislikes, side)]})
    rows = np.lexsort((columns["item"], columns["user"]))
    for column in ("user", "item", "count", "timestamp"):
        columns[column] = None if columns[column] is None else columns[column][rows]
    return Interactions(**columns)


def _timed_alike(known: Interactions, new: Interactions, name: str) -> Interactions:
    """The new log with times if the known one has them, and in its unit."""
    if known.timestamp is not None and new.timestamp is None:
        raise DataError(
            f"{name}: no column of times, and the run's log has one. Name it with {option('timestamp')}, or add it"
        )
    if known.timestamp is None and new.timestamp is not None:
        note(f"{name}: its times are left out, since the run's log has none")
        return Interactions(**{**vars(new), "timestamp": None})
    if known.timestamp is None or new.timestamp is None:
        return new
    was, now = float(np.median(known.timestamp)), float(np.median(new.timestamp))
    unit, other = ticks_of(was), ticks_of(now)
    if unit == other or was / NEAR < now < was * NEAR:
        return new
    if unit is None or other is None:
        raise DataError(
            f"{name}: its times (median: {now:.15g}) are in another unit than those that the run knows (median: "
            f"{was:.15g}). Write them in that unit"
        )
    note(f"{name}: its times are in {TICKS[other]}; they are converted to {TICKS[unit]}, as the run's log has them")
    return _rescaled(new, unit, other)


def _rescaled(log: Interactions, unit: int, other: int) -> Interactions:
    """A log with its times, and those of its dislikes, in a unit of which `unit` make a second, not `other`."""

    def scaled(times: NDArray[Any] | None) -> NDArray[Any] | None:
        if times is None:
            return None
        return times * (unit // other) if unit > other else times // (other // unit)

    dislikes = None if log.dislikes is None else log.dislikes._replace(timestamp=scaled(log.dislikes.timestamp))
    return replace(log, timestamp=scaled(log.timestamp), dislikes=dislikes)


def _check_order(known: Interactions, new: Interactions, older: bool, name: str) -> None:
    """Note pairs that are older than the newest that is known; refuse a log of such pairs alone, unless it is meant."""
    if known.timestamp is None or new.timestamp is None:
        return
    newest = known.timestamp.max()
    late = int((new.timestamp < newest).sum())
    if late == len(new) and not older:
        raise DataError(
            f"{name}: all {late:,} pairs are older than the newest that the run knows ({moment(newest)}). Is it the "
            f"right log? To add late rows: {option('older', True)}"
        )
    if late:
        note(f"{name}: {late:,} of {len(new):,} pairs are older than the newest that the run knows; they are added")


def _since(
    when: When, known: Interactions, new: Interactions, name: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """([known pairs], [new pairs]) which are not older than a date."""
    asked = option("drop_before", when)
    if known.timestamp is None or new.timestamp is None:
        raise ConfigError(f"{asked}: the run's log has no times, so that nothing is older")
    since = in_unit_of(float(known.timestamp.max()), when, asked)
    kept, recent = known.timestamp >= since, new.timestamp >= since
    if not recent.any():
        raise ConfigError(
            f"{asked}: nothing of {name} is as new as that; its newest pair is of {moment(new.timestamp.max())}"
        )
    if not kept.any():
        raise ConfigError(
            f"{asked}: nothing that the run knows is as new as that; its newest pair is of "
            f"{moment(known.timestamp.max())}. Choose an earlier time, or train anew on {name}"
        )
    if kept.all():
        note(f"{asked}: nothing that the run knows is older, so that nothing is forgotten")
    return kept, recent


def _without_rare_items(known: Interactions, new: Interactions, min_item: int, name: str) -> Interactions:
    """The new log without those of its new items that have too few users."""
    rare = (places(known.item_ids, new.item_ids) < 0) & (new.per_item() < min_item)
    if not rare.any():
        return new
    kept = ~rare[new.item]
    note(f"{name}: {int(rare.sum()):,} new items with fewer than {min_item} users are left out ({option('min_item')})")
    if not kept.any():
        raise DataError(f"{name}: nothing is left of it. Lower {option('min_item')}")
    return new.keep(kept)


def _merged(known: Interactions, new: Interactions) -> Interactions:
    """The pairs of both logs, with the counts of both and the first of their times."""
    users = Ids(np.union1d(known.user_ids.values, new.user_ids.values))
    items = Ids(np.union1d(known.item_ids.values, new.item_ids.values))
    keys = [
        np.searchsorted(users.values, log.user_ids.values)[log.user].astype(np.int64) * len(items)
        + np.searchsorted(items.values, log.item_ids.values)[log.item]
        for log in (known, new)
    ]
    cells, row = np.unique(np.concatenate(keys), return_inverse=True)
    count = np.bincount(row, np.r_[known.count, new.count]).astype(np.float64)
    timestamp = None
    if known.timestamp is not None and new.timestamp is not None:
        times = np.r_[known.timestamp, new.timestamp]
        timestamp = np.full(len(cells), times.max(), times.dtype)
        np.minimum.at(timestamp, row, times)
    user, item = (each.astype(np.int32) for each in np.divmod(cells, len(items)))
    return _disliking(Interactions(users, items, user, item, count, timestamp), known, new)


def _rows(known: Interactions, log: Interactions) -> NDArray[np.int64]:
    """[n] the row of each pair of a log in the known one, -1 where it has none."""
    user, item = places(known.user_ids, log.user_ids)[log.user], places(known.item_ids, log.item_ids)[log.item]
    cells = np.where((user >= 0) & (item >= 0), user * known.n_items + item, -1)
    return _found(known.user.astype(np.int64) * known.n_items + known.item, cells)


def _disliking(merged: Interactions, *logs: Interactions) -> Interactions:
    """The pairs of all logs with the dislikes of all, from their first times on; what was chosen after all is none."""
    there = [(log, log.dislikes) for log in logs if log.dislikes is not None]
    if not there:
        return merged
    keys = [
        places(merged.user_ids, log.user_ids)[disliked.user] * merged.n_items
        + places(merged.item_ids, log.item_ids)[disliked.item]
        for log, disliked in there
    ]
    cells, row = np.unique(np.concatenate(keys), return_inverse=True)
    known_since, timestamp = [disliked.timestamp for _, disliked in there if disliked.timestamp is not None], None
    if merged.timestamp is not None and len(known_since) == len(there):
        times = np.concatenate(known_since)
        timestamp = np.full(len(cells), times.max(initial=0), times.dtype)
        np.minimum.at(timestamp, row, times)
    user, item = (each.astype(np.int32) for each in np.divmod(cells, merged.n_items))
    return merged.disliking(Dislikes(user, item, timestamp))


def _parts(
    interactions: Interactions, parts: Parts, fresh: NDArray[np.bool_], old: Split, learned: Sequence[str]
) -> Parts:
    """[n] the part of each pair. parts: [n] those that known pairs had, which are changed."""
    protocol, seed, parts = old.recipe.protocol, old.recipe.seed, origin(parts)
    if isinstance(protocol, LeaveLast | TimeCut):
        assigned = protocol.assign(interactions, seed)
        was_learned = ~fresh & np.isin(parts, [PARTS[part] for part in learned])
        parts = np.where(was_learned & (assigned == TEST), parts, assigned)
    elif isinstance(protocol, NewItems):
        train = interactions.per_item(rows=~fresh & (parts < TEST)) > 0
        test = (interactions.per_item(rows=~fresh) > 0) & ~train  # of which nothing may be learned
        parts = np.where(test[interactions.item], TEST, parts).astype(np.uint8)
    elif isinstance(protocol, Random | Released | Paper) and fresh.any():
        parts[fresh] = protocol.assign(interactions.keep(fresh), seed)
        unevaluated = protocol.evaluable(interactions, parts) >= UNEVALUATED
        parts = np.where(fresh & unevaluated, TRAIN, parts)  # so that every new item trains
    else:
        return parts
    return protocol.evaluable(interactions, parts.astype(np.uint8))


def places(before: Ids, now: Ids) -> NDArray[np.int64]:
    """[now] the position of each id before, -1 where it was not there."""
    return _found(before.values, now.values)


def _found(ascending: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """[wanted] the place of each value among the ascending ones, -1 where it is none of them."""
    if not len(ascending):
        return np.full(len(wanted), -1)
    place = np.searchsorted(ascending, wanted).clip(max=len(ascending) - 1)
    return np.where(ascending[place] == wanted, place, -1)
