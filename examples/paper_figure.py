# %% [markdown]
# # Reproduce a figure of the paper
#
# Objectives hit different items (the paper's Figure 2), and right predictions are more consistent over time than wrong
# ones (its Figure 4): both, on a log that trains in seconds.
#
# `python -m reproduction per consistency` measures the same on the paper's data; the results are in
# [the paper, reproduced](../docs/paper.md#the-paper-reproduced).

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import concf
from concf.consensus.consensus import consistency, ranks_over_time
from concf.evaluation.complementarity import complementary_hit_ratio, hits_of, per_map
from concf.evaluation.metrics import hits
from concf.reference.train import train_reference
from concf.reference.trainer import Parts, Trainer

OBJECTIVES = {"bpr": "CF-A", "cml": "CF-B", "cross-entropy": "CF-C", "squared-error": "CF-D", "multinomial": "CF-E"}
EPOCHS, RANKINGS, DEPTH = 20, 6, 40
data = concf.prepare(concf.Simulation(users=400, items=250, events=12_000).draw(seed=0), protocol="random", seed=0)

# %% [markdown]
# ## Five models, side by side
#
# The five objectives of the paper with nothing shared and no consensus loss, so that each is trained alone. Every
# second epoch each of them ranks all items; the last six rankings are the window over which
# [consistency](../docs/glossary.md#consistency) is measured.

# %%
changes = {
    "objectives": list(OBJECTIVES),
    "model": {"sharing": "none", "dimensions": 16},
    "balance": {"on": False},
    "consensus": {"weight": 0, "every": 2, "window": RANKINGS, "top_k": DEPTH},
    "training": {"epochs": EPOCHS, "patience": None},
}
bins: dict[str, dict[str, list[float]]] = {}
users = torch.from_numpy(data.evaluated)


def mean(values: np.ndarray, cells: np.ndarray, begin: int) -> float:
    """Mean of the values [users, ranks] in ten ranks, over the cells of a kind."""
    ranks = slice(begin, begin + 10)
    return float(values[:, ranks][cells[:, ranks]].sum() / max(cells[:, ranks].sum(), 1))


def watch(epoch: int, trainer: Trainer, _: dict[str, Tensor]) -> None:
    """At the last ranking: the mean consistency of right and wrong predictions, by rank."""
    if epoch == EPOCHS - 2:
        for head, name in enumerate(trainer.names):
            window = [rankings[head].cpu()[users] for rankings in trainer.consensus.queue]
            top = window[-1][:, :DEPTH]
            values = consistency(ranks_over_time(top.long(), window, data.interactions.n_items), 10.0).numpy()
            listed = top.numpy()
            test, valid = (hits(listed, part[users.numpy()]) for part in (data.test, data.valid))
            kinds = {"correct": test, "incorrect": (listed >= 0) & ~test & ~valid}
            bins[name] = {kind: [mean(values, cells, k) for k in range(0, DEPTH, 10)] for kind, cells in kinds.items()}


run = train_reference(data, concf.ReferenceSettings().changed(changes), parts=Parts(watch_rankings=watch))

# %% [markdown]
# ## What one objective hits and another misses
#
# PER (Eq. 6) is the share of the row's hits that the column misses, in lists of 20 items.

# %%
evaluations = {name: concf.evaluate(run.recommender(name), data, at=20) for name in OBJECTIVES}
found = {name: hits_of(evaluation, data, n=20) for name, evaluation in evaluations.items()}
per = per_map(found)
shown = np.array([[per[x][y] for y in OBJECTIVES] for x in OBJECTIVES])

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), width_ratios=[1, 1.15])
recalls = [evaluations[name].means()["recall@20"] for name in OBJECTIVES]
drawn = left.barh(list(OBJECTIVES), recalls, color="#9bbfd8")
left.bar_label(drawn, fmt="%.2f", padding=3)
left.margins(x=0.15)
left.invert_yaxis()
left.set_title("Recall@20 of each objective alone")
right.imshow(np.where(np.eye(5), np.nan, shown), cmap="Blues", vmin=0, vmax=0.8)
for row, column in np.ndindex(shown.shape):
    if row != column:
        value = shown[row, column]
        right.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.5 else "black")
letters = list(OBJECTIVES.values())
right.set(xticks=range(5), xticklabels=letters, yticks=range(5), yticklabels=letters)
right.set(xlabel="missed by", ylabel="hit by")
right.grid(False)
right.set_title("PER: hits that the other misses")
plt.show()

missed = {OBJECTIVES[name]: round(complementary_hit_ratio(each, found.values()), 2) for name, each in found.items()}
print(f"Of all that any of the five hits, each misses (CHR, Eq. 7): {missed}")

# %% [markdown]
# ## Right predictions keep their rank
#
# Consistency (Eq. 11) is near 1 for an item that keeps its rank from one ranking to the next, and near 0 for one that
# jumps about. The mean over the five models, in bins of ten ranks:

# %%
fig, ax = plt.subplots(figsize=(6.4, 2.8))
for kind, colour, shift in (("correct", "#0072B2", -0.2), ("incorrect", "#bbbbbb", 0.2)):
    means = [np.mean([bins[name][kind][k] for name in OBJECTIVES]) for k in range(4)]
    ax.bar_label(ax.bar(np.arange(4) + shift, means, 0.4, color=colour, label=kind), fmt="%.2f", fontsize=8)
ax.set_xticks(range(4), [f"{10 * k + 1} to {10 * k + 10}" for k in range(4)])
ax.set_xlabel("rank")
ax.set_ylabel("consistency")
ax.set_title("Test items and others, by rank")
ax.legend()
ax.grid(False, axis="x")
plt.show()

# %% [markdown]
# That right predictions are more consistent does not yet mean that consistency improves a vote: on real logs, most of
# what it adds comes from counting the heads that list an item
# ([the paper](../docs/paper.md#what-consistency-adds)).
