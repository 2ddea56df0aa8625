"""Settings: typed, frozen, unknown names refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from concf.errors import ConfigError


class Settings(BaseModel):
    """Record of settings; unknown names and invalid values are refused when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def named(entry: str) -> tuple[str, str]:
    """Split an entry such as `first=bpr` into name and specification; without a name, they are equal."""
    match = re.fullmatch(r"\s*([\w-]+)\s*=\s*(.+?)\s*", entry)
    return (match[1], match[2]) if match else (entry, entry)


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten settings: {"consensus": {"weight": 0}} -> {"consensus.weight": 0}."""
    names: dict[str, Any] = {}
    for name, value in settings.items():
        names |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return names


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nest settings: {"consensus.weight": 0} -> {"consensus": {"weight": 0}}."""
    groups: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = groups
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return groups


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no TOML, or no UTF-8
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read as TOML ({reason})") from None
