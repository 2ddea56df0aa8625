from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from concf.runtime.provenance import provenance

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONCF_COMMIT", raising=False)
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert head.startswith(str(provenance()["commit"]).rstrip("+"))
    monkeypatch.setenv("CONCF_COMMIT", "abc")
    assert provenance()["commit"] == "abc"
