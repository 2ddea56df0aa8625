"""Measure SASRec of RecTools on global temporal splits of Amazon Beauty, Yelp 2019 and Ciao.

    pip install "rectools[torch]"
    python benchmarks/sasrec.py prepare --home DATA --data DIR      # DATA: amazon-beauty/, yelp-2019/, ciao/
    python benchmarks/sasrec.py run --data DIR --results FILE.jsonl --only yelp,beauty,ciao --jobs 15 --minutes 9

A log is its distinct pairs (user, item) at their first time. Three rolling cuts; a cut has a validation window, a test
window after it, and nothing later. Lists are full rankings of the items with a pair before the window, without the
user's own. `warm`: users with pairs before the window, targets are their pairs in it whose item has a pair before it.
`everyone`: all users with pairs in the window, targets are all of these; whoever has no history (or none that RecTools
trained on) gets the most popular items before the window.

Settings are searched on the validation window of cut 1, so that no choice sees later data; the epochs are those of the
best NDCG@10 there. The best settings are fitted on everything before the test window of each cut, for as many epochs,
and tested once. With --finish the search is ended: the best of the fits that are done is tested, and a test line says
how many they were. Events of a user at the same time have no order: each fit shuffles them by its seed. A fit that is
in the results is not run again; fits for which the time did not suffice are left to the next run.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import logging
import multiprocessing
import os
import platform
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Task = dict[str, Any]  # KEY, epochs, and for a test the metrics on validation
Line = dict[str, Any]

FILES = {"yelp": "yelp-2019/events.csv.gz", "beauty": "amazon-beauty/events.csv.gz", "ciao": "ciao/ratings.csv"}
LEAST = {"ciao": 5}  # rows of each user and of each item
LENGTHS = {"yelp": (20, 50), "beauty": (20, 50), "ciao": (50, 100)}  # of a session: nine users in ten fit in the first
BATCH = {"yelp": 256, "beauty": 256, "ciao": 128}  # users
CUTS = {1: (0.6, 0.7, 0.8), 2: (0.7, 0.8, 0.9), 3: (0.8, 0.9, None)}  # validation from, test from, end
GBCE = {"loss": "gBCE", "n_negatives": 128, "gbce_t": 0.75}
GRID: list[tuple[dict[str, Any], float, float, int, int]] = [  # loss, rate, dropout, which length, factors
    ({"loss": "softmax"}, 1e-3, 0.5, 1, 128),
    ({"loss": "softmax"}, 1e-3, 0.2, 1, 128),
    (GBCE, 1e-3, 0.2, 0, 128),
    (GBCE, 1e-3, 0.5, 0, 128),
    (GBCE, 1e-3, 0.5, 0, 64),
    ({"loss": "BCE", "n_negatives": 1}, 1e-3, 0.5, 1, 64),
    ({"loss": "softmax"}, 3e-4, 0.5, 0, 128),
    ({"loss": "softmax"}, 1e-3, 0.5, 0, 256),
    ({"loss": "softmax"}, 1e-3, 0.5, 0, 128),
    ({"loss": "softmax"}, 1e-3, 0.5, 0, 64),
    ({"loss": "softmax"}, 1e-3, 0.2, 0, 128),
    ({"loss": "softmax"}, 3e-3, 0.5, 0, 128),
]
DEPTH = 50
EPOCHS = {"yelp": (12, 40), "beauty": (12, 40), "ciao": (20, 60)}  # at least (popularity is learned first), at most
PATIENCE = 5  # epochs without a better validation
KEY = ("data", "cut", "part", "settings", "seed")


# The protocol.


def prepare(home: Path, folder: Path) -> None:
    """Write users, items and first times [pairs] of each log, ids counted from 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        with (gzip.open if file.endswith(".gz") else open)(home / file, "rt") as text:
            header = text.readline().strip().split(",")
            columns = [header.index(column) for column in ("user_id", "item_id", "timestamp")]
            users, items, times = np.loadtxt(text, np.int64, delimiter=",", usecols=columns, unpack=True)
        enough = np.ones(len(users), bool)
        for ids in (users, items):
            _, index, counts = np.unique(ids, return_inverse=True, return_counts=True)
            enough &= counts[index] >= LEAST.get(name, 1)
        users, items, times = users[enough], items[enough], times[enough]
        order = np.lexsort((times, items, users))
        users, items, times = users[order], items[order], times[order]
        first = np.r_[True, (np.diff(users) != 0) | (np.diff(items) != 0)]
        users, items = (np.unique(ids[first], return_inverse=True)[1].astype(np.int32) for ids in (users, items))
        np.savez_compressed(folder / f"{name}.npz", users=users, items=items, times=times[first])
        print(f"{name}: {enough.sum():,} rows, {first.sum():,} pairs, {users.max() + 1:,} x {items.max() + 1:,}")


