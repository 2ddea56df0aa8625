"""Prepare a data set: read a log, filter it and split it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from concf.data.catalogue import CATALOGUE, entry, fetch, is_catalogued, load
from concf.data.interactions import SIDES, Filter, Interactions, merge
from concf.data.options import LogOptions as LogOptions
from concf.data.options import ReadingOptions as ReadingOptions
from concf.data.parts import PARTS, TEST, Parts
from concf.data.protocols import PROTOCOLS, Given, LeaveLast, Protocol, TimeCut
from concf.data.reading.read import read
from concf.data.reading.scan import Reading, files_of, is_glob
from concf.data.recipe import MANIFEST, SplitRecipe
from concf.data.simulate import DEMO
from concf.data.split import FEW_USERS, Split
from concf.errors import ConfigError, DataError, note, option
from concf.runtime.arguments import check_seed
from concf.runtime.files import new_file, sha256
from concf.runtime.progress import working

AUTO = "auto"  # the protocol follows the log
RANDOM = {"valid": 0.1, "test": 0.1, "at_least": 1}  # settings of `random` by default in training
NOTABLE_LOSS = 0.1  # share of the users, items or interactions from which a filter's loss is noted


def chosen(options: ReadingOptions) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def reading_of(options: dict[str, Any]) -> Reading:
    """Return the settings for reading the log."""
    return Reading(**{name: options[name] for name in options.keys() & Reading.model_fields.keys()})


def filter_of(options: dict[str, Any]) -> Filter | None:
    """Return the filter, or None if no option sets one."""
    settings = {name: options[name] for name in options.keys() & Filter.model_fields.keys() - {"before_test"}}
    if settings and not {"min_user", "min_item"} & settings.keys():
        names = " and ".join(map(option, settings))
        raise ConfigError(f"{names}: nothing to filter by. Set {option('min_user')} or {option('min_item')}, too")
    return Filter(**settings) if settings else None


def protocol_of(name: str, options: dict[str, Any]) -> Protocol:
    """Return the protocol of that name with its settings; unknown options are refused."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}; choose from {', '.join(PROTOCOLS)}")
    others = {*Reading.model_fields, *Filter.model_fields, "protocol"} - {"before_test"}
    settings = {setting: value for setting, value in options.items() if setting not in others and value is not None}
    for setting in settings:
        owners = [owner for owner, protocol in PROTOCOLS.items() if setting in protocol.model_fields]
        if not owners:
            names = ", ".join(map(option, LogOptions.__annotations__))
            raise ConfigError(f"unknown option {option(setting)}; the options are {names}")
        if name not in owners:
            raise ConfigError(f"protocol {name!r} has no {option(setting)}, which is for {', '.join(owners)}")
    return PROTOCOLS[name](**settings)


def read_source(source: Any, reading: Reading | None = None) -> tuple[Interactions, dict[str, Any]]:
    """Read the unfiltered interactions of a file, a catalogue name, `demo` or an object; also return their origin."""
    reading = reading or Reading()
    if _is_name(source):
        if source in (*CATALOGUE, "demo") and reading != Reading():
            raise ConfigError(f"{source}: concf knows its columns. Leave out the options about columns")
        if source == "demo":
            return read(DEMO.draw(seed=0)), {"name": "demo", "simulation": DEMO.model_dump(), "seed": 0}
        if source in CATALOGUE:
            paths = fetch(source)
            return load(source), {"name": source, "sha256": {path.name: sha256(path) for path in paths}}
        if not Path(source).suffix and not Path(source).exists():
            entry(source)  # an error with the names of the data sets
    if isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file():
        raise ConfigError(f"{source}: is a prepared data set already. Give the log that it was made of")
    files = files_of(source)
    log = read(files or source, reading)
    if files is None:
        return log, {"name": type(source).__name__, "sha256": {"pairs": log.fingerprint().hexdigest()}}
    shared = os.path.commonpath([path.parent.absolute() for path in files])
    checksums = {path.absolute().relative_to(shared).as_posix(): sha256(path) for path in files}
    return log, {"name": f"{len(files)} files" if isinstance(source, list) else Path(source).name, "sha256": checksums}


def _is_name(source: Any) -> bool:
    """Whether a source is a name rather than a file or an object."""
    return isinstance(source, str) and not Path(source).is_file() and not is_glob(source)


def prepare(
    source: Any, *, seed: int = 0, out: str | Path | None = None, overwrite: bool = False, **options: Unpack[LogOptions]
) -> Split:
    """Read a log, filter it, split it and, with `out`, save it.

    source:   a file, a glob, a list of files, a catalogue name, `demo`, a frame, a matrix [users, items] or a list of
              tuples (user, item[, count][, time]); see docs/data.md
    options:  see `LogOptions`. To read: user="member", min_rating=4, time_format="%d/%m/%Y"; to filter: min_item=5
              (default: none, or for a catalogue name that of its papers); to split: protocol="random" (default:
              "released"), valid=0.1, test=0.1, at_least=1; prepare("gowalla", protocol="given", valid=0.05) takes
              the data set's own training and test files
    """
    seed, settings = check_seed(seed), chosen(options)
    with working("preparing"):
        split = (_given if settings.get("protocol") == "given" else _from_log)(source, settings, seed)
    if out is not None:
        split.save(out, overwrite=overwrite)
        split = replace(split, folder=Path(out))
    split.note_if_few()
    return split


