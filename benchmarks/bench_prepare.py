"""What preparing a log larger than memory costs: many files, a hundred million rows, in time and peak memory.

    TMPDIR=/folder/with/20/GB python benchmarks/bench_prepare.py

A simulated log is drawn a file at a time and written in three forms: integer ids as Parquet, the same with every
other file as CSV (it must give the same split), and string ids as CSV. Each is prepared in a fresh process, whose peak
memory is taken, and the folder is then opened in another one. Peaks are of resident memory, pages of mapped files
included, and of memory that no file stands behind; a process that wants more than --limit of the latter fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measuring import AnonymousPeak, in_fresh_process, refuse_more_memory, write

if TYPE_CHECKING:
    import polars as pl

KEYS = ("user_id", "item_id")
FORMS = {"integers": "*.parquet", "mixed": "*", "strings": "*.csv"}


def draw(users: int, items: int, rows: int, files: int, seed: int = 0) -> Iterator[pl.DataFrame]:
    """The log of `concf.Simulation`, a file at a time in the order of time; users act by chance, not all at once."""
    import polars as pl

    from concf.data.simulate import BLOCK, YEAR, Simulation

    simulation = Simulation(users=users, items=items, events=rows)
    rng = np.random.default_rng(seed)
    borders, weights = simulation._catalogue(rng)
    mixtures = rng.dirichlet(np.full(simulation.tastes, simulation.taste_spread), users).cumsum(axis=1)
    activity = np.cumsum(rng.lognormal(0.0, simulation.activity_spread, users))
    activity /= activity[-1]
    names = rng.permutation(items)
    for file in range(files):
        n = rows * (file + 1) // files - rows * file // files
        user = np.searchsorted(activity, rng.random(n), side="right").clip(max=users - 1)
        places = [
            simulation._items(rng, mixtures[user[k : k + BLOCK]], borders, weights) for k in range(0, n, BLOCK)
        ]  # fmt: skip
        time = np.sort(rng.integers(YEAR * file // files, YEAR * (file + 1) // files, n)) + 1_600_000_000
        yield pl.DataFrame({"user_id": user, "item_id": names[np.concatenate(places)], "timestamp": time})


def make_log(folder: Path, form: str, users: int, items: int, rows: int, files: int) -> None:
    """Write the log in one form."""
    import polars as pl

    folder.mkdir()
    for k, log in enumerate(draw(users, items, rows, files)):
        if form == "strings":
            named = {key: pl.format(key[:4] + "-{}", pl.col(key).cast(pl.String).str.zfill(11)) for key in KEYS}
            log.with_columns(**named).write_csv(folder / f"part-{k:04}.csv")
        elif form == "mixed" and k % 2:
            log.write_csv(folder / f"part-{k:04}.csv")
        else:
            log.write_parquet(folder / f"part-{k:04}.parquet")


def prepare_log(source: str, out: Path, protocol: str, limit: float) -> dict[str, Any]:
    """What `concf prepare` does."""
    from concf.data.prepare import prepare

    refuse_more_memory(limit)
    anonymous = AnonymousPeak()
    begin, begin_processor = time.perf_counter(), time.process_time()
    split = prepare(source, protocol=protocol, out=out, overwrite=True)
    seconds, processor = time.perf_counter() - begin, time.process_time() - begin_processor
    counted = split.interactions.statistics() | split.counts()
    found = {"seconds": seconds, "processor_seconds": processor, "anonymous_peak_mb": anonymous.peak}
    return {**found, "split_hash": split.hash, **counted}


def open_folder(folder: Path) -> float:
    """Seconds to open it."""
    from concf.data.split import Split

    begin = time.perf_counter()
    Split.load(folder)
    return time.perf_counter() - begin


def train_an_epoch(folder: Path, words: list[str], single: str | None, sample: int, limit: float) -> dict[str, Any]:
    """A whole epoch, validation on a sample of users, and the lists of as many others."""
    import torch
    from measuring import peak_memory

    from concf.data.split import Split
    from concf.evaluation.ranking import rank
    from concf.models import choose_settings
    from concf.reference.settings import ReferenceSettings
    from concf.reference.trainer import Trainer

    refuse_more_memory(limit)
    anonymous = AnonymousPeak()
    words = ["training.epochs=1", f"training.validated_users={sample}", *words]
    found: dict[str, Any] = {"settings": words, "single": single, "limit_gb": limit, "sampled_users": sample}
    split = Split.load(folder)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begin, begin_processor = time.perf_counter(), time.process_time()
        result = work()
        found[f"{name}_seconds"] = time.perf_counter() - begin
        found[f"{name}_processor_seconds"] = time.process_time() - begin_processor
        found[f"{name}_peak_mb"], found[f"{name}_anonymous_peak_mb"] = peak_memory(), anonymous.peak
        return result

    settings = choose_settings("reference", words=words, single=single)
    assert isinstance(settings, ReferenceSettings)
    trainer = timed("set_up", lambda: Trainer(split, settings, 0))
    found["loss"] = timed("epoch", lambda: trainer.epoch(0))["loss"]
    found["pairs"] = split.train.nnz
    found["pairs_per_second"] = split.train.nnz / found["epoch_seconds"]
    if single:
        found["validation"] = timed("validation", lambda: trainer.consensus.validate(trainer.consensus.update()))
    users = np.random.default_rng(0).choice(split.evaluated, sample, replace=False)
    factors = trainer.model.factors()[trainer.names[0]]
    with torch.inference_mode():
        timed("rank", lambda: rank(factors, users, 50, seen=split.train))
    return found


def measure(scratch: Path, form: str, options: argparse.Namespace) -> str:
    """One form: write, prepare, open; the split's hash."""
    logs, out = scratch / form, scratch / f"{form}-prepared"
    if not logs.exists():
        in_fresh_process(make_log, logs, form, options.users, options.items, options.rows, options.files)
    log_bytes = sum(path.stat().st_size for path in logs.iterdir())
    found, peak = in_fresh_process(prepare_log, str(logs / FORMS[form]), out, options.protocol, options.limit)
    line = {
        "form": form, "rows": options.rows, "files": options.files, "log_gb": log_bytes / 1e9,
        "protocol": options.protocol, "limit_gb": options.limit, "peak_mb": peak, **found,
        "rows_per_second": options.rows / found["seconds"],
        "folder_gb": sum(path.stat().st_size for path in out.iterdir()) / 1e9,
    }  # fmt: skip
    line["open_seconds"], line["open_peak_mb"] = in_fresh_process(open_folder, out)
    write("prepare", line)
    return str(found["split_hash"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=2_000_000)
    parser.add_argument("--items", type=int, default=500_000)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--forms", default="integers,mixed,strings")
    parser.add_argument("--train", action="store_true", help="an epoch of a small model on the first form, too")
    parser.add_argument("--only-train", action="store_true", help="on what --scratch holds already")
    parser.add_argument("--single", default="bpr", help="one objective; empty: those that --set says")
    parser.add_argument("--set", nargs="*", default=[], dest="words", help="settings over those of the small model")
    parser.add_argument("--sample", type=int, default=10_000, help="users that are validated, and ranked for")
    parser.add_argument("--limit", type=float, default=8.0, help="GB that a process may have of its own")
    parser.add_argument("--protocol", default="released")
    parser.add_argument(
        "--scratch", type=Path, help="where logs and data sets stay; logs that are there are not drawn anew"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        scratch = options.scratch or Path(passing)
        forms = options.forms.split(",")
        hashes = {form: measure(scratch, form, options) for form in forms if not options.only_train}
        if options.train or options.only_train:
            folder = scratch / f"{forms[0]}-prepared"
            words = ["model.encoder=mf", "model.dimensions=16", "training.batch=65536", *options.words]
            found, peak = in_fresh_process(
                train_an_epoch, folder, words, options.single or None, options.sample, options.limit
            )
            write("prepare", {"form": "training", "rows": options.rows, "peak_mb": peak, **found})
    if {"integers", "mixed"} <= set(hashes) and hashes["integers"] != hashes["mixed"]:
        raise SystemExit("the format of the files changed what was read")


if __name__ == "__main__":
    main()
