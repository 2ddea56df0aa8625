"""Export one head's exact vectors to an index or a store.

A head ranks by <user_u, item_i> + bias_i. The bias is folded into the vectors,

    item vector = [item_i, bias_i]        user vector = [user_u, 1]        both of d + 1 dimensions, float32

so that maximum inner product search gives the head's own list. Items that a user has seen are not left out. Scores of
different users cannot be compared: they lack an offset of the user, which changes no ranking.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from concf.data.ids import Ids
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors
from concf.inference.ranker import Ranker
from concf.inference.titles import Catalogue
from concf.runs.run import Run
from concf.runtime.files import new_file, new_folder
from concf.runtime.provenance import VERSION

FORMAT = 1
ABOUT = "export.json"  # metadata in a folder of vectors; `metadata` in an .npz file
SCORE = "inner product of a user's and an item's vector; the item bias is a dimension of the item, against the user's 1"
RECALL_AT, RECALL_USERS = 50, 1000  # to measure an approximate index
CONNECTIVITY, EFFORT_TO_BUILD, EFFORT_TO_SEARCH = 32, 200, 128  # HNSW's M, efConstruction, efSearch

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """Vectors of a head. user: [users, d + 1]; item: [items, d + 1]; about: metadata."""

    user: Floats
    item: Floats
    user_ids: Ids
    item_ids: Ids
    about: dict[str, Any]

    @classmethod
    def of(cls, ranker: Ranker, head: str) -> Vectors:
        """Take a head at its best epoch."""
        run, (user, item) = ranker.run, ranker.vectors(head)
        best = run.best[head]
        about = {
            "format": FORMAT, "concf": VERSION, "head": head, "users": len(user), "items": len(item),
            "new_items": len(item) - run.data.interactions.n_items, "dimensions": item.shape[1], "score": SCORE,
            "validation": {"metric": run.metric, "value": best.validation, "epoch": best.epoch},
            "epochs": run.epoch, "finished": run.finished, "seed": run.seed, "split_hash": run.data.hash,
            "settings": run.settings.model_dump(mode="json"),
        }  # fmt: skip
        return cls(user, item, run.data.interactions.user_ids, ranker.item_ids, about)

    def levelled(self) -> Vectors:
        """Give items equal length, with the same inner products: [item, sqrt(L^2 - |item|^2)] against [user, 0].

        A graph of neighbours (HNSW) is built for distances. Among items of different lengths it misses the best inner
        products; among items of one length both orders are the same.
        """
        squares = np.square(self.item, dtype=np.float64).sum(1)
        item = np.column_stack([self.item, np.sqrt(squares.max() - squares).astype(np.float32)])
        score = f"{SCORE}; the last dimension gives all items one length, against the user's 0"
        about = self.about | {"dimensions": item.shape[1], "score": score}
        return replace(self, user=np.pad(self.user, ((0, 0), (0, 1))), item=item, about=about)


def export(
    run: Run, head: str | None, to: str, out: str | Path, *, approximate: bool = False,
    catalogue: Catalogue | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write a head's vectors; returns the metadata with `to`, `out` and the sizes of `files`.

    head:        its name; None: the best head
    to:          npz (a file), parquet or faiss (a folder each)
    out:         a file or folder that does not exist yet; it appears complete or not at all
    approximate: search by HNSW, whose recall against exact search is measured
    catalogue:   new items get vectors by their attributes, rare ones in part
    """
    target, folder = Path(out), to != "npz"
    if to not in FORMATS:
        raise ConfigError(f"--to {to!r}: choose from {', '.join(FORMATS)}")
    if approximate and to != "faiss":
        raise ConfigError("--approximate is for an index: choose --to faiss")
    if target.exists():
        raise ConfigError(f"{target}: exists already; it is left alone. Choose another --out")
    if to == "faiss" and find_spec("faiss") is None:
        raise MissingExtraError("faiss-cpu", "index", "--to faiss")
    ranker = Ranker(run, items=catalogue)
    vectors = Vectors.of(ranker, ranker.head(head))
    with new_folder(target, marker=ABOUT) if folder else new_file(target) as fresh:
        try:
            written = FORMATS[to](vectors, fresh, approximate)
        except RuntimeError as error:  # how faiss reports a full disk
            raise OSError(str(error)) from error
        if folder:
            (fresh / ABOUT).write_text(json.dumps(written.about, indent=2) + "\n", encoding="utf-8")
    files = sorted(target.iterdir()) if folder else [target]
    return written.about | {"to": to, "out": str(target), "files": {file.name: file.stat().st_size for file in files}}