def split_of(data: Any, seed: int, **options: Unpack[LogOptions]) -> Split:
    """Return the data to train on: a `Split`, a prepared folder, or a log that the options split.

    By default the protocol follows the log (`_protocols`). Unless it has a filter, items need 5 users or more.
    """
    settings = chosen(options)
    if isinstance(data, Split) or (isinstance(data, str | Path) and Path(data).is_dir()):
        if settings:
            name, names = "the Split" if isinstance(data, Split) else data, ", ".join(map(option, settings))
            raise ConfigError(f"{names}: for a log, but {name} is split already. Leave it out, or give the log")
        return data if isinstance(data, Split) else Split.load(data)
    protocol = settings.setdefault("protocol", AUTO)
    defaults = RANDOM if protocol == "random" else {}
    defaults = defaults if protocol in ("paper", "released", "given") else {"min_item": 5} | defaults
    return prepare(str(data) if isinstance(data, Path) else data, seed=seed, **defaults | settings)


def filtered_and_split(log: Interactions, recipe: SplitRecipe, applied: int = 0) -> Split:
    """Apply the filters of a recipe to a log, except for the first `applied` ones, and split it.

    A filter that counts what lies before the test part leaves that part as the unfiltered log has it.
    """
    parts = None
    for step in recipe.filters[applied:]:
        parts = recipe.protocol.assign(log, recipe.seed) if step.before_test else None
        remaining = step.remaining(log, None if parts is None else parts == TEST)
        if not remaining.all():
            log, parts = log.keep(remaining), None if parts is None else parts[remaining]
    return Split.make(log, recipe, parts)


