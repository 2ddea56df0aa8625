# %% [markdown]
# # Serve one head with NumPy alone
#
# The head that concf ships is one vector for each user and one for each item. Export them, and an inner product serves
# the lists: no library is needed where they are served.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import concf
from concf.inference.export import export

log = concf.Simulation(users=300, items=200, events=9000).draw(seed=0)
model = concf.ConCF("strong", budget="fast", dimensions=32).fit(log)

with TemporaryDirectory() as folder:
    export(model.run, None, "npz", Path(folder) / "vectors.npz")  # None: the head to ship, "student"
    file = dict(np.load(Path(folder) / "vectors.npz", allow_pickle=False))
print({name: array.shape for name, array in file.items() if "vectors" in name})

# %% [markdown]
# ## All that a server needs


# %%
def recommend(user: int, used: Any, k: int) -> Any:
    """The k best items of a user; `used` are not shown again."""
    vector = file["user_vectors"][np.searchsorted(file["user_ids"], user)]
    scores = file["item_vectors"] @ vector
    scores[np.isin(file["item_ids"], used)] = -np.inf
    return file["item_ids"][np.argsort(-scores, kind="stable")[:k]]


used = log.filter(user_id=7)["item_id"].unique()
print("numpy:", recommend(7, used, 5))
print("concf:", model.recommend(7, k=5, by=model.run.best_head(), frame="arrays")[0])

# %% [markdown]
# ## What the vectors know
#
# Items that the same people use point the same way. The cosines of the forty most popular items, in the order of their
# angle in the plane of the first two principal components:

# %%
popular = np.argsort(-np.asarray(model.run.log.sum(axis=0)).ravel())[:40]
vectors = file["item_vectors"][popular] / np.linalg.norm(file["item_vectors"][popular], axis=1, keepdims=True)
_, _, directions = np.linalg.svd(vectors - vectors.mean(axis=0))
angle = np.arctan2(vectors @ directions[1], vectors @ directions[0])
ordered = vectors[np.argsort(angle)]
fig, ax = plt.subplots(figsize=(4.6, 3.6))
image = ax.imshow(ordered @ ordered.T, cmap="PuOr_r", vmin=-1, vmax=1)
fig.colorbar(image, label="cosine")
ax.set(xticks=[], yticks=[], xlabel="item", ylabel="item", title="Items that are used together")
ax.grid(False)
plt.show()

# %% [markdown]
# The same file goes into FAISS, usearch or a vector database: [export](../docs/export.md).
