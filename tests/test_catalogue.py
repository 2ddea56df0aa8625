"""The catalogue: the published counts, raw and converted files, downloads, and being offline."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from concf.data.catalogue import (
    CATALOGUE,
    HOME_VARIABLE,
    MIRROR_VARIABLE,
    Entry,
    File,
    _lightgcn,
    data_home,
    fetch,
    is_here,
    load,
)
from concf.data.filters import Filter
from concf.data.prepare import prepare
from concf.data.protocols import TEST, TRAIN
from concf.data.reading.scan import Reading
from concf.errors import DataError

Run = Callable[..., tuple[int, str, str]]
FIVE_AND_FIVE = Filter(min_user=5, min_item=5, counts="raw")
TEN_AND_TEN = Filter(min_user=10, min_item=10)
CHECKINS = Filter(min_user=20, counts="raw")
GOWALLA = "53d22c6cd52e"  # of its published split, with 0.05 of the training pairs for validation


@pytest.mark.parametrize(
    ("name", "filters", "users", "items", "interactions", "events"),
    [
        ("citeulike", [], 7_947, 25_584, 134_860, 134_860),
        ("citeulike", [Filter(min_user=5)], 5_219, 25_181, 125_580, 125_580),
        ("citeulike", [TEN_AND_TEN], 2_735, 3_024, 52_133, 52_133),
        ("ciao", [], 7_375, 105_114, 282_650, 284_086),
        ("ciao", [FIVE_AND_FIVE], 7_265, 11_211, 147_989, 149_141),
        ("ciao", [FIVE_AND_FIVE, TEN_AND_TEN], 3_831, 4_362, 92_157, None),
        ("foursquare", [], 7_642, 28_483, 277_405, 512_532),
        ("foursquare", [CHECKINS], 6_948, 28_458, 268_685, 501_872),
        ("foursquare", [CHECKINS, TEN_AND_TEN], 6_941, 7_909, 161_070, None),
        ("gowalla", [], 29_858, 40_981, 810_128 + 217_242, 810_128 + 217_242),
    ],
)
def test_the_published_counts(
    real_data: Path, name: str, filters: list[Filter], users: int, items: int, interactions: int, events: int | None
) -> None:
    data = load(name)
    for step in filters:
        data = step.apply(data)
    assert (data.n_users, data.n_items, len(data)) == (users, items, interactions)
    assert events is None or data.n_events == events


@pytest.mark.parametrize(
    ("name", "protocol", "seed", "beginning"),
    [
        ("citeulike", "released", 0, "94be07441ed0"),
        ("citeulike", "released", 4, "fd84d1c7"),
        ("citeulike", "paper", 0, "799eef94698d"),
        ("ciao", "released", 0, "ad76eb9b4e2a"),
        ("foursquare", "released", 0, "e06b653fee6e"),
    ],
)
def test_published_splits_stay_what_they_are(
    real_data: Path, name: str, protocol: str, seed: int, beginning: str
) -> None:
    """The hashes of docs/baselines.md; a change here changes every published figure."""
    assert prepare(name, protocol=protocol, seed=seed).hash.startswith(beginning)


def pairs_of(home: Path, name: str) -> NDArray[np.int64]:
    """Keys of the pairs of a file with a line per user, read literally; as published or gzipped."""
    packed = home / f"{name}.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.is_file() else (home / name).read_bytes()
    lines = [np.fromstring(line, np.int64, sep=" ") for line in text.decode().splitlines()]
    return np.unique(np.concatenate([keys(line[0], line[1:]) for line in lines]))


def keys(user: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:
    return user << 32 | item


@pytest.mark.parametrize(
    ("name", "users", "items", "train", "test", "beginning"),
    [
        ("gowalla", 29_858, 40_981, 810_128, 217_242, GOWALLA),
        ("yelp2018", 31_668, 38_048, 1_237_259, 324_147, "c213c9c9094e"),
    ],
)
def test_a_published_split_is_used_whole(
    real_data: Path, name: str, users: int, items: int, train: int, test: int, beginning: str
) -> None:
    split = prepare(name, protocol="given", valid=0.05, seed=0)
    data, counts = split.interactions, split.counts()
    assert (data.n_users, data.n_items, split.recipe.source["name"]) == (users, items, name)
    assert (counts["train"] + counts["valid"], counts["test"], counts["unevaluated"]) == (train, test, 0)
    pairs = keys(data.user_ids.values[data.user], data.item_ids.values[data.item])
    assert np.array_equal(np.sort(pairs[split.parts != TEST]), pairs_of(real_data / name, "train.txt"))
    assert np.array_equal(np.sort(pairs[split.parts == TEST]), pairs_of(real_data / name, "test.txt"))
    assert len(np.unique(data.item[split.parts == TRAIN])) == items  # every item still trains
    assert len(split.evaluated) == users
    assert 0.04 < counts["valid"] / train < 0.06
    n = np.diff(split.seen("test").indptr)  # training items: 8 or more
    n_valid, n_drawn = np.diff(split.valid.indptr), np.maximum(n // 20, 1)
    assert (n_valid <= n_drawn).all()
    assert (n_valid == n_drawn).mean() > 0.995  # the others drew an item that nobody else trains on
    assert split.notes == ()
    assert split.hash.startswith(beginning)


def test_gzipped_and_published_files_give_the_same_split(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = all(path.suffix == ".gz" for path in fetch("gowalla"))
    (tmp_path / "gowalla").mkdir()
    for path in fetch("gowalla"):
        content = path.read_bytes()
        other = tmp_path / "gowalla" / (path.stem if packed else f"{path.name}.gz")
        other.write_bytes(gzip.decompress(content) if packed else gzip.compress(content, 1))
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert fetch("gowalla")[0].parent == tmp_path / "gowalla"
    assert prepare("gowalla", protocol="given", valid=0.05, seed=0).hash.startswith(GOWALLA)


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ratings_and_checkins(home: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows of Ciao and Foursquare, from the converted files or from those that are downloaded."""
    if (home / "ciao" / "ratings.csv").is_file():
        ratings = pl.read_csv(home / "ciao" / "ratings.csv")
    else:
        ratings = pl.DataFrame(loadmat(home / "ciao" / "rating_with_timestamp.mat")["rating"])
    if (home / "foursquare" / "checkins.tsv").is_file():
        return ratings, pl.read_csv(home / "foursquare" / "checkins.tsv", separator="\t")
    parts = sorted((home / "foursquare").glob("Foursquare_*.txt"))
    return ratings, pl.concat(pl.read_csv(part, separator="\t", has_header=False) for part in parts)