def _write_npz(vectors: Vectors, file: Path, _approximate: bool) -> Vectors:
    """Write arrays that load without pickle: ids are int64, or strings of the longest one's width."""
    arrays: dict[str, Any] = {"user_vectors": vectors.user, "item_vectors": vectors.item}
    for name, ids in (("user_ids", vectors.user_ids), ("item_ids", vectors.item_ids)):
        arrays[name] = ids.values if ids.are_integers else ids.values.astype(np.str_)
        if arrays[name].tolist() != ids.values.tolist():
            raise DataError("an id ends in a NUL character, which NumPy's strings drop. Export with --to parquet")
    with file.open("wb") as opened:  # savez would add a suffix to a path
        np.savez(opened, **arrays, metadata=np.array(json.dumps(vectors.about)))
    return vectors


def _write_parquet(vectors: Vectors, folder: Path, _approximate: bool) -> Vectors:
    """Write `users.parquet` and `items.parquet`: id and vector, in the order of positions."""
    _write_ids(vectors, folder, with_vectors=True)
    return vectors


def _write_ids(vectors: Vectors, folder: Path, with_vectors: bool = False) -> None:
    """Write `user_ids.parquet` and `item_ids.parquet`: the id at each position; or files of ids and vectors."""
    for side, ids, rows in (("user", vectors.user_ids, vectors.user), ("item", vectors.item_ids, vectors.item)):
        column = {"vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])}
        named = {f"{side}_id": ids.values}
        table = pa.table(named | column if with_vectors else {"position": np.arange(len(ids))} | named)
        table = table.replace_schema_metadata({"concf": json.dumps(vectors.about)})
        file = folder / (f"{side}s.parquet" if with_vectors else f"{side}_ids.parquet")
        parquet.write_table(table, file, use_dictionary=False)  # values are distinct


def _write_faiss(vectors: Vectors, folder: Path, approximate: bool) -> Vectors:
    """Write `items.faiss`, user vectors and ids: IndexFlatIP, or IndexHNSWFlat over levelled items.

    The recall of an approximate search is measured against the exact lists.
    """
    import faiss

    if approximate:
        vectors = vectors.levelled()
        index: Any = faiss.IndexHNSWFlat(vectors.item.shape[1], CONNECTIVITY, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = EFFORT_TO_BUILD, EFFORT_TO_SEARCH
    else:
        index = faiss.IndexFlatIP(vectors.item.shape[1])
    index.add(vectors.item)
    faiss.write_index(index, str(folder / "items.faiss"))
    if approximate:
        n_users, k = len(vectors.user), min(RECALL_AT, len(vectors.item))
        users = np.linspace(0, n_users - 1, min(n_users, RECALL_USERS)).round().astype(np.int64)  # evenly spaced
        exact, near = rank(Factors.of(vectors.user, vectors.item), users, k), index.search(vectors.user[users], k)[1]
        share = float(np.mean([len(np.intersect1d(*both)) / k for both in zip(exact, near, strict=True)]))
        recall = {"at": k, "value": share, "users": len(users), "efSearch": EFFORT_TO_SEARCH}  # which the file keeps
        vectors = replace(vectors, about=vectors.about | {"recall": recall})
    np.savez(folder / "users.npz", user_vectors=vectors.user)
    _write_ids(vectors, folder)
    return vectors


# (vectors, file or folder, whether the index may be approximate) -> the vectors as written
FORMATS: dict[str, Callable[[Vectors, Path, bool], Vectors]] = {
    "npz": _write_npz, "parquet": _write_parquet, "faiss": _write_faiss,
}  # fmt: skip
