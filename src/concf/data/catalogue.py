"""Public data sets by name: where they are looked for, where they come from, how they are read."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from concf.data.filters import Filter
from concf.data.interactions import Interactions
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.errors import DataError
from concf.runtime.files import new_file, sha256
from concf.runtime.progress import working

HOME_VARIABLE = "CONCF_DATA_HOME"
MIRROR_VARIABLE = "CONCF_DATA_MIRROR"  # another server with the same paths, for closed networks
PUBLIC_HOME = "https://raw.githubusercontent.com"
TIMEOUT = 30.0  # seconds without an answer
AS_PUBLISHED = Reading(rating="none")  # the papers count every rating as positive


@dataclass(frozen=True)
class File:
    """One file of a data set. place: below the data home; origin: below the public home, None if made by hand."""

    place: str
    sha256: str
    origin: str | None = None

    @property
    def url(self) -> str:
        """Where it can be downloaded."""
        return f"{os.environ.get(MIRROR_VARIABLE, PUBLIC_HOME).rstrip('/')}/{self.origin}"


@dataclass(frozen=True)
class Entry:
    """A data set. variants: the forms it may have in the data home, the one that is downloaded last."""

    name: str
    title: str
    variants: tuple[tuple[tuple[File, ...], Callable[[list[Path]], Interactions]], ...]
    statistics: Filter | None = None  # the filter that gives the paper's table of statistics
    released_start: Filter | None = field(default=None)  # the rows that the protocol `released` starts from

    def start(self, protocol: str) -> Filter | None:
        """What is removed before the protocol begins."""
        return self.released_start if protocol == "released" else self.statistics

    @property
    def files(self) -> tuple[File, ...]:
        """The files that are downloaded."""
        return self.variants[-1][0]


def data_home() -> Path:
    """The folder with a folder for each data set: CONCF_DATA_HOME, else the platform's place for caches."""
    if os.environ.get(HOME_VARIABLE):
        return Path(os.environ[HOME_VARIABLE]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "concf"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "concf" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concf"


def entry(name: str) -> Entry:
    """The data set of that name."""
    if name not in CATALOGUE:
        raise DataError(f"no file and no data set is called {name!r}; the data sets are {', '.join(CATALOGUE)}, demo")
    return CATALOGUE[name]


def locate(name: str) -> tuple[list[Path], Callable[[list[Path]], Interactions]] | None:
    """The files of the first variant that is wholly in the data home, checked, and how to read them."""
    for files, reader in entry(name).variants:
        paths = [data_home() / file.place for file in files]
        if all(path.is_file() for path in paths):
            for file, path in zip(files, paths, strict=True):
                _check(file, path)
            return paths, reader
    return None


def is_here(name: str) -> bool:
    """Whether a whole and unchanged variant is in the data home."""
    try:
        return locate(name) is not None
    except DataError:
        return False


def fetch(name: str) -> list[Path]:
    """The files of a data set, downloaded if they are not in the data home."""
    found = locate(name)
    if found:
        return found[0]
    wanted = entry(name).files
    for file in wanted:
        path = data_home() / file.place
        if path.is_file():
            _check(file, path)
        else:
            _download(name, file, path)
    return [data_home() / file.place for file in wanted]


def load(name: str) -> Interactions:
    """The unfiltered interactions of a data set, fetched if need be."""
    fetch(name)
    found = locate(name)
    assert found is not None, "fetch leaves a whole variant behind"
    paths, reader = found
    return reader(paths)


def _check(file: File, path: Path) -> None:
    found = sha256(path)
    if found != file.sha256:
        raise DataError(
            f"{path}: SHA-256 {found} is not the {file.sha256} of the public file. Remove it and fetch it again"
        )


def _download(name: str, file: File, path: Path) -> None:
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT) as answer, new_file(path) as fresh:
            total = int(answer.headers.get("Content-Length", 0)) or None
            with working(f"downloading {path.name}", total) as advance, fresh.open("wb") as out:
                for block in _blocks(answer):
                    out.write(block)
                    advance(len(block))
            if sha256(fresh) != file.sha256:
                raise DataError(
                    f"{file.url}: what came has not the SHA-256 {file.sha256}; it was not kept. Try again later"
                )
    except (urllib.error.URLError, _BrokenOffError, HTTPException, ValueError) as error:
        lines = "\n".join(
            f"  {f.url}\n    to {data_home() / f.place}\n    SHA-256 {f.sha256}" for f in entry(name).files
        )
        raise DataError(
            f"{name}: could not be downloaded ({error}). Without a network, put these files there by hand:\n{lines}\n"
            f"or set {HOME_VARIABLE} to a folder that has them"
        ) from None


