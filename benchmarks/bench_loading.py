"""What reading ten million rows costs in time and memory, beside what most people do with Polars and pandas.

    python benchmarks/bench_loading.py

Every reading happens in a fresh process that has imported its library; its peak memory is the process's. The rivals
do less: Polars counts the pairs, pandas factorises the ids and builds a sparse matrix; neither checks a row or keeps
the first time of a pair. Processor seconds, of all threads together, compare on a busy machine too. At the end a
row-shuffled copy of the log must give the same interactions.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import in_fresh_process, medians, write

KEYS = ["user_id", "item_id"]


class Reading(NamedTuple):
    """What one reading took, and how many distinct pairs it found."""

    seconds: float
    processor_seconds: float
    pairs: int


def make_logs(folder: Path, users: int, items: int, events: int, packed: int) -> None:
    """Write the log in every form; `packed` rows of it with gzip."""
    import gzip
    import shutil

    import polars as pl

    from concf.data.simulate import Simulation

    log = Simulation(users=users, items=items, events=events).draw(seed=0)
    log.write_csv(folder / "integers.csv")
    log.sample(fraction=1, shuffle=True, seed=1).write_csv(folder / "shuffled.csv")
    log.write_parquet(folder / "integers.parquet")
    named = [
        pl.format("{}{}", pl.lit(f"{key[:4]}-"), pl.col(key).cast(pl.String).str.zfill(11)).alias(key) for key in KEYS
    ]
    log.with_columns(named).write_csv(folder / "names.csv")
    log.head(packed).write_csv(folder / "part.csv")
    with (folder / "part.csv").open("rb") as plain, gzip.open(folder / "packed.csv.gz", "wb", compresslevel=6) as file:
        shutil.copyfileobj(plain, file, 1 << 20)


def with_concf(path: Path | None) -> Reading:
    """The whole of it. path None: import only, here and below."""
    from concf.data.reading.read import read

    return _timed(lambda path: len(read(path)), path)


def with_polars(path: Path | None) -> Reading:
    """Read all, count the pairs."""
    import polars as pl

    def pairs(path: Path) -> int:
        log = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
        return len(log.group_by(KEYS).len())

    return _timed(pairs, path)


def with_pandas(path: Path | None) -> Reading:
    """Read all, factorise both columns, build a sparse matrix."""
    import numpy as np
    import pandas as pd
    from scipy.sparse import csr_matrix

    def pairs(path: Path) -> int:
        log = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        (user, users), (item, items) = (pd.factorize(log[key], sort=True) for key in KEYS)
        matrix = csr_matrix((np.ones(len(log), np.float32), (user, item)), shape=(len(users), len(items)))
        return int(matrix.nnz)

    return _timed(pairs, path)


def _timed(work: Callable[[Path], int], path: Path | None) -> Reading:
    begin, begin_processor = time.perf_counter(), time.process_time()
    pairs = work(path) if path else 0
    return Reading(time.perf_counter() - begin, time.process_time() - begin_processor, pairs)


READERS = {"concf": with_concf, "polars": with_polars, "pandas": with_pandas}


def fingerprint(path: Path) -> str:
    """A SHA-256 of everything that was read."""
    from concf.data.reading.read import read

    log = read(path)
    digest = hashlib.sha256(log.user_ids.digest() + log.item_ids.digest())
    for column in (log.user, log.item, log.count, log.timestamp):
        digest.update(b"none" if column is None else column.tobytes())
    return digest.hexdigest()


def measure(path: Path, rounds: int, imports: dict[str, float]) -> dict[str, Any]:
    path.read_bytes()  # so that every reader finds the file in memory
    readings: dict[str, list[Reading]] = {name: [] for name in READERS}
    peaks: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(rounds):
        for name, reader in READERS.items():
            reading, peak = in_fresh_process(reader, path)
            readings[name].append(reading)
            peaks[name].append(peak)
    seconds = {name: [one.seconds for one in repeats] for name, repeats in readings.items()}
    processor = {name: [one.processor_seconds for one in repeats] for name, repeats in readings.items()}
    line: dict[str, Any] = {
        "log": path.name,
        "file_mb": path.stat().st_size / (1 << 20),
        "pairs": {name: repeats[0].pairs for name, repeats in readings.items()},
        "median_seconds": medians(seconds),
        "median_processor_seconds": medians(processor),
        "peak_mb": {name: max(repeats) for name, repeats in peaks.items()},
    }
    ratios = {
        f"{what}_over_{rival}": line[what]["concf"] / line[what][rival]
        for what in ("median_seconds", "median_processor_seconds", "peak_mb")
        for rival in ("polars", "pandas")
    }
    raw = {"seconds": seconds, "processor_seconds": processor, "peaks_mb": peaks}
    return line | ratios | {"peak_mb_of_import": imports} | raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--packed-rows", type=int, default=2_000_000, help="rows of the gzip file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        in_fresh_process(make_logs, folder, options.users, options.items, options.rows, options.packed_rows)
        imports = {name: in_fresh_process(reader, None)[1] for name, reader in READERS.items()}
        for name in ("integers.csv", "integers.parquet", "names.csv", "packed.csv.gz"):
            rows = options.packed_rows if name == "packed.csv.gz" else options.rows
            line = measure(folder / name, options.rounds, imports)
            rate = rows / line["median_seconds"]["concf"]
            write("loading", {"rows": rows, "rows_per_second": rate, **line})
        prints = [in_fresh_process(fingerprint, folder / name)[0] for name in ("integers.csv", "shuffled.csv")]
        same = prints[0] == prints[1]
        write("loading", {"rows": options.rows, "log": "shuffled.csv", "same_as_unshuffled": same})
    if not same:
        raise SystemExit("the order of the rows changed what was read")


if __name__ == "__main__":
    main()
