"""How a prepared data set was made, and the manifest of its folder: recipe, counts, notes and checksums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator

from concf.data.interactions import Filter
from concf.data.protocols import PROTOCOLS, Protocol
from concf.errors import DataError
from concf.runtime.files import mapped, sha256
from concf.runtime.provenance import VERSION
from concf.runtime.settings import Settings

FORMAT = 3  # of the folder; any other is refused
MANIFEST = "manifest.json"
VERIFIED_BYTES = 1 << 28  # folders up to this size are compared with their checksums when they are loaded


class SplitRecipe(Settings):
    """Recipe of a prepared data set."""

    source: dict[str, Any]  # name and SHA-256 of the file(s), or of the pairs if they came as a frame
    reading: dict[str, Any] = Field(default_factory=dict)  # the options of columns and format
    filters: tuple[Filter, ...] = ()  # applied in order, the protocol's own last
    protocol: SerializeAsAny[Protocol]
    seed: int = Field(0, ge=0)

    @field_validator("protocol", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """Make the protocol of a manifest from its settings."""
        if not isinstance(value, dict):
            return value
        if value.get("name") not in PROTOCOLS:
            raise ValueError(f"unknown protocol {value.get('name')!r}")
        return PROTOCOLS[value["name"]](**value)


def write_manifest(folder: Path, summary: dict[str, Any]) -> None:
    """Write the manifest of a folder with all other files in it. summary: see `Split.summary`"""
    manifest = summary | {"files": {file.name: sha256(file) for file in sorted(folder.iterdir())}}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path, needed: Sequence[str]) -> dict[str, Any]:
    """Return the manifest, with its `SplitRecipe`, of a folder that is complete and unchanged; else raise an error.

    Folders up to `VERIFIED_BYTES` are compared with their SHA-256; missing and truncated files are always detected.

    needed: names of the `.npy` files that every folder has
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder}: not a prepared data set (no {MANIFEST}). See: concf prepare")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            fix = "Update concf" if manifest["format"] > FORMAT else "Prepare the data set again"
            raise DataError(f"{folder}: format {manifest['format']}, and concf {VERSION} reads {FORMAT}. {fix}")
        files = dict.fromkeys(needed) | dict(manifest["files"])
        manifest |= {"recipe": SplitRecipe(**manifest["recipe"]), "files": files, "notes": list(manifest["notes"])}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__}). Prepare the data set again") from None
    for name in files:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing. Prepare the data set again")
    verify = sum((folder / name).stat().st_size for name in files) <= VERIFIED_BYTES
    for name, checksum in files.items():
        if checksum is None or (sha256(folder / name) != checksum if verify else _is_truncated(folder / name)):
            raise DataError(f"{folder / name} was changed or cut short. Prepare the data set again")
    return manifest


def _is_truncated(path: Path) -> bool:
    """Whether a `.npy` file holds less than its header says."""
    try:
        return mapped(path) is None
    except (ValueError, EOFError):
        return True
