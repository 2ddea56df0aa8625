"""What a release is made of: one version, workflows without secrets, a citation, forms and promises that hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import oldest
import wheels
import yaml
from installed import PYTHONS
from packaging.utils import canonicalize_name

from concf.runtime.provenance import VERSION

ROOT = Path(__file__).parents[1]
FLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECURITY = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
RUNNERS = {
    "Linux x86_64": "ubuntu-latest", "Linux ARM64": "ubuntu-24.04-arm",
    "macOS ARM64": "macos-latest", "Windows x86_64": "windows-latest",
}  # fmt: skip


def flow(name: str) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads the key `on` as true."""
    read: dict[Any, Any] = yaml.safe_load((FLOWS / f"{name}.yml").read_text(encoding="utf-8"))
    return {str("on" if key is True else key): value for key, value in read.items()}


def jobs() -> dict[str, dict[str, Any]]:
    return {f"{path.stem}/{name}": job for path in FLOWS.glob("*.yml") for name, job in flow(path.stem)["jobs"].items()}


def test_the_version_is_the_same_wherever_it_is_named() -> None:
    assert "version" in PROJECT["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == VERSION
    named = re.findall(r"concf[- ](\d+\.\d+\.\d+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(named) == {VERSION}


def test_the_suite_runs_on_every_platform_and_python_that_is_promised() -> None:
    matrix = flow("test")["jobs"]["suite"]["strategy"]["matrix"]
    assert RUNNERS.keys() == wheels.PLATFORMS.keys()
    assert matrix == {"os": list(RUNNERS.values()), "python": list(PYTHONS)}
    promised = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert list(PYTHONS) == promised


def test_nothing_is_published_before_every_other_job_has_passed() -> None:
    release = flow("release")
    assert release["on"] == {"push": {"tags": ["v*"]}}
    called = {job["uses"] for job in release["jobs"].values() if "uses" in job}
    assert called == {f"./.github/workflows/{name}.yml" for name in ("test", "docs")}
    assert all("workflow_call" in flow(name)["on"] for name in ("test", "docs"))
    assert set(release["jobs"]["publish"]["needs"]) == release["jobs"].keys() - {"publish", "site"}
    assert release["jobs"]["site"]["needs"] == "publish"
    assert not any("if" in job or job.get("continue-on-error") for job in jobs().values())


def test_no_secret_is_named_and_no_job_may_do_more_than_it_must() -> None:
    for path in FLOWS.glob("*.yml"):
        assert not re.search(r"secrets|password|token:(?! write)", path.read_text(encoding="utf-8")), path.name
        assert flow(path.stem)["permissions"] == {"contents": "read"}
    own = {name: job["permissions"] for name, job in jobs().items() if "permissions" in job}
    pages = {"pages": "write", "id-token": "write"}
    assert own == {"release/publish": {"id-token": "write"}, "release/site": pages}
    assert flow("release")["jobs"]["publish"]["environment"] == "pypi"


def test_every_requirement_is_pinned_within_its_bounds_and_has_an_oldest_version() -> None:
    pins, bounds = wheels.pins(), oldest.tools() | oldest.oldest()
    for requirement in wheels.roots():
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), requirement
        assert requirement.specifier.contains(bounds[requirement.name]), requirement
    listed = set(re.findall(r"^\| ([\w.-]+) \| (\S+) \|", wheels.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {(name, str(pin.specifier).removeprefix("==")) for name, pin in pins.items()} <= listed, "run: make wheels"
