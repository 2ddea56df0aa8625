"""`concf doctor`."""

import json
from pathlib import Path
from re import findall

import typer

from concf.cli.output import Json, print_values


def doctor(as_json: Json = False) -> None:
    """Print what a bug report needs: versions, devices, memory, the data home, and where concf is installed.

    `concf doctor > doctor.txt`
    """
    from importlib.metadata import PackageNotFoundError, requires, version

    import psutil
    import torch

    from concf.data.catalogue import data_home
    from concf.runtime.provenance import provenance

    origin, free = provenance(), psutil.virtual_memory().available
    devices = {"cpu": f"{torch.get_num_threads()} threads, {free / 2**30:.1f} GiB of memory free"}
    for k in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(k)
        memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of memory free"
        devices[f"cuda:{k}"] = f"{torch.cuda.get_device_name(k)}, {memory}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple's, memory shared with the processor"
    versions = {}  # of each library of concf and its extras
    for name in dict.fromkeys(library for line in requires("concf") or [] for library in findall(r"^[\w.-]+", line)):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    libraries = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "concf")
    machine = origin["machine"]
    report = {
        "concf": origin["concf"], "commit": origin["commit"] or "not a checkout",
        "installed in": str(Path(__file__).parents[1]), "python": origin["python"], "system": machine["system"],
        "processor": f"{machine['processor']}, {machine['cores']} cores", **devices,
        "data home": str(data_home()), "libraries": libraries,
    }  # fmt: skip
    typer.echo(json.dumps(report)) if as_json else print_values(report)
