"""What others read of an export: the lists that they find by it, the ids, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import onnxruntime
import polars as pl
from numpy.typing import NDArray
from usearch.index import Index

from concf.inference.export import ABOUT

Lists = tuple[NDArray[Any], NDArray[Any]]  # [users, k] scores, [users, k] positions


def from_npz(out: Path, k: int) -> Lists:
    with np.load(out, allow_pickle=False) as file:
        return by_hand(file["user_vectors"], file["item_vectors"], k)


def from_parquet(out: Path, k: int) -> Lists:
    users, items = (pl.read_parquet(out / f"{side}.parquet")["vector"] for side in ("users", "items"))
    return by_hand(users.to_numpy(), items.to_numpy(), k)


def by_hand(users: NDArray[np.float32], items: NDArray[np.float32], k: int) -> Lists:
    assert users.dtype == items.dtype == np.float32
    scores = users @ items.T
    order = np.argsort(-scores, 1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def from_usearch(out: Path, k: int, effort: int | None = None) -> Lists:
    index = Index.restore(out / "items.usearch")
    index.expansion_search = effort or index.expansion_search
    matches = index.search(users_beside(out), k, exact=effort is None)
    return 1 - matches.distances, matches.keys.astype(np.int64)


def from_faiss(out: Path, k: int) -> Lists:
    scores, places = faiss.read_index(str(out / "items.faiss")).search(users_beside(out), k)
    return scores, places


def users_beside(out: Path) -> NDArray[np.float32]:
    with np.load(out / "users.npz", allow_pickle=False) as file:
        return np.asarray(file["user_vectors"])


def from_onnx(out: Path, k: int) -> Lists:
    users = pl.read_parquet(out / "user_ids.parquet")["position"].to_numpy()
    scores, places = onnxruntime.InferenceSession(out / "model.onnx").run(None, {"user": users, "k": np.array([k])})
    return scores, places


SEARCH = dict(npz=from_npz, parquet=from_parquet, usearch=from_usearch, faiss=from_faiss, onnx=from_onnx)  # noqa: C408


def ids_of(to: str, out: Path) -> list[list[Any]]:
    """The users' and the items' ids, in the order of positions."""
    if to == "npz":
        with np.load(out, allow_pickle=False) as file:
            return [file[f"{side}_ids"].tolist() for side in ("user", "item")]
    if to == "parquet":
        return [pl.read_parquet(out / f"{side}s.parquet")[f"{side}_id"].to_list() for side in ("user", "item")]
    maps = {side: pl.read_parquet(out / f"{side}_ids.parquet") for side in ("user", "item")}
    assert all(ids["position"].to_list() == list(range(len(ids))) for ids in maps.values())
    return [ids[f"{side}_id"].to_list() for side, ids in maps.items()]


def about(to: str, out: Path) -> dict[str, Any]:
    if to != "npz":
        return dict(json.loads((out / ABOUT).read_text()))
    with np.load(out, allow_pickle=False) as file:
        return dict(json.loads(str(file["metadata"])))
