from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from concf.cli import main
from concf.data.catalogue import HOME_VARIABLE

# A loaded machine must not fail a law by the clock; CI draws the same examples every time.
settings.register_profile("concf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("concf"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "concf")

BESIDE = Path(__file__).parents[2] / "shared" / "data"


def absent(reason: str) -> None:
    """Skip a test for want of something outside; with CI=true nothing may be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (and with CI=true nothing is skipped)")
    pytest.skip(reason)


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data home with the public data sets."""
    home = Path(os.environ.get(HOME_VARIABLE, BESIDE))
    if not (home / "citeulike" / "users.dat").is_file():
        absent(f"the public data sets are not in {home}; set {HOME_VARIABLE}")
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    return home


@pytest.fixture
def concf(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (exit code, standard output, standard error)."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["concf", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
