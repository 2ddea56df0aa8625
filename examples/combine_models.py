"""Models of other libraries and concf's own agree on one head: python examples/combine_models.py

A small log is simulated; its training part is what the models are fitted on.
"""

from implicit.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix

import concf

log = concf.Simulation(users=300, items=200, events=9000).draw(seed=0)
data = concf.prepare(log, protocol="random")
als = AlternatingLeastSquares(factors=16, random_state=0)
als.fit(csr_matrix(data.train), show_progress=False)
voters = {"als": als} | {name: concf.BASELINES[name].make().fit(data.train) for name in ("ease", "popularity")}

run = concf.combine(data, voters, with_own=True, settings={"model": {"dimensions": 32}})
for name, each in run.evaluate(at=20, metrics=["recall"]).items():
    print(f"{name}: recall@20 {each.means()['recall@20']:.3f}")

model = concf.Recommender(run, frame="arrays")
user = model.user_ids.values[:1].tolist()[0]
item = model.recommend(user, k=1)[0].tolist()[0]
votes = {each["head"]: each["rank"] for each in model.explain(user, item)["heads"]}
print(f"Item {item} is first for user {user}. Its rank by each voter: {votes}")
