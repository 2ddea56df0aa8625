"""`concf doctor`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import typer

from concf.cli.output import Json
from concf.runtime.provenance import provenance

FOR_DEVELOPERS = ("all", "docs", "release", "test")  # extras that are made of others, or of no use to a user
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def doctor(as_json: Json = False) -> None:
    """What a bug report needs: versions, devices, threads, memory, disk, data, and which extras are missing.

    The only path it prints is the data home. Whatever is missing or broken is said in its place; the exit code is 0.

    `concf doctor > doctor.txt`
    """
    found = examine()
    typer.echo(json.dumps(found) if as_json else "\n".join(_lines(found)))


def examine() -> dict[str, Any]:
    """All that the command prints; a part that cannot be examined is the text of its error."""
    origin = provenance()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "libraries": _libraries,
        "extras": _extras,
        "torch": _torch,
        "disk": _disk,
        "data": _data,
    }
    return {
        **{name: origin[name] for name in ("concf", "commit", "python")},
        "machine": origin["machine"] | {"usable cores": _usable_cores()},
        **{name: _tried(part) for name, part in parts.items()},
    }


def _tried(part: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    try:
        return part()
    except Exception as error:  # a library may be broken in any way: that is what is to be reported
        return f"{type(error).__name__}: {error}".partition("\n")[0].replace(str(Path.home()), "~")


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _requirements() -> dict[str | None, list[str]]:
    """Extra (None: the core) -> the names of its libraries; `concf[a,b]` stands for those of other extras."""
    found: dict[str | None, list[str]] = {}
    for line in requires("concf") or []:
        name, extra = re.match(r"[\w.-]+(\[[\w,-]+\])?", line), re.search(r"extra == ['\"]([\w-]+)", line)
        assert name is not None, line
        found.setdefault(extra[1] if extra else None, []).append(name[0])
    return found


def _installed(name: str) -> str | None:
    try:
        return version(name.partition("[")[0])
    except PackageNotFoundError:
        return None


def _libraries() -> dict[str, str | None]:
    """Those of the core -> version, None if missing."""
    return {name: _installed(name) for name in _requirements()[None]}


def _extras() -> dict[str, dict[str, Any]]:
    """Extra -> its libraries with their versions (None: missing), and how to install it if one is missing."""
    known, found = _requirements(), {}
    for extra in sorted(name for name in known if name is not None and name not in FOR_DEVELOPERS):
        others = [name for each in known[extra] if each.startswith("concf[") for name in each[6:-1].split(",")]
        names = [name for one in (extra, *others) for name in known.get(one, []) if not name.startswith("concf[")]
        libraries = {name: _installed(name) for name in names}
        found[extra] = {"libraries": libraries} | (
            {"install": f"pip install 'concf[{extra}]'"} if None in libraries.values() else {}
        )
    return found


def _torch() -> dict[str, Any]:
    """Threads, devices, and bytes of memory that may still be taken."""
    import torch

    from concf.training.memory import available_memory

    devices: dict[str, Any] = {"cpu": {"memory": available_memory(torch.device("cpu"))}}
    for k in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(k)
        free = available_memory(torch.device("cuda", k))
        devices[f"cuda:{k}"] = {"name": about.name, "memory": free, "total": about.total_memory}
    if torch.backends.mps.is_available():
        devices["mps"] = {"memory": None}  # shared with the processor
    threads = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    return {"devices": devices, "threads": {"torch": torch.get_num_threads()} | threads}


def _disk() -> dict[str, int]:
    """Free bytes."""
    from concf.data.catalogue import data_home

    home = next(folder for folder in (data_home(), *data_home().absolute().parents) if folder.exists())
    return {"data home": shutil.disk_usage(home).free, "current folder": shutil.disk_usage(Path.cwd()).free}


def _data() -> dict[str, Any]:
    from concf.data.catalogue import CATALOGUE, data_home, is_here

    return {"home": str(data_home()), "here": {name: is_here(name) for name in CATALOGUE}}


def _lines(found: dict[str, Any]) -> list[str]:
    """A name and what was found, a line each."""
    machine = found["machine"]
    rows = [
        ("concf", f"{found['concf']}{', commit ' + found['commit'] if found['commit'] else ''}"),
        ("Python", found["python"]),
        ("system", machine["system"]),
        ("processor", f"{machine['processor']}, {machine['usable cores']} of {machine['cores']} cores usable"),
    ]
    shown: dict[str, Callable[[Any], list[tuple[str, str]]]] = {
        "libraries": lambda it: [("libraries", _versions(it))],
        "extras": lambda it: [
            (f"[{extra}]", f"{_versions(each['libraries'])}{'. Try: ' + each['install'] if 'install' in each else ''}")
            for extra, each in it.items()
        ],
        "torch": lambda it: [
            *((name, _device(about)) for name, about in it["devices"].items()),
            ("threads", ", ".join(f"{name} {value or 'not set'}" for name, value in it["threads"].items())),
        ],
        "disk": lambda it: [("free disk", ", ".join(f"{name} {_size(free)}" for name, free in it.items()))],
        "data": lambda it: [
            ("data home", it["home"]),
            ("data there", ", ".join(name for name, here in it["here"].items() if here) or "none"),
            ("data not there", ", ".join(name for name, here in it["here"].items() if not here) or "none"),
        ],
    }  # fmt: skip
    for name, lines in shown.items():
        rows += [(name, found[name])] if isinstance(found[name], str) else lines(found[name])
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _versions(libraries: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or 'missing'}" for name, found in libraries.items())


def _device(about: dict[str, Any]) -> str:
    total = f" of {_size(about['total'])}" if "total" in about else ""
    return f"{about['name'] + ', ' if 'name' in about else ''}{_size(about['memory'])}{total} of memory free"


def _size(count: int | None) -> str:
    return "an unknown amount" if count is None else f"{count / 2**30:.1f} GiB"
