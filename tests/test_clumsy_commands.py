"""Commands as a hurried user types them: nobody's file is overwritten, nothing is non-voting nonsense, no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import polars as pl
import pytest
from small_run import contents, small_data, trained_run

from concf.errors import ConfigError
from concf.runtime.settings import read_toml

pytestmark = pytest.mark.usefixtures("on_one_thread")
CLI = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(data, tmp_path_factory.mktemp("run") / "run", "training.epochs=2")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("log.csv", "user_id,item_id,timestamp\n1,2,3\n"), ("log.jsonl", "12\n"), ("log.parquet", "no Parquet")],
)
def test_recommendations_replace_no_log(name: str, text: str, run: Path, tmp_path: Path, concf: CLI) -> None:
    log = tmp_path / name
    log.write_text(text, encoding="utf-8")
    before = contents(run)
    for out in (log, run / "users.parquet"):
        code, _, err = concf("recommend", run, "--users", 1, "-k", 3, "--out", out)
        assert (code, "it is left alone" in err) == (2, True)
    assert (log.read_text(encoding="utf-8"), contents(run)) == (text, before)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_recommendations_replace_those_of_before(kind: str, run: Path, tmp_path: Path, concf: CLI) -> None:
    out, read = tmp_path / f"recs.{kind}", {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}
    out.touch()  # an empty file is nobody's
    for k in (5, 3):
        assert concf("recommend", run, "--users", "1,2", "-k", k, "--out", out)[0] == 0
        assert len(read[kind](out)) == 2 * k


def test_a_table_of_a_comparison_replaces_no_log(data: Path, tmp_path: Path, concf: CLI) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user,item\n1,2\n", encoding="utf-8")
    code, _, _ = concf("compare", data, "--models", "popularity", "--seeds", 1, "--markdown", log)
    assert (code, log.read_text(encoding="utf-8")) == (2, "user,item\n1,2\n")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["compare", "DATA", "--metrics", " , "], "no metric"), (["compare", "DATA", "--models", ""], "no model"),
        (["evaluate", "RUN", "--metrics", ""], "no metric"),
        (["train", "DATA", "--preset", "reference", "--set", "model.dimensions=10000000000", "--out", "NEW"], "memory"),
        (["recommend", "RUN", "--users", 1, "-k", 99999999], "consensus.shown"),
        (["recommend", "RUN", "--users", 1, "--items", ""], "--items"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    words: list[object], key: str, data: Path, run: Path, tmp_path: Path, concf: CLI
) -> None:
    places = {"DATA": data, "RUN": run, "NEW": tmp_path / "new"}
    code, out, err = concf(*(places.get(str(word), word) for word in words))
    assert (code, out, key in err, "Traceback" in err) == (2, "", True, False)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("message", "known"),
    [("DefaultCPUAllocator: can't allocate memory: you tried to allocate 16000 bytes.", True),
     ("CUDA out of memory. Tried to allocate 149.01 GiB.", True), ("shapes do not fit", False)],
)  # fmt: skip
def test_an_allocation_that_pytorch_refuses_ends_in_words(
    message: str, known: bool, monkeypatch: pytest.MonkeyPatch, concf: CLI
) -> None:
    def refused(**_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr("concf.cli.app.app", refused)
    if known:
        code, _, err = concf("train")
        assert (code, "not enough memory" in err) == (2, True)
    else:
        with pytest.raises(RuntimeError, match=message):
            concf("train")


def test_settings_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "half.toml").write_text("a =")
    for name in ("nowhere.toml", ".", "bytes.toml", "half.toml"):
        with pytest.raises(ConfigError, match="cannot be read as TOML"):
            read_toml(tmp_path / name)
