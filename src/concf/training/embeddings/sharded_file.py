"""Tensors that several processes hold in parts, as one safetensors file: written piece by piece, read in parts.

No process ever holds more than its own part and one piece of another's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concf.runtime.process_group import ProcessGroup

PIECE = 1 << 22  # bytes that travel at a time
KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Division:
    """How a tensor is divided among processes: each has its share of n along a dimension."""

    dim: int
    n: int


def write_pieces(
    path: Path,
    tensors: Mapping[str, Tensor],
    divisions: Mapping[str, Division],
    metadata: Mapping[str, str],
    group: ProcessGroup,
) -> None:
    """All tensors in one file, by the process that writes; the others call `hand_over` with the same ones.

    divisions: how the tensors that are held in parts are divided; of the others the writer's own is written
    """
    with path.open("wb") as file:
        file.write(_header(tensors, divisions, metadata))
        for name in _ordered(tensors):
            for piece in _pieces(tensors[name], divisions.get(name), group):
                file.write(piece.reshape(-1).view(torch.uint8).numpy().data)


def hand_over(tensors: Mapping[str, Tensor], divisions: Mapping[str, Division], group: ProcessGroup) -> None:
    """This process's parts, to the one that writes."""
    for name in _ordered(tensors):
        if name in divisions:
            for _ in _pieces(tensors[name], divisions[name], group):
                pass


def _ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Each tensor begins at a multiple of the size of its figures."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _header(tensors: Mapping[str, Tensor], divisions: Mapping[str, Division], metadata: Mapping[str, str]) -> bytes:
    """The length of a JSON table, and the table: kind, shape and place of every tensor."""
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name in _ordered(tensors):
        shape = _whole_shape(tensors[name], divisions.get(name))
        end = begin + torch.Size(shape).numel() * tensors[name].element_size()
        table[name] = {"dtype": KINDS[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _whole_shape(part: Tensor, division: Division | None) -> list[int]:
    shape = list(part.shape)
    if division is not None:
        shape[division.dim] = division.n
    return shape


def _pieces(part: Tensor, division: Division | None, group: ProcessGroup) -> Iterator[Tensor]:
    """The whole tensor in pieces, in the order of a file; for processes that do not write, as many of no meaning."""
    if division is None:
        yield part.detach().cpu().contiguous()
        return
    dim, shape = division.dim, part.shape
    width = shape[dim + 1 :].numel() * part.element_size()
    step = max(1, PIECE // max(1, width))
    for block in part.detach().reshape(shape[:dim].numel(), *shape[dim:]):  # of what comes before the dimension
        for rank in range(group.size):
            held = group.share(division.n, rank)
            for begin in range(0, held.stop - held.start, step):
                length = min(step, held.stop - held.start - begin)
                own = (
                    block[begin : begin + length] if rank == group.rank else block.new_empty(length, *shape[dim + 1 :])
                )
                yield group.send(own.cpu().contiguous(), rank)


def read_part(file: Any, name: str, division: Division | None, group: ProcessGroup) -> Tensor:
    """A tensor of an open file; of one that is divided this process's part alone."""
    if division is None or not group.several:
        whole: Tensor = file.get_tensor(name)
        return whole
    part: Tensor = file.get_slice(name)[(slice(None),) * division.dim + (group.share(division.n),)]
    return part
