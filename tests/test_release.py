"""What a release is made of: one version, workflows without secrets, a citation, forms and promises that hold."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import wheels
import yaml
from installed import EXTRAS, NOT_FOR_A_WHEEL, PYTHONS, interpreter
from skipping import MAY_SKIP, POSIX_FILES

from concf.data.catalogue import MIRROR_VARIABLE, PUBLIC_HOME
from concf.runtime.provenance import VERSION

ROOT = Path(__file__).parents[1]
FLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECURITY = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
RUNNERS = {
    "Linux x86_64": "ubuntu-latest",
    "Linux ARM64": "ubuntu-24.04-arm",
    "macOS ARM64": "macos-latest",
    "Windows x86_64": "windows-latest",
}


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


def test_a_job_runs_the_suite_with_nothing_skipped() -> None:
    runs = {name: [step.get("run", "") for step in job.get("steps", [])] for name, job in jobs().items()}
    suites = [name for name, steps in runs.items() if "python -m pytest -n auto --dist worksteal" in steps]
    whole = [name for name in suites if MAY_SKIP not in yaml.dump(jobs()[name])]
    assert whole
    assert all(any("concf data fetch" in step for step in runs[name]) for name in whole)
    assert not any("env" in flow(path.stem) for path in FLOWS.glob("*.yml"))


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


def test_every_action_has_a_version_and_leaves_no_credentials_behind() -> None:
    for name, job in jobs().items():
        assert "uses" in job or job["timeout-minutes"] <= 180, name
        for step in job.get("steps", []):
            assert "uses" not in step or re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step["uses"]), step
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}, name


def test_the_targets_that_workflows_call_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = {
        each
        for path in FLOWS.glob("*.yml")
        for each in re.findall(r"run: make (\w+)", path.read_text(encoding="utf-8"))
    }
    assert {"lint", "docs", "dist", "installed"} == called
    assert called <= targets


def test_make_dist_installs_the_tools_of_the_extra() -> None:
    (named,) = re.findall(
        r"^dist:\n.*\n\t\$\(PIP\) (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert named.split() == [re.split(r"[>=]", each)[0] for each in PROJECT["optional-dependencies"]["release"]]


def test_the_citation_has_what_the_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.keys() >= {"cff-version", "message", "title", "authors", "version", "license"}
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert paper.keys() >= {"type", "title", "authors", "year", "doi"}
    assert (paper["type"], paper["doi"]) == ("conference-paper", "10.1145/3485447.3512070")
    assert [each["family-names"] for each in paper["authors"]] == ["Kang", "Lee", "Kweon", "Hwang", "Yu"]


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_has_what_the_forge_requires(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    asked = [each for each in form["body"] if each["type"] != "markdown"]
    assert all(each["type"] in ("textarea", "input") and each["attributes"]["label"] for each in asked)
    assert len({each["id"] for each in asked}) == len(asked)
    assert any(each["validations"]["required"] for each in asked)
    assert (name == "bug") == any("`concf doctor`" in each["attributes"]["label"] for each in asked)


def test_security_names_the_only_host() -> None:
    assert PUBLIC_HOME.removeprefix("https://") in SECURITY
    assert MIRROR_VARIABLE in SECURITY
    package = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    opened = [line for text in package for line in text.splitlines() if "urlopen(" in line or "import requests" in line]
    assert len(opened) == 1, "SECURITY.md says that only public data sets are fetched"


def test_the_archive_has_the_helpers_of_its_tests() -> None:
    assert "graft tests" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()


def test_what_is_left_out_for_a_wheel_or_a_system_exists() -> None:
    assert EXTRAS == ("none", "serve", "all")
    for name in (*NOT_FOR_A_WHEEL, *POSIX_FILES):
        file, _, test = name.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, name


def test_a_python_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert interpreter("3.12") is None
    monkeypatch.setattr("shutil.which", lambda name: name)  # a name that leads to another Python, or to none
    answers = iter(["3.11\n", "", "3.12\n"])
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 0, next(answers)))
    assert [interpreter("3.12") for _ in range(3)] == [None, None, "python3.12"]
