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


def refuse_changed(path: Path) -> bool:
    """Refuse a file that is not as it was sealed; False for one that has no checksum."""
    found, digest = _looked_at(path)
    if found is None:
        return False
    expected = found[1].decode()
    if digest != expected:
        raise DataError(
            f"{path}: cut short or damaged: its SHA-256 is {digest[:16]}, and was {expected[:16]} when it was written. "
            "Bring back a copy, or remove it to begin the run again"
        )
    return True


def _looked_at(path: Path) -> tuple[re.Match[bytes] | None, str]:
    """Where its checksum stands, and what it should be; nowhere, if the header has none."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(0)
        head = file.read(8 + min(size, path.stat().st_size))
        found = PLACE.search(head)
        if found is None:
            return None, ""
        digest = hashlib.sha256(head[: found.start(1)] + BLANK.encode() + head[found.end(1) :])
        return found, hashlib.file_digest(file, lambda: digest).hexdigest()
