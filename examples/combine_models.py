# %% [markdown]
# # A consensus of your own models
#
# Different models find different items. Here three of yours vote together with concf's own voters: ALS and BPR of
# `implicit`, and EASE^R. A re-ranker learns on the validation part which to trust, and one head learns the result.
#
# What can vote, and what must be fitted on what: [combining models](../docs/combine.md).

# %%
import matplotlib.pyplot as plt
import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.bpr import BayesianPersonalizedRanking
from scipy.sparse import csr_matrix

import concf

log = concf.Simulation(users=400, items=300, events=14_000).draw(seed=0)
data = concf.prepare(log, protocol="random")
print(f"{data.train.shape[0]:,} users, {data.train.shape[1]:,} items, {data.train.nnz:,} pairs to learn from")

# %% [markdown]
# ## The voters
#
# They are fitted on the training part and on nothing else: the re-ranker learns from the validation part, and a voter
# that has seen it would look better there than it is.

# %%
als = AlternatingLeastSquares(factors=32, random_state=0)
bpr = BayesianPersonalizedRanking(factors=32, random_state=0)
for model in (als, bpr):
    model.fit(csr_matrix(data.train), show_progress=False)
ease = concf.BASELINES["ease"].make().fit(data.train)

settings = {"own": True, "budget": "fast", "dimensions": 32}  # own: concf's voters vote, too
run = concf.combine(data, {"als": als, "bpr": bpr, "ease": ease}, settings=settings)

# %% [markdown]
# ## They list different items
#
# The share of the first 20 items of a list that another list has too. Where models agree on everything, there is
# nothing to combine.

# %%
everyone = ["als", "bpr", "als-a", "student", "consensus"]
lists = {name: concf.rank(run.recommender(name), data.evaluated, 20, seen=data.seen("test")) for name in everyone}
shared = np.array(
    [
        [np.mean([len(set(a) & set(b)) / 20 for a, b in zip(lists[x], lists[y], strict=True)]) for y in everyone]
        for x in everyone
    ]
)
fig, ax = plt.subplots(figsize=(4.8, 3.8))
ax.imshow(shared, cmap="Blues", vmin=0, vmax=1)
for row, column in np.ndindex(shared.shape):
    share = shared[row, column]
    ax.text(column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.6 else "black")
ax.set_xticks(range(len(everyone)), everyone, rotation=45, ha="right", rotation_mode="anchor")
ax.set_yticks(range(len(everyone)), everyone)
ax.grid(False)
ax.set_title("Shared items of two lists of 20")
plt.show()

# %% [markdown]
# ## Better than each, and than plain fusions
#
# Validation metrics; each user is re-ranked with weights that were fitted to other users
# ([cross-fitting](../docs/glossary.md#cross-fitting)). The fusions have the same voters.

# %%
measured = next(record for record in run.history if "fusions" in record)
figures = {name: each for record in run.history for name, each in record.get("validation", {}).items()}
bars = figures | {f"{name} (fusion)": each for name, each in measured["fusions"].items() if name != "consensus"}
bars = dict(sorted(bars.items(), key=lambda bar: bar[1]))
colour = {"consensus": "#0072B2", "student": "#56B4E9"}
fig, ax = plt.subplots(figsize=(6.4, 3.8))
drawn = ax.barh(list(bars), list(bars.values()), color=[colour.get(name, "#cccccc") for name in bars])
ax.bar_label(drawn, fmt="%.3f", padding=3)
ax.margins(x=0.12)
ax.set_xlabel(f"validation {run.metric}")
ax.set_title("The consensus and its student beside the voters")
plt.show()

# %% [markdown]
# On the test part, which nothing above has used:

# %%
for name, result in run.evaluate(at=20, metrics=["recall"]).items():
    print(f"{name}: recall@20 {result.means()['recall@20']:.3f}")

# %% [markdown]
# ## Why an item is there, and what to ship
#
# `explain` names your voters, and the rank at which each of them has the item. The student is vectors, as any factor
# model is: an index, a database or [a few lines of NumPy](serve_vectors.py) serve it.

# %%
recommender = concf.Recommender(run, frame="arrays")
user = recommender.user_ids.values[:1].tolist()[0]
item = recommender.recommend(user, k=1)[0].tolist()[0]
votes = {each["head"]: each["rank"] for each in recommender.explain(user, item)["heads"]}
print(f"Item {item} is first for user {user}. Its rank by each voter: {votes}")
print(f"The student's list: {recommender.recommend(user, k=5, by='student')[0].tolist()}")
