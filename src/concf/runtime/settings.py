"""Settings: typed, frozen, and strict about names they do not know."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from concf.errors import ConfigError


class Settings(BaseModel):
    """A record of settings; an unknown or nonsensical one is refused where it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def named(entry: str) -> tuple[str, str]:
    """The name and the specification of an entry: `als-a=weighted-squares@0.02`; without a name it is its own."""
    found = re.fullmatch(r"\s*([\w-]+)\s*=\s*(.+?)\s*", entry)
    return (found[1], found[2]) if found else (entry, entry)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot be read as TOML (it is not text)") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as TOML ({error})") from None
