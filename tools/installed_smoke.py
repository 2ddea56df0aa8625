"""Run by `installed.py` in an environment that has the wheel and nothing else: is all of it there, and does it work?

python installed_smoke.py none|serve|all VERSION
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import pkgutil
import random
import re
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

EXTRAS, VERSION = sys.argv[1], sys.argv[2]
NAMES = {
    "prometheus-client": "prometheus_client",
    "tomli-w": "tomli_w",
}
NEEDS_MORE = {"serve": ("serve", "run"), "report": ("report", "run", "--out", "report.html")}
ANYWHERE = ("triton",)  # comes with a PyTorch that has CUDA
WAIT = 120.0


def concf(*words: str, code: int = 0) -> str:
    """Run the installed command; its standard output, or its message if it should fail."""
    ended = subprocess.run(["concf", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == code, f"concf {' '.join(words)}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended.stderr if code else ended.stdout


def optional() -> set[str]:
    """Return modules of the extras that this environment lacks."""
    named = [re.split(r"[\[<>=;~ ]", each)[0] for each in requires("concf") or [] if "extra ==" in each]
    modules = {NAMES.get(name, name.replace("-", "_")) for name in named if name != "concf"}
    return {name for name in modules if find_spec(name) is None}


def every_module_is_there() -> None:
    """Import all modules, except those whose library belongs to an extra that is not installed."""
    import concf as package
    from concf.errors import MissingExtraError

    assert "site-packages" in package.__file__, package.__file__
    lacking, left_out, imported = optional(), {}, 0
    for module in pkgutil.walk_packages(package.__path__, "concf."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            imported += 1
        except (ImportError, MissingExtraError) as error:
            named = re.search(r"needs the library '(\w+)'", str(error))
            name = named[1] if named else (getattr(error, "name", None) or "").split(".")[0]
            if name not in lacking and name not in ANYWHERE:
                raise
            left_out[module.name] = name
    for name in package.__all__:
        getattr(package, name)
    assert EXTRAS != "all" or set(left_out.values()) <= set(ANYWHERE), left_out
    print(f"  {imported} modules; without {', '.join(sorted(set(left_out.values()))) or 'none'}: {len(left_out)}")


def a_log() -> None:
    """Write log.csv: 60 users with different tastes."""
    draw = random.Random(0)
    rows = {
        (f"u{user}", f"i{(user % 4) * 12 + int(draw.betavariate(1, 2) * 14)}") for user in range(60) for _ in range(25)
    }
    with Path("log.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user_id", "item_id"), *sorted(rows)])


def train_and_recommend() -> None:
    """Train and recommend, on the command line and in Python."""
    concf("train", "log.csv", "--out", "run", "--budget", "fast")
    assert json.loads(concf("evaluate", "run", "--json"))
    concf("recommend", "run", "--users", "all", "-k", "5", "--out", "lists.csv")
    assert len(Path("lists.csv").read_text(encoding="utf-8").splitlines()) == 1 + 60 * 5
    from concf import Recommender

    assert len(Recommender.load("run").recommend("u1", k=3)) == 3


def what_is_missing_is_said() -> None:
    """Check that a command whose extra is not installed says how to install it."""
    for extra, words in NEEDS_MORE.items():
        if EXTRAS in ("all", extra):
            continue
        message = concf(*words, code=2)
        assert f"pip install 'concf[{extra}]'" in message, message


def serve() -> None:
    """Check that the service answers, with its page and its assets."""
    words = ["concf", "serve", "run", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split(" at ")[-1].strip()
            deadline = time.monotonic() + WAIT
            for path, expected in (("/ready", ""), ("/", "<html"), ("/explorer.js", "import")):
                with urllib.request.urlopen(url + path, timeout=deadline - time.monotonic()) as answer:
                    assert expected in answer.read().decode(), path
        finally:
            server.terminate()


def with_everything() -> None:
    """Use the other extras: write a report and an export."""
    concf("report", "run", "--out", "report.html")
    concf("export", "run", "--to", "npz", "--out", "export-npz")


def main() -> None:
    """Run all checks."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    assert concf("--version").strip() == VERSION
    assert "recommend" in concf("--help")
    every_module_is_there()
    a_log()
    train_and_recommend()
    what_is_missing_is_said()
    if EXTRAS in ("serve", "all"):
        serve()
    if EXTRAS == "all":
        with_everything()


main()
