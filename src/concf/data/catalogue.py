"""Catalogue of public data sets: where they are stored and downloaded, and how they are read."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import zlib
from dataclasses import dataclass
from gzip import BadGzipFile
from http.client import HTTPException
from pathlib import Path

import numpy as np

from concf.data.interactions import Filter, Interactions
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.reading.sniff import damaged_gzip, open_bytes
from concf.errors import DataError
from concf.runtime.files import new_file
from concf.runtime.progress import working

HOME_VARIABLE = "CONCF_DATA_HOME"
MIRROR_VARIABLE = "CONCF_DATA_MIRROR"  # another server with the same paths, for closed networks
PUBLIC_HOME = "https://raw.githubusercontent.com"
ITEM_LINES, TIME_LINES = "_item_org_rank.txt", "_time_org_rank.txt"  # suffixes of aligned files, see `_aligned`
TIMEOUT = 30.0  # most seconds without an answer


@dataclass(frozen=True)
class File:
    """File of a data set."""

    path: str  # below the data home
    sha256: str  # of the contents, decompressed if the file is gzip
    origin: str | None = None  # below the public home; None if converted by hand

    @property
    def url(self) -> str:
        """Address to download it from."""
        return f"{os.environ.get(MIRROR_VARIABLE, PUBLIC_HOME).rstrip('/')}/{self.origin}"


@dataclass(frozen=True)
class Entry:
    """Data set. variants: the forms it may have in the data home; the last is downloaded."""

    name: str
    title: str
    variants: tuple[tuple[tuple[File, ...], Reading], ...]  # files, and how to read them
    statistics: Filter | None = None  # the filter of the paper's table of statistics
    released_start: Filter | None = None  # the filter before the protocol `released`
    is_split: bool = False  # whether the files are the training and the test part of a published split

    def start(self, protocol: str) -> Filter | None:
        """Return the filter that is applied before the protocol."""
        return self.released_start if protocol == "released" else self.statistics

    @property
    def files(self) -> tuple[File, ...]:
        """Files that are downloaded."""
        return self.variants[-1][0]


def data_home() -> Path:
    """Return the folder of all data sets: CONCF_DATA_HOME, else below XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(HOME_VARIABLE) or Path(cache, "concf")).expanduser()


def entry(name: str) -> Entry:
    """Return the data set of that name."""
    if name not in CATALOGUE:
        raise DataError(f"no file and no data set is called {name!r}; the data sets are {', '.join(CATALOGUE)}, demo")
    return CATALOGUE[name]


def _fetch(name: str, *, download: bool = True) -> tuple[list[Path], Reading]:
    """Return the checked files of the first variant that is complete, else of the last, and how to read them."""
    home, variants = data_home(), entry(name).variants
    complete = (variant for variant in variants if all((home / file.path).is_file() for file in variant[0]))
    files, reading = next(complete, variants[-1])
    paths = [home / file.path for file in files]
    for file, path in zip(files, paths, strict=True):
        if path.is_file():
            _check(file, path)
        elif download:
            _download(name, file, path)
        else:
            raise DataError(f"{path}: no such file")
    return paths, reading


def is_here(name: str) -> bool:
    """Whether the data home has a complete and unchanged variant."""
    try:
        return bool(_fetch(name, download=False))
    except DataError:
        return False


def fetch(name: str) -> list[Path]:
    """Return the files of a data set, downloaded if they are not in the data home."""
    return _fetch(name)[0]


def load(name: str) -> Interactions:
    """Read the unfiltered interactions of a data set, downloaded if necessary."""
    paths, reading = _fetch(name)
    if paths[0].name.endswith(ITEM_LINES):
        return read(_aligned(*paths), reading)
    if paths[0].suffix != ".mat":
        return read(list(paths), reading)
    import polars as pl
    from scipy.io import loadmat

    names = ("user_id", "item_id", "category", "rating", "helpfulness", "timestamp")
    return read(pl.DataFrame(loadmat(paths[0])["rating"].astype(np.int64), schema=names), reading)


