"""A prepared data set: interactions, the part each of them belongs to, and how it was made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from scipy.sparse import csr_array

from concf.data.filters import Filter
from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.protocols import DROPPED, PARTS, TEST, TRAIN, VALID, Given, Parts, Protocol, honest
from concf.errors import ConfigError, DataError, note
from concf.runtime.arguments import check_seed
from concf.runtime.files import mapped, new_folder, sha256
from concf.runtime.provenance import VERSION
from concf.runtime.settings import Settings

FORMAT = 1  # of the folder; a newer one is refused
MANIFEST = "manifest.json"
FEW_USERS = 300  # who are evaluated: a mean over fewer is uncertain by 0.02 and more
VERIFIED_BYTES = 1 << 28  # a folder up to this size is held against its checksums whenever it is opened
REQUIRED = {f"{name}.npy" for name in ("user_ids", "item_ids", "user", "item", "part", "count")}


class Recipe(Settings):
    """How a prepared data set was made."""

    source: dict[str, Any]  # name and SHA-256 of the file(s), or of the pairs if they came as a frame
    reading: dict[str, Any] = Field(default_factory=dict)  # what was said about columns and format
    filters: tuple[Filter, ...] = ()  # applied in order, the protocol's own last
    protocol: Protocol
    seed: int = Field(0, ge=0)


@dataclass(frozen=True, eq=False)
class Split:
    """Interactions divided into train, valid and test.

    parts: [n] uint8, the part of each interaction: 0 train, 1 valid, 2 test, 3 dropped (held out, not evaluable)
    """

    interactions: Interactions
    parts: Parts
    recipe: Recipe
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def make(cls, interactions: Interactions, recipe: Recipe, parts: Parts | None = None) -> Split:
        """Divide filtered interactions by the recipe's protocol and seed, or by the `parts` that were given."""
        if parts is None:
            if isinstance(recipe.protocol, Given):
                raise ConfigError("protocol 'given' needs the validation and test files")
            parts = recipe.protocol.assign(interactions, recipe.seed)
        clean = honest(interactions, parts)
        split = cls(interactions, clean, recipe, tuple(_notes(interactions, parts, clean)))
        if not len(split.evaluated):
            raise DataError(
                f"protocol {recipe.protocol.name!r} leaves no user with training, validation and test items "
                f"({len(interactions)} interactions of {interactions.n_users} users). "
                f"{recipe.protocol.advice()}"
            )
        return split

    def with_seed(self, seed: int) -> Split:
        """The same interactions divided anew by the same protocol."""
        if isinstance(self.recipe.protocol, Given):
            raise ConfigError("a data set whose parts were given cannot be divided anew")
        return Split.make(self.interactions, self.recipe.model_copy(update={"seed": check_seed(seed)}))

    @cached_property
    def train(self) -> csr_array:
        """[users, items] the training part."""
        return self.interactions.matrix(self.parts == TRAIN)

    @cached_property
    def valid(self) -> csr_array:
        """[users, items] the validation part."""
        return self.interactions.matrix(self.parts == VALID)

    @cached_property
    def test(self) -> csr_array:
        """[users, items] the test part."""
        return self.interactions.matrix(self.parts == TEST)

    @cached_property
    def evaluated(self) -> NDArray[np.int64]:
        """[e] the users who have test items."""
        return np.unique(self.interactions.user[self.parts == TEST]).astype(np.int64)

    @cached_property
    def validated(self) -> NDArray[np.int64]:
        """[v] the users who have validation items; `make` leaves the same ones both, but not every split is its."""
        return np.unique(self.interactions.user[self.parts == VALID]).astype(np.int64)

    def doubt(self, on: str = "valid") -> str | None:
        """What to say where figures rest on few users."""
        few, words = len(self.users(on)), {"valid": "validated", "test": "tested"}
        if few >= FEW_USERS:
            return None
        return (
            f"only {few:,} of {self.interactions.n_users:,} users are {words[on]}: "
            "figures and choices that rest on so few are uncertain"
        )

    def note_if_few(self, on: str = "valid") -> None:
        """Say it, once of a split."""
        doubt = self.doubt(on)
        if doubt is not None and "noted" not in vars(self):
            vars(self)["noted"] = True
            note(doubt)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over ids, pairs and parts: the same for the same split, however it was read."""
        fingerprint = self.interactions.fingerprint()
        fingerprint.update(np.ascontiguousarray(self.parts).data)
        return fingerprint.hexdigest()

    def counts(self) -> dict[str, int]:
        """Pairs in each part, and the users that are evaluated."""
        sizes = np.bincount(self.parts, minlength=len(PARTS)).tolist()
        return {name: sizes[part] for name, part in PARTS.items()} | {"evaluated_users": len(self.evaluated)}

    def summary(self) -> dict[str, Any]:
        """What the manifest and `concf prepare --json` say."""
        return {
            "format": FORMAT,
            "concf": VERSION,
            **self.interactions.statistics(),
            **self.counts(),
            "split_hash": self.hash,
            "recipe": self.recipe.model_dump(mode="json"),
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the folder: `.npy` arrays and, last, the manifest. It appears whole or not at all."""
        with new_folder(Path(folder), marker=MANIFEST, overwrite=overwrite) as fresh:
            self.interactions.user_ids.save(fresh, "user_ids")
            self.interactions.item_ids.save(fresh, "item_ids")
            columns: dict[str, NDArray[Any]] = {
                "user": self.interactions.user,
                "item": self.interactions.item,
                "part": self.parts,
            }
            columns |= {"count": self.interactions.count}
            if self.interactions.timestamp is not None:
                columns |= {"timestamp": self.interactions.timestamp}
            for name, column in columns.items():
                np.save(fresh / f"{name}.npy", column, allow_pickle=False)
            checksums = {file.name: sha256(file) for file in sorted(fresh.iterdir())}
            manifest = self.summary() | {"files": checksums}
            (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> Split:
        """Map a folder that `save` wrote into memory; one that is incomplete, changed or too new is refused.

        verify: hold every file against its SHA-256, which reads them all; None: only up to `VERIFIED_BYTES` of them.
        That no file is missing or cut short is always looked at.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder)
        names = [f"{name}.npy" for name in ("user", "item", "count", "part", "timestamp")]
        _check_files(folder, manifest["files"], verify)
        columns = {name[:-4]: mapped(folder / name) for name in names if name in manifest["files"]}
        user_ids, item_ids = (Ids.load(folder, f"{side}_ids") for side in ("user", "item"))
        unlike = [name for name, column in columns.items() if len(column) != manifest["interactions"]]
        if unlike:
            raise DataError(
                f"{folder / unlike[0]}.npy was changed: it is of another length. Prepare the data set again"
            )
        parts = columns.pop("part")
        return cls(
            Interactions(user_ids, item_ids, **columns), parts, Recipe(**manifest["recipe"]), tuple(manifest["notes"])
        )

    def part(self, name: str) -> csr_array:
        """[users, items] the part called train, valid or test."""
        part: csr_array = getattr(self, name)
        return part

    def seen(self, on: str) -> csr_array:
        """[users, items] what may not be recommended when evaluating `on`.

        On test, what trained and what was validated by. On validation, what trained: the test part is not looked at, so
        that its items stand in the lists as any others do.
        """
        return self.train if on == "valid" else (self.train + self.valid).tocsr()

    def users(self, on: str) -> NDArray[np.int64]:
        """[e] the users who are evaluated `on` valid or test."""
        return self.validated if on == "valid" else self.evaluated


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder}: not a prepared data set (no {MANIFEST}). Make one with: concf prepare SOURCE --out DIR"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            raise DataError(
                f"{folder}: format {manifest['format']} is newer than this concf ({VERSION}) knows. Update concf"
            )
        Recipe(**manifest["recipe"])
        manifest["files"] = dict.fromkeys(REQUIRED) | dict(manifest["files"])
        list(manifest["notes"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__}). Prepare the data set again") from None
    return manifest


def _check_files(folder: Path, checksums: dict[str, str | None], verify: bool | None) -> None:
    """Refuse a folder with a missing or shortened file and, by `verify`, one with a changed file."""
    missing = [name for name in checksums if not (folder / name).is_file()]
    if verify is None:
        verify = sum((folder / name).stat().st_size for name in checksums if name not in missing) <= VERIFIED_BYTES
    for name, checksum in checksums.items():
        if name in missing:
            state = "is missing"
        elif checksum is None or (sha256(folder / name) != checksum if verify else _is_short(folder / name)):
            state = "was changed or cut short"
        else:
            continue
        raise DataError(f"{folder / name} {state}: the data set is not the one that was prepared. Prepare it again")


def _is_short(path: Path) -> bool:
    """Whether a `.npy` file holds less than its head says."""
    try:
        mapped(path)
    except (ValueError, EOFError):
        return True
    return False


def _notes(interactions: Interactions, before: Parts, after: Parts) -> list[str]:
    """What the protocol had to leave out, in words, with an example each."""
    notes = []
    trained = np.zeros(interactions.n_items, bool)
    trained[interactions.item[before == TRAIN]] = True
    cold = np.flatnonzero(~trained)
    if len(cold):
        example = interactions.item_ids.values[cold[:1]].tolist()[0]
        notes.append(f"{len(cold)} items occur in no training pair and cannot be evaluated (for example {example!r})")
    n_dropped = int((after == DROPPED).sum())
    if n_dropped:
        notes.append(f"{n_dropped} held-out pairs were dropped: their item never trains, or their user keeps too few")
    single = np.flatnonzero(interactions.per_user() == 1)
    if len(single):
        example = interactions.user_ids.values[single[:1]].tolist()[0]
        notes.append(f"{len(single)} users have one item and only train (for example {example!r})")
    return notes