@dataclass
class Window:
    """Pairs before a window, ordered by time, and pairs in it."""

    users: Ids
    items: Ids
    new_users: Ids
    new_items: Ids
    n_items: int

    @classmethod
    def of(cls, pairs: dict[str, Ids], cut: int, part: str, seed: int) -> Window:
        """The validation or test window of a cut. Pairs of the same time are in random order."""
        users, items, times = (pairs[name].astype(np.int64) for name in ("users", "items", "times"))
        begin, test, end = (np.inf if p is None else np.quantile(times, p, method="higher") for p in CUTS[cut])
        first, last = (begin, test) if part == "validation" else (test, end)
        before, inside = times < first, (times >= first) & (times < last)
        order = np.lexsort((np.random.default_rng(seed).random(before.sum()), times[before]))
        users_before, items_before = users[before][order], items[before][order]
        return cls(users_before, items_before, users[inside], items[inside], int(items.max()) + 1)

    @cached_property
    def everyone(self) -> Ids:
        """[e] the users with pairs in the window."""
        return np.unique(self.new_users)

    @cached_property
    def popular(self) -> Ids:
        """[DEPTH] the most popular items before the window; ties at random."""
        counts = np.bincount(self.items, minlength=self.n_items)
        return np.lexsort((np.random.default_rng(0).random(self.n_items), -counts))[:DEPTH]

    def metrics(self, lists: Ids) -> dict[str, dict[str, float]]:
        """Means over the warm users and over everyone. lists: [e, DEPTH], -1 is a miss."""
        known, returning = np.isin(self.new_items, self.items), np.isin(self.new_users, self.users)
        rows = np.searchsorted(self.everyone, self.new_users)
        results = {}
        for group, wanted in (("warm", known & returning), ("everyone", np.ones(len(rows), bool))):
            total = np.bincount(rows[wanted], minlength=len(self.everyone))
            targets = rows[wanted] * self.n_items + self.new_items[wanted]
            hit = np.isin(np.arange(len(lists))[:, None] * self.n_items + lists, targets) & (lists >= 0)
            hit, total = hit[total > 0], total[total > 0]
            discount = 1 / np.log2(np.arange(10) + 2)
            ideal = np.cumsum(discount)[np.minimum(total, 10) - 1]
            results[group] = {
                "users": len(total),
                "ndcg@10": float((hit[:, :10] @ discount / ideal).mean()),
                "hit@10": float(hit[:, :10].any(1).mean()),
                "recall@50": float((hit.sum(1) / total).mean()),
            }
        return results


# One fit.


