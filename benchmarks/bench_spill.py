"""Memory and seconds of the last stage of the default, with lists and votes in memory and on disk, in turns.

    TMPDIR=/folder/on/a/disk python benchmarks/bench_spill.py

A run of every kind in a process of its own; all must come to the same lists. Lines go to results/spill.jsonl (Linux).
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

from measuring import AnonymousPeak, in_fresh_process, write

SETTINGS = (
    "model.dimensions=16", "recipe.budget=fast", "consensus.top_k=500", "consensus.shown=500",
    "training.validated_users=1024",
)  # fmt: skip


def measured(sizes: dict[str, int], spilled: bool) -> dict[str, Any]:
    """Megabytes that no file stands behind at the end of every stage but the last, and in it; its seconds."""
    from concf.consensus.settings import CONSENSUS
    from concf.data.prepare import split_of
    from concf.data.simulate import Simulation
    from concf.runtime.process_group import ALONE, fingerprint
    from concf.training.config.presets import choose_settings
    from concf.training.recipe.needs import least_needs
    from concf.training.train import train

    data = split_of(Simulation(**sizes, tastes=32).draw(0), 0, min_user=3, min_item=3)
    settings, found, peak = choose_settings("strong", words=list(SETTINGS)), dict[str, float](), AnonymousPeak()
    begin = time.perf_counter()

    def watch(_: dict[str, Any]) -> None:
        nonlocal begin
        found["before_mb"] = found.get("last_mb", 0.0)
        found["last_mb"], found["last_seconds"] = peak.peak, time.perf_counter() - begin
        begin = time.perf_counter()

    with patch("concf.training.train.must_spill", return_value=spilled):
        best = train(data, settings, seed=0, device="cpu", watch=watch).best[CONSENSUS]
    assert best.lists is not None
    alike = fingerprint([best.lists, best.votes["items"], best.votes["reranked"]])
    needs = {f"{name}_mb": size / 1e6 for name, size in least_needs(data, settings, ALONE)._asdict().items()}
    return {"users": data.train.shape[0], "items": data.train.shape[1], "needs": needs, **found, "fingerprint": alike}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"users": 30_000, "items": 2_000, "events": 400_000, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("users", "items", "events")}
    prints = set()
    for _ in range(options.rounds):
        for spilled in (False, True):
            found, _ = in_fresh_process(measured, sizes, spilled)
            write("spill", {"spilled": spilled, **found})
            prints.add(found["fingerprint"])
    assert len(prints) == 1, prints


if __name__ == "__main__":
    main()
