"""One head's exact vectors, for your own index, store or runtime.

A head ranks by <user_u, item_i> + bias_i. The bias is folded into the vectors,

    item vector = [item_i, bias_i]        user vector = [user_u, 1]        both of d + 1 dimensions, float32

so that a search for the highest inner product gives the head's own list. Items that a user has seen are not left out.
Scores of different users cannot be compared: they lack an offset of the user, which changes no ranking.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.data.ids import Ids
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.evaluation.ranking import NOTHING, rank
from concf.evaluation.scorers import Factors
from concf.inference.ranker import Ranker
from concf.inference.titles import Catalogue
from concf.runs.run import Run
from concf.runtime.files import new_file, new_folder
from concf.runtime.provenance import VERSION

FORMAT = 1
ABOUT = "export.json"  # metadata of a folder of vectors; an .npz file holds it as `metadata`
SCORE = "inner product of a user's and an item's vector; the item bias is a dimension of the item, against the user's 1"
RECALL_AT, RECALL_USERS = 50, 1000  # by which an approximate index is measured
CONNECTIVITY, EFFORT_TO_BUILD, EFFORT_TO_SEARCH = 32, 200, 128  # of HNSW: M, efConstruction, efSearch
ONNX_MODEL = """<ir_version: 8, opset_import: ["": 17], producer_name: "concf">
head (int64[b] user, int64[1] k) => (float[b, length] scores, int64[b, length] items) {
    rows = Gather (user_vectors, user)
    all_scores = Gemm <transB = 1> (rows, item_vectors)
    length = Min (k, items_there_are)
    scores, items = TopK (all_scores, length)
}"""  # versions that any runtime since 2022 reads
ONNX_BYTES = 2**31 - 2**20  # a protobuf message holds less than 2 GiB

Floats = NDArray[np.float32]
Searched = Callable[[Floats, int], NDArray[Any]]  # [q, d] vectors, k -> [q, k] item positions


@dataclass(frozen=True)
class Vectors:
    """A head, ready to be written. user: [users, d + 1]; item: [items, d + 1]; about: metadata."""

    user: Floats
    item: Floats
    user_ids: Ids
    item_ids: Ids
    about: dict[str, Any]

    @classmethod
    def of(cls, ranker: Ranker, head: str) -> Vectors:
        """A head at the epoch of its best validation."""
        run, (user, item) = ranker.run, ranker.vectors(head)
        best = run.best[head]
        about = {
            "format": FORMAT,
            "concf": VERSION,
            "head": head,
            "users": len(user),
            "items": len(item),
            "new_items": len(item) - run.data.interactions.n_items,
            "dimensions": item.shape[1],
            "score": SCORE,
            "validation": {"metric": run.metric, "value": best.validation, "epoch": best.epoch},
            "epochs": run.epoch,
            "finished": run.finished,
            "seed": run.seed,
            "split_hash": run.data.hash,
            "settings": run.settings.model_dump(mode="json"),
        }
        return cls(user, item, run.data.interactions.user_ids, ranker.item_ids, about)

    def levelled(self) -> Vectors:
        """The same inner products with items of equal length: [item, sqrt(L^2 - |item|^2)] against [user, 0].

        A graph of neighbours (HNSW) is built for distances. Among items of different lengths it misses the best inner
        products; among items of one length both orders are the same.
        """
        squares = np.square(self.item, dtype=np.float64).sum(1)
        rest = np.sqrt(squares.max() - squares).astype(np.float32)
        user = np.pad(self.user, ((0, 0), (0, 1)))
        item = np.column_stack([self.item, rest])
        about = self.about | {
            "dimensions": item.shape[1],
            "score": f"{SCORE}; the last dimension gives all items one length, against the user's 0",
        }
        return replace(self, user=user, item=item, about=about)


# (vectors, file or folder, whether the index may be approximate, the optional library) -> the vectors as written
Writer = Callable[[Vectors, Path, bool, Any], Vectors]


@dataclass(frozen=True)
class Format:
    """How vectors are written: into a folder or one file, as an index or not, by which optional library."""

    write: Writer
    folder: bool = True
    index: bool = False
    library: str | None = None
    module: str = ""  # of the library
    extra: str = ""  # of concf that brings it

    def imported(self, purpose: str) -> Any:
        """The module of the optional library; None if there is none."""
        try:
            return import_module(self.module) if self.library else None
        except ImportError:
            raise MissingExtraError(str(self.library), self.extra, purpose) from None


def export(
    run: Run, head: str | None, to: str, out: str | Path, *, approximate: bool = False,
    catalogue: Catalogue | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write a head's vectors; returns the metadata with `to`, `out` and the sizes of `files`.

    head:        its name; None: the best head
    to:          npz (a file), parquet, usearch, faiss or onnx (a folder each)
    out:         a file or folder that does not exist yet; it appears complete or not at all
    approximate: search by HNSW, whose recall against exact search is measured
    catalogue:   whose new items have vectors too, by their attributes; rare ones have them in part
    """
    target = Path(out)
    if to not in FORMATS:
        raise ConfigError(f"--to {to!r}: choose from {', '.join(FORMATS)}")
    chosen = FORMATS[to]
    if approximate and not chosen.index:
        indices = " or ".join(name for name, each in FORMATS.items() if each.index)
        raise ConfigError(f"--approximate is about an index: choose --to {indices}; {to} holds the vectors themselves")
    if target.exists():
        raise ConfigError(f"{target}: exists already; it is left alone. Choose another --out")
    library = chosen.imported(f"--to {to}")
    vectors = Vectors.of(Ranker(run, items=catalogue), _head(run, head))
    with new_folder(target, marker=ABOUT) if chosen.folder else new_file(target) as fresh:
        written = chosen.write(vectors, fresh, approximate, library)
        if chosen.folder:
            (fresh / ABOUT).write_text(json.dumps(written.about, indent=2) + "\n", encoding="utf-8")
    files = sorted(target.iterdir()) if chosen.folder else [target]
    return written.about | {"to": to, "out": str(target), "files": {file.name: file.stat().st_size for file in files}}


