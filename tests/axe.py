"""axe-core, which checks a page in the browser against WCAG: contrast, names, roles, keyboard. From npm, once."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from browsing import Page
from skipping import absent

VERSION = "4.14.0"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {"normal": TAGS, "-.06em": ["target-size"], ".06em": ["target-size"]}  # by the spacing of letters


def axe_script(cache: pytest.Cache) -> str:
    """The script; a download is kept with what pytest keeps."""
    script = cache.mkdir("axe-core") / f"axe-{VERSION}.js"
    if not script.exists():
        with TemporaryDirectory(dir=script.parent) as folder:  # other processes may be at it too
            fresh = _downloaded(Path(folder))
            fresh.replace(script)
    return script.read_text(encoding="utf-8")


def _downloaded(folder: Path) -> Path:
    npm, archive = shutil.which("npm"), folder / f"axe-core-{VERSION}.tgz"
    if npm is not None:
        subprocess.run([npm, "pack", f"axe-core@{VERSION}", "--silent"], cwd=folder, capture_output=True, check=False)
    if not archive.exists():
        absent("axe-core", "install npm, and let it reach its registry")
    with tarfile.open(archive) as files:
        files.extract("package/axe.min.js", folder, filter="data")
    return folder / "package" / "axe.min.js"


def violations(page: Page, script: str) -> list[dict[str, Any]]:
    """What axe finds wrong with the page as it is now: the rule, and the first elements that break it.

    Where lines break, and so how near two targets are, depends on the fonts of a machine: targets are also measured
    with narrow and with wide text. The inside of a chart is left out: it is one picture with a label, and axe measures
    no contrast in SVG.
    """
    page.run(script)
    page.driver.set_script_timeout(30)
    found = [each for spacing, rules in RULES.items() for each in _violations(page, spacing, rules)]
    return [{"rule": each["id"], "elements": [node["html"][:120] for node in each["nodes"][:3]]} for each in found]


def _violations(page: Page, spacing: str, rules: list[str]) -> list[dict[str, Any]]:
    page.run(
        "const sheet = new CSSStyleSheet(); document.adoptedStyleSheets = [sheet];"
        "sheet.replaceSync(`* { letter-spacing: ${arguments[0]} !important; }`)",
        spacing,
    )
    found = page.driver.execute_async_script(  # type: ignore[no-untyped-call]
        "axe.run({exclude: [['.chart > *']]}, {runOnly: arguments[0], resultTypes: ['violations']}).then(arguments[1])",
        rules,
    )
    return list(found["violations"])
