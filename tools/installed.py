"""The built wheel, installed into empty environments outside the repository, and used there; takes minutes for each.

    make installed                                                   # all of them, and the suite
    python tools/installed.py dist/*.whl --python 3.12 --extras all  # one of them
    python tools/installed.py dist/*.whl --suite 3.12 --tests test_als.py test_train.py

Every Python is tried with no extras, with `serve` and with `all`: `installed_smoke.py` runs there. A Python that this
machine lacks is left out with a message. With --suite the tests, copied to an empty folder, run against the wheel.
An environment takes a gigabyte and more, and is removed before the next is made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = Path(__file__).with_name("installed_smoke.py")
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("none", "serve", "all")
NOT_FOR_A_WHEEL = {  # tests about the repository: what they read is not in the wheel
    "test_architecture.py": "the imports of src/",
    "test_benchmarks.py": "benchmarks/ and the pages that they write",
    "test_documents.py": "README and docs/",
    "test_examples.py": "examples/",
    "test_leaderboard.py": "benchmarks/leaderboard/",
    "test_release.py": "workflows, CITATION.cff, SECURITY.md",
    "test_watch.py": "benchmarks/watch.py",
}


class Environment:
    """A virtual environment in a folder of its own, with nothing of the repository on its path."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder, home = folder, folder / "environment"
        subprocess.run([python, "-m", "venv", str(home)], check=True, cwd=folder)
        self.programs = home / ("Scripts" if sys.platform == "win32" else "bin")
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.variables["PATH"] = f"{self.programs}{os.pathsep}{os.environ['PATH']}"

    def run(self, *words: str, cwd: Path | None = None) -> int:
        """Run the environment's Python; its exit code."""
        command = [str(self.programs / "python"), *words]
        return subprocess.run(command, cwd=cwd or self.folder, env=self.variables, check=False).returncode

    def install(self, wheel: Path, extras: str) -> bool:
        """Whether the wheel could be installed, with the pinned libraries."""
        what = str(wheel) if extras == "none" else f"{wheel}[{extras}]"
        options = ("--quiet", "--disable-pip-version-check", "--no-compile", "-c", str(ROOT / "constraints.txt"))
        return self.run("-m", "pip", "install", *options, what) == 0


def interpreter(version: str) -> str | None:
    """The Python of that version on this machine."""
    name = f"python{version}"
    found = shutil.which(name)
    check = "import sys; print('%d.%d' % sys.version_info[:2])"
    if (
        found
        and subprocess.run([found, "-c", check], capture_output=True, text=True, check=False).stdout.strip() == version
    ):
        return found
    return None


def smoke(version: str, python: str, extras: str, wheel: Path) -> bool:
    """Install the wheel with those extras and use it."""
    with tempfile.TemporaryDirectory(prefix="concf-installed-") as folder:
        here = Environment(python, Path(folder))
        script = shutil.copy(SMOKE, folder)
        good = here.install(wheel, extras) and here.run(str(script), extras, wheel.name.split("-")[1]) == 0
    print(f"Python {version}, extras {extras}: {'good' if good else 'FAILED'}", flush=True)
    return good


def suite(version: str, python: str, wheel: Path, tests: list[str]) -> bool:
    """Run the tests in a folder that has them and `reproduction` alone, against the installed wheel."""
    with tempfile.TemporaryDirectory(prefix="concf-installed-") as folder:
        here = Environment(python, Path(folder))
        copy = Path(folder) / "copy"
        for each in ("tests", "reproduction"):
            shutil.copytree(ROOT / each, copy / each, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)  # the options of pytest
        left_out = [f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}" for name in NOT_FOR_A_WHEEL]
        many = ["-q", "-n", "3", "--dist", "worksteal"]
        words = [*many, *left_out, *(f"tests/{name}" for name in tests)]
        good = here.install(wheel, "test") and here.run("-m", "pytest", *words, cwd=copy) == 0
    for name, reason in NOT_FOR_A_WHEEL.items():
        print(f"left out: {name}, which is about {reason}")
    print(f"Python {version}, the suite: {'good' if good else 'FAILED'}", flush=True)
    return good


def main() -> None:
    """The command; exit code 1 if something failed or nothing could be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="*", default=PYTHONS, help="versions; none: only --suite")
    parser.add_argument("--extras", nargs="+", default=EXTRAS, choices=EXTRAS)
    parser.add_argument("--suite", metavar="PYTHON", help="run the tests too, with this version")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="only these of them")
    options = parser.parse_args()
    wheel, good = options.wheel.resolve(), []
    for version in dict.fromkeys([*options.python, *([options.suite] if options.suite else [])]):
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: left out, this machine has no python{version}")
            continue
        if version in options.python:
            good += [smoke(version, python, extras, wheel) for extras in options.extras]
        if version == options.suite:
            good.append(suite(version, python, wheel, options.tests))
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
