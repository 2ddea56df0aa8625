"""What DTensor does with a table divided by rows of which each process takes its own: why `divided` is not made of it.

torchrun --standalone --nproc-per-node 2 benchmarks/try_dtensor.py

For each way to take rows: the collectives that PyTorch counts, and how much of the table's gradient a process holds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measuring import write
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from concf.model.rows import take_rows
from concf.runtime.process_group import joined

ROWS, SIZE, BATCH = 100_000, 64, 1024


def watched(
    take: Callable[[nn.Parameter, DTensor], Any], table: nn.Parameter, places: DTensor, dim: int = 0
) -> dict[str, Any]:
    """Take the rows so that each process has its own of them, and the gradient of a loss of its own."""
    table.grad = None
    with CommDebugMode() as forward:  # type: ignore[no-untyped-call]
        mine = take(table, places).redistribute(places.device_mesh, [Shard(dim)]).to_local()
    try:
        with CommDebugMode() as backward:  # type: ignore[no-untyped-call]
            mine.square().sum().backward()
    except RuntimeError as error:
        return {"forward": counts(forward), "backward": f"fails: {str(error).splitlines()[0]}"}
    gradient = table.grad
    assert isinstance(gradient, DTensor)
    return {
        "forward": counts(forward),
        "backward": counts(backward),
        "gradient": str(gradient.placements),
        "gradient_rows_held": gradient.to_local().shape[-2],
    }


def counts(mode: CommDebugMode) -> dict[str, int]:
    return {str(kind): count for kind, count in mode.get_comm_counts().items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with joined() as group:
        mesh = init_device_mesh("cpu", (group.size,))
        whole = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(0))
        mine = torch.randint(ROWS, (BATCH,), generator=torch.Generator().manual_seed(group.rank))
        everyone = DTensor.from_local(group.gather(mine, BATCH * group.size), mesh, [Replicate()])
        flat = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
        grouped = nn.Parameter(distribute_tensor(whole[None], mesh, [Shard(1)]))
        found = {
            "index_select": watched(lambda table, at: table.index_select(0, at), flat, everyone),
            "embedding": watched(lambda table, at: F.embedding(at, table), flat, everyone),
            "take_rows": watched(take_rows, grouped, everyone, 1),
        }
        optimiser = torch.optim.Adam([flat], fused=True)
        flat.grad = flat.detach().clone()
        optimiser.step()
        state = optimiser.state[flat]["exp_avg"].to_local().shape[0]
        dist.barrier()
        if group.is_main:
            sizes = {"rows": ROWS, "dimensions": SIZE, "batch_of_a_process": BATCH, "processes": group.size}
            write("dtensor", sizes | {"rows_of_a_process": ROWS // group.size, "state_rows_held": state} | found)


if __name__ == "__main__":
    main()
