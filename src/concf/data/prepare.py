"""From any log to a prepared data set, in one call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from concf.data.catalogue import CATALOGUE, entry, fetch, load
from concf.data.filters import Filter
from concf.data.folders import sha256
from concf.data.interactions import Interactions
from concf.data.logs import files_of, is_glob
from concf.data.protocols import PROTOCOLS, TEST, TRAIN, VALID, Given, Parts, Protocol
from concf.data.read import read
from concf.data.scan import Reading
from concf.data.simulate import DEMO
from concf.data.split import Recipe, Split
from concf.errors import ConfigError, DataError
from concf.progress import working


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
        if not Path(source).suffix:
            entry(source)  # refuses, and names the data sets there are
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
    protocol: str = "released",
    seed: int = 0,
    valid: Any = None,
    test: Any = None,
    filter: Filter | None = None,
    reading: Reading | None = None,
    strict: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Split:
    """Read a log, filter it, divide it, and (with `out`) write it down.

    source:   a file, a glob, a list of files, a catalogue name, `demo`, a polars, pandas or Arrow frame, a sparse
              matrix, a pair of arrays
    protocol: paper | released | random | leave-last | time | given
    valid, test: the shares that are held out; with protocol `given`, the other two logs (`source` trains)
    filter:   applied first; None: for a catalogue name what the protocol starts from, else nothing
    strict:   refuse, rather than note, data of which something cannot be evaluated
    settings: of the protocol, such as `test=0.1` for `random` or `n=2` for `leave-last`
    """
    with working("preparing"):
        if protocol == "given":
            if settings:
                raise ConfigError(f"protocol 'given' has no settings, found {settings}")
            split = _given(source, valid, test, filter, reading, seed)
        else:
            shares = {name: share for name, share in (("valid", valid), ("test", test)) if share is not None}
            split = _divided(source, _protocol(protocol, shares | settings), filter, reading, seed)
    if strict and split.notes:
        raise DataError("; ".join(split.notes) + ". Filter the log, or go without --strict")
    if out is not None:
        split.save(out, overwrite=overwrite)
    return split


def _protocol(name: str, settings: dict[str, Any]) -> Protocol:
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}; choose from {', '.join(PROTOCOLS)}, given")
    return PROTOCOLS[name](**settings)


def _divided(source: Any, protocol: Protocol, filter: Filter | None, reading: Reading | None, seed: int) -> Split:
    """Read, filter (a catalogue name as its protocol starts, unless told otherwise), divide."""
    interactions, origin = read_source(source, reading)
    if filter is None and isinstance(source, str) and origin["name"] == source and source in CATALOGUE:
        filter = CATALOGUE[source].start(protocol.name)
    filters = tuple(step for step in (filter, protocol.filter()) if step is not None)
    for step in filters:
        interactions = step.apply(interactions)
    recipe = Recipe(source=origin, reading=_said(reading), filters=filters, protocol=protocol, seed=seed)
    return Split.make(interactions, recipe)


def _said(reading: Reading | None) -> dict[str, Any]:
    return reading.model_dump(exclude_defaults=True) if reading else {}


def _given(train: Any, valid: Any, test: Any, filter: Filter | None, reading: Reading | None, seed: int) -> Split:
    """Three logs with ids in common; a pair that is in two of them stays in the earlier part."""
    if valid is None or test is None:
        raise ConfigError("protocol 'given' needs three files: SOURCE for training, --valid FILE and --test FILE")
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
    interactions = read(first.drop("part"))
    return interactions, first["part"].to_numpy()
