"""Catalogue of public data sets: where they are stored and downloaded, and how they are read."""

from __future__ import annotations

import hashlib
import os
import urllib.request
import zlib
from gzip import BadGzipFile
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from concf.data.interactions import Filter, Interactions
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.reading.sniff import damaged_gzip, open_bytes
from concf.errors import DataError
from concf.runtime.files import new_file
from concf.runtime.progress import working
from concf.runtime.settings import Settings, read_toml

HOME_VARIABLE = "CONCF_DATA_HOME"
MIRROR_VARIABLE = "CONCF_DATA_MIRROR"  # another server with the same paths, for closed networks
PUBLIC_HOME = "https://raw.githubusercontent.com"
ITEM_LINES = "_item_org_rank.txt"  # suffix of the first of two aligned files, see `_aligned`
TIMEOUT = 30.0  # most seconds without an answer


class File(Settings):
    """File of a data set."""

    path: str  # below the data home
    sha256: str  # of the contents, decompressed if the file is gzip
    origin: str | None = None  # below the public home; None if converted by hand

    @property
    def url(self) -> str:
        """Address to download it from."""
        return f"{os.environ.get(MIRROR_VARIABLE, PUBLIC_HOME).rstrip('/')}/{self.origin}"


class Variant(Settings):
    """Form that a data set may have in the data home."""

    files: tuple[File, ...]
    reading: Reading = Reading()


class Entry(Settings):
    """Data set."""

    title: str
    variants: tuple[Variant, ...]  # the last is downloaded
    statistics: Filter | None = None  # the filter of the paper's table of statistics
    released_start: Filter | None = None  # the filter before the protocol `released`
    is_split: bool = False  # whether the files are the training and the test part of a published split

    def start(self, protocol: str) -> Filter | None:
        """Return the filter that is applied before the protocol."""
        return self.released_start if protocol == "released" else self.statistics

    @property
    def files(self) -> tuple[File, ...]:
        """Files that are downloaded."""
        return self.variants[-1].files


CATALOGUE = {name: Entry(**each) for name, each in read_toml(Path(__file__).with_name("catalogue.toml")).items()}


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
    complete = (each for each in variants if all((home / file.path).is_file() for file in each.files))
    variant = next(complete, variants[-1])
    paths = [home / file.path for file in variant.files]
    for file, path in zip(variant.files, paths, strict=True):
        if path.is_file():
            _check(file, path)
        elif download:
            _download(name, file, path)
        else:
            raise DataError(f"{path}: no such file")
    return paths, variant.reading


def is_catalogued(source: Any) -> bool:
    """Whether a source is a name of the catalogue, and no file has that name."""
    return isinstance(source, str) and source in CATALOGUE and not Path(source).is_file()


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
