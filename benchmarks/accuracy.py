"""ConCF and SingleCF on prepared data sets: test figures of every head and consensus at its best validation epoch.

python benchmarks/accuracy.py DATA ... [--device cuda] [--workers 4] [--set training.patience=none] [--label NAME]

DATA: folders of `concf prepare`, one a seed. A line of results/accuracy.jsonl a run, with configuration, split hash,
seed, commit and machine; what stands there already is not run again. `docs/accuracy.md` is made of them by
`python benchmarks/render_accuracy.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ALL = "ConCF"


def one(folder: str, what: str, preset: str, words: list[str], device: str, label: str) -> dict[str, Any]:
    """Train, and evaluate what was kept on the test part."""
    import torch

    from concf.data.split import Split
    from concf.evaluation.evaluate import evaluate
    from concf.learning.presets import choose_settings
    from concf.learning.train import train
    from concf.provenance import provenance

    torch.set_num_threads(1 if device == "cpu" else 2)
    data = Split.load(folder)
    settings = choose_settings(preset, words=words, single=None if what == ALL else what)
    begin = time.perf_counter()
    run = train(data, settings, seed=data.recipe.seed, device=device)
    seconds = time.perf_counter() - begin
    rows = {
        name: {
            "validation": best.validation,
            "epoch": best.epoch,
            "test": evaluate(run.recommender(name), data, device=device).means(),
        }
        for name, best in run.best.items()
    }
    return {
        "data": data.recipe.source["name"], "protocol": data.recipe.protocol.name, "seed": data.recipe.seed,
        "split_hash": data.hash, "preset": preset, "set": words, "label": label, "what": what,
        "best_head": run.best_head(), "rows": rows, "epochs": run.epoch, "seconds": round(seconds, 2),
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu", "provenance": provenance(),
    }  # fmt: skip


def main() -> None:
    from concf.model.objectives import FIVE

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--preset", default="reference")
    parser.add_argument("--label", default="reference")
    parser.add_argument("--what", default=",".join((ALL, *FIVE)))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy.jsonl")
    chosen = parser.parse_args()
    lines = chosen.out.read_text(encoding="utf-8").splitlines() if chosen.out.exists() else []
    done = {_key(json.loads(line)) for line in lines}
    tasks = []
    for what in chosen.what.split(","):
        for folder in chosen.data:
            manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
            if (manifest["split_hash"], chosen.label, what) not in done:
                tasks.append((folder, what, chosen.preset, chosen.set, chosen.device, chosen.label))
    with ProcessPoolExecutor(chosen.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, *task) for task in tasks]):
            line = future.result()
            with chosen.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            shown = {name: round(row["test"]["recall@50"], 4) for name, row in line["rows"].items()}
            print(
                line["data"],
                line["protocol"],
                line["seed"],
                line["what"],
                line["epochs"],
                line["seconds"],
                shown,
                flush=True,
            )


def _key(line: dict[str, Any]) -> tuple[str, str, str]:
    return line["split_hash"], line["label"], line["what"]


if __name__ == "__main__":
    main()
