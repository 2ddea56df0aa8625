"""`concf doctor` says what a bug report needs, and what is missing or broken does not stop it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from concf.cli.about import doctor
from concf.data.catalogue import CATALOGUE, HOME_VARIABLE
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
    assert (found["concf"], found["python"]) == (VERSION, sys.version.split()[0])
    assert found["libraries"] == {"torch": "2.10", "numpy": "2.1"}
    assert found["extras"] == {
        "mlflow": {"libraries": {"mlflow-skinny": None, "jinja2": "3.1"}, "install": "pip install 'concf[mlflow]'"},
        "report": {"libraries": {"jinja2": "3.1"}},
        "serve": {"libraries": {"uvicorn[standard]": "0.54"}},
        "tune": {"libraries": {"optuna": None}, "install": "pip install 'concf[tune]'"},
    }
    assert found["torch"]["threads"]["torch"] == torch.get_num_threads()
    assert found["torch"]["devices"]["cpu"]["memory"] > 0
    assert found["data"] == {"home": str(tmp_path / "not" / "made"), "here": dict.fromkeys(CATALOGUE, False)}
    assert min(found["disk"].values()) > 0
    assert 0 < found["machine"]["usable cores"] <= found["machine"]["cores"]
    assert out.count(str(Path.home())) == 0  # the data home of this test is elsewhere


def test_it_is_read_line_by_line(concf: CLI) -> None:
    code, out, _ = concf("doctor")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert lines["libraries"] == "torch 2.10, numpy 2.1"
    assert lines["[tune]"] == "optuna missing. Try: pip install 'concf[tune]'"
    assert lines["cpu"].endswith("GiB of memory free")
    assert "data not there  citeulike, ciao" in out


def test_whatever_is_broken_is_said_and_the_rest_still_found(concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise OSError(f"{Path.home()}/lib/torch.so: cannot open\nmore")

    monkeypatch.setattr(doctor, "requires", lambda name: (_ for _ in ()).throw(PackageNotFoundError(name)))
    monkeypatch.setattr("torch.get_num_threads", broken)
    monkeypatch.setattr("shutil.disk_usage", broken)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)  # as on Windows and macOS
    code, out, err = concf("doctor")
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["torch"] == lines["disk"] == "OSError: ~/lib/torch.so: cannot open"
    assert lines["libraries"] == lines["extras"] == "PackageNotFoundError: No package metadata was found for concf"
    assert "data home" in out


def test_graphics_processors_are_named_with_their_memory(concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    about = type("About", (), {"name": "H200", "total_memory": 8 << 30})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda k: about)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (6 << 30, 8 << 30))
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    _, out, _ = concf("doctor")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["cuda:0"] == "H200, 6.0 GiB of 8.0 GiB of memory free"
    assert lines["mps"] == "an unknown amount of memory free"