def _aligned(items: Path, times: Path) -> list[tuple[int, int, int, int]]:
    """(user, item, 1, time) of two files with a line per user: its id, then its items or, at the same places, times."""
    rows = []
    for lines in zip(*(path.read_text(encoding="utf-8").splitlines() for path in (items, times)), strict=True):
        (user, *listed), (_, *at) = (map(int, line.split()) for line in lines)
        rows += [(user, item, 1, time) for item, time in zip(listed, at, strict=True)]
    return rows


def _check(file: File, path: Path) -> None:
    try:
        with open_bytes(path) as content:
            checksum = hashlib.file_digest(content, "sha256").hexdigest()
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise damaged_gzip(path, error) from None
    if checksum != file.sha256:
        raise DataError(f"{path}: not the public file: SHA-256 {checksum}. Remove it and fetch it again")


def _download(name: str, file: File, path: Path) -> None:
    content = bytearray()
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT) as answer:
            total = int(answer.headers.get("Content-Length", 0)) or None
            with working(f"downloading {path.name}", total) as advance:
                while block := answer.read(1 << 16):
                    content += block
                    advance(len(block))
    except (OSError, HTTPException, ValueError) as error:
        files = "\n".join(f"  {f.url} to {data_home() / f.path} (SHA-256 {f.sha256})" for f in entry(name).files)
        fix = f"Put these files there by hand, or set {HOME_VARIABLE} to a folder that has them:\n{files}"
        raise DataError(f"{name}: could not be downloaded ({error}). {fix}") from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"{file.url}: the download does not have SHA-256 {file.sha256}; not saved. Try again later")
    with new_file(path) as fresh:
        fresh.write_bytes(content)


def _lightgcn(name: str, title: str, train: str, test: str) -> Entry:
    """Return a split of the LightGCN paper, as published or gzipped. train, test: SHA-256 of the published files."""
    home = "gusye1234/LightGCN-PyTorch/947ca2b3b1d2d3545b114145710cb06c4e57b3d2/data"
    checksums, reading = {f"{name}/train.txt": train, f"{name}/test.txt": test}, Reading(format="user-lines")
    gzipped = tuple(File(f"{path}.gz", checksum) for path, checksum in checksums.items())
    published = tuple(File(path, checksum, f"{home}/{path}") for path, checksum in checksums.items())
    return Entry(name, title, variants=((gzipped, reading), (published, reading)), is_split=True)


def _sequences(name: str, title: str, origin: str, events: str, items: str, times: str) -> Entry:
    """Return a log of TiCoSeRec, converted to events or as published. events, items, times: SHA-256 of the contents."""
    home, reading = "KingGugu/TiCoSeRec/302b2959f27bb16bb77acae5a471de82819bd1bd/data", Reading()
    converted = File(f"{name}/events.csv.gz", events)
    published = tuple(
        File(f"{name}/{origin.partition('/')[2]}{lines}", checksum, f"{home}/{origin}{lines}")
        for lines, checksum in ((ITEM_LINES, items), (TIME_LINES, times))
    )
    return Entry(name, title, variants=(((converted,), reading), (published, reading)))


