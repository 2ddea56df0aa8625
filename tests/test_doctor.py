"""`concf doctor` says what a bug report needs, and what is missing or broken does not stop it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from concf.cli.about import doctor
from concf.data.catalogue import HOME_VARIABLE
from concf.runtime.provenance import VERSION

CLI = Callable[..., tuple[int, str, str]]
REQUIRES = [
    "torch<3,>=2", "numpy>=2", "optuna>=4; extra == 'tune'", 'uvicorn[standard]>=1; extra == "serve"',
    'jinja2; extra == "report"', 'concf[report]; extra == "mlflow"', 'mlflow-skinny; extra == "mlflow"',
    'pytest; extra == "test"', 'concf[report,serve]; extra == "all"',
]  # fmt: skip
INSTALLED = {"torch": "2.10", "numpy": "2.1", "jinja2": "3.1", "uvicorn": "0.54"}


@pytest.fixture(autouse=True)
def known_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def version(name: str) -> str:
        if name not in INSTALLED:
            raise PackageNotFoundError(name)
        return INSTALLED[name]

    monkeypatch.setattr(doctor, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "not" / "made"))
    for name in ("optuna", "uvicorn", "jinja2", "matplotlib", "ray", "implicit", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)  # versions are looked up: an import would fail here


def test_it_says_versions_machine_devices_and_data(concf: CLI, tmp_path: Path) -> None:
    code, out, err = concf("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["concf"].startswith(VERSION)
    assert found["python"] == sys.version.split()[0]
    assert found["libraries"] == "torch 2.10, numpy 2.1"
    assert {name: text for name, text in found.items() if name[0] == "["} == {
        "[mlflow]": "mlflow-skinny missing (pip install 'concf[mlflow]')",
        "[report]": "jinja2 3.1",
        "[serve]": "uvicorn 0.54",
        "[tune]": "optuna missing (pip install 'concf[tune]')",
    }
    assert found["cpu"].endswith("GiB of memory free")
    assert (found["data home"], found["data there"]) == (str(tmp_path / "not" / "made"), "none")
    assert out.count(str(Path.home())) == 0  # the data home of this test is elsewhere


def test_whatever_is_broken_is_said_and_the_rest_still_found(concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise OSError(f"{Path.home()}/lib/torch.so: cannot open\nmore")

    monkeypatch.setattr(doctor, "requires", lambda name: (_ for _ in ()).throw(PackageNotFoundError(name)))
    monkeypatch.setattr("torch.get_num_threads", broken)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)  # as on Windows and macOS
    code, out, err = concf("doctor")
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["devices"] == "OSError: ~/lib/torch.so: cannot open"
    assert lines["libraries"] == "PackageNotFoundError: No package metadata was found for concf"
    assert "data home" in out
