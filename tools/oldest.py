"""The oldest libraries that pyproject.toml allows, as constraints for pip: `make test-oldest`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def oldest() -> dict[str, str]:
    """Library -> the lowest version that the core, an extra or the tests ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    bounds = {}
    for requirement in asked:
        if found := re.match(r"([\w.-]+)(\[.*\])?>=([\d.]+)", requirement):
            bounds[found[1]] = found[3]
        elif not requirement.startswith("concf["):
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
    return bounds


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in sorted(oldest().items())))
