# %% [markdown]
# # Explain a list
#
# Why is an item in someone's list? Which voters ranked it high, what lifted it, and which of the user's items are like
# it.
#
# All of this is kept with a [run](../docs/glossary.md#run): you can ask for it later, also over HTTP and in [the
# explorer](../docs/serving.md#the-explorer).

# %%
import matplotlib.pyplot as plt
import numpy as np

import concf

log = concf.Simulation(users=500, items=300, events=15_000).draw(seed=0)
model = concf.ConCF("strong", budget="fast", dimensions=32, seed=0).fit(log)
user, k = model.user_ids.values.tolist()[7], 8
items = model.recommend(user, k=k)["item_id"].to_list()
reasons = {item: model.explain(user, item) for item in items}

# %% [markdown]
# ## Which voters ranked it high?
#
# Each [voter](../docs/glossary.md#voter) ranks all items by itself. An item that several have near the top comes first
# in the consensus, even if no voter has it first.

# %%
voters = [vote["head"] for vote in reasons[items[0]]["heads"]]
ranks = np.array([[vote["rank"] or 100 for vote in reasons[item]["heads"]] for item in items])
fig, ax = plt.subplots(figsize=(4.6, 3.4))
ax.imshow(-np.log(ranks), cmap="Blues", vmin=-np.log(100), vmax=0, aspect="auto")
for row, column in np.ndindex(ranks.shape):
    rank = ranks[row, column]
    ax.text(column, row, str(rank), ha="center", va="center", color="white" if rank < 8 else "black")
ax.set_xticks(range(len(voters)), voters)
ax.set_yticks(range(k), [f"{place}. item {item}" for place, item in enumerate(items, 1)])
ax.grid(False)
ax.set_title(f"Rank by each voter, user {user}")
plt.show()

# %% [markdown]
# ## What lifted it?
#
# The [re-ranker](../docs/glossary.md#re-ranker) then reorders what the voters agree on. Its score is a sum, so it can
# be taken apart: ranks, scores, similarity to the history, and popularity; where the run uses times, also trend and
# similarity to the newest items. Bars show by how much each lifts an item above the mean of the user's candidates; they
# add up to its score, less a constant of the user. `aspects` has their sums as taste, order, trend and popularity.

# %%
kinds = {"rank": "#0072B2", "score": "#56B4E9", "similarity": "#E69F00", "popularity": "#999999"}
kinds |= {"trend": "#D55E00", "newest": "#009E73"}
fig, ax = plt.subplots(figsize=(6.8, 3.2))
for row, item in enumerate(items):
    total = dict.fromkeys(kinds, 0.0)
    for term in reasons[item]["contributions"] or []:
        total[term["kind"]] += term["value"]
    ends = {True: 0.0, False: 0.0}  # of what lifts, to the right, and of what lowers, to the left
    for kind, value in total.items():
        ax.barh(row, value, left=ends[value > 0], color=kinds[kind], label=kind if row == 0 else None)
        ends[value > 0] += value
ax.axvline(0, color="#444444", linewidth=0.8)
ax.set_yticks(range(k), [f"item {item}" for item in items])
ax.invert_yaxis()
ax.set_title("What lifts each item above the mean candidate")
ax.set_xlabel("contribution to the re-ranker's score")
fig.legend(ncols=6, loc="outside lower center")
plt.show()

# %% [markdown]
# ## Because you used ...
#
# The items of the history that are most similar to the recommended one, with their shares of the similarity:

# %%
for item in items[:4]:
    because = ", ".join(f"item {each['item']} ({each['share']:.0%})" for each in reasons[item]["because"])
    print(f"item {item}: because of {because}")
