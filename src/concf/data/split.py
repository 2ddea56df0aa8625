"""Prepared data sets: interactions, and the part of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids
from concf.data.interactions import SIDES, Dislikes, Interactions
from concf.data.parts import HISTORY, PARTS, TEST, TRAIN, UNEVALUATED, VALID, Parts, origin
from concf.data.protocols import Given
from concf.data.reading.times import moment
from concf.data.recipe import FORMAT, MANIFEST, SplitRecipe, read_manifest, write_manifest
from concf.data.weights import UNWEIGHTED, Weighting
from concf.errors import ConfigError, DataError, note, option
from concf.runtime.arguments import check_seed
from concf.runtime.files import mapped, new_folder
from concf.runtime.provenance import VERSION

UPDATES = "updates"  # of a recipe's source: the logs that were joined to the first, the oldest first
FEW_USERS = 300  # evaluated users below which a mean is uncertain by 0.02 or more
KNOWN_VALID = 0.1  # share of a training user's items that validate, where other users test
COLUMNS = ("user", "item", "count", "part")  # a file each
TIMES = ("timestamp", "last")  # a file if the log has times, and one more if a pair has several
DISLIKED = "disliked_"  # prefix of the files of dislikes, if the log has any


@dataclass(frozen=True, eq=False)
class Split:
    """Interactions split into train, valid and test.

    parts: [n] uint8, the part of each interaction: 0 train, 1 valid, 2 test, 4 history (of a user who is evaluated and
           does not train); 8 is added where a held-out pair cannot be evaluated. Such a pair stays in its part, and is
           learned with it
    weights: how much an interaction counts in training
    whole: the split that this one was made from to train on, see `known` and `newest`
    folder: where it was loaded from
    """

    interactions: Interactions
    parts: Parts
    recipe: SplitRecipe
    notes: tuple[str, ...] = ()
    weights: Weighting = UNWEIGHTED
    whole: Split | None = None
    folder: Path | None = None

    @classmethod
    def make(cls, interactions: Interactions, recipe: SplitRecipe, parts: Parts | None = None) -> Split:
        """Split filtered interactions by the recipe's protocol and seed.

        parts: [n] the part of each interaction, if they are assigned already; for `given`, the part whose file it is in
        """
        protocol, seed = recipe.protocol, recipe.seed
        if isinstance(protocol, Given):
            parts = protocol.assign(interactions, seed, parts)
        elif parts is None:
            parts = protocol.assign(interactions, seed)
        evaluable = protocol.evaluable(interactions, parts)
        if recipe.reading.get("ordered"):  # positions in a user's line are not times
            interactions = replace(interactions, timestamp=None)
        split = cls(interactions, evaluable, recipe, tuple(_notes(interactions, evaluable, recipe)))
        if not (len(split.evaluated) and len(split.validated)):
            size = f"{len(interactions)} interactions of {interactions.n_users} users"
            options = ", ".join(option(name) for name in type(protocol).model_fields if name != "name")
            advice = f"Change what is held out ({options}), or filter less"
            raise DataError(f"protocol {protocol.name!r} leaves no user to evaluate ({size}). {advice}")
        return split

    def with_seed(self, seed: int) -> Split:
        """Split the same interactions with another seed; `given` draws its validation share anew."""
        if self.whole is not None:
            return self.whole.with_seed(seed)
        protocol = self.recipe.protocol
        if isinstance(protocol, Given) and protocol.valid is None:
            raise ConfigError("a data set with given parts cannot be split again")
        recipe = self.recipe.model_copy(update={"seed": check_seed(seed)})
        newest = isinstance(protocol, Given) and protocol.newest and recipe.reading.get("ordered")
        if protocol.time_cut or newest:  # nothing is drawn
            return replace(self, recipe=recipe, folder=None)
        files = self.parts if isinstance(protocol, Given) else None
        return Split.make(self.interactions, recipe, files).weighted(self.weights)

    def weighted(self, weights: Weighting) -> Split:
        """Return a copy with other weights; a note if they leak from a time that is held out."""
        if weights == self.weights:
            return self
        if weights.function != "none" and self.recipe.protocol.time_cut:
            note("counts include events after the held-out ones: with weights by the count, metrics may be too high")
        return replace(self, weights=weights)

    def rows(self, parts: Sequence[str]) -> NDArray[np.bool_]:
        """[n] whether each pair is in one of the parts, evaluated or not."""
        return np.isin(origin(self.parts), [PARTS[part] for part in parts])

    def log(self, parts: Sequence[str]) -> csr_array:
        """[users, items] training weights, 1 on average, of all pairs of some parts, evaluated or not."""
        rows = self.rows(parts)
        held_out_from = None if self.weights.half_life is None else self._held_out_from(parts)
        return self.interactions.matrix(rows, self.weights(self.interactions, rows, held_out_from))

    def _held_out_from(self, parts: Sequence[str]) -> NDArray[np.float64] | None:
        """[users] first time of the pairs in later parts than these, of the user or of all users; inf: no such pair.

        None if the split is not by time.
        """
        log, protocol = self.interactions, self.recipe.protocol
        if log.timestamp is None or not (protocol.time_cut or (isinstance(protocol, Given) and protocol.newest)):
            return None
        held_out, first = origin(self.parts) > max(PARTS[part] for part in parts), np.full(log.n_users, np.inf)
        np.minimum.at(first, log.user[held_out], log.timestamp[held_out])
        if protocol.time_cut == "all":
            first[:] = first.min()
        return first

    def times(self, parts: Sequence[str]) -> csr_array:
        """[users, items] float64, with the cells of `log`: the time of each pair, which may be 0, in the log's unit."""
        if self.interactions.timestamp is None:
            raise DataError(f"the log has no times. Set {option('timestamp')}, and prepare the data set again")
        log, time = self.log(parts), np.asarray(self.interactions.timestamp[self.rows(parts)], np.float64)
        return csr_array((time, log.indices, log.indptr), shape=log.shape)

    @cached_property
    def train(self) -> csr_array:
        """[users, items] weights of the training pairs."""
        return self.log(["train"])

    @cached_property
    def valid(self) -> csr_array:
        """[users, items] evaluated pairs of the validation part."""
        return self.interactions.matrix(self.parts == VALID)

    @cached_property
    def test(self) -> csr_array:
        """[users, items] evaluated pairs of the test part."""
        return self.interactions.matrix(self.parts == TEST)

    def part(self, name: str) -> csr_array:
        """[users, items] the part called train, valid or test."""
        part: csr_array = getattr(self, name)
        return part

    @cached_property
    def history(self) -> csr_array:
        """[users, items] histories of the evaluated users who do not train."""
        return self.interactions.matrix(self.parts == HISTORY)

    @property
    def has_new_users(self) -> bool:
        """Whether evaluated users do not train."""
        return self.recipe.protocol.new_users

    @cached_property
    def known(self) -> Split:
        """Split to train on: this one or, with new users, that of the training users, a tenth of whose items validate.

        Training chooses everything on known users, so that the metrics of new users, on validation and on test, are
        unbiased. Items keep their positions.
        """
        if not self.has_new_users or self.whole is not None:
            return self
        interactions = self.interactions.keep(self.parts == TRAIN, all_items=True)
        parts = Given(valid=KNOWN_VALID).assign(interactions, self.recipe.seed, np.zeros(len(interactions), np.uint8))
        return Split(interactions, parts, self.recipe, self.notes, self.weights, self, self.folder)

    @cached_property
    def newest(self) -> Split:
        """Split to train on where everything is learned: if it is by time, the test part validates.

        The validation part then trains, so that settings and weights are chosen as close to the present as they can be.
        """
        protocol, part = self.recipe.protocol, origin(self.parts)
        if protocol.time_cut != "all" or self.whole is not None:
            return self
        parts = protocol.evaluable(self.interactions, np.where(part == TEST, VALID, TRAIN).astype(np.uint8))
        later = replace(self, parts=parts, whole=self)
        return later if len(later.validated) >= min(FEW_USERS, len(self.validated) // 2) else self

    def seen(self, on: str) -> csr_array:
        """[users, items] items to leave out of the lists when evaluating `on` valid or test, with dislikes.

        On test: training and validation items. On validation: training items only; test items are candidates. For a
        new user: its history.
        """
        if self.has_new_users:
            seen = self.history
        else:
            seen = self.train if on == "valid" else self.interactions.matrix(self.known_before("test"))
        return seen if self.disliked is None else (seen + self.disliked).tocsr()

    @cached_property
    def disliked(self) -> csr_array | None:
        """[users, items] dislikes that are known in training; None without any.

        With a split by time: dislikes before the first held-out pair of the user, or of all users.
        """
        log = self.interactions
        if log.dislikes is None or not len(log.dislikes.user):
            return None
        first = self._held_out_from(["train"])
        if first is None or log.dislikes.timestamp is None:
            return log.disliked()
        return log.disliked(log.dislikes.timestamp < first[log.dislikes.user])

    @cached_property
    def evaluated(self) -> NDArray[np.int64]:
        """[e] the users with test items."""
        return np.unique(self.interactions.user[self.parts == TEST]).astype(np.int64)

    @cached_property
    def validated(self) -> NDArray[np.int64]:
        """[v] the users with validation items; those with test items are the same only for `paper` and `released`."""
        return np.unique(self.interactions.user[self.parts == VALID]).astype(np.int64)

    def candidates(self, on: str) -> NDArray[np.bool_] | None:
        """[items] candidates when evaluating: with `new-items`, on test, the new ones; None: all items."""
        if on == "valid" or not self.recipe.protocol.new_items:
            return None
        return np.asarray(self.interactions.per_item(rows=origin(self.parts) < TEST) == 0)

    def users(self, on: str) -> NDArray[np.int64]:
        """[e] the users who are evaluated `on` valid or test."""
        return self.validated if on == "valid" else self.evaluated

    def doubt(self, on: str = "valid") -> str | None:
        """Return a warning if only few users are evaluated, else None."""
        few, all_users = len(self.users(on)), self.interactions.n_users
        how = f"users are {'validated' if on == 'valid' else 'tested'}: metrics and choices are uncertain"
        return None if few >= FEW_USERS else f"only {few:,} of {all_users:,} {how}"

    def note_if_few(self, on: str = "valid") -> None:
        """Note once per split that only few users are evaluated."""
        doubt = self.doubt(on)
        if doubt is not None and "noted" not in vars(self):
            vars(self)["noted"] = True
            note(doubt)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over ids, pairs and parts; unevaluated pairs count as one part. It does not depend on the format."""
        if self.whole is not None:
            return self.whole.hash
        fingerprint = self.interactions.fingerprint()
        fingerprint.update(np.where(self.parts >= UNEVALUATED, 3, self.parts).astype(np.uint8).data)
        return fingerprint.hexdigest()

    def known_before(self, on: str) -> NDArray[np.bool_]:
        """[n] whether a model may know each pair when it is evaluated `on` valid or test."""
        return np.asarray(origin(self.parts) < PARTS[on])

    def held_out(self) -> list[dict[str, Any]]:
        """Count the pairs held out for validation and for test, and by cause those that are not evaluated.

        from:      start of the part, with the protocol `time`, as a date if times are since 1970
        pairs, users: all that are held out; evaluated, evaluated_users: those that are evaluated
        new_users: pairs of users without an earlier pair; new_items: of other users, with items without an earlier pair
        other:     pairs that are left out for another reason, such as a user without items in both parts
        seen:      by time, earlier pairs with a last event in this part: they are known, and no targets
        """
        log, rows, until = self.interactions, [], np.inf
        for name in ("test", "valid"):
            part, earlier = PARTS[name], self.known_before(name)
            own, evaluated = origin(self.parts) == part, self.parts == part
            new_user = log.per_user(rows=earlier)[log.user] == 0
            new_item = log.per_item(rows=earlier)[log.item] == 0
            causes = {"new_users": new_user, "new_items": ~new_user & new_item, "other": ~new_user & ~new_item}
            row = {
                "part": name, "pairs": int(own.sum()), "users": len(np.unique(log.user[own])),
                "evaluated": int(evaluated.sum()), "evaluated_users": len(self.users(name)),
            } | {cause: int((own & ~evaluated & mask).sum()) for cause, mask in causes.items()}  # fmt: skip
            if self.recipe.protocol.time_cut == "all" and log.timestamp is not None and own.any():
                since, last = float(log.timestamp[own].min()), np.asarray(log.last)
                seen = earlier & (last >= since) & (last < until)
                row |= {"from": moment(since), "seen": int(seen.sum())}
                until = since
            rows.append(row)
        return rows[::-1]

    def counts(self) -> dict[str, int]:
        """Evaluated pairs of each part, held-out pairs that are not evaluated, and the number of evaluated users."""
        sizes = np.bincount(self.parts, minlength=UNEVALUATED)
        counts = {name: int(sizes[part]) for name, part in PARTS.items()}
        return counts | {"unevaluated": int(sizes[UNEVALUATED:].sum()), "evaluated_users": len(self.evaluated)}

    def summary(self) -> dict[str, Any]:
        """Contents of the manifest and of `concf prepare --json`."""
        counts = self.interactions.statistics() | self.counts()
        how = {"split_hash": self.hash, "recipe": self.recipe.model_dump(mode="json"), "notes": list(self.notes)}
        return {"format": FORMAT, "concf": VERSION, **counts, **how}

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the folder: `.npy` arrays and, last, the manifest. It appears complete or not at all."""
        if self.whole is not None:
            return self.whole.save(folder, overwrite=overwrite)
        data = self.interactions
        with new_folder(Path(folder), marker=MANIFEST, overwrite=overwrite) as fresh:
            data.user_ids.save(fresh, "user_ids")
            data.item_ids.save(fresh, "item_ids")
            columns = {**vars(data), "part": self.parts, "last": data.later}
            columns = {name: columns[name] for name in COLUMNS + TIMES}
            if data.dislikes is not None:
                columns |= {f"{DISLIKED}{name}": column for name, column in data.dislikes._asdict().items()}
            for name, column in columns.items():
                if column is not None:
                    np.save(fresh / f"{name}.npy", column, allow_pickle=False)
            write_manifest(fresh, self.summary())

    @classmethod
    def load(cls, folder: str | Path) -> Split:
        """Memory-map a folder that `save` wrote; one that is incomplete, changed or too new is refused.

        Folders up to `VERIFIED_BYTES` are compared with their SHA-256; missing and truncated files are always detected.
        """
        folder = Path(folder)
        needed = ("user_ids", "item_ids", *COLUMNS)
        manifest = read_manifest(folder, [f"{name}.npy" for name in needed])
        files = manifest["files"]

        def load_columns(names: Sequence[str], prefix: str = "") -> dict[str, Any]:
            return {name: mapped(folder / f"{prefix}{name}.npy") for name in names if f"{prefix}{name}.npy" in files}

        columns, disliked = load_columns(COLUMNS + TIMES), load_columns(Dislikes._fields, DISLIKED)
        for name, column in columns.items():
            if len(column) != manifest["interactions"]:
                raise DataError(f"{folder / name}.npy was changed: it has another length. Prepare the data set again")
        parts, dislikes = columns.pop("part"), Dislikes(**disliked) if disliked else None
        user_ids, item_ids = (Ids.load(folder, f"{side}_ids") for side in SIDES)
        interactions = Interactions(user_ids, item_ids, **columns, dislikes=dislikes)
        return cls(interactions, parts, manifest["recipe"], tuple(manifest["notes"]), folder=folder)


def _notes(interactions: Interactions, parts: Parts, recipe: SplitRecipe) -> Iterator[str]:
    """Notes on pairs that are not evaluated, with an example each, and on filters that look at the test part."""
    trains = interactions.per_item(rows=origin(parts) == TRAIN) > 0
    if not trains.all():
        example = interactions.item_ids.named(np.flatnonzero(~trains)[:1])[0]
        tested = len(np.unique(interactions.item[(parts == TEST) & ~trains[interactions.item]]))
        items = f"{(~trains).sum()} items occur in no training pair (for example {example!r})"
        yield f"{items}; {tested} of them are tested"
    for row in Split(interactions, parts, recipe).held_out():
        causes = {"of new users": row["new_users"], "of new items": row["new_items"], "for other reasons": row["other"]}
        left = ", ".join(f"{count:,} {cause}" for cause, count in causes.items() if count)
        if left:
            evaluated = f"{row['evaluated']:,} of {row['pairs']:,} pairs are evaluated"
            users = f"of {row['evaluated_users']:,} of {row['users']:,} users"
            yield f"{row['part']}: {evaluated}, {users}; left out: {left} (learned where this part is)"
    whole = any(not step.before_test for step in recipe.filters)
    if whole and not recipe.protocol.both:  # `released` and `paper` are published so
        yield "the filters counted the whole log, its test part included; so do the lists of users and items"
    elif recipe.filters and not recipe.protocol.both:
        yield "the filters counted what lies before the test part, the validation part included"
