# %% [markdown]
# # First recommendations
#
# From a log of who used what to lists, the reasons for an item, and the list of someone new, in a few lines.
#
# Put the path of your own log in place of the simulated one: a CSV, TSV, Parquet or JSON lines file with a column of
# users and a column of items, or a Polars, pandas or Arrow frame.

# %%
import matplotlib.pyplot as plt

import concf

log = concf.Simulation(users=300, items=200, events=9000).draw(seed=0)  # or "ratings.csv"
model = concf.ConCF("strong", budget="fast", dimensions=32).fit(log)

# %% [markdown]
# The budget `fast` and 32 factors keep this example short; leave both out for a log of your own. Lists come as a frame
# of the library that the log came in, by the [consensus](../docs/glossary.md#consensus) of all voters:

# %%
alice, bob = model.user_ids.values[:2].tolist()
print(model.recommend([alice, bob], k=3))

# %% [markdown]
# ## How good are they?
#
# `fit` held out everyone's newest item to test on, and the one before to choose settings by; a larger log is split [by
# time](../docs/time.md#which-split-a-log-gets). The share of the test items that are found in a list of 20, for each
# [head](../docs/glossary.md#head) and the consensus:

# %%
tested = model.run.evaluate(at=20, metrics=["recall"])
recalls = {name: result.means()["recall@20"] for name, result in tested.items()}
chance = 20 / len(model.item_ids)

fig, ax = plt.subplots(figsize=(6.4, 2.4))
colours = ["#0072B2" if name == "consensus" else "#9bbfd8" for name in recalls]
bars = ax.barh(list(recalls), list(recalls.values()), color=colours)
ax.bar_label(bars, fmt="%.2f", padding=3)
ax.axvline(chance, color="#444444", linestyle=":")
ax.margins(x=0.1)
ax.invert_yaxis()
ax.set_xlabel("Recall@20 on the test part")
ax.set_title("Every head, and their consensus (dotted: a list by chance)")
plt.show()

# %% [markdown]
# ## Why this item?
#
# `explain` says which voters named an item, and how much each vote counted.

# %%
first = model.recommend(alice, k=1)["item_id"].item()
votes = {each["head"]: round(each["vote"], 2) for each in model.explain(alice, first)["heads"]}
print(f"Why item {first} for user {alice}? The votes: {votes}")

# %% [markdown]
# ## Someone new
#
# A user who was not in the log gets a list from a history, without training again.

# %%
print(model.recommend(history=[first], k=3))

# %% [markdown]
# Next: [is it better than what you have?](is_it_better.py), and [the guide](../docs/guide-practitioners.md) for a
# service from end to end.
