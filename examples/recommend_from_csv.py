"""From a CSV of who used what to recommendations: python examples/recommend_from_csv.py [LOG.csv]

Without a file a small log is simulated, which trains in some seconds.
"""

import sys
from pathlib import Path

import concf

if len(sys.argv) > 1:
    model = concf.ConCF("strong").fit(Path(sys.argv[1]))
else:
    log = concf.Simulation(users=300, items=200, events=9000).draw(seed=0)
    model = concf.ConCF("strong", recipe={"budget": "fast"}, model={"dimensions": 32}).fit(log)

alice, bob = model.user_ids.values[:2].tolist()
print(f"For users {alice} and {bob}, by the consensus of all voters:")
print(model.recommend([alice, bob], k=3))

first = model.recommend(alice, k=1)["item_id"].item()
votes = {each["head"]: round(each["vote"], 2) for each in model.explain(alice, first)["heads"]}
print(f"Why item {first} for user {alice}? The votes: {votes}")

print(f"Someone new, who has used item {first} alone:")
print(model.recommend(history=[first], k=3))