def _head(run: Run, name: str | None) -> str:
    if name in (CONSENSUS, R_CONSENSUS):
        raise ConfigError(
            f"{name!r} is lists, not vectors: no index can hold it. Export a head, such as --head {run.best_head()}; "
            f"for the lists themselves, in Python: concf.rank(run.recommender({name!r}), users, k)"
        )
    if name is not None and name not in run.heads:
        raise ConfigError(f"no head is called {name!r} in this run; there are {', '.join(run.heads)}")
    return name or run.best_head()


def _write_npz(vectors: Vectors, file: Path, _approximate: bool, _library: Any) -> Vectors:
    """Arrays that load without pickle: ids are int64, or strings of the longest one's width."""
    user_ids, item_ids = _fixed(vectors.user_ids), _fixed(vectors.item_ids)
    with file.open("wb") as opened:  # savez would add a suffix to a path
        np.savez(
            opened, user_vectors=vectors.user, item_vectors=vectors.item, user_ids=user_ids, item_ids=item_ids,
            metadata=np.array(json.dumps(vectors.about)),
        )  # fmt: skip
    return vectors


def _fixed(ids: Ids) -> NDArray[Any]:
    if ids.are_integers:
        return ids.values
    fixed = ids.values.astype(np.str_)
    if fixed.tolist() != ids.values.tolist():
        raise DataError("an id ends in a NUL character, which NumPy's strings drop. Export with --to parquet")
    return fixed


