"""`concf doctor`."""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from concf.cli.output import Json
from concf.runtime.provenance import provenance

FOR_DEVELOPERS = ("all", "docs", "release", "test")  # extras that are made of others, or of no use to a user


def doctor(as_json: Json = False) -> None:
    """What a bug report needs: versions, devices, threads, memory, disk, data, and which extras are missing.

    The only path it prints is the data home. Whatever is missing or broken is said in its place; the exit code is 0.

    `concf doctor > doctor.txt`
    """
    found = _machine()
    for part in (_libraries, _devices, _data):
        try:
            found |= part()
        except Exception as error:  # a library may be broken in any way: that is what is to be reported
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            found[part.__name__[1:]] = text.replace(str(Path.home()), "~")
    width = max(map(len, found))
    typer.echo(json.dumps(found) if as_json else "\n".join(f"{name:<{width}}  {it}" for name, it in found.items()))


def _machine() -> dict[str, str]:
    origin, machine = provenance(), provenance()["machine"]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine["cores"]
    cores = f"{usable} of {machine['cores']} cores usable"
    return {
        "concf": ", commit ".join(filter(None, (origin["concf"], origin["commit"]))), "python": origin["python"],
        "system": machine["system"], "processor": f"{machine['processor']}, {cores}",
    }  # fmt: skip


def _libraries() -> dict[str, str]:
    """The libraries of the core and of every extra, each with its version."""
    found: dict[str, list[str]] = {}
    for line in requires("concf") or []:
        name, extra = re.split(r"[^\w.-]", line)[0], re.search(r"extra == ['\"]([\w-]+)", line)
        if name != "concf" and not (extra and extra[1] in FOR_DEVELOPERS):
            try:
                text = f"{name} {version(name)}"
            except PackageNotFoundError:
                text = f"{name} missing" + (f" (pip install 'concf[{extra[1]}]')" if extra else "")
            found.setdefault(f"[{extra[1]}]" if extra else "libraries", []).append(text)
    return {name: ", ".join(texts) for name, texts in found.items()}


def _devices() -> dict[str, str]:
    import psutil
    import torch

    found = {"cpu": f"{psutil.virtual_memory().available / 2**30:.1f} GiB of memory free"}
    for k in range(torch.cuda.device_count()):
        free, total = (each / 2**30 for each in torch.cuda.mem_get_info(k))
        found[f"cuda:{k}"] = f"{torch.cuda.get_device_name(k)}, {free:.1f} of {total:.1f} GiB of memory free"
    return found | {"threads": f"{torch.get_num_threads()}, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS')}"}


def _data() -> dict[str, str]:
    from concf.data.catalogue import CATALOGUE, data_home, is_here

    home = next(folder for folder in (data_home(), *data_home().absolute().parents) if folder.exists())
    disk = ", ".join(f"{shutil.disk_usage(each).free / 2**30:.1f} GiB" for each in (home, Path.cwd()))
    here = ", ".join(name for name in CATALOGUE if is_here(name)) or "none"
    return {"data home": str(data_home()), "data there": here, "free disk": f"{disk} (data home, current folder)"}
