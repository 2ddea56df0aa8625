"""The oldest libraries that pyproject.toml allows its users, as constraints for pip: `make test-oldest`.

The tools of the tests themselves are the pinned ones: users do not install them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def oldest() -> dict[str, str]:
    """Library -> the lowest version that the core or an extra asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: extra for name, extra in project["optional-dependencies"].items() if name != "test"}
    bounds = {}
    for requirement in [*project["dependencies"], *(each for extra in extras.values() for each in extra)]:
        if found := re.match(r"([\w.-]+)(\[.*\])?>=([\d.]+)", requirement):
            bounds[found[1]] = found[3]
        elif not requirement.startswith("concf["):
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
    return bounds


def tools() -> dict[str, str]:
    """Library -> the pinned version of what only the tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[>]", each)[0] for each in project["optional-dependencies"]["test"]} - {"concf"}
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", constraints, re.MULTILINE))
    return {name: pins[name] for name in names - oldest().keys()}


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in sorted((tools() | oldest()).items())))