def _write_parquet(vectors: Vectors, folder: Path, _approximate: bool, _library: Any) -> Vectors:
    """`users.parquet` and `items.parquet`: id and vector, in the order of positions."""
    for side, ids, rows in (("user", vectors.user_ids, vectors.user), ("item", vectors.item_ids, vectors.item)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        _write_table({f"{side}_id": ids.values, "vector": column}, folder / f"{side}s.parquet", vectors.about)
    return vectors


def _write_table(columns: dict[str, Any], file: Path, about: dict[str, Any]) -> None:
    table = pa.table(columns).replace_schema_metadata({"concf": json.dumps(about)})
    parquet.write_table(table, file, use_dictionary=False)  # nothing comes twice


def _write_ids(vectors: Vectors, folder: Path) -> None:
    """`user_ids.parquet` and `item_ids.parquet`: the id at each position."""
    for side, ids in (("user", vectors.user_ids), ("item", vectors.item_ids)):
        columns = {"position": np.arange(len(ids)), f"{side}_id": ids.values}
        _write_table(columns, folder / f"{side}_ids.parquet", vectors.about)


def _write_beside_index(vectors: Vectors, folder: Path, search: Searched | None, effort: dict[str, Any]) -> Vectors:
    """The users' vectors and the ids; the recall of the search, if it is approximate."""
    if search is not None:
        vectors = replace(vectors, about=vectors.about | {"recall": recall(vectors, search) | effort})
    np.savez(folder / "users.npz", user_vectors=vectors.user)
    _write_ids(vectors, folder)
    return vectors


def _write_usearch(vectors: Vectors, folder: Path, approximate: bool, usearch: Any) -> Vectors:
    """`items.usearch`. It always holds a graph, so the items are levelled for exact search too."""
    vectors = vectors.levelled()
    index = usearch.Index(
        ndim=vectors.item.shape[1], metric="ip", dtype="f32", connectivity=CONNECTIVITY,
        expansion_add=EFFORT_TO_BUILD, expansion_search=EFFORT_TO_SEARCH,
    )  # fmt: skip
    index.add(np.arange(len(vectors.item)), vectors.item)
    with _saving():
        index.save(str(folder / "items.usearch"))

    def search(users: Floats, k: int) -> NDArray[Any]:
        matches = index.search(users, k)
        return np.where(np.arange(k) < matches.counts[:, None], matches.keys.astype(np.int64), NOTHING)

    effort = {"expansion_search": EFFORT_TO_SEARCH}  # not in the file: to be set again when it is opened
    return _write_beside_index(vectors, folder, search if approximate else None, effort)


def _write_faiss(vectors: Vectors, folder: Path, approximate: bool, faiss: Any) -> Vectors:
    """`items.faiss`: IndexFlatIP, or IndexHNSWFlat over levelled items."""
    if approximate:
        vectors = vectors.levelled()
        index = faiss.IndexHNSWFlat(vectors.item.shape[1], CONNECTIVITY, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = EFFORT_TO_BUILD, EFFORT_TO_SEARCH
    else:
        index = faiss.IndexFlatIP(vectors.item.shape[1])
    index.add(vectors.item)
    with _saving():
        faiss.write_index(index, str(folder / "items.faiss"))

    def search(users: Floats, k: int) -> NDArray[Any]:
        items: NDArray[Any] = index.search(users, k)[1]
        return items

    effort = {"efSearch": EFFORT_TO_SEARCH}  # in the file
    return _write_beside_index(vectors, folder, search if approximate else None, effort)


@contextmanager
def _saving() -> Iterator[None]:
    """These libraries report a full disk by a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(str(error)) from error


def recall(vectors: Vectors, search: Searched) -> dict[str, Any]:
    """The mean share of the exact list that a search finds, over users at even distances."""
    n_users, k = len(vectors.user), min(RECALL_AT, len(vectors.item))
    users = np.linspace(0, n_users - 1, min(n_users, RECALL_USERS)).round().astype(np.int64)
    exact = rank(Factors.of(vectors.user, vectors.item), users, k)
    near = search(vectors.user[users], k)
    shares = [len(np.intersect1d(*lists)) / k for lists in zip(exact, near, strict=True)]
    return {"at": k, "value": float(np.mean(shares)), "users": len(users)}


def _write_onnx(vectors: Vectors, folder: Path, _approximate: bool, onnx: Any) -> Vectors:
    """`model.onnx`: user int64 [b], k int64 [1] -> scores float32 [b, k], items int64 [b, k]; ties as in `rank`."""
    size = vectors.user.nbytes + vectors.item.nbytes
    if size > ONNX_BYTES:
        raise ConfigError(
            f"the vectors take {size / 2**30:.1f} GiB, and an ONNX file holds less than 2. Export with --to parquet"
        )
    constants = {
        "user_vectors": vectors.user,
        "item_vectors": vectors.item,
        "items_there_are": np.array([len(vectors.item)]),
    }
    model = onnx.parser.parse_model(ONNX_MODEL)
    model.producer_version, model.graph.name = VERSION, f"concf-{vectors.about['head']}"
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    onnx.helper.set_model_props(model, {"concf": json.dumps(vectors.about)})
    onnx.save(model, folder / "model.onnx")
    _write_ids(vectors, folder)
    return vectors


FORMATS = {
    "npz": Format(_write_npz, folder=False),
    "parquet": Format(_write_parquet),
    "usearch": Format(_write_usearch, index=True, library="usearch", module="usearch.index", extra="index"),
    "faiss": Format(_write_faiss, index=True, library="faiss-cpu", module="faiss", extra="index"),
    "onnx": Format(_write_onnx, library="onnx", module="onnx", extra="onnx"),
}
