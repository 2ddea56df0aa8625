"""Set-up: wheels for every pin on every platform, and what each make target installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import oldest  # noqa: E402
import wheels  # noqa: E402

LINUX, WINDOWS = wheels.Target("Linux ARM64", "3.11"), wheels.Target("Windows x86_64", "3.13")
WHOLE = f"{wheels.PYTHONS[0]} to {wheels.PYTHONS[-1]}"


def table(heading: str) -> dict[str, list[str]]:
    """Library -> version and cells, from the committed page."""
    page = wheels.PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    assert rows[0][2:] == list(wheels.PLATFORMS)
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_committed_table_has_every_pin_and_its_version():
    pinned = {name: str(pin.specifier).removeprefix("==") for name, pin in wheels.pins().items()}
    assert {name: row[0] for name, row in table("Pinned").items()} == pinned, "run: make wheels"


def test_every_pin_has_a_wheel_everywhere_but_for_the_exceptions():
    short = {name for name, row in table("Pinned").items() if set(row[1:]) != {WHOLE}}
    assert short == set(wheels.EXCEPTIONS)
    assert "**" not in wheels.PAGE.read_text(encoding="utf-8").split("## Pinned")[1]
    for name in short:
        assert wheels.pins()[name].marker is not None, "constraints.txt says where it is not needed"
        assert f"**{name}**: {wheels.EXCEPTIONS[name]}" in wheels.PAGE.read_text(encoding="utf-8")


def test_every_direct_requirement_is_pinned_within_its_bounds():
    for requirement in wheels.roots():
        (pin,) = wheels.pins()[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), requirement


def test_what_is_needed_follows_extras_and_the_markers_of_the_target():
    start = [Requirement("server[fast]>=1"), Requirement("winlib; sys_platform == 'win32'")]
    requires = {
        "server": ["loop>=2; extra == 'fast' and sys_platform != 'win32'", "slow; extra == 'other'", "plain<3"],
        "loop": ["Old_Lib; python_version < '3.12'"],
        "plain": ["server", "plain>1"],
    }
    linux = {name: str(versions) for name, versions in wheels.needed(LINUX, start, requires).items()}
    assert linux == {"server": ">=1", "plain": "<3,>1", "loop": ">=2", "old-lib": ""}
    assert set(wheels.needed(WINDOWS, start, requires)) == {"server", "plain", "winlib"}


def test_a_hole_is_a_library_that_is_needed_and_has_no_wheel_or_only_another_version():
    answer = wheels.Found(
        {"here": "1.0", "older": "1.0"},
        needed={"here": SpecifierSet(">=1"), "older": SpecifierSet(">=2"), "nowhere": SpecifierSet()},
    )
    assert answer.holes() == ["nowhere", "older"]


def test_the_table_says_holes_and_what_is_not_needed(monkeypatch):
    monkeypatch.setattr(wheels, "pins", lambda: {"uvloop": Requirement("uvloop==1"), "lib": Requirement("lib==2")})
    answers = {target: wheels.Found({"lib": "2"}, needed={"lib": SpecifierSet()}) for target in wheels.TARGETS}
    for target in wheels.TARGETS:
        if target.platform != "Windows x86_64":
            answers[target].versions["uvloop"] = "1"
            answers[target].needed["uvloop"] = SpecifierSet()
    del answers[LINUX].versions["lib"]
    rows = wheels.table(wheels.records(answers)).splitlines()[2:]
    assert rows == [
        f"| lib | 2 | {WHOLE} | 3.12, 3.13, 3.14; **none for 3.11** | {WHOLE} | {WHOLE} |",
        f"| uvloop | 1 | {WHOLE} | {WHOLE} | {WHOLE} | not needed |",
    ]


def test_pip_is_asked_again_without_what_it_did_not_find(monkeypatch):
    questions = []

    def pip(command, **_):
        questions.append(command[-2:])
        if "lost==1" in command:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found for lost==1\n")
        report = Path(command[command.index("--report") + 1])
        report.write_text('{"install": [{"metadata": {"name": "Kept", "version": "1"}}]}', encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert wheels._pip(LINUX, ["lost==1", "kept==1"]) == [{"name": "Kept", "version": "1"}]
    assert [words[0] for words in questions] == ["lost==1", "--platform=manylinux1_aarch64"]


def test_the_oldest_libraries_are_the_lower_bounds():
    bounds = oldest.tools() | oldest.oldest()
    assert {"torch", "numpy", "ray"} <= set(oldest.oldest())
    assert {"pytest", "mypy"} <= set(oldest.tools())
    for requirement in wheels.roots():
        assert requirement.specifier.contains(bounds[requirement.name]), requirement


def would_do(target: str, folder: Path, *stamps: str) -> str:
    """What make would do, in an environment where the stamps say what is there."""
    folder.mkdir(exist_ok=True)
    for stamp in stamps:
        (folder / stamp).touch()
    words = ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True, env=clean).stdout


def installed(plan: str) -> list[set[str]]:
    return [set(extras.split(",")) for extras in re.findall(r"-e '\.\[(.*)\]'", plan)]


def test_each_target_installs_its_own_set(tmp_path):
    for target in ("demo", "setup"):
        assert installed(would_do(target, tmp_path)) == [{"baselines", "report", "serve"}]
    for target in ("test", "lint", "docs"):
        assert installed(would_do(target, tmp_path)) == [{"test"}]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    whole = Requirement(extras["test"][0])
    assert whole.extras == {"all", "docs"}
    assert Requirement(extras["all"][0]).extras == set(extras) - {"all", "docs", "release", "test"}


@pytest.mark.parametrize(
    ("stamps", "there", "missing"),
    [
        ([".ready"], ["demo", "setup", "bench"], ["test"]),
        ([".ready", ".ready-test"], ["demo", "setup", "test", "docs"], []),
    ],
)
def test_what_is_there_is_not_installed_again(tmp_path, stamps, there, missing):
    for target in there:
        assert not installed(would_do(target, tmp_path, *stamps)), target
    for target in missing:
        assert installed(would_do(target, tmp_path, *stamps)), target


@pytest.mark.parametrize(
    ("target", "stamps"),
    [("setup", {".ready"}), ("lint", {".ready", ".ready-test"})],
)
def test_a_set_stands_for_the_smaller_ones(tmp_path, target, stamps):
    (touched,) = re.findall(r"^touch (.*)$", would_do(target, tmp_path), re.MULTILINE)
    assert {Path(stamp).name for stamp in touched.split()} == stamps


def test_what_pip_was_killed_over_is_removed_before_it_is_asked_again(tmp_path):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole-1": ["METADATA", "INSTALLER"], "half-1": ["METADATA"]}.items():
        (packages / f"{name}.dist-info").mkdir(parents=True)
        for file in files:
            (packages / f"{name}.dist-info" / file).touch()
    (repair,) = [line for line in would_do("demo", tmp_path).splitlines() if line.startswith("for info in")]
    subprocess.run(["sh", "-c", repair], check=True)
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]
