"""Show that a change of the code leaves results as they were, to the bit or within rounding.

    PYTHONPATH=old/src python tools/same_results.py write old.jsonl     # in a checkout of the older commit
    PYTHONPATH=new/src python tools/same_results.py write new.jsonl     # and of the newer one
    python tools/same_results.py compare old.jsonl new.jsonl

`write` trains the default on CiteULike, Ciao and Foursquare, two seeds each, and the preset reference for three epochs,
in one thread. A line has a checksum of the consensus lists, and all metrics on validation and test.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

Line = dict[str, Any]
STRONG = [(name, "released", seed, "strong") for name in ("citeulike", "ciao", "foursquare") for seed in (10, 11)]
JOBS = [*STRONG, ("citeulike", "paper", 10, "reference")]
SHORT = {"training": {"epochs": 3}, "consensus": {"every": 1, "window": 2}}


def measured(name: str, protocol: str, seed: int, preset: str) -> Line:
    """Train once and measure everything."""
    import torch

    import concf

    torch.set_num_threads(1)
    data = concf.prepare(name, protocol=protocol, seed=seed)
    run = concf.train(data, None if preset == "strong" else SHORT, preset=preset, seed=seed, device="cpu")
    lists = run.best["consensus"].lists
    assert lists is not None
    tested = run.evaluate(at=[20, 50], metrics=["recall", "ndcg"])
    return {
        "job": [name, protocol, seed, preset],
        "lists": hashlib.sha256(lists.cpu().contiguous().numpy().tobytes()).hexdigest()[:16],
        "validation": {head: best.validation for head, best in run.best.items()},
        "test": {head: {key: float(value) for key, value in each.means().items()} for head, each in tested.items()},
    }


def compare(old: Line, new: Line) -> str:
    """One line of text: equal to the bit, or the largest relative difference of a metric on test."""
    if all(old[key] == new[key] for key in ("lists", "validation", "test")):
        return "equal to the bit"
    pairs = [(old["test"][head][key], value) for head, each in new["test"].items() for key, value in each.items()]
    return f"largest difference on test {max(abs(now / was - 1) for was, now in pairs if was):.2%}"


def main() -> None:
    """Write the lines that a file does not have yet, or compare two files."""
    if sys.argv[1:2] == ["write"]:
        path = Path(sys.argv[2])
        done = [json.loads(line)["job"] for line in path.read_text().splitlines()] if path.exists() else []
        for job in JOBS:
            if list(job) not in done:
                line = json.dumps(measured(*job))
                with path.open("a") as file:
                    file.write(line + "\n")
        return
    old, new = ([json.loads(line) for line in Path(each).read_text().splitlines()] for each in sys.argv[2:4])
    before = {tuple(line["job"]): line for line in old}
    for line in new:
        was = before.get(tuple(line["job"]))
        print(*line["job"], "not in the first file" if was is None else compare(was, line))


if __name__ == "__main__":
    main()
