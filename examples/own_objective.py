# %% [markdown]
# # A new objective in 30 lines
#
# A loss of your own becomes a head like any other: it votes, is distilled, validated, exported and served. Here it is
# trained alone, and together with two others.
#
# The objective is one function of scores, and one row of the table `OBJECTIVES` says which kind of head it trains.
# Nothing in the library changes.

# %%
import matplotlib.pyplot as plt
import torch

import concf
from concf.reference.heads import DotHead


def smooth_hinge(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """sum [1 - s_ui + s_uj]_+^2: the further a pair is in the wrong order, the more it costs. Scores: [B]."""
    return torch.relu(1 - positive + negative).square().sum()


concf.OBJECTIVES["smooth-hinge"] = concf.Objective(smooth_hinge, lambda size, *_: DotHead(size))

# %% [markdown]
# ## Alone and together
#
# The preset `reference` is the paper's model, here with two of its objectives and yours, for a few epochs.

# %%
changes = {
    "objectives": ["bpr", "multinomial", "smooth-hinge"],
    "training": {"epochs": 15},
    "consensus": {"every": 3, "window": 2},
}
settings = concf.ReferenceSettings().changed(changes)
data = concf.prepare(concf.Simulation(users=300, items=200, events=9000).draw(seed=0), protocol="random", seed=0)

alone = concf.train(data, settings.single("smooth-hinge"))
together = concf.train(data, settings)
recalls = {}
for scheme, run in (("alone", alone), ("together", together)):
    for name, result in run.evaluate(at=[20], metrics=["recall"]).items():
        recalls[scheme, name] = result.means()["recall@20"]
        print(f"{scheme:>8}: test recall@20 of {name:<13} {recalls[scheme, name]:.4f}")

# %% [markdown]
# ## What it does in training
#
# Validation of every head and of their consensus at each ranking:

# %%
colours = {"bpr": "#E69F00", "multinomial": "#009E73", "smooth-hinge": "#0072B2", "consensus": "#222222"}
styles = {"bpr": ":", "multinomial": "--", "smooth-hinge": "-", "consensus": "-."}
history = [record for record in together.history if "validation" in record]
fig, ax = plt.subplots(figsize=(6.4, 2.8))
for name, colour in colours.items():
    points = [(each["epoch"], each["validation"][name]) for each in history if name in each["validation"]]
    ax.plot(*zip(*points, strict=True), color=colour, linestyle=styles[name], marker="o", markersize=3.5, label=name)
ax.set_xlabel("epoch")
ax.set_ylabel(f"validation {together.metric}")
ax.set_title("Your objective beside two of the paper's")
ax.legend()
plt.show()

# %% [markdown]
# The loss is tested as every loss of concf is, against a slow and literal version of its formula
# ([adding an objective](../docs/architecture.md#adding-an-objective)); the same page says how to name it
# on the command line.
