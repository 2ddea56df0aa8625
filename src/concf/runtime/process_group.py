"""Process group: the part of the work that this process does, and how processes communicate.

Every process holds the whole model, and takes its rows of every global batch and its users of every ranking. Results
are all-reduced or gathered by PyTorch's collectives (gloo on a CPU, NCCL on GPUs).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from concf.errors import ConfigError, PeerError

TIMEOUT = 600.0  # seconds to wait for the others: more than rank 0 takes to read a log or write a file


@dataclass(frozen=True)
class ProcessGroup:
    """Process `rank` of `size`, `local_rank` on its machine, which waits for the others no longer than `timeout`.

    launcher: id of the process that started this one, if any
    Every method but `share` and `refuse_orphan` is collective: all processes must call it. Dropout is drawn by each
    process; all other randomness depends on seed and epoch alone, and is equal on all ranks.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    timeout: float = TIMEOUT
    launcher: int | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    def share(self, n: int) -> slice:
        """Slice of n users, or rows of a global batch, of this process; all slices are about equal."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def all_reduce(self, parts: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, equal to the bit on all ranks; one message."""
        if not self.several:
            return
        flat = torch.cat([part.reshape(-1) for part in parts])
        with self._talking():
            dist.all_reduce(flat)
        for part, total in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(total.view(part.shape))

    def gather(self, part: Tensor, dim: int = 0) -> Tensor:
        """Gather all rows along a dimension, of which each process holds its share."""
        return self.join(part.movedim(dim, 0)).movedim(0, dim).contiguous() if self.several else part

    def lengths(self, part: Tensor) -> list[int]:
        """Number of rows on each rank."""
        if not self.several:
            return [len(part)]
        count = torch.zeros(self.size, dtype=torch.int64, device=part.device)
        count[self.rank] = len(part)
        self.all_reduce([count])
        return [int(each) for each in count.tolist()]

    def join(self, part: Tensor) -> Tensor:
        """[all, ...] gather the rows of all processes in the order of the ranks; each may have any number."""
        if not self.several:
            return part
        lengths = self.lengths(part)
        padded = part.new_zeros(max(lengths), *part.shape[1:])  # as long in every process
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in lengths]
        with self._talking():
            dist.all_gather(parts, padded)
        return torch.cat([each[:length] for each, length in zip(parts, lengths, strict=True)])

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """All-to-all: send rows [sum(sent), ...] to the ranks in order; returns [sum(received), ...]."""
        parts = rows.new_empty(sum(received), *rows.shape[1:])
        with self._talking():
            dist.all_to_all_single(parts, rows.contiguous(), received, sent)
        return parts

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        value = torch.tensor(int(flag))
        self.all_reduce([value])
        return bool(value)

    def barrier(self) -> None:
        """Wait for all processes."""
        self.any(False)

    def refuse_difference(self, values: Mapping[str, str]) -> None:
        """Check that the values are equal on all ranks."""
        everyone: list[Any] = [values] * self.size
        if self.several:
            with self._talking():
                dist.all_gather_object(everyone, dict(values))
        for rank, theirs in enumerate(everyone):
            for name in (name for name in theirs if theirs[name] != everyone[0][name]):
                advice = "Start all with the same command, version and data, on machines of one kind"
                raise ConfigError(f"process {rank} of {self.size} has another {name} than process 0. {advice}")

    def refuse_orphan(self) -> None:
        """Stop if the launcher has ended: a second job may write to the same folder."""
        if self.launcher is not None and os.getppid() != self.launcher:
            raise PeerError(f"process {self.rank} of {self.size}: its launcher has ended. Continue with --resume")

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = re.sub(r"\[/\S+\] *", "", str(error).splitlines()[0]).partition(". ")[0]
            problem = f"another process has ended, or has not answered for {self.timeout:g} s ({reason})"
            raise PeerError(f"process {self.rank} of {self.size}: {problem}. Continue with --resume") from None


ALONE = ProcessGroup()
_joins = count()  # of this process; torchrun keeps the store, with the keys of earlier groups and attempts


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def restarted() -> bool:
    """Whether torchrun started it again, after a failure on its machine."""
    return launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined(timeout: float = TIMEOUT) -> Iterator[ProcessGroup]:
    """Join the group that torchrun started this process in; without torchrun, `ALONE`."""
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    group = ProcessGroup(rank, size, local_rank, timeout, os.getppid())
    with group._talking():
        prefix = f"concf/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}/{next(_joins)}"
        store = PrefixStore(prefix, next(rendezvous("env://", timeout=timedelta(seconds=timeout)))[0])
        dist.init_process_group(_backend(), store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    yield group
    dist.destroy_process_group()  # after an error the process ends anyway, and must not wait for the others


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def fingerprint(tensors: Sequence[Tensor]) -> str:
    """SHA-256 of the bytes of the tensors, in their order."""
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(each.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