_CITEULIKE = File(
    "citeulike/users.dat", "02d5d429b2c0362e0ed79f6ef204666b4092563d21493abf4dfb521e8a7078bf",
    "SeongKu-Kang/ConCF_WWW22/5f54bfb1d82657ecf370c7c021cd3ee9a2e84911/Dataset/C/users.dat",
)  # fmt: skip
_CIAO_TEXT = File("ciao/ratings.csv", "26431d3df3a649406fef03c1e167ad5e93e2aff80fdcb92891c7070ccc372d29")
_CIAO_HOME = "yushundong/Graph-Mining-Fairness-Data/2bd4b5cd9a09d87e93c8efc490773cbfa0a7984e/dataset/Epinion%26Ciao"
_CIAO_MATRIX = File(
    "ciao/rating_with_timestamp.mat", "488e9aa5f60e6a52a972795b6402f922fc0d9d273152f4d124a5c5bdefb86a71",
    f"{_CIAO_HOME}/ciao/rating_with_timestamp.mat",
)  # fmt: skip
_FOURSQUARE_TEXT = File("foursquare/checkins.tsv", "51b52e9240a9ddfc1b5a12b3abcfc8b51c81c50fb0552fecd4c059b0b36a35bd")
_FOURSQUARE_HOME = "YijunSu/LBSN_Dataset/1d0102ebf56064a9c768da2a58759cf65a2e4cb1/Foursquare_FGCRec"
_FOURSQUARE_PARTS = tuple(
    File(f"foursquare/Foursquare_{part}.txt", checksum, f"{_FOURSQUARE_HOME}/Foursquare_{part}.txt")
    for part, checksum in {
        "train": "ecc46a2edaf474e8c017130eda3348948a976d19784eeec5bd15acb16c1640f5",
        "tune": "3790664ab80482b9ab2bbaf33d5491247a585f2d2495f63183013b9a0897d872",
        "test": "292d0dd59e94a9f9c61c06229262c745954a7b81ddf6a7b5425f52ce8d7ff666",
    }.items()
)
_ALL = Reading(rating="none")  # the papers count every rating as positive
_FIVE_AND_FIVE = Filter(min_user=5, min_item=5, counts="raw")
_TWENTY_CHECKINS = Filter(min_user=20, counts="raw")
CATALOGUE = {data_set.name: data_set for data_set in (
    Entry(
        "citeulike", "CiteULike-t: who saved which article", (((_CITEULIKE,), Reading()),),
        statistics=Filter(min_user=5),
    ),
    Entry(
        "ciao", "Ciao: who rated which product", (((_CIAO_TEXT,), _ALL), ((_CIAO_MATRIX,), _ALL)),
        statistics=_FIVE_AND_FIVE, released_start=_FIVE_AND_FIVE,
    ),
    Entry(
        "foursquare", "Foursquare, a subset: who checked in where, and how often",
        (((_FOURSQUARE_TEXT,), Reading()), (_FOURSQUARE_PARTS, Reading(user="0", item="1", count="2", header=False))),
        statistics=_TWENTY_CHECKINS, released_start=_TWENTY_CHECKINS,
    ),
    _lightgcn(
        "gowalla", "Gowalla, the LightGCN split: who checked in where",
        train="7244696fdeb23911319cf7b689f2e15a3c4c92549c873a5677b44e3f13cc3e62",
        test="099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3",
    ),
    _lightgcn(
        "yelp2018", "Yelp 2018, the LightGCN split: who reviewed which business",
        train="1e9568725a9e833d0ac3bae01c94cd95367f73b3bb6104fd26b5f65ea5054093",
        test="9cd9b37926cd1447a06625ffa7914527573fb097c10cb0bbdb1d1b8ded3742fe",
    ),
    _sequences(
        "amazon-beauty", "Amazon Beauty, 5-core: who reviewed which product, and when", "Beauty/Beauty",
        events="a4e537e93ae1dca0158170c86772418e43908fe5c39a2faf5a598c3d322fa33b",
        items="b95614189df525e1eb69dad579e84c6086468f2bb42dab894038949240307c4f",
        times="4e6a6e30f9dba1985ad9adae79a891df6b403e2132f0422a6f6e88f67d1fcc75",
    ),
    _sequences(
        "yelp-2019", "Yelp, the year 2019, 5-core: who reviewed which business, and when", "Yelp-A/Yelp",
        events="488300112f7dea117b48c400d65911c802efc66a00cf278a300095668242407b",
        items="c192f158659e118070bf0cd2dfe4c01c15295a09ef2ada1ccadf0bab06e4c19e",
        times="79b0f02a3dcbbc8799fe79725ccbba55735212e81247f7595385cb359fd95de0",
    ),
)}  # fmt: skip
