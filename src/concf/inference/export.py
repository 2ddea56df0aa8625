"""Export one head's exact vectors, for an index or a store.

A head ranks by <user_u, item_i> + bias_i. The bias is folded into the vectors,

    item vector = [item_i, bias_i]        user vector = [user_u, 1]        both of d + 1 dimensions, float32

so that maximum inner product search gives the head's own list. Items that a user has seen are not left out. Scores of
different users cannot be compared: they lack an offset of the user, which changes no ranking.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from concf.data.ids import Ids
from concf.errors import ConfigError, DataError, option
from concf.inference.ranker import Ranker
from concf.inference.titles import Catalogue
from concf.runs.run import Run
from concf.runtime.files import new_file, new_folder
from concf.runtime.provenance import VERSION

FORMAT = 1
ABOUT = "export.json"  # metadata in a folder of vectors; `metadata` in an .npz file
SCORE = "inner product of a user's and an item's vector; the item bias is a dimension of the item, against the user's 1"

Sides = dict[str, tuple[Ids, NDArray[np.float32]]]  # "user" and "item" -> ids, and vectors [n, d + 1]


def export(
    run: Run, head: str | None, to: str, out: str | Path, *, catalogue: Catalogue | None = None
) -> dict[str, Any]:
    """Write a head's vectors; returns the metadata with `to`, `out` and the sizes of `files`.

    head:      its name; None: the best head
    to:        npz (a file) or parquet (a folder)
    out:       a file or folder that does not exist yet; it appears complete or not at all
    catalogue: new items get vectors by their attributes, rare ones in part
    """
    target = Path(out)
    if to not in ("npz", "parquet"):
        raise ConfigError(f"{option('to', to)}: choose from npz, parquet")
    if target.exists():
        raise ConfigError(f"{target}: exists already; it is left alone. Choose another {option('out')}")
    ranker = Ranker(run, items=catalogue)
    head = ranker.head(head)
    best, (user, item) = run.best[head], ranker.vectors(head)
    sides = {"user": (run.data.interactions.user_ids, user), "item": (ranker.item_ids, item)}
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
        "unit": run.unit,
        "finished": run.finished,
        "seed": run.seed,
        "split_hash": run.data.hash,
        "settings": run.settings.model_dump(mode="json"),
    }
    if to == "npz":
        with new_file(target) as fresh:
            write_npz(sides, about, fresh)
        files = [target]
    else:
        with new_folder(target, marker=ABOUT) as fresh:
            write_parquet(sides, about, fresh)
        files = sorted(target.iterdir())
    return about | {"to": to, "out": str(target), "files": {file.name: file.stat().st_size for file in files}}


def write_npz(sides: Sides, about: dict[str, Any], file: Path) -> None:
    """Write arrays that load without pickle: ids are int64, or strings of the longest one's width."""
    arrays: dict[str, Any] = {f"{side}_vectors": vectors for side, (_, vectors) in sides.items()}
    for side, (ids, _) in sides.items():
        named = ids.values if ids.are_integers else ids.values.astype(np.str_)
        if named.tolist() != ids.values.tolist():
            raise DataError("an id ends in a NUL character, which NumPy's strings drop. Export with --to parquet")
        arrays[f"{side}_ids"] = named
    with file.open("wb") as opened:  # savez would add a suffix to a path
        np.savez(opened, **arrays, metadata=np.array(json.dumps(about)))


def write_parquet(sides: Sides, about: dict[str, Any], folder: Path) -> None:
    """Write `users.parquet` and `items.parquet`: id and vector, in the order of positions; and the metadata."""
    for side, (ids, vectors) in sides.items():
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        table = pa.table({f"{side}_id": ids.values, "vector": column})
        table = table.replace_schema_metadata({"concf": json.dumps(about)})
        parquet.write_table(table, folder / f"{side}s.parquet", use_dictionary=False)  # values are distinct
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
