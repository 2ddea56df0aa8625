"""One head's vectors in a file, and lists from them with numpy alone: python examples/serve_vectors.py"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import concf
from concf.inference.export import export

log = concf.Simulation(users=300, items=200, events=9000).draw(seed=0)
model = concf.ConCF("strong", recipe={"budget": "fast"}, model={"dimensions": 32}).fit(log)

with TemporaryDirectory() as folder:
    export(model.run, None, "npz", Path(folder) / "vectors.npz")  # None: the head to ship, "student"
    file = dict(np.load(Path(folder) / "vectors.npz", allow_pickle=False))


def recommend(user: int, used: Any, k: int) -> Any:
    """The k best items of a user; `used` are not shown again. All that a server needs."""
    vector = file["user_vectors"][np.searchsorted(file["user_ids"], user)]
    scores = file["item_vectors"] @ vector
    scores[np.isin(file["item_ids"], used)] = -np.inf
    return file["item_ids"][np.argsort(-scores, kind="stable")[:k]]


used = log.filter(user_id=7)["item_id"].unique()
print("numpy:", recommend(7, used, 5))
print("concf:", model.recommend(7, k=5, by=model.run.best_head(), frame="arrays")[0])
