"""A checksum inside a safetensors file, so that both are renamed into place together.

It is the SHA-256 of the whole file with 64 zeros in place of the checksum, which is in the metadata of the header.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from concf.errors import DataError

FIELD = "sha256"
BLANK = "0" * 64  # the value of the field until the file is sealed
PLACE = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')  # strings inside the header's strings have escaped quotes


def seal(path: Path) -> None:
    """Write a file's checksum into its metadata, which must have a blank one."""
    field, digest = _field_and_digest(path)
    if field is None:
        raise ValueError(f"{path}: has no place for a checksum")
    with path.open("r+b") as file:
        file.seek(field.start(1))
        file.write(digest.encode())


def refuse_changed(path: Path) -> None:
    """Refuse a file that was changed since it was sealed, or that has no checksum."""
    field, digest = _field_and_digest(path)
    if field is None or digest != field[1].decode():
        sealed = "its checksum is gone" if field is None else f"and was {field[1][:16].decode()} when it was written"
        raise DataError(
            f"{path}: cut short or damaged: its SHA-256 is {digest[:16]}, {sealed}. "
            "Restore a copy, or remove it to start the run again"
        )


def _field_and_digest(path: Path) -> tuple[re.Match[bytes] | None, str]:
    """The checksum in the header (None if there is none), and what it should be."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(0)
        header = file.read(8 + min(size, path.stat().st_size))
        field = PLACE.search(header)
        blank = header if field is None else header[: field.start(1)] + BLANK.encode() + header[field.end(1) :]
        digest = hashlib.sha256(blank)
        return field, hashlib.file_digest(file, lambda: digest).hexdigest()
