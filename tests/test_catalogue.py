"""The catalogue: the published counts, raw and converted files, downloads, and being offline."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_run import CLI

from concf.data.catalogue import (
    CATALOGUE,
    HOME_VARIABLE,
    MIRROR_VARIABLE,
    Entry,
    File,
    Variant,
    data_home,
    fetch,
    is_here,
    load,
)
from concf.data.interactions import Filter
from concf.data.parts import TEST, TRAIN
from concf.data.prepare import prepare
from concf.data.reading.scan import Reading
from concf.errors import ConfigError, DataError

FIVE_AND_FIVE = Filter(min_user=5, min_item=5, counts="raw")
TEN_AND_TEN = Filter(min_user=10, min_item=10)
CHECKINS = Filter(min_user=20, counts="raw")
GOWALLA = "53d22c6cd52e"  # of its published split, with 0.05 of the training pairs for validation


@pytest.mark.parametrize(("name", "filters", "users", "items", "interactions", "events"), [
    ("citeulike", [], 7_947, 25_584, 134_860, 134_860), ("ciao", [], 7_375, 105_114, 282_650, 284_086),
    ("ciao", [FIVE_AND_FIVE, TEN_AND_TEN], 3_831, 4_362, 92_157, None),
    ("amazon-beauty", [], 22_363, 12_101, 198_502, 198_502), ("yelp-2019", [], 30_431, 20_033, 304_524, 316_354),
    ("foursquare", [], 7_642, 28_483, 277_405, 512_532),
    ("foursquare", [CHECKINS, TEN_AND_TEN], 6_941, 7_909, 161_070, None),
])  # fmt: skip
def test_the_published_counts(
    real_data: Path, name: str, filters: list[Filter], users: int, items: int, interactions: int, events: int | None
) -> None:
    data = load(name)
    for step in filters:
        data = step.apply(data)
    assert (data.n_users, data.n_items, len(data)) == (users, items, interactions)
    assert events is None or data.n_events == events


@pytest.mark.parametrize(("name", "protocol", "seed", "beginning"), [
    ("citeulike", "released", 0, "94be07441ed0"), ("citeulike", "paper", 0, "799eef94698d"),
    ("ciao", "released", 0, "ad76eb9b4e2a"), ("foursquare", "released", 0, "e06b653fee6e"),
])  # fmt: skip
def test_published_splits_stay_what_they_are(
    real_data: Path, name: str, protocol: str, seed: int, beginning: str
) -> None:
    """The hashes of docs/strong.md; a change here changes every published figure."""
    assert prepare(name, protocol=protocol, seed=seed).hash.startswith(beginning)


def pairs_of(home: Path, name: str) -> NDArray[np.int64]:
    """Keys of the pairs of a file with a line per user, read literally; as published or gzipped."""
    packed = home / f"{name}.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.is_file() else (home / name).read_bytes()
    lines = [np.fromstring(line, np.int64, sep=" ") for line in text.decode().splitlines()]
    return np.unique(np.concatenate([keys(line[0], line[1:]) for line in lines]))


def keys(user: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:
    return user << 32 | item


def test_a_published_split_is_used_whole(real_data: Path) -> None:
    split = prepare("gowalla", protocol="given", valid=0.05, seed=0)
    data, counts = split.interactions, split.counts()
    assert (data.n_users, data.n_items, split.recipe.source["name"]) == (29_858, 40_981, "gowalla")
    assert (counts["train"] + counts["valid"], counts["test"], counts["unevaluated"]) == (810_128, 217_242, 0)
    pairs = keys(data.user_ids.values[data.user], data.item_ids.values[data.item])
    assert np.array_equal(np.sort(pairs[split.parts != TEST]), pairs_of(real_data / "gowalla", "train.txt"))
    assert np.array_equal(np.sort(pairs[split.parts == TEST]), pairs_of(real_data / "gowalla", "test.txt"))
    assert len(np.unique(data.item[split.parts == TRAIN])) == data.n_items  # every item still trains
    assert len(split.evaluated) == data.n_users
    n = np.diff(split.seen("test").indptr)  # training items: 8 or more
    n_valid, n_drawn = np.diff(split.valid.indptr), np.maximum(n // 20, 1)
    assert (n_valid <= n_drawn).all()
    assert (n_valid == n_drawn).mean() > 0.995  # the others drew an item that nobody else trains on
    assert (split.notes, split.hash[:12]) == ((), GOWALLA)


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


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def small(*forms: dict[str, bytes], **reading: Any) -> Entry:
    """A data set that has one of the forms (file -> content) in the data home."""
    variants = []
    for form in forms:
        files = [File(path=f"small/{name}", sha256=digest(form[name]), origin=f"at/{name}") for name in form]
        variants.append(Variant(files=tuple(files), reading=Reading(**reading)))
    return Entry(title="", variants=tuple(variants))


def test_a_missing_data_set_is_downloaded_once_and_checked(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"2 1 2\n3 1 2 3\n"
    monkeypatch.setitem(CATALOGUE, "small", small({"users.dat": content}))
    (server / "at").mkdir()
    (server / "at" / "users.dat").write_bytes(content + b"1 5\n")
    with pytest.raises(DataError, match="SHA-256"):
        fetch("small")
    assert not data_home().exists()
    (server / "at" / "users.dat").write_bytes(content)
    assert len(load("small")) == 5
    (server / "at" / "users.dat").unlink()
    assert fetch("small") == [data_home() / "small" / "users.dat"]
    (data_home() / "small" / "users.dat").write_bytes(b"2 1 3\n")
    with pytest.raises(DataError, match="Remove it and fetch it again"):
        load("small")


TRAIN_LINES, TEST_LINES = b"0 1 2 3\n1 1 2\n2 1 2 3\n3\n", b"0 4\n1 3\n2 \n3 1\n"


def test_a_gzipped_split_is_checked_by_what_it_contains(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = [{f"train.txt{gz}": TRAIN_LINES, f"test.txt{gz}": TEST_LINES} for gz in (".gz", "")]
    monkeypatch.setitem(CATALOGUE, "small", small(*forms, format="user-lines"))
    home = data_home() / "small"
    home.mkdir(parents=True)
    (home / "test.txt.gz").write_bytes(gzip.compress(TEST_LINES, 1))
    (home / "train.txt.gz").write_bytes(gzip.compress(TRAIN_LINES, 9))
    assert [path.name for path in fetch("small")] == ["train.txt.gz", "test.txt.gz"]
    whole = gzip.compress(TRAIN_LINES)
    for content in (gzip.compress(TRAIN_LINES + b"4 1\n"), whole[:-12], whole[:10] + b"\xff" * 4 + whole[14:]):
        (home / "train.txt.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"train\.txt\.gz: (not the public file|the gzip data is damaged)"):
            fetch("small")
    assert not is_here("small")


@pytest.mark.parametrize("form", ["events", "gzipped events", "published"])
def test_a_log_of_aligned_lines_is_the_log_of_its_events(
    server: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    events = b"user_id,item_id,timestamp\n2,5,1400000000\n1,7,1400000060\n1,5,1400000060\n1,7,1500000000\n"
    items, times = b"1 7 5 7\n2 5\n", b"1 1400000060 1400000060 1500000000\n2 1400000000\n"
    published = {"Small_item_org_rank.txt": items, "Small_time_org_rank.txt": times}
    monkeypatch.setitem(CATALOGUE, "small", small({"events.csv.gz": events}, published))
    if form == "published":
        (server / "at").mkdir()
        for name, lines in published.items():
            (server / "at" / name).write_bytes(lines)
    else:
        (data_home() / "small").mkdir(parents=True)
        content = events if form == "events" else gzip.compress(events)
        (data_home() / "small" / "events.csv.gz").write_bytes(content)
    found = load("small")
    assert found.user_ids.values[found.user].tolist() == [1, 1, 2]
    assert found.item_ids.values[found.item].tolist() == [5, 7, 5]
    assert found.count.tolist() == [1, 2, 1]
    assert np.array_equal(found.timestamp, [1400000060, 1400000060, 1400000000])  # type: ignore[arg-type]
    assert np.array_equal(found.last, [1400000060, 1500000000, 1400000000])  # type: ignore[arg-type]
    assert is_here("small")


@pytest.mark.parametrize("options", [{}, {"test": "log.csv"}, {"format": "table"}, {"min_item": 5}])
def test_options_that_do_not_fit_a_published_split_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"gowalla|filter"):
        prepare("gowalla", protocol="given", **({"valid": 0.05} | options if options else {}))


def test_offline_it_says_what_to_put_where(concf: CLI, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:9")
    code, out, err = concf("data", "fetch", "foursquare")
    assert (code, out) == (2, "")
    for file in CATALOGUE["foursquare"].files:
        assert file.url in err
        assert str(data_home() / file.path) in err
        assert file.sha256 in err
    assert HOME_VARIABLE in err
