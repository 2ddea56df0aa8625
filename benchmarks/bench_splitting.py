"""What dividing a log, writing it down and reading it back cost, in sizes of a hundred thousand events to ten million.

    python benchmarks/bench_splitting.py

Beside them the floors: the sort that every shuffle within users needs, and writing and reading the bare arrays.
Near-linear: seconds per interaction grow little with the size (`microseconds_each`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import in_turns, medians, write
from numpy.typing import NDArray

from concf.data.interactions import Interactions
from concf.data.protocols import PROTOCOLS
from concf.data.reading.read import read
from concf.data.recipe import SplitRecipe
from concf.data.simulate import Simulation
from concf.data.split import Split


def simulate(events: int) -> Interactions:
    """A log with 50 events a user and 200 an item."""
    return read(Simulation(users=max(events // 50, 1), items=max(events // 200, 1), events=events).draw(seed=0))


def sort_in_users(interactions: Interactions) -> NDArray[np.int64]:
    """The floor of a split: the interactions of every user in a random order."""
    return np.lexsort((np.random.default_rng(0).random(len(interactions)), interactions.user))


def arrays(split: Split) -> dict[str, NDArray[np.generic]]:
    """What the folder holds."""
    log = split.interactions
    columns: dict[str, NDArray[Any]] = {"user": log.user, "item": log.item, "count": log.count, "part": split.parts}
    ids = {"user_ids": log.user_ids.values, "item_ids": log.item_ids.values}
    return columns | ids | ({} if log.timestamp is None else {"timestamp": log.timestamp})


def write_arrays(split: Split, folder: Path) -> None:
    """The floor of `save`: the same arrays, brought to the disk, with no hash, manifest or rename."""
    for name, array in arrays(split).items():
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())


def read_arrays(folder: Path) -> list[NDArray[np.generic]]:
    """The floor of `load`."""
    return [np.load(path) for path in folder.glob("*.npy")]


def measure(interactions: Interactions, protocol: str, rounds: int, scratch: Path) -> dict[str, object]:
    chosen = PROTOCOLS[protocol]()
    removed = chosen.filter()
    kept = removed.apply(interactions) if removed else interactions
    recipe = SplitRecipe(source={"name": "simulated"}, protocol=chosen)
    split = Split.make(kept, recipe)
    folder, plain = scratch / "split", scratch / "arrays"
    plain.mkdir(exist_ok=True)
    works: dict[str, Callable[[], object]] = {
        "filter": (lambda: removed.apply(interactions)) if removed else (lambda: interactions),
        "split": lambda: Split.make(kept, recipe),
        "sort in users": lambda: sort_in_users(kept),
        # a fresh record each time: a split keeps its hash once it is made
        "save": lambda: Split(kept, split.parts, recipe, split.notes).save(folder, overwrite=True),
        "write arrays": lambda: write_arrays(split, plain),
        "load": lambda: Split.load(folder),
        "read arrays": lambda: read_arrays(plain),
    }
    times = in_turns(works, rounds)
    middle = medians(times)
    return {
        "protocol": protocol,
        "events": int(interactions.n_events),
        "interactions": len(kept),
        "users": kept.n_users,
        "items": kept.n_items,
        **split.counts(),
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "median_seconds": middle,
        "microseconds_each": {name: 1e6 * time / len(kept) for name, time in middle.items()},
        "split_over_sort": middle["split"] / middle["sort in users"],
        "save_over_write": middle["save"] / middle["write arrays"],
        "load_over_read": middle["load"] / middle["read arrays"],
        "seconds": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--protocols", nargs="+", default=["released", "random"], choices=list(PROTOCOLS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for events in options.events:
        interactions = simulate(events)
        for protocol in options.protocols:
            with tempfile.TemporaryDirectory() as scratch:
                write("splitting", measure(interactions, protocol, options.rounds, Path(scratch)))


if __name__ == "__main__":
    main()
