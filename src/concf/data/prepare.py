"""From any log to a prepared data set, in one call."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from concf.data.catalogue import CATALOGUE, entry, fetch, load
from concf.data.filters import Filter
from concf.data.interactions import Interactions
from concf.data.options import LogOptions, filter_of, for_training, protocol_of, reading_of, settings_of
from concf.data.protocols import TEST, TRAIN, VALID, Given, Parts, Protocol
from concf.data.reading.logs import files_of, is_glob
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.simulate import DEMO
from concf.data.split import MANIFEST, Recipe, Split
from concf.errors import ConcfWarning, ConfigError, DataError, note, option
from concf.runtime.arguments import check_seed
from concf.runtime.files import sha256
from concf.runtime.progress import working

NOTABLE = 0.1  # of the users, items or interactions: a filter that leaves out so much is worth a word


def read_source(source: Any, reading: Reading | None = None) -> tuple[Interactions, dict[str, Any]]:
    """The unfiltered interactions of a file, a catalogue name, `demo` or an object, and what they were read from."""
    if isinstance(source, str) and not Path(source).is_file() and not is_glob(source):
        if source in (*CATALOGUE, "demo") and reading is not None and reading != Reading():
            raise ConfigError(
                f"{source}: a data set of the catalogue is read as it is; what you say of columns is for files"
            )
        if source == "demo":
            return read(DEMO.draw(seed=0)), {"name": "demo", "simulation": DEMO.model_dump(), "seed": 0}
        if source in CATALOGUE:
            paths = fetch(source)
            return load(source), {"name": source, "sha256": {path.name: sha256(path) for path in paths}}
        if not Path(source).suffix and not Path(source).exists():
            entry(source)  # refuses, and names the data sets there are
    if isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file():
        raise ConfigError(f"{source}: is a prepared data set already. Name the log that it was made of")
    files = files_of(source)
    if files is not None:
        name = Path(source).name if isinstance(source, str | Path) else f"{len(files)} files"
        return read(files, reading), {"name": name, "sha256": _checksums(files)}
    interactions = read(source, reading)
    return interactions, {"name": type(source).__name__, "sha256": {"pairs": interactions.fingerprint().hexdigest()}}


def _checksums(paths: list[Path]) -> dict[str, str]:
    """SHA-256 of each file, by its name from the folder that all of them share."""
    shared = os.path.commonpath([path.parent.absolute() for path in paths])
    return {path.absolute().relative_to(shared).as_posix(): sha256(path) for path in paths}


def prepare(
    source: Any,
    *,
    seed: int = 0,
    filter: Filter | None = None,
    reading: Reading | None = None,
    strict: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    **options: Unpack[LogOptions],
) -> Split:
    """Read a log, filter it, divide it, and (with `out`) write it down.

    source:   a file, a glob, a list of files, a catalogue name, `demo`, a polars, pandas or Arrow frame, a sparse
              matrix, a pair of arrays
    filter:   applied first; None: for a catalogue name what the protocol starts from, else nothing
    reading:  how to read it; filter and reading can be said by options as well
    strict:   refuse, rather than note, data of which something cannot be evaluated
    options:  see `LogOptions`. To read: user="member", min_rating=4, time_format="%d/%m/%Y"; to filter: min_item=5;
              to divide: protocol="random" (if not said, "released"), valid=0.1, test=0.1, at_least=1
    """
    seed = check_seed(seed)
    said: dict[str, Any] = {**options}
    protocol = said.pop("protocol", None) or "released"
    filter, reading = filter_of(said, filter), reading_of(said, reading)
    with working("preparing"):
        if protocol == "given":
            split = _given(source, settings_of(said), filter, reading, seed)
        else:
            split = _divided(source, protocol_of(protocol, said), filter, reading, seed)
    if strict and split.notes:
        raise DataError("; ".join(split.notes) + f". Filter the log, or go without {option('strict', True)}")
    split.note_if_few()
    if out is not None:
        split.save(out, overwrite=overwrite)
    return split


def split_of(data: Any, seed: int, **options: Unpack[LogOptions]) -> Split:
    """What to train on: a `Split`, a prepared folder, or a log that is divided as options say.

    What they do not say: at random, a tenth of each user's items to stop by and a tenth to test on, one item at least
    of everyone with three or more; items that fewer than five users have used are left out.
    """
    said = {name: value for name, value in options.items() if value is not None}
    if isinstance(data, Split) or (isinstance(data, str | Path) and Path(data).is_dir()):
        if said:
            raise ConfigError(
                f"{', '.join(map(option, said))}: for a log, but {'the Split' if isinstance(data, Split) else data} "
                "is divided already. Leave it out, or give the log"
            )
        return data if isinstance(data, Split) else Split.load(data)
    return prepare(str(data) if isinstance(data, Path) else data, seed=seed, **for_training(said))


def divided_again(source: Any, recipe: Recipe) -> Split:
    """A log that is read, filtered and divided as a recipe says, whatever it was made of."""
    if isinstance(recipe.protocol, Given):
        raise ConfigError("a data set whose parts were given is not made again from one of them")
    interactions, origin = read_source(source, Reading(**recipe.reading))
    for step in recipe.filters:
        interactions = step.apply(interactions)
    return Split.make(interactions, recipe.model_copy(update={"source": origin}))


def _divided(source: Any, protocol: Protocol, filter: Filter | None, reading: Reading | None, seed: int) -> Split:
    """Read, filter (a catalogue name as its protocol starts, unless told otherwise), divide."""
    interactions, origin = read_source(source, reading)
    start = CATALOGUE[source].start(protocol.name) if filter is None and _is_listed(source, origin) else filter
    filters = tuple(step for step in (start, protocol.filter()) if step is not None)
    before = _sizes(interactions)
    for step in filters:
        interactions = step.apply(interactions)
    if filter is not None or not _is_listed(source, origin):
        _note_loss(before, _sizes(interactions), filter, filters)
    recipe = Recipe(source=origin, reading=_said(reading), filters=filters, protocol=protocol, seed=seed)
    return Split.make(interactions, recipe)


def _is_listed(source: Any, origin: dict[str, Any]) -> bool:
    """Whether it is a data set of the catalogue, which is filtered as its papers say."""
    return isinstance(source, str) and origin["name"] == source and source in CATALOGUE


def _sizes(interactions: Interactions) -> dict[str, int]:
    return {"items": interactions.n_items, "users": interactions.n_users, "interactions": len(interactions)}


def _note_loss(before: dict[str, int], after: dict[str, int], own: Filter | None, filters: tuple[Filter, ...]) -> None:
    """Say how much filters left out, where it is much. own: the one that options chose"""
    lost = {name: 1 - after[name] / size for name, size in before.items()}
    if max(lost.values()) < NOTABLE:
        return
    shares = ", ".join(f"{share:.0%} of the {name}".replace("%", " %") for name, share in lost.items())
    lower = [name for name in ("min_item", "min_user") if own is not None and getattr(own, name)]
    fix = f". To keep more, lower {' or '.join(map(option, lower))}" if lower else ""
    note(f"the filter ({'; then '.join(step.describe() for step in filters)}) left out {shares}{fix}")


def _said(reading: Reading | None) -> dict[str, Any]:
    return reading.model_dump(exclude_defaults=True) if reading else {}


def _given(train: Any, settings: dict[str, Any], filter: Filter | None, reading: Reading | None, seed: int) -> Split:
    """Three logs with ids in common; a pair that is in two of them stays in the earlier part."""
    valid, test = (settings.pop(name, None) for name in ("valid", "test"))
    if settings:
        raise ConfigError(f"protocol 'given' has no settings, found {', '.join(map(option, settings))}")
    if valid is None or test is None:
        raise ConfigError(f"protocol 'given' needs three logs: to train on, {option('valid')} and {option('test')}")
    if filter is not None:
        raise ConfigError("protocol 'given' takes the parts as they are; a filter would change them")
    sources = [read_source(source, reading) for source in (train, valid, test)]
    from_files = all(isinstance(source, str | Path) for source in (train, valid, test))
    interactions, parts = _union([interactions for interactions, _ in sources], mixed_ids=from_files)
    names = ("train", "valid", "test")
    origin = {
        "name": "given",
        "parts": {name: where for name, (_, where) in zip(names, sources, strict=True)},
    }
    recipe = Recipe(source=origin, reading=_said(reading), protocol=Given(), seed=seed)
    return Split.make(interactions, recipe, parts)


def _union(logs: list[Interactions], mixed_ids: bool) -> tuple[Interactions, Parts]:
    """All pairs of three logs under common ids, and the part that each pair comes from first.

    mixed_ids: where one file's ids all spell integers and another's do not, all are strings
    """
    import polars as pl

    kinds = {side: {getattr(log, side).are_integers for log in logs} for side in ("user_ids", "item_ids")}
    for side, found in kinds.items():
        if len(found) > 1 and not mixed_ids:
            name = side.replace("_", " ")
            raise DataError(f"the {name} are integers in one part and strings in another. Make them alike")
    strings = {f"{side[:4]}_id": pl.String for side, found in kinds.items() if found != {True}}
    timed = all(log.timestamp is not None for log in logs)
    frames = []
    for part, log in zip((TRAIN, VALID, TEST), logs, strict=True):
        columns: dict[str, Any] = {
            "user_id": pl.Series(log.user_ids.values[log.user].tolist()),
            "item_id": pl.Series(log.item_ids.values[log.item].tolist()),
            "count": log.count,
            "part": np.full(len(log), part, np.uint8),
        }
        if timed:
            columns["timestamp"] = log.timestamp
        frames.append(pl.DataFrame(columns).cast(strings))  # type: ignore[arg-type]
    joined = pl.concat(frames, how="vertical_relaxed").sort("user_id", "item_id", "part")
    first = joined.unique(["user_id", "item_id"], keep="first", maintain_order=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConcfWarning)  # doubts about ids were noted of each log
        interactions = read(first.drop("part"))
    return interactions, first["part"].to_numpy()
