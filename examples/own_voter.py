# %% [markdown]
# # A voter of your own
#
# A model of your own becomes one class and one row of the table of baselines. Then it is tuned and compared as the
# baselines are, and votes in the default model.
#
# The class has settings, `fit` and `fold_in`; the row says which values of the settings are searched. Nothing in the
# library changes.

# %%
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.sparse import csr_array, diags_array

import concf
from concf.baselines.table import Vote

# %% [markdown]
# ## One class
#
# Here a graph filter in the manner of Turbo-CF (Park et al., SIGIR 2024): two items are near each other if the same
# users have both, users with long histories and popular items counting for less, and a user's scores are the sum over
# the user's items.


# %%
@dataclass(frozen=True)
class Filtered:
    """score(u, i) = sum_j x_uj graph_ji. history: [users, items] x; graph: [items, items]"""

    history: csr_array
    graph: NDArray[np.float32]

    def scores(self, users: torch.Tensor) -> torch.Tensor:
        """[b] -> [b, items]."""
        return torch.from_numpy(self.history[users.cpu().numpy()] @ self.graph)


class GraphFilter(BaseModel):
    """graph = (R' R)^power, element by element, with R_ui = x_ui / (|I_u|^alpha |U_i|^(1 - alpha))."""

    alpha: float = 0.5
    power: float = 0.7

    def fit(self, train: csr_array, seed: int = 0, device: Any = "cpu", group: Any = None) -> Filtered:  # noqa: ARG002
        """Fit to a log [users, items]. group: of several processes, each fits the whole log"""
        per_user, per_item = (np.maximum(train.sum(axis=axis), 1.0) for axis in (1, 0))
        scaled = diags_array(per_user**-self.alpha) @ train @ diags_array(per_item ** (self.alpha - 1))
        return Filtered(train, ((scaled.T @ scaled).toarray() ** self.power).astype(np.float32))

    def fold_in(self, fitted: Filtered, histories: csr_array) -> Filtered:
        """Score the histories [n, items] of new users."""
        return Filtered(histories, fitted.graph)


# %% [markdown]
# ## One row
#
# `grid` is searched when the model is compared, and the grid of `Vote` when it votes, both on the validation part. It
# votes in the budget `thorough`; with `Vote(..., budget="fast")` it would vote in all.

# %%
GRID = {"alpha": (0.3, 0.5, 0.7), "power": (0.5, 0.7, 1.0)}
concf.BASELINES["graph-filter"] = concf.Candidate(GraphFilter, GRID, vote=Vote(GRID, budget="thorough"))

# %% [markdown]
# ## Compared
#
# The settings of every model are chosen on the validation part, and the chosen ones are fitted again before the test.

# %%
data = concf.prepare("demo", protocol="random")
compared = concf.compare(data, ["popularity", "ease", "graph-filter"], seeds=1, metrics=["recall@20", "ndcg@20"])
for entrant in compared.entrants:
    print(f"{entrant.name:<13} test recall@20 {entrant.tests[0]['recall@20']:.4f}  {entrant.settings}")

# %% [markdown]
# ## Voting
#
# Each voter's list is measured on the validation part. The re-ranker learns how much to trust it, and the student
# learns the consensus of all. Few dimensions and validated users, so that it is over in seconds:

# %%
run = concf.train(data, {"budget": "thorough", "dimensions": 16, "training": {"validated_users": 300}})
print("chosen for the vote:", run.chosen["graph-filter"])
measured = {name: each for record in run.history for name, each in record.get("validation", {}).items()}
bars = dict(sorted(measured.items(), key=lambda bar: bar[1]))
colours = {"graph-filter": "#D55E00", "consensus": "#0072B2", "student": "#56B4E9"}
fig, ax = plt.subplots(figsize=(6.4, 3.2))
drawn = ax.barh(list(bars), list(bars.values()), color=[colours.get(name, "#cccccc") for name in bars])
ax.bar_label(drawn, fmt="%.3f", padding=3)
ax.margins(x=0.12)
ax.set_xlabel(f"validation {run.metric}")
ax.set_title("Your voter beside the others, and their consensus")
plt.show()

# %% [markdown]
# `explain` names it, and it votes for new users by its `fold_in`:

# %%
recommender = concf.Recommender(run, frame="arrays")
user = recommender.user_ids.values[:1].tolist()[0]
item = recommender.recommend(user, k=1)[0].tolist()[0]
ranks = {each["head"]: each["rank"] for each in recommender.explain(user, item)["heads"]}
print(f"Item {item} is first for user {user}. Its rank by each voter: {ranks}")
