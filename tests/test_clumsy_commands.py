"""Commands as a hurried user types them: nobody's file is overwritten, nothing is non-voting nonsense, no traceback."""

from __future__ import annotations

import json
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
    [
        ("log.csv", "user_id,item_id,timestamp\n1,2,3\n"),
        ("log.csv", "1,2\n"),
        ("log.jsonl", '{"user_id": 1, "item_id": 2}\n'),
        ("log.jsonl", "12\n"),
        ("log.jsonl", "no JSON\n"),
        ("log.parquet", "no Parquet"),
        ("log.csv", "\n\n1,2\n"),
    ],
)
def test_recommendations_replace_no_log(name: str, text: str, run: Path, tmp_path: Path, concf: CLI) -> None:
    log = tmp_path / name
    log.write_text(text, encoding="utf-8")
    code, _, err = concf("recommend", run, "--users", 1, "-k", 3, "--out", log)
    assert code == 2
    assert f"{log}: exists and holds no lists of recommendations; it is left alone. Choose another --out" in err
    assert log.read_text(encoding="utf-8") == text


def test_recommendations_replace_no_file_of_a_run(run: Path, concf: CLI) -> None:
    before = contents(run)
    for name in ("users.parquet", "items.parquet", "history.jsonl"):
        code, _, err = concf("recommend", run, "--users", 1, "-k", 3, "--out", run / name)
        assert code == 2
        assert "it is left alone" in err
    assert contents(run) == before


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
    words = ("compare", data, "--models", "popularity", "--seeds", 1, "--markdown")
    code, _, err = concf(*words, log)
    assert (code, log.read_text(encoding="utf-8")) == (2, "user,item\n1,2\n")
    assert f"--markdown {log}: choose a name that ends in .md" in err
    assert concf(*words, tmp_path / "table.md")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", ""], "no metric was named; choose from recall, ndcg"),
        (["--metrics", " , "], "no metric was named"),
        (["--models", ""], "no model was named; choose from popularity, itemknn"),
    ],
)
def test_a_comparison_of_nothing_is_refused(words: list[str], message: str, data: Path, concf: CLI) -> None:
    code, _, err = concf("compare", data, "--seeds", 1, *words)
    assert code == 2
    assert message in err


def test_an_evaluation_of_nothing_is_refused(run: Path, concf: CLI) -> None:
    code, out, err = concf("evaluate", run, "--metrics", "")
    assert (code, out) == (2, "")
    assert "no metric was named; choose from recall, ndcg" in err


def test_a_model_that_fits_no_memory_is_refused_in_words(data: Path, tmp_path: Path, concf: CLI) -> None:
    words = ("--preset", "reference", "--set", f"model.dimensions={10**12}", "--out", tmp_path / "run")
    code, _, err = concf("train", data, *words)
    assert code == 2
    assert "GB of memory" in err
    assert "Set a lower model.dimensions (now 1000000000000)" in err


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 160000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "[enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
        "160000000000000 bytes.",
        "CUDA out of memory. Tried to allocate 149.01 GiB. GPU 0 has a total capacity of 79.10 GiB",
    ],
)
def test_an_allocation_that_pytorch_refuses_ends_in_words(
    message: str, monkeypatch: pytest.MonkeyPatch, concf: CLI
) -> None:
    def refused(**_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr("concf.cli.app.app", refused)
    code, _, err = concf("train")
    assert code == 2
    assert "concf: not enough memory (tried to allocate 1" in err
    assert "Set fewer model.dimensions" in err


def test_other_errors_of_pytorch_are_not_hidden(monkeypatch: pytest.MonkeyPatch, concf: CLI) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("concf.cli.app.app", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        concf("train")


def test_what_is_wrong_is_said_without_the_words_of_a_library(tmp_path: Path, concf: CLI) -> None:
    words = ("--protocol", "random", "--valid", 0.6, "--test", 0.6, "--out", tmp_path / "data")
    code, _, err = concf("prepare", "demo", *words)
    assert code == 2
    assert err.startswith("concf: valid 0.6 + test 0.6 leave nothing to train on")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "it is not text"),
        (lambda path: path.write_text("a ="), "Invalid value (at end of document)"),
    ],
)
def test_settings_that_cannot_be_read(make: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    make(path)
    with pytest.raises(ConfigError) as refused:
        read_toml(path)
    assert str(refused.value) == f"{path}: cannot be read as TOML ({reason})"


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_device_that_does_not_exist_is_refused_before_anything_is_prepared(
    engine: str, tmp_path: Path, concf: CLI
) -> None:
    where = ("--results", tmp_path / "lines.jsonl", "--data", tmp_path / "data", "--engine", engine)
    code, out, err = concf("reproduce", "main", "--dataset", "demo", "--seeds", 1, "--device", "gpu", *where)
    assert (code, out, err) == (2, "", "concf: device 'gpu': choose cpu or cuda\n")
    assert not list(tmp_path.iterdir())


def test_a_reproduction_names_its_lines(tmp_path: Path, concf: CLI) -> None:
    lines = tmp_path / "lines.jsonl"
    where = ("--results", lines, "--data", tmp_path / "data")
    _, out, _ = concf("reproduce", "stats", "--dataset", "demo", *where)
    assert f"1 cell, 1 of them measured now. Lines: {lines}." in " ".join(out.split())
    assert json.loads(lines.read_text(encoding="utf-8").splitlines()[0])["key"]


def test_a_reproduction_of_nothing_has_nothing_to_show(tmp_path: Path, concf: CLI) -> None:
    where = ("--results", tmp_path / "lines.jsonl", "--data", tmp_path / "data")
    code, out, err = concf("reproduce", "stats", "--dataset", "nowhere", *where)
    assert code == 2
    assert out == f"1 cell, 0 of them measured now. Lines: {tmp_path / 'lines.jsonl'}.\n"
    assert "concf: 1 cell could not be measured; the others are kept. " in err


def test_a_list_longer_than_the_catalogue_gets_advice_that_can_be_followed(run: Path, concf: CLI) -> None:
    code, _, err = concf("recommend", run, "--users", 1, "-k", 99999999)
    n_items = len(pl.read_parquet(run / "items.parquet"))
    assert code == 2
    assert f"Train with consensus.shown = {n_items} or more, or choose a head (by), which ranks every item" in err


def test_a_list_of_no_items_is_refused(run: Path, concf: CLI) -> None:
    code, _, err = concf("recommend", run, "--users", 1, "--items", "")
    assert (code, err) == (2, "concf: --items names no item. Leave it out to allow every item\n")
