"""Write docs/accuracy.md from benchmarks/results/accuracy.jsonl.

make accuracy
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from concf.learning.settings import CONSENSUS, R_CONSENSUS
from concf.model.objectives import FIVE
from concf.tables import markdown

ROOT = Path(__file__).parent.parent
METRICS = ("recall@20", "ndcg@20", "recall@50", "ndcg@50")
PAPER = {  # R@50, N@50 of the paper's consensus, its best head and its best SingleCF
    ("citeulike", "released"): ("0.390 / 0.184", "0.376", "0.318"),
    ("ciao", "paper"): ("0.230 / 0.114", "0.227", "0.185"),
}
HEAD = """# Accuracy

ConCF and SingleCF on public data, five splits (seeds 0 to 4, also of the model). A head and the consensus each stand at
the epoch of their own best validation Recall@50; the best head is the one with the best validation. Test figures, mean
± standard deviation over the splits. Baselines on the same splits: [baselines.md](baselines.md).

Rebuilt from `benchmarks/results/accuracy.jsonl` (one line a run: settings, split hash, seed, commit, machine) by
`make accuracy`; the lines by, for each data set, protocol and seed,

```
concf prepare citeulike --protocol released --seed 0 --out data/citeulike-released-0
python benchmarks/accuracy.py data/citeulike-released-* --device cuda --workers 4
```

or one by one with `concf train data/citeulike-released-0 --out runs/0` and `concf evaluate runs/0`.
"""


def lines() -> list[dict[str, Any]]:
    path = ROOT / "benchmarks" / "results" / "accuracy.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def row(name: str, runs: list[dict[str, Any]], of: Callable[[dict[str, Any]], str]) -> list[str]:
    cells = []
    for metric in METRICS:
        values = [run["rows"][of(run)]["test"][metric] for run in runs]
        spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
        cells.append(f"{mean(values):.4f}{spread}")
    epochs = [run["rows"][of(run)]["epoch"] for run in runs]
    return [name, *cells, f"{min(epochs)} to {max(epochs)}", str(len(runs))]


def table(found: list[dict[str, Any]]) -> str:
    """SingleCF, then the heads of ConCF, then the consensuses."""
    rows = []
    for name in FIVE:
        runs = [run for run in found if run["what"] == name]
        if runs:
            rows.append(row(f"SingleCF {name}", runs, lambda _, name=name: name))
    runs = [run for run in found if run["what"] == "ConCF"]
    if runs:
        rows += [row(f"ConCF {name}", runs, lambda _, name=name: name) for name in FIVE]
        rows.append(row("**ConCF best head**", runs, lambda run: run["best_head"]))
        rows.append(row("R-consensus", runs, lambda _: R_CONSENSUS))
        rows.append(row("**consensus**", runs, lambda _: CONSENSUS))
    return markdown(["", "R@20", "N@20", "R@50", "N@50", "best epoch", "splits"], rows)


def main() -> None:
    found, text = lines(), HEAD
    for data, protocol in dict.fromkeys((line["data"], line["protocol"]) for line in found):
        mine = [line for line in found if (line["data"], line["protocol"]) == (data, protocol)]
        text += f"\n## {data}, protocol `{protocol}`\n"
        if (data, protocol) in PAPER:
            consensus, head, single = PAPER[data, protocol]
            text += f"\nThe paper: consensus R@50 / N@50 {consensus}, best head {head}, best SingleCF {single}.\n"
        for label in dict.fromkeys(line["label"] for line in mine):
            runs = [line for line in mine if line["label"] == label]
            changed = ", ".join(f"`{word}`" for word in runs[0]["set"])
            text += f"\nPreset `{runs[0]['preset']}`{', ' + changed if changed else ''}:\n\n{table(runs)}"
    notes = ROOT / "benchmarks" / "accuracy_notes.md"
    text += "\n" + notes.read_text(encoding="utf-8")
    (ROOT / "docs" / "accuracy.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
