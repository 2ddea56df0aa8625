# %% [markdown]
# # Daily update
#
# A log grows every day. `update` brings a trained model up to date with what came since, without a new search and in a
# fraction of the time of training anew.
#
# The log here drifts: tastes change, items go out of fashion, new users and items come. The models are trained on its
# first half; then a twentieth of it comes each day, and every model predicts what is chosen next.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import concf

FIRST, DAY = 9000, 900
log = concf.DriftingSimulation(users=400, items=300, events=18_000).draw(seed=0)
days = [log[start : start + DAY] for start in range(FIRST, FIRST + 3 * DAY, DAY)]


def fitted(frame: pl.DataFrame) -> concf.ConCF:
    """A model that learns from everything it is given, as in production."""
    return concf.ConCF("strong", budget="fast", dimensions=16).fit(frame, final=True)


def found(model: concf.ConCF, coming: pl.DataFrame) -> float:
    """The mean share of what known users choose next, and have not used before, that is in their lists of 20."""
    lists = model.recommend(k=20).group_by("user_id").agg(shown="item_id")
    before = pl.DataFrame({"user_id": model.user_ids.values[model.viewed.nonzero()[0]],
                           "item_id": model.item_ids.values[model.viewed.nonzero()[1]]})  # fmt: skip
    chosen = coming.select("user_id", "item_id").unique().join(before, on=["user_id", "item_id"], how="anti")
    users = chosen.group_by("user_id").agg("item_id").join(lists, on="user_id")
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in users.select("item_id", "shown").iter_rows()]))


# %% [markdown]
# Three ways to go on: leave the model as it is, update it every day, or train it anew every day.

# %%
stale, updated = fitted(log[:FIRST]), fitted(log[:FIRST])
anew = stale
recalls: dict[str, list[float]] = {"left as it was": [], "updated": [], "trained anew": []}
seconds = {"updated": 0.0, "trained anew": 0.0}
for day, coming in enumerate(days):
    for name, model in zip(recalls, (stale, updated, anew), strict=True):
        recalls[name].append(found(model, coming))
    if day < len(days) - 1:
        begin = time.process_time()
        updated.update(coming)
        seconds["updated"] += time.process_time() - begin
        begin = time.process_time()
        anew = fitted(log[: FIRST + DAY * (day + 1)])
        seconds["trained anew"] += time.process_time() - begin

# %% [markdown]
# ## What it brings, and what it costs

# %%
colours = {"left as it was": "#888888", "updated": "#0072B2", "trained anew": "#E69F00"}
marks = {"left as it was": "s", "updated": "o", "trained anew": "D"}
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9), width_ratios=[1.7, 1])
for name, values in recalls.items():
    left.plot(range(1, len(days) + 1), values, color=colours[name], marker=marks[name], label=name)
left.set_xticks(range(1, len(days) + 1))
left.set_xlabel("day")
left.set_ylabel("recall@20 of what comes next")
left.set_title("Known users, items new to them")
left.legend()
bars = right.bar(list(seconds), list(seconds.values()), color=[colours[name] for name in seconds])
right.bar_label(bars, fmt="%.1f")
right.set_title("Processor seconds, all days")
right.grid(False, axis="x")
plt.show()

print(
    f"{len(updated.user_ids) - len(stale.user_ids)} users and {len(updated.item_ids) - len(stale.item_ids)} items came"
)

# %% [markdown]
# On the command line it is `concf update runs/monday tuesday.csv --out runs/tuesday`. What is carried over, how items
# that are out of fashion are forgotten, and what it brings on real logs:
# [updating](../docs/new-data.md#updating-a-run).
