"""Does every library have a wheel on every platform? Asks pip for each pin of constraints.txt; takes minutes.

    python tools/wheels.py            # the table
    python tools/wheels.py --json     # the same for programs
    python tools/wheels.py --write    # PLATFORMS.md

pip finds the wheel of each pin and reads of it what it needs in turn, without downloading it. From there the libraries
that concf with all its extras, and its tests, need on a platform are followed by that platform's own markers: pip alone
would take those of the machine it runs on. A library that is needed and has no wheel is a hole, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "PLATFORMS.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXCEPTIONS = {"uvloop": "not on Windows, where uvicorn does not ask for it and asyncio's own loop serves"}
WITHOUT = """| not available | where | instead |
|---|---|---|
| SIGHUP, which reloads a served run | Windows | start the service again |
| SIGTERM, which stops training in order | Windows, which ends a process at once | Ctrl-C; after a kill, `--resume` continues from the last checkpoint |
| the memory limit of a container (cgroup v2), by which a training that cannot fit is refused | macOS, Windows | only the free memory of the machine counts |
| keeping freed memory for the next step (glibc) | macOS, Windows | steps are somewhat slower |
| Triton's kernels on a GPU | Windows | the same formulas in PyTorch, slower |
| one import of PyTorch shared by worker processes (fork server) | Windows | each worker imports it, which takes seconds |
| a file replaced while another process has it open | Windows | an error that names the file; close the other process, or choose another `--out` |
"""  # noqa: E501


def _linux(machine: str) -> tuple[str, ...]:
    return (*(f"manylinux_2_{glibc}_{machine}" for glibc in range(28, 4, -1)),
            *(f"manylinux{year}_{machine}" for year in (2014, 2010, 1)))  # fmt: skip


@dataclass(frozen=True)
class Platform:
    """tags: of the wheels that run on it; markers: what an environment marker finds there."""

    tags: tuple[str, ...]
    markers: dict[str, str]


PLATFORMS = {
    "Linux x86_64": Platform(
        _linux("x86_64"),
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    ),
    "Linux ARM64": Platform(
        _linux("aarch64"),
        {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    ),
    "macOS ARM64": Platform(
        ("macosx_14_0_arm64",),  # pip adds the older ones, and universal2
        {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
    ),
    "Windows x86_64": Platform(
        ("win_amd64",),
        {"sys_platform": "win32", "platform_system": "Windows", "platform_machine": "AMD64", "os_name": "nt"},
    ),
}


@dataclass(frozen=True)
class Target:
    """A platform and a Python."""

    platform: str
    python: str

    def holds(self, requirement: Requirement, extra: str = "") -> bool:
        """Whether the requirement is one here."""
        environment = {
            "implementation_name": "cpython", "platform_python_implementation": "CPython", "extra": extra,
            "python_version": self.python, "python_full_version": f"{self.python}.0",
            **PLATFORMS[self.platform].markers,
        }  # fmt: skip
        return requirement.marker is None or requirement.marker.evaluate(environment)


TARGETS = [Target(platform, python) for python in PYTHONS for platform in PLATFORMS]


@dataclass
class Found:
    """Wheels of a target: library -> version, and library -> its requirements. needed: the required versions."""

    versions: dict[str, str] = field(default_factory=dict)
    requires: dict[str, list[str]] = field(default_factory=dict)
    needed: dict[str, SpecifierSet] = field(default_factory=dict)

    def holes(self) -> list[str]:
        """Libraries that are needed and have no wheel, or only a version that does not suit."""
        return sorted(
            name
            for name, versions in self.needed.items()
            if name not in self.versions or not versions.contains(self.versions[name], prereleases=True)
        )


def pins() -> dict[str, Requirement]:
    """The lines of constraints.txt by library."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def roots() -> list[Requirement]:
    """Requirements of the core, of every extra and of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    return [Requirement(each) for each in asked if not each.startswith("concf[")]


def needed(target: Target, start: list[Requirement], requires: dict[str, list[str]]) -> dict[str, SpecifierSet]:
    """All that is asked for on a target, and its versions. requires: what each library requires in turn."""
    asked: dict[str, SpecifierSet] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [requirement for requirement in start if target.holds(requirement)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        asked[name] = asked.get(name, SpecifierSet()) & requirement.specifier
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                below = [Requirement(each) for each in requires.get(name, [])]
                waiting += [each for each in below if target.holds(each, extra)]
    return asked


def ask(target: Target) -> Found:
    """Ask pip for the wheels of a target: the pins, and unpinned libraries that they need (as PyTorch for Linux)."""
    found, asked_for, start = Found(), set[str](), roots()
    questions = {name: f"{pin.name}{pin.specifier}" for name, pin in pins().items() if target.holds(pin)}
    while questions:
        for item in _pip(target, list(questions.values())):
            name = canonicalize_name(item["name"])
            found.versions[name], found.requires[name] = item["version"], item.get("requires_dist", [])
        asked_for |= set(questions)
        found.needed = needed(target, start, found.requires)
        questions = {name: f"{name}{versions}" for name, versions in found.needed.items() if name not in asked_for}
    print(f"{target.platform}, Python {target.python}: {', '.join(found.holes()) or 'all there'}", file=sys.stderr)
    return found


def _pip(target: Target, questions: list[str]) -> list[dict[str, Any]]:
    """Name, version and requirements of those that have a wheel."""
    left = list(questions)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
            "--report", str(report), "--use-feature", "fast-deps", "--only-binary", ":all:",
            "--python-version", target.python, "--target", folder,
            *(f"--platform={tag}" for tag in PLATFORMS[target.platform].tags),
        ]  # fmt: skip
        while left:
            ended = subprocess.run([*command, *left], capture_output=True, text=True, env=_public(), check=False)
            if ended.returncode == 0:
                return [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
            absent = re.search(r"No matching distribution found for (\S+)", ended.stderr)
            if absent is None or absent[1] not in left:
                raise SystemExit(ended.stderr)
            left.remove(absent[1])
    return []


def _public() -> dict[str, str]:
    """An environment in which pip sees no wheels of this machine."""
    local = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
    return {name: value for name, value in os.environ.items() if name not in local} | {"PIP_CONFIG_FILE": os.devnull}


def records(answers: dict[Target, Found]) -> list[dict[str, Any]]:
    """Library by library: its version, whether it is pinned, and for each platform the Pythons with a wheel, and those
    that need it and have none."""
    pinned = pins()
    names = sorted(set(pinned) | {name for found in answers.values() for name in found.needed})
    rows = []
    for name in names:
        versions = {found.versions[name] for found in answers.values() if name in found.versions}
        row: dict[str, Any] = {"library": name, "version": ", ".join(sorted(versions)), "pinned": name in pinned}
        for platform in PLATFORMS:
            here = {target.python: found for target, found in answers.items() if target.platform == platform}
            row[platform] = {
                "wheels": [python for python, found in here.items() if name in found.versions],
                "holes": [python for python, found in here.items() if name in found.holes()],
            }
        rows.append(row)
    return rows


def cell(entry: dict[str, list[str]]) -> str:
    """A cell of the table: the Pythons with a wheel, first to last; those that need one and have none."""
    said = []
    if entry["wheels"]:
        whole = entry["wheels"] == list(PYTHONS)
        said.append(f"{PYTHONS[0]} to {PYTHONS[-1]}" if whole else ", ".join(entry["wheels"]))
    if entry["holes"]:
        said.append(f"**none for {', '.join(entry['holes'])}**")
    return "; ".join(said) or "not needed"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as Markdown."""
    lines = [f"| library | version | {' | '.join(PLATFORMS)} |", "|---|---|" + "---|" * len(PLATFORMS)]
    for row in rows:
        cells = [cell(row[platform]) for platform in PLATFORMS]
        lines.append(f"| {row['library']} | {row['version']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(rows: list[dict[str, Any]]) -> str:
    """PLATFORMS.md."""
    exceptions = "\n".join(f"- **{name}**: {reason}." for name, reason in EXCEPTIONS.items())
    return f"""# Platforms

Every library that concf needs, directly or not, with all its extras and for its tests, is installed from a wheel:
nothing is compiled on Linux (x86_64 and ARM64, glibc 2.28 or newer), macOS (ARM64, 14 or newer) and Windows (x86_64),
on CPython {PYTHONS[0]} to {PYTHONS[-1]}. The versions are those of `constraints.txt`, which the tests run with.

Rebuilt by `make wheels`, which asks pip for each of them on each platform. This is its answer of
{date.today():%d %B %Y}.

## Not available everywhere

concf is developed and tested on Linux x86_64. The workflows run the suite on the others, and a test on Linux takes away
what they lack:

{WITHOUT}
## Exceptions

{exceptions}

## Pinned

{table([row for row in rows if row["pinned"]])}
## Their own dependencies

Not pinned here; PyTorch's wheels for Linux name the versions of NVIDIA's libraries and of Triton that belong to them.

{table([row for row in rows if not row["pinned"]])}"""


def main() -> None:
    """Parse the options, ask pip, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print records, one for each library")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--at-once", type=int, default=4, help="calls of pip at a time")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.at_once) as calls:
        answers = dict(zip(TARGETS, calls.map(ask, TARGETS), strict=True))
    rows = records(answers)
    if options.write:
        PAGE.write_text(page(rows), encoding="utf-8")
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    sys.exit(1 if any(found.holes() for found in answers.values()) else 0)


if __name__ == "__main__":
    main()
