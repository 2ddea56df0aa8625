"""`concf doctor`."""

import json
from pathlib import Path

import typer

from concf.cli.output import Json, print_values


def doctor(as_json: Json = False) -> None:
    """Print what a bug report needs: versions, devices, memory, the data home, and where concf is installed.

    `concf doctor > doctor.txt`
    """
    import psutil
    import torch

    from concf.data.catalogue import data_home
    from concf.runtime.provenance import provenance

    origin, free = provenance(), psutil.virtual_memory().available
    machine = origin["machine"]
    devices = {"cpu": f"{torch.get_num_threads()} threads, {free / 2**30:.1f} GiB of memory free"}
    for k in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(k)
        memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of memory free"
        devices[f"cuda:{k}"] = f"{torch.cuda.get_device_name(k)}, {memory}"
    report = {
        "concf": origin["concf"], "commit": origin["commit"] or "not a checkout",
        "installed in": str(Path(__file__).parents[1]), "python": origin["python"], "system": machine["system"],
        "processor": f"{machine['processor']}, {machine['cores']} cores", **devices, "data home": str(data_home()),
        "libraries": ", ".join(f"{name} {version}" for name, version in origin["versions"].items()),
    }  # fmt: skip
    typer.echo(json.dumps(report)) if as_json else print_values(report)
