"""Settings: typed, frozen, and strict about names they do not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A record of settings; an unknown or nonsensical one is refused where it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
