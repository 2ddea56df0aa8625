"""A safetensors file that holds its own checksum, so that both are renamed into place as one.

The checksum is the SHA-256 of the whole file with 64 zeros where the checksum itself stands, in the file's header.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from concf.errors import DataError

FIELD = "sha256"
BLANK = "0" * 64  # what stands there until the file is sealed
PLACE = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')  # a text within the header's texts has its quotes escaped


def seal(path: Path) -> None:
    """Write the checksum of a file into it, whose metadata have a blank one."""
    found, digest = _looked_at(path)
    if found is None:
        raise ValueError(f"{path}: has no place for a checksum")
    with path.open("r+b") as file:
        file.seek(found.start(1))
        file.write(digest.encode())


def refuse_changed(path: Path) -> None:
    """Refuse a file that is not as it was sealed, or has no checksum."""
    found, digest = _looked_at(path)
    expected = None if found is None else found[1].decode()
    if digest != expected:
        was = "its checksum is gone" if expected is None else f"and was {expected[:16]} when it was written"
        raise DataError(
            f"{path}: cut short or damaged: its SHA-256 is {digest[:16]}, {was}. "
            "Bring back a copy, or remove it to begin the run again"
        )


def _looked_at(path: Path) -> tuple[re.Match[bytes] | None, str]:
    """Where its checksum stands (None: nowhere), and what it should be."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(0)
        head = file.read(8 + min(size, path.stat().st_size))
        found = PLACE.search(head)
        blank = head if found is None else head[: found.start(1)] + BLANK.encode() + head[found.end(1) :]
        digest = hashlib.sha256(blank)
        return found, hashlib.file_digest(file, lambda: digest).hexdigest()
