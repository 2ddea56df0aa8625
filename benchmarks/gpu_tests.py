"""All tests that need a GPU, several times in a row: the lines of results/gpu-tests.jsonl.

    python benchmarks/gpu_tests.py --rounds 3

The files of a round run side by side, and a round begins when the one before it has ended. A line names its pytest, and
whether constraints.txt pins that one. A machine without a network gets it in a folder, named there in PYTHONPATH:

    pip install --target FOLDER -c constraints.txt pytest
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import RESULTS

from concf.comparison.results_log import ResultsLog
from concf.runtime.provenance import provenance

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed", "SKIPPED": "skipped"}


def outcome(file: Path) -> dict[str, Any]:
    """How many tests of a file passed, failed and were skipped, and its seconds; what failed is printed."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", "-v", "--tb=short", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    results = (
        line.split("::", 1)[1].split() for line in done.stdout.splitlines() if re.match(r"tests/gpu_\w+\.py::", line)
    )
    counted = Counter(OUTCOMES[word] for words in results for word in words if word in OUTCOMES)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
        counted["failed"] = max(counted["failed"], 1)
    counts: dict[str, Any] = {name: counted[name] for name in ("passed", "failed", "skipped")}
    if failed := re.findall(r"^(?:FAILED|ERROR) tests/\S+?::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE):
        counts["names"] = failed
    return counts | {"seconds": round(time.perf_counter() - begin, 1)}


def pytest_used() -> dict[str, Any]:
    """Return the version of pytest, and whether it is the pinned one."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {"pytest": pytest.__version__, "pinned": f"pytest=={pytest.__version__}" in pins}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu-tests.jsonl")
    words = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    log, commit = ResultsLog(words.results), provenance()["commit"]
    device, files = torch.cuda.get_device_name(), sorted(TESTS.glob("gpu_*.py"))
    tool, whole = pytest_used(), True
    if not tool["pinned"]:
        print(f"note: pytest {tool['pytest']} is not the one of constraints.txt; --help says how to bring that one")
    for number in range(1, words.rounds + 1):
        with ThreadPoolExecutor(len(files)) as pool:
            for file, counts in zip(files, pool.map(outcome, files), strict=True):
                key = {"commit": commit, "device": device, "round": number, "file": file.name}
                print(log.add(key, counts | tool), flush=True)
                whole = whole and not counts["failed"] and not counts["skipped"]
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()
