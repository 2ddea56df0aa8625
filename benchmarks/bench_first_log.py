"""README's five minutes: every command of its first page on a log of 50,000 rows, as a newcomer types them.

python benchmarks/bench_first_log.py

A simulated log is written as a CSV; then each command runs in a process of its own, with the default preset `strong`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measuring import seconds, write

from concf.data.simulate import DEMO

LOG = DEMO.model_copy(update={"users": 3_000, "items": 2_500, "events": 50_000})
COMMANDS = {
    "train": "train ratings.csv --preset strong --device cpu --out run",
    "evaluate": "evaluate run",
    "recommend": "recommend run --users all -k 20 --out recs.parquet",
    "export": "export run --to npz --out vectors.npz",
    "report": "report run --out report.html",
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as place:
        LOG.draw(0).write_csv(Path(place) / "ratings.csv")
        took = {name: seconds(partial(run, words, place)) for name, words in COMMANDS.items()}
    write("first_log", {"preset": "strong", "log": LOG.model_dump(), "seconds": took, "sum": sum(took.values())})


def run(words: str, place: str) -> None:
    subprocess.run([sys.executable, "-m", "concf", *words.split()], cwd=place, check=True, capture_output=True)


if __name__ == "__main__":
    main()
