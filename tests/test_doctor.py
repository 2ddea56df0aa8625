"""`concf doctor` says what a bug report needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import concf as package
from concf.data.catalogue import HOME_VARIABLE
from concf.runtime.provenance import VERSION

CLI = Callable[..., tuple[int, str, str]]


def test_it_says_versions_devices_and_places(concf: CLI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "not" / "made"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda k: "H200")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda k: (6 << 30, 8 << 30))
    monkeypatch.setattr("concf.cli.doctor.requires", lambda name: ["torch>=2", "no-such; extra == 'no'"])
    code, out, err = concf("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["concf"], found["python"]) == (VERSION, sys.version.split()[0])
    assert found["installed in"] == str(Path(package.__file__).parent)
    assert found["data home"] == str(tmp_path / "not" / "made")
    assert "GiB of memory free" in found["cpu"]
    assert found["cuda:0"] == "H200, 6.0 of 8.0 GiB of memory free"
    assert found["libraries"].startswith("torch 2")
    assert "no-such missing" in found["libraries"]
    assert all(name in concf("doctor")[1] for name in found)