@torch.no_grad()
def rank(module: Any, window: Window) -> Ids:
    """[e, DEPTH] the lists of everyone, by the state of a RecTools module."""
    net, preparator = module.torch_model, module.data_preparator
    known = preparator.get_known_item_ids().astype(np.int64)  # external ids; internal ones count from 1, 0 is padding
    internal = np.zeros(window.n_items, np.int64)
    internal[known] = np.arange(1, len(known) + 1)
    usable = (internal[window.items] > 0) & np.isin(window.users, window.everyone)
    rows, seen = np.searchsorted(window.everyone, window.users[usable]), internal[window.items[usable]]
    by_user = np.argsort(rows, kind="stable")
    rows, seen = rows[by_user], seen[by_user]
    ends = np.cumsum(np.bincount(rows, minlength=len(window.everyone)))
    back, length = ends[rows] - np.arange(len(rows)), preparator.session_max_len
    sessions = np.zeros((len(window.everyone), length), np.int64)
    sessions[rows[back <= length], -back[back <= length]] = seen[back <= length]
    lists = np.tile(window.popular, (len(sessions), 1))
    device = next(net.parameters()).device
    training, _ = net.training, net.eval()
    item_embs = net.item_model.get_all_embeddings()
    for block in np.array_split(np.unique(rows), max(1, len(rows) // 8192)):
        mine = np.isin(rows, block)
        x = torch.from_numpy(sessions[block]).to(device)
        scores = net.encode_sessions({"x": x}, item_embs)[:, -1, :] @ item_embs.T
        scores[:, 0] = -torch.inf
        at = torch.from_numpy(np.stack([np.searchsorted(block, rows[mine]), seen[mine]])).to(device)
        scores[at[0], at[1]] = -torch.inf
        lists[block] = np.r_[-1, known][scores.topk(DEPTH).indices.cpu().numpy()]
    net.train(training)
    return lists


def fit(task: Task, folder: Path) -> Line:
    """Fit on everything before the task's window. Validation stops early; a test has its number of epochs."""
    import pandas as pd
    import pytorch_lightning as lightning
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel

    began = time.perf_counter()
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if torch.cuda.is_available():  # a process fits one model after the other
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with np.load(folder / f"{task['data']}.npz") as file:
        window = Window.of(dict(file), task["cut"], task["part"], task["seed"])
    lightning.seed_everything(task["seed"], verbose=False)
    epochs: list[dict[str, float]] = []  # metrics of the warm users after each epoch

    def best() -> int:
        return int(np.argmax([epoch["ndcg@10"] for epoch in epochs]))

    def validate(trainer: Any, module: Any) -> None:
        epochs.append(window.metrics(rank(module, window))["warm"])
        trainer.should_stop = len(epochs) >= EPOCHS[task["data"]][0] and len(epochs) - 1 - best() >= PATIENCE

    validating = task["part"] == "validation"
    model = SASRecModel(**task["settings"], epochs=task["epochs"], dataloader_num_workers=0)
    model._trainer = lightning.Trainer(
        max_epochs=task["epochs"], min_epochs=1, devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[lightning.callbacks.LambdaCallback(on_train_epoch_end=validate)] if validating else [],
    )  # fmt: skip
    order = pd.to_datetime(np.arange(len(window.users)), unit="s")  # RecTools sorts by it, and no two are equal
    columns = {Columns.User: window.users, Columns.Item: window.items, Columns.Weight: 1.0, Columns.Datetime: order}
    model.fit(Dataset.construct(pd.DataFrame(columns)))
    line = {name: task[name] for name in KEY}
    cuda = torch.cuda.is_available()
    if validating:
        line |= {"epochs": best() + 1, "cap": task["epochs"], "validation": epochs[best()]}
        line["curve"] = [round(epoch["ndcg@10"], 5) for epoch in epochs]
    else:
        module = model.lightning_model.to("cuda" if cuda else "cpu")
        line |= {name: task[name] for name in ("epochs", "validation", "searched")}
        line["test"] = window.metrics(rank(module, window))
    line |= {
        "seconds": time.perf_counter() - began,
        "peak_memory": torch.cuda.max_memory_allocated() if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "versions": {name: version(name) for name in ("rectools", "torch", "pytorch-lightning", "numpy")},
        "python": platform.python_version(),
        "provenance": {"commit": os.environ.get("CONCF_COMMIT")},
    }
    return line


# The search.


def key(task: Task | Line) -> str:
    return json.dumps([task[name] for name in KEY], sort_keys=True)


def settings_of(data: str) -> list[dict[str, Any]]:
    """The settings that are searched, the slowest first."""
    return [
        {**loss, "lr": lr, "dropout_rate": dropout, "session_max_len": LENGTHS[data][length], "n_factors": factors}
        | {"batch_size": BATCH[data], "n_blocks": 2, "n_heads": 4}
        for loss, lr, dropout, length, factors in GRID
    ]


def due(data: str, done: dict[str, Line], searched: list[int], finish: bool) -> Iterator[Task]:
    """Fits of a data set that can begin, given those that are done: the search of cut 1, then the tests of all cuts.

    searched: positions in GRID; finish: begin no further fit of the search, and choose among those that are done
    """
    settings = settings_of(data)
    tasks: list[Task] = [
        {"data": data, "cut": 1, "part": "validation", "settings": settings[at], "seed": 0, "epochs": EPOCHS[data][1]}
        for at in searched
    ]
    lines = [done[key(task)] for task in tasks if key(task) in done]
    if not finish:
        yield from (task for task in tasks if key(task) not in done)
    if lines and (finish or len(lines) == len(tasks)):
        best = max(lines, key=lambda line: float(line["validation"]["ndcg@10"]))
        chosen = {name: best[name] for name in ("data", "settings", "epochs", "validation")}
        tests = [{**chosen, "cut": cut, "part": "test", "seed": 0, "searched": len(lines)} for cut in CUTS]
        yield from (task for task in tests if key(task) not in done)


def run(words: argparse.Namespace) -> None:
    """Run what is due, a process each, and append a line for each fit to the results."""
    began, names = time.monotonic(), words.only.split(",")
    searched = [int(at) for at in words.settings.split(",")] if words.settings else list(range(len(GRID)))
    done: dict[str, Line] = {}
    if words.results.exists():
        done = {key(line): line for line in map(json.loads, words.results.read_text(encoding="utf-8").splitlines())}
    running: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(words.jobs) as pool:  # its exit ends what still runs
        while True:
            for name in [name for name, result in running.items() if result.ready()]:
                line = done[name] = running.pop(name).get()
                with words.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                score = (line["test"]["warm"] if "test" in line else line["validation"])["ndcg@10"]
                print(f"{time.monotonic() - began:4.0f} s:", *(line[name] for name in KEY), end=" ")
                print(f"ndcg@10 {score:.4f}, {line['epochs']} epochs, {line['seconds']:.0f} s", flush=True)
            tasks = [task for name in names for task in due(name, done, searched, words.finish)]
            waiting = [task for task in tasks if key(task) not in running]
            if not tasks or time.monotonic() - began > 60 * words.minutes:
                break
            for task in waiting[: words.jobs - len(running)]:
                running[key(task)] = pool.apply_async(fit, (task, words.data))
            time.sleep(0.1)
    print(f"left for another run: {len(tasks)} fits and those that depend on them" if tasks else "complete")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("prepare")
    command.add_argument("--home", type=Path, required=True)
    command.add_argument("--data", type=Path, required=True)
    command = commands.add_parser("run")
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--results", type=Path, required=True)
    command.add_argument("--only", default=",".join(FILES))
    command.add_argument("--jobs", type=int, default=1, help="fits at a time")
    command.add_argument("--minutes", type=float, default=60)
    command.add_argument("--settings", default="", help="positions in GRID of those to search; all by default")
    command.add_argument("--finish", action="store_true", help="test with the best settings of those that are done")
    words = parser.parse_args()
    if words.command == "prepare":
        prepare(words.home, words.data)
    else:
        run(words)


if __name__ == "__main__":
    main()
