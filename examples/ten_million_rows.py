# %% [markdown]
# # Scale to ten million rows
#
# What changes with a large log: many files, a data set on disk, an estimate of memory before training, a fast budget,
# and lists that are written in blocks.
#
# `ROWS` is small here, so that the example runs in seconds on two cores. Set it to `10_000_000` for the full size: the
# code is the same. What 10 and 100 million rows took is measured in [scale](../docs/scale.md).

# %%
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pyarrow.parquet as pq

import concf
from concf.strong.train import large_tables

ROWS = 40_000
FULL = 10_000_000
FILES = 4
folder = TemporaryDirectory()
home = Path(folder.name)
spent: dict[str, float] = {}

# %% [markdown]
# ## A log of many files
#
# Simulated here; yours may be a folder of Parquet or CSV files, gzipped or not.

# %%
size = concf.Simulation(users=ROWS // 40, items=ROWS // 80, events=ROWS // FILES)
for part in range(FILES):
    size.draw(seed=part).write_parquet(home / f"log-{part}.parquet")
print(f"{ROWS:,} rows in {FILES} files, {sum(f.stat().st_size for f in home.glob('*.parquet')) / 1e6:.1f} MB")

# %% [markdown]
# ## Prepare: streamed, and kept on disk
#
# The files are read batch by batch; in memory are 8 bytes for each row, and 8 more for its time. The data set that is
# written is mapped into memory when it is used. On the command line: `concf prepare 'logs/*.parquet' --out data/mine
# --protocol random`.

# %%
begin = time.process_time()
concf.prepare(str(home / "log-*.parquet"), protocol="random", out=home / "data")
data = concf.Split.load(home / "data")
spent["prepare"] = time.process_time() - begin
print(f"{data.train.shape[0]:,} users, {data.train.shape[1]:,} items, {data.train.nnz:,} pairs to learn from")

# %% [markdown]
# ## Memory, estimated first
#
# Before it allocates anything, training adds up its largest tables, and refuses a run that cannot fit into free memory.
# You can ask for the same tables. If users and items grow as the rows do, the tables grow in proportion, which gives
# their full size, too:

# %%
needs = {}
for budget, factors in (("default", 256), ("fast", 64)):
    chosen = concf.StrongSettings().changed({"budget": budget, "dimensions": factors})
    needs[f"{budget}, {factors} factors"] = sum(size for size, _ in large_tables(data, chosen).values()) * FULL / ROWS
for name, need in needs.items():
    print(f"{FULL:,} rows with budget {name}: at least {need / 1e9:.1f} GB")

# %% [markdown]
# ## Train, fast
#
# `--budget fast` searches less, and its vectors have half the dimensions ([budgets](../docs/training.md#budgets)).

# %%
settings = concf.choose_settings("strong", {"budget": "fast", "dimensions": 32})
begin = time.process_time()
run = concf.train(data, settings, out=home / "run")
spent["train"] = time.process_time() - begin

# %% [markdown]
# ## Lists for everyone, in blocks
#
# `stream` gives Arrow tables of some thousand users each; `concf recommend RUN --engine processes --out recs/` does the
# same with several workers.

# %%
begin, rows = time.process_time(), 0
model = concf.Recommender.load(home / "run", home / "data")
for part, table in enumerate(model.stream(k=10)):
    pq.write_table(table, home / f"lists-{part}.parquet")
    rows += len(table)
spent["recommend"] = time.process_time() - begin
print(f"{rows:,} rows of lists for {len(model.user_ids):,} users")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
drawn = left.barh(list(spent), list(spent.values()), color="#0072B2")
left.bar_label(drawn, fmt="%.1f", padding=3)
left.margins(x=0.15)
left.invert_yaxis()
left.set_title(f"Processor seconds, {ROWS:,} rows")
names = [name.replace(", ", "\n") for name in needs]
drawn = right.barh(names, [need / 1e9 for need in needs.values()], color=["#E69F00", "#0072B2"])
right.bar_label(drawn, fmt="%.1f", padding=3)
right.margins(x=0.15)
right.invert_yaxis()
right.set_title(f"Least memory, GB, {FULL:,} rows")
plt.show()
folder.cleanup()

# %% [markdown]
# Training compares this with the free memory by itself. With several GPUs or machines, see [several
# processes](../docs/scale.md#several-processes).