def test_raw_and_converted_files_give_the_same_interactions(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = {name: load(name).fingerprint().hexdigest() for name in ("ciao", "foursquare")}
    ratings, checkins = ratings_and_checkins(real_data)
    (tmp_path / "ciao").mkdir()
    savemat(tmp_path / "ciao" / "rating_with_timestamp.mat", {"rating": ratings.to_numpy().astype(np.int32)})
    shuffled = checkins.sample(fraction=1, shuffle=True)
    (tmp_path / "foursquare").mkdir()
    for k, part in enumerate(("train", "tune", "test")):
        path = tmp_path / "foursquare" / f"Foursquare_{part}.txt"
        shuffled.gather_every(3, k).write_csv(path, separator="\t", include_header=False)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    for name in converted:
        files, reading = CATALOGUE[name].variants[-1]
        ours = tuple(File(file.path, checksum(tmp_path / file.path), file.origin) for file in files)
        entry = Entry(name, "", variants=(CATALOGUE[name].variants[0], (ours, reading)))
        monkeypatch.setitem(CATALOGUE, name, entry)
        raw = load(name)
        assert raw.fingerprint().hexdigest() == converted[name]
        assert raw.n_events == {"ciao": 284_086, "foursquare": 512_532}[name]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A public home on this machine that serves the yielded folder, and an empty data home."""
    served = tmp_path / "served"
    served.mkdir()
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(served))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setenv(MIRROR_VARIABLE, f"http://127.0.0.1:{http.server_port}/")
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
        yield served
        http.shutdown()


def small_entry(content: bytes) -> Entry:
    file = File("small/users.dat", hashlib.sha256(content).hexdigest(), "somewhere/users.dat")
    return Entry("small", "", variants=(((file,), Reading()),))


def test_a_missing_data_set_is_downloaded_once_and_checked(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"2 1 2\n3 1 2 3\n"
    monkeypatch.setitem(CATALOGUE, "small", small_entry(content))
    (server / "somewhere").mkdir()
    (server / "somewhere" / "users.dat").write_bytes(content)
    assert len(load("small")) == 5
    (server / "somewhere" / "users.dat").unlink()
    assert fetch("small") == [data_home() / "small" / "users.dat"]
    assert len(load("small")) == 5


def small_split(train: bytes, test: bytes) -> Entry:
    return _lightgcn("small", "", hashlib.sha256(train).hexdigest(), hashlib.sha256(test).hexdigest())


TRAIN_LINES, TEST_LINES = b"0 1 2 3\n1 1 2\n2 1 2 3\n3\n", b"0 4\n1 3\n2 \n3 1\n"


def test_a_split_is_downloaded_as_it_was_published(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "small", small_split(TRAIN_LINES, TEST_LINES))
    home = server / "gusye1234/LightGCN-PyTorch/947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data/small"
    home.mkdir(parents=True)
    (home / "train.txt").write_bytes(TRAIN_LINES)
    (home / "test.txt").write_bytes(TEST_LINES)
    assert [path.name for path in fetch("small")] == ["train.txt", "test.txt"]
    assert len(load("small")) == 11
    split = prepare("small", protocol="given", valid=0.5)
    assert (split.seen("test").nnz, split.counts()["test"], split.counts()["evaluated_users"]) == (8, 3, 3)
    assert list(split.recipe.source["parts"]) == ["train", "test"]


def test_a_gzipped_split_is_checked_by_what_it_contains(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "small", small_split(TRAIN_LINES, TEST_LINES))
    home = data_home() / "small"
    home.mkdir(parents=True)
    (home / "test.txt.gz").write_bytes(gzip.compress(TEST_LINES, 1))
    for content in (gzip.compress(TRAIN_LINES, 1), gzip.compress(TRAIN_LINES, 9)):
        (home / "train.txt.gz").write_bytes(content)
        assert [path.name for path in fetch("small")] == ["train.txt.gz", "test.txt.gz"]
    (home / "train.txt.gz").write_bytes(gzip.compress(TRAIN_LINES + b"4 1\n"))
    with pytest.raises(DataError, match=r"train\.txt\.gz: SHA-256 .* Remove it and fetch it again"):
        fetch("small")
    for damaged in (content[:-12], content[:10] + b"\xff" * 4 + content[14:]):
        (home / "train.txt.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"train\.txt\.gz: the gzip data is damaged"):
            fetch("small")
    assert not is_here("small")


@pytest.mark.parametrize(
    ("source", "words", "expected"),
    [
        ("gowalla", (), "gowalla has its own training and test files: set --valid to a share"),
        ("gowalla", ("--valid", "log.csv"), "gowalla has its own training and test files: set --valid to a share"),
        ("gowalla", ("--valid", "0.05", "--test", "log.csv"), "leave out --test"),
        ("gowalla", ("--valid", "0.05", "--format", "table"), "read as it is"),
        ("gowalla", ("--valid", "0.05", "--min-item", "5"), "a filter would change them"),
        ("gowalla", ("--valid", "2"), "above 0 and below 1"),
        ("citeulike", ("--valid", "0.05"), "and --test, a log"),
    ],
)
def test_what_a_published_split_is_refused_with(
    concf: Run, tmp_path: Path, source: str, words: tuple[str, ...], expected: str
) -> None:
    code, out, err = concf("prepare", source, "--protocol", "given", *words, "--out", tmp_path / "x")
    assert (code, out) == (2, "")
    assert expected in err


def test_the_public_homes_of_the_lightgcn_splits() -> None:
    home = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data"
    assert {file.url: file.sha256 for name in ("gowalla", "yelp2018") for file in CATALOGUE[name].files} == {
        f"{home}/gowalla/train.txt": "7244696fdeb23911319cf7b689f2e15a3c4c92549c873a5677b44e3f13cc3e62",
        f"{home}/gowalla/test.txt": "099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3",
        f"{home}/yelp2018/train.txt": "1e9568725a9e833d0ac3bae01c94cd95367f73b3bb6104fd26b5f65ea5054093",
        f"{home}/yelp2018/test.txt": "9cd9b37926cd1447a06625ffa7914527573fb097c10cb0bbdb1d1b8ded3742fe",
    }


def test_a_download_with_another_checksum_is_refused_and_not_kept(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOGUE, "small", small_entry(b"2 1 2\n"))
    (server / "somewhere").mkdir()
    (server / "somewhere" / "users.dat").write_bytes(b"2 1 2\n1 5\n")
    with pytest.raises(DataError, match="SHA-256"):
        fetch("small")
    assert not data_home().exists()


def test_a_changed_file_in_the_data_home_is_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "small", small_entry(b"2 1 2\n"))
    (data_home() / "small").mkdir(parents=True)
    (data_home() / "small" / "users.dat").write_bytes(b"2 1 3\n")
    with pytest.raises(DataError, match="Remove it and fetch it again"):
        load("small")


def test_offline_it_says_what_to_put_where(concf: Run, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:9")
    code, out, err = concf("data", "fetch", "foursquare")
    assert (code, out) == (2, "")
    for file in CATALOGUE["foursquare"].files:
        assert file.url in err
        assert str(data_home() / file.path) in err
        assert file.sha256 in err
    assert HOME_VARIABLE in err


def test_the_data_home_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert data_home() == tmp_path / "xdg" / "concf"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_home() == tmp_path / ".cache" / "concf"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_home() == tmp_path / "Library" / "Caches" / "concf"
    monkeypatch.setenv(HOME_VARIABLE, "~/mine")
    assert data_home() == tmp_path / "mine"


def test_unknown_names_are_refused_with_the_known_ones(concf: Run) -> None:
    code, _, err = concf("data", "fetch", "netflix")
    assert code == 2
    assert "'netflix'" in err
    assert "citeulike, ciao, foursquare" in err


def test_what_is_said_of_columns_is_refused_for_a_catalogue_name(concf: Run, real_data: Path, tmp_path: Path) -> None:
    code, _, err = concf("prepare", "ciao", "--min-rating", 5, "--out", tmp_path / "x")
    assert code == 2
    assert "read as it is" in err


def test_a_connection_that_breaks_off_says_what_to_put_where(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "small", small_entry(b"2 1 2\n"))

    class Broken:
        headers: dict[str, str] = {}  # noqa: RUF012

        def read(self, _n: int) -> bytes:
            raise ConnectionResetError("Connection reset by peer")

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Broken())
    with pytest.raises(DataError, match=r"(?s)reset by peer.*put these files there by hand"):
        fetch("small")
    assert not data_home().exists()