class _BrokenOffError(Exception):
    """The connection ended before the file did."""


def _blocks(answer: Any) -> Iterator[bytes]:
    while True:
        try:
            block = answer.read(1 << 16)
        except (OSError, HTTPException) as error:
            raise _BrokenOffError(str(error)) from error
        if not block:
            return
        yield block


def _read_text(paths: list[Path]) -> Interactions:
    return read(paths[0])


def _read_ratings(paths: list[Path]) -> Interactions:
    return read(paths[0], AS_PUBLISHED)


def _read_ciao_matrix(paths: list[Path]) -> Interactions:
    import polars as pl
    from scipy.io import loadmat

    names = ("user_id", "item_id", "category", "rating", "helpfulness", "timestamp")
    matrix = loadmat(paths[0])["rating"].astype(np.int64)
    return read(pl.DataFrame(matrix, schema=names), AS_PUBLISHED)


def _read_foursquare_parts(paths: list[Path]) -> Interactions:
    return read(list(paths), Reading(user="0", item="1", count="2", header=False))


_CITEULIKE = File(
    "citeulike/users.dat",
    "02d5d429b2c0362e0ed79f6ef204666b4092563d21493abf4dfb521e8a7078bf",
    "SeongKu-Kang/ConCF_WWW22/5f54bfb1d82657ecf370c7c021cd3ee9a2e84911/Dataset/C/users.dat",
)
_CIAO_TEXT = File("ciao/ratings.csv", "26431d3df3a649406fef03c1e167ad5e93e2aff80fdcb92891c7070ccc372d29")
_CIAO_MATRIX = File(
    "ciao/rating_with_timestamp.mat",
    "488e9aa5f60e6a52a972795b6402f922fc0d9d273152f4d124a5c5bdefb86a71",
    "yushundong/Graph-Mining-Fairness-Data/2bd4b5cd9a09d87e93c8efc490773cbfa0a7984e/"
    "dataset/Epinion%26Ciao/ciao/rating_with_timestamp.mat",
)
_FOURSQUARE_TEXT = File("foursquare/checkins.tsv", "51b52e9240a9ddfc1b5a12b3abcfc8b51c81c50fb0552fecd4c059b0b36a35bd")
_FOURSQUARE_PARTS = tuple(
    File(
        f"foursquare/Foursquare_{part}.txt",
        checksum,
        f"YijunSu/LBSN_Dataset/1d0102ebf56064a9c768da2a58759cf65a2e4cb1/Foursquare_FGCRec/Foursquare_{part}.txt",
    )
    for part, checksum in {
        "train": "ecc46a2edaf474e8c017130eda3348948a976d19784eeec5bd15acb16c1640f5",
        "tune": "3790664ab80482b9ab2bbaf33d5491247a585f2d2495f63183013b9a0897d872",
        "test": "292d0dd59e94a9f9c61c06229262c745954a7b81ddf6a7b5425f52ce8d7ff666",
    }.items()
)

_FIVE_AND_FIVE = Filter(min_user=5, min_item=5, counts="raw")
_TWENTY_CHECKINS = Filter(min_user=20, counts="raw")
CATALOGUE = {
    "citeulike": Entry(
        "citeulike",
        "CiteULike-t: who saved which article",
        variants=(((_CITEULIKE,), _read_text),),
        statistics=Filter(min_user=5),
    ),
    "ciao": Entry(
        "ciao",
        "Ciao: who rated which product",
        variants=(((_CIAO_TEXT,), _read_ratings), ((_CIAO_MATRIX,), _read_ciao_matrix)),
        statistics=_FIVE_AND_FIVE,
        released_start=_FIVE_AND_FIVE,
    ),
    "foursquare": Entry(
        "foursquare",
        "Foursquare, a subset: who checked in where, and how often",
        variants=(((_FOURSQUARE_TEXT,), _read_text), (_FOURSQUARE_PARTS, _read_foursquare_parts)),
        statistics=_TWENTY_CHECKINS,
        released_start=_TWENTY_CHECKINS,
    ),
}
