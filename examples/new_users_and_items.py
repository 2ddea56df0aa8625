# %% [markdown]
# # New users and new items
#
# Someone who came today has a history of a few clicks, and an item that came today has attributes and no clicks at all.
# Both are recommended without training again.
#
# The log is a small shop: everyone has a favourite kind of goods, and buys some of the others.

# %%
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import concf

KINDS = ["wine", "jazz", "boots", "novels"]
rng = np.random.default_rng(1)
user = np.repeat(np.arange(400), rng.integers(3, 28, 400))
own = (40 * rng.random(len(user)) ** 2).astype(int) * 4 + user % 4
item = np.where(rng.random(len(user)) < 0.8, own, rng.integers(0, 160, len(user)))
log = pl.DataFrame({"user_id": user, "item_id": item})
catalogue = pl.DataFrame({"item_id": range(168), "kind": [KINDS[n % 4] for n in range(168)]})  # 160 to 167 are new

model = concf.ConCF("strong", budget="fast", dimensions=16).fit(log)

# %% [markdown]
# ## A new user
#
# Someone clicks three novels, then three jazz records, and the list follows. A history becomes a vector of each head
# ([fold-in](../docs/glossary.md#fold-in)), the voters rank, and the re-ranker orders as it does for everyone.


# %%
def kinds_of(items: pl.Series) -> list[float]:
    """The share of each kind in a list."""
    return [(items % 4 == kind).mean() for kind in range(4)]  # type: ignore[misc]


clicks = [3, 7, 11, 1, 5, 9]  # three novels, then three jazz records
shares = np.array([kinds_of(model.recommend(history=clicks[:n], k=20)["item_id"]) for n in range(len(clicks) + 1)])

fig, ax = plt.subplots(figsize=(7.4, 2.8))
for kind, colour in enumerate(("#009E73", "#E69F00", "#999999", "#0072B2")):
    ax.bar(range(len(shares)), shares[:, kind], bottom=shares[:, :kind].sum(axis=1), color=colour, label=KINDS[kind])
ax.set_xticks(range(len(shares)), ["nothing", *(f"{n}. {KINDS[click % 4]}" for n, click in enumerate(clicks, 1))])
ax.set_xlabel("clicked last by the new user")
ax.set_ylabel("share of a list of 20")
ax.set_title("What a new user is recommended")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
plt.show()

# %% [markdown]
# Without any click the list is that of the average user. How good such lists are on real logs is measured in [new
# users](../docs/new-data.md#new-users).
#
# ## New items
#
# A linear map from attributes to item vectors is fitted to the items that have both, and gives vectors to those that
# have only attributes ([new items](../docs/new-data.md#new-items)).

# %%
model.add_items(catalogue)
new = list(range(160, 168))
for reader, taste in ((3, "novels"), (1, "jazz")):
    print(f"User {reader}, who likes {taste}, is shown first of the new items:")
    print(model.recommend(reader, k=2, items=new).join(catalogue, on="item_id").select("item_id", "kind", "rank"))

# %%
scores = np.zeros((4, 4))
for kind in range(4):
    fans = list(range(kind, 400, 4))
    shown = model.recommend(fans, k=2, items=new)["item_id"]
    scores[kind] = kinds_of(shown)
fig, ax = plt.subplots(figsize=(4.2, 3.2))
ax.imshow(scores, cmap="Blues", vmin=0, vmax=1)
for row, column in np.ndindex(scores.shape):
    share = scores[row, column]
    ax.text(column, row, f"{share:.0%}", ha="center", va="center", color="white" if share > 0.5 else "black")
ax.set_xticks(range(4), KINDS)
ax.set_yticks(range(4), [f"likes {kind}" for kind in KINDS])
ax.set_xlabel("kind of the two new items shown")
ax.grid(False)
ax.set_title("New items reach those who like their kind")
plt.show()