def _from_log(source: Any, options: dict[str, Any], seed: int) -> Split:
    """Read, filter (a catalogue name as in its papers, unless options set a filter) and split a log."""
    own_filter, reading, name = filter_of(options), reading_of(options), options.get("protocol", "released")
    if reading.ordered and name == "time":
        raise ConfigError(f"{option('ordered', True)}: protocol 'time' needs times. Choose leave-last")
    protocols = None if name == AUTO else [protocol_of(name, options)]
    log, origin = read_source(source, reading)
    protocols = protocols or _protocols(log, options, reading.ordered)
    changed = reading.model_dump(exclude_defaults=True)
    for protocol in protocols:
        filters = filters_of(source, own_filter, protocol)
        recipe = SplitRecipe(source=origin, reading=changed, filters=filters, protocol=protocol, seed=seed)
        last = protocol is protocols[-1]
        try:
            split = filtered_and_split(log, recipe)
        except DataError:
            if last:
                raise
            continue
        few, needed = min(len(split.validated), len(split.evaluated)), FEW_USERS
        if protocol.time_cut != "all":  # a small log may have fewer
            needed = min(needed, split.interactions.n_users // 10)
        if last or few >= needed:
            break
    if name == AUTO:
        _note_choice(log, split)
    if own_filter is not None or not is_catalogued(source):
        before, after = log.statistics(), split.interactions.statistics()
        lost = {part: 1 - after[part] / before[part] for part in ("items", "users", "interactions")}
        if max(lost.values()) >= NOTABLE_LOSS:
            shares = ", ".join(f"{share:.0%} of the {part}".replace("%", " %") for part, share in lost.items())
            note(f"the filter ({'; then '.join(step.describe() for step in split.recipe.filters)}) left out {shares}")
    return split


def filters_of(source: Any, own: Filter | None, protocol: Protocol) -> tuple[Filter, ...]:
    """Return the filters of a log: the user's, else for a catalogue name that of its papers; then the protocol's.

    With a split by time, the user's filter counts only what lies before the test part.
    """
    first = own
    if own is None and is_catalogued(source):
        first = CATALOGUE[source].start(protocol.name)
    elif own is not None and protocol.time_cut == "all":
        first = own.model_copy(update={"before_test": True})
    return tuple(step for step in (first, protocol.filter()) if step is not None)


def _protocols(log: Interactions, options: dict[str, Any], ordered: bool) -> list[Protocol]:
    """Protocols for a log, in order of preference: by time where it has times, else at random.

    The first is taken under which at least `FEW_USERS` users validate and as many test.
    """
    windows = {name: value for name, value in options.items() if name in TimeCut.model_fields and name != "protocol"}
    shares = all(isinstance(value, float) for value in windows.values()) and windows.keys() <= {"valid", "test"}
    if windows and not shares:  # durations and dates
        return [protocol_of("time", options)]
    random = protocol_of("random", RANDOM | options)
    if log.timestamp is None or ordered or "at_least" in options:
        return [random]
    return [protocol_of("time", options), random] if windows else [TimeCut(), TimeCut(test=0.2), LeaveLast(), random]


def _note_choice(log: Interactions, split: Split) -> None:
    """Note which protocol was chosen for a log, and why."""
    protocol = split.recipe.protocol
    users = f"{len(split.validated):,} users are validated, {len(split.evaluated):,} tested"
    reason = "the log has no times" if log.timestamp is None else f"by time, fewer than {FEW_USERS} users are evaluated"
    how = "each user's newest items are held out" if protocol.time_cut else "items are held out at random"
    if protocol.time_cut == "all":
        valid, test = (part["from"] for part in split.held_out())
        reason, how = "the log has times", f"pairs from {valid} on validate, those from {test} on test"
    note(f"protocol {protocol.name}, since {reason}: {how}; {users} ({option('protocol')} chooses another)")


def _given(source: Any, options: dict[str, Any], seed: int) -> Split:
    """Read the logs of the parts, with shared ids; a pair in two logs stays in the earlier part."""
    if filter_of(options) is not None or "dislike_below" in options:
        raise ConfigError(f"protocol 'given' takes no filters and no {option('dislike_below')}")
    reading, name, valid, test = reading_of(options), "given", options.get("valid"), options.get("test")
    share = valid if isinstance(valid, int | float) else None
    protocol = protocol_of("given", {**options, "valid": share, "test": None})
    assert isinstance(protocol, Given)
    if is_catalogued(source) and CATALOGUE[source].is_split:
        if share is None or test is not None or reading != Reading():
            fix = f"Set {option('valid')} to a share such as 0.05, and leave out {option('test')} and columns"
            raise ConfigError(f"{source} has its own training and test files. {fix}")
        name, (source, test), reading = source, fetch(source), CATALOGUE[source].variants[0].reading
        reading = reading.model_copy(update={"ordered": protocol.newest})
    if valid is None or test is None:
        fix = f"{option('valid')}, a log or a share such as 0.05, and {option('test')}, a log"
        raise ConfigError(f"protocol 'given' needs {fix}")
    logs = {"train": source} | ({"valid": valid} if share is None else {}) | {"test": test}
    sources = {part: read_source(log, reading) for part, log in logs.items()}
    untimed = [part for part, (log, _) in sources.items() if log.timestamp is None]
    if protocol.newest and 0 < len(untimed) < len(sources):
        raise DataError(f"{option('newest', True)}: times are in one log and not in the other ({untimed[0]} has none)")
    interactions, parts = _union({part: log for part, (log, _) in sources.items()})
    origins = {part: origin for part, (_, origin) in sources.items()}
    changed = reading.model_dump(exclude_defaults=True)
    recipe = SplitRecipe(source={"name": name, "parts": origins}, reading=changed, protocol=protocol, seed=seed)
    return Split.make(interactions, recipe, parts)


def _union(logs: dict[str, Interactions]) -> tuple[Interactions, Parts]:
    """Merge the logs of the parts; also return [n] the first part of each pair, whose count and times are kept.

    Ids that are integers in one part and strings in another become strings in all.
    """
    for side in SIDES:
        integers = {part for part, log in logs.items() if getattr(log, f"{side}_ids").are_integers}
        if 0 < len(integers) < len(logs):
            logs = {part: log.with_text_ids(side) if part in integers else log for part, log in logs.items()}
    merged, pair = merge(list(logs.values()))
    first = np.unique(pair, return_index=True)[1]  # logs are in the order of the parts
    parts = np.repeat(np.array([PARTS[part] for part in logs], np.uint8), [len(log) for log in logs.values()])
    columns: dict[str, Any] = {"count": merged.count, "timestamp": merged.timestamp, "last": merged.later}
    for name, column in columns.items():
        if column is not None:
            columns[name] = np.concatenate([getattr(log, name) for log in logs.values()])[first]
    return replace(merged, **columns), parts[first]


def write_parts(data: Split, parts: Sequence[str], out: str | Path) -> int:
    """Write parts of a data set (train, valid, test) to a new .parquet, .csv or .jsonl file; return its length."""
    target, log = Path(out), data.interactions
    writers = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}
    if not parts or set(parts) - PARTS.keys():
        raise ConfigError(f"{option('parts', ','.join(parts))}: choose from {', '.join(PARTS)}")
    if target.suffix not in writers:
        raise ConfigError(f"{option('out', out)}: choose a name that ends in {', '.join(writers)}")
    if target.exists():
        raise ConfigError(f"{target}: exists already; it is left alone. Choose another {option('out')}")
    rows = data.rows(parts)
    columns = {"user_id": log.user_ids.values[log.user[rows]], "item_id": log.item_ids.values[log.item[rows]]}
    columns |= {"count": log.count[rows]} | ({} if log.timestamp is None else {"timestamp": log.timestamp[rows]})
    frame = pl.DataFrame({name: column.tolist() for name, column in columns.items()})
    with new_file(target) as fresh:
        getattr(frame, writers[target.suffix])(fresh)
    return len(frame)
