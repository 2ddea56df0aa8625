"""Several processes for the price of one: torchrun starts one, which forks them, and its store is theirs.

torchrun --nproc-per-node=1 process_group.py FOLDER PROCESSES WORKER ...

A WORKER is a module whose `work(folder)` they do.

To import PyTorch takes longer than the work. Nothing that starts threads, as Polars does, is imported before the fork.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import torch._dynamo  # noqa: F401  the optimiser would import it

import concf.cli.app
import concf.models  # noqa: F401


def main() -> None:
    folder, size, workers = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    children = []
    for rank in range(size):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            for worker in workers:
                import_module(worker).work(folder)
            return
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(f"exit codes {codes}" if any(codes) else 0)


if __name__ == "__main__":
    main()
