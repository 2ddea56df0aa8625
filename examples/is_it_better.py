# %% [markdown]
# # Is it better than what you have?
#
# Your own recommender, a few known ones and concf, on the same held-out items: with intervals, a paired test, and who
# gains.
#
# What you have may be any model. It only has to give vectors, scores or lists
# ([what `evaluate` takes](../docs/data.md#evaluation)). Here it is a nightly job that counts which items are used
# together.

# %%
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

import concf
from concf.evaluation.significance import paired_t

data = concf.prepare(concf.Simulation(users=600, items=400, events=18_000).draw(seed=0), protocol="random")
print(f"{data.train.nnz:,} pairs to learn from, {data.test.nnz:,} to test on, {len(data.evaluated):,} users")

# %% [markdown]
# ## The rivals
#
# Everyone learns from the training and the validation part together, as one would in production: concf does so by
# itself (`run.log` is what it was refitted on), and the others are fitted on the same pairs.

# %%
settings = concf.choose_settings("strong", {"budget": "fast", "dimensions": 32})
run = concf.train(data, settings)
known = run.log
together = (known.T @ known).toarray().astype(np.float64)
np.fill_diagonal(together, 0)


def nightly_job(users: NDArray[np.int64]) -> NDArray[np.float64]:
    """[users, items] how often each item was used together with those of each user: what you have."""
    return np.asarray(known[users] @ together)


rivals = {
    "popularity": concf.BASELINES["popularity"].make().fit(known),
    "what you have": nightly_job,
    "EASE^R": concf.BASELINES["ease"].make(regularisation=100).fit(known),
    "concf, one head": run.recommender(run.best_head()),
    "concf, consensus": run.recommender("consensus"),
}
results = {name: concf.evaluate(model, data, at=20) for name, model in rivals.items()}

# %% [markdown]
# ## With intervals
#
# A mean over users is an estimate. Its 95 % interval says how much it would vary over other draws of users.

# %%
blue, orange, grey = "#0072B2", "#D55E00", "#888888"
colours = [blue if "concf" in name else orange if "you" in name else grey for name in results]
fig, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for ax, metric in zip(axes, ("recall@20", "ndcg@20"), strict=True):
    for row, (result, colour) in enumerate(zip(results.values(), colours, strict=True)):
        low, high = result.interval(metric)
        ax.plot([low, high], [row, row], color=colour, linewidth=2)
        ax.plot(result.means()[metric], row, "o", color=colour)
    ax.set_title(metric)
    ax.set_yticks(range(len(results)), list(results))
    ax.margins(y=0.12)
plt.show()

# %% [markdown]
# ## Paired, user by user
#
# Intervals of two models may overlap although one of them is better for most users. Both are tested on the same users,
# so test the differences.

# %%
before = results["what you have"].per_user["recall@20"]
for name, result in results.items():
    recall = result.per_user["recall@20"]
    if recall is not before:
        change = recall.mean() / before.mean() - 1
        print(f"{name:17} against what you have: {change:+7.1%} recall@20, p = {paired_t(recall, before):.1g}")

# %% [markdown]
# ## Who gains?
#
# The same for four equal groups of users, by their activity.

# %%
fig, ax = plt.subplots(figsize=(6.4, 2.8))
marks = {"what you have": (orange, "s"), "EASE^R": (grey, "D"), "concf, consensus": (blue, "o")}
for name, (colour, mark) in marks.items():
    groups = results[name].by_activity(4)
    ax.plot([group["recall@20"] for group in groups], color=colour, marker=mark, label=name)
ax.set_xticks(range(4), ["most active\nquarter", "second", "third", "least active\nquarter"])
ax.set_ylabel("recall@20")
ax.set_title("Recall by activity")
ax.legend()
plt.show()

# %% [markdown]
# One split is enough to look; for a decision, `concf compare` tunes every rival on validation and repeats all of it on
# several splits ([baselines](../docs/strong.md#compare-on-your-own-log)).
