"""Refuse a training run whose largest tables cannot fit into free memory; keep freed memory in processes of our own.

Some systems grant any allocation and kill the process when it writes to it: so the tables are estimated from the
settings before the first one. It is a lower bound; temporary tensors, libraries and the log itself come on top.

A training step allocates tensors as large as the embedding tables and frees them again. The C library returns such
blocks to the system at once, and the system zeroes every page before it hands it out again: much of a step.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path

import torch

from concf.consensus.voters import LISTED_FEATURES
from concf.data.split import Split
from concf.errors import ConfigError, option
from concf.reference import kernels
from concf.reference.objectives import Objective, choose
from concf.runs.run import n_validated
from concf.runs.settings import ConCFSettings
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.system import own_process
from concf.strong.reranker import MOST_LEARNERS, TOP, n_features
from concf.strong.search import PLANS, has_a_vote, list_length, n_asked
from concf.strong.students import BATCHES, USERS

CPU = torch.device("cpu")
FLOAT = INT = 4  # bytes
EASE = 12  # bytes of a pair of items: the inverse in double precision, and the weights
PAIR, BLOCK = 24, 16  # bytes of a pair that ALS is fitted to, and of its place in the blocks of a side
DRAWN = 12  # bytes of a pair of an epoch: user, item, unobserved item
SMALLER = {  # table: settings that make it smaller
    "vectors of all voters and the student": ("model.dimensions", "recipe.budget"),
    "lists and votes of the consensus": ("consensus.top_k", "consensus.shown"),
    "lists and votes gathered for all users": ("consensus.top_k", "consensus.shown"),
    "features of the re-ranker": ("training.validated_users",),
    "lists and scores of the voters": ("consensus.top_k", "recipe.asked_users"),
    "weights of EASE^R": ("recipe.budget",),
    "pairs that the student is fitted to": ("recipe.asked_users",),
    "vectors of a batch of the student": ("model.dimensions", "recipe.asked_users"),
    "embeddings of users and items": ("model.dimensions",),
    "layers and output tables of the heads": ("model.dimensions",),
    "gradients of each head": ("model.dimensions",),
    "moments of Adam": ("model.dimensions",),
    "best state of each head": ("model.dimensions",),
    "rankings of the window": ("consensus.window", "consensus.kept"),
    "pairs and encodings of a batch": ("training.batch", "model.dimensions"),
}
UNLIMITED = 1 << 60  # bytes: cgroup v1 writes a number near 2**63 where there is no limit
CGROUPS = {  # version: folder of the memory controller, its limit, what is used, and what of it can be reclaimed
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("", "memory.max", "memory.current", "inactive_file"),
}
MOST = 512 << 20  # bytes of parameters up to which freed memory is kept: beyond, memory may be short
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, see <malloc.h>
KEPT, USUAL = 1 << 30, 32 << 20  # bytes: larger blocks are returned at once; USUAL is what glibc adapts to


def refuse_too_large(
    data: Split, settings: ConCFSettings, device: torch.device, group: ProcessGroup = ALONE,
    objectives: Mapping[str, Objective] | None = None,
) -> None:  # fmt: skip
    """Raise ConfigError if the largest tables do not fit into the free memory of this process. Allocates nothing."""
    tables = large_tables(data, settings, device, group, objectives)
    needed, free = sum(tables.values()), available_memory(device)
    free //= group.local_size if device.type == "cpu" else 1  # each process has a GPU of its own
    if needed <= free:
        return
    largest = sorted(tables, key=lambda name: -tables[name])[:3]
    named = ", ".join(f"{name} {tables[name] / 1e9:,.1f} GB" for name in largest)
    paths = dict.fromkeys(path for name in largest for path in SMALLER[name])
    values = {path: str(reduce(getattr, path.split("."), settings)).lower() for path in paths}
    advice = ", ".join(f"{path} (now {value})" for path, value in values.items() if value != "fast")
    raise ConfigError(
        f"training needs at least {needed / 1e9:,.1f} GB of memory for {data.train.shape[0]:,} users and "
        f"{data.train.shape[1]:,} items, and {free / 1e9:,.1f} GB are free{' for each process' * group.several}. "
        f"Largest tables: {named}. Set a lower {advice}; or leave out users of few items ({option('min_user')})"
    )


def large_tables(
    data: Split, settings: ConCFSettings, device: torch.device = CPU,
    group: ProcessGroup = ALONE, objectives: Mapping[str, Objective] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Name -> bytes of the tables that a process holds at the same time. objectives: your own, if any"""
    if settings.recipe is None:
        return _heads_tables(data, settings, group, choose(settings.objectives, settings.losses, objectives))
    return _recipe_tables(data, settings, device, group)


def _recipe_tables(data: Split, settings: ConCFSettings, device: torch.device, group: ProcessGroup) -> dict[str, int]:
    """Of the preset strong: tables that stay, and the largest of those that come one after the other."""
    recipe, shape, d = settings.recipe, data.train.shape, settings.model.dimensions
    assert recipe is not None
    users, items = shape
    local, plan = users // group.size, PLANS[recipe.budget]
    fixed = [name for name in recipe.fixed_voters if has_a_vote(name, shape, device)]
    heads, voters = len(settings.heads), len(settings.heads) - 1 + len(fixed)
    k = min(settings.consensus.top_k or items, items)
    asked = n_asked(shape, settings)
    kept = 3 * list_length(data, settings) * INT + (heads + len(recipe.fixed_voters)) * k * INT  # of a user
    learners = min(n_validated(data, settings), MOST_LEARNERS) * min(TOP, items)
    pairs = data.train.nnz + (0 if recipe.refit == "none" else data.valid.nnz) + asked * plan.places[0]
    sent = 2 * users * d * FLOAT if group.several else 0  # user vectors of all processes, and a copy
    in_turn = {
        "features of the re-ranker": learners * n_features(voters, heads - 1, len(fixed)) * FLOAT // group.size,
        "weights of EASE^R": min(shape) ** 2 * EASE if "ease" in fixed else 0,
        "lists and scores of the voters":
            asked * k * (voters * INT + len(fixed) * LISTED_FEATURES * FLOAT) // group.size,
        "pairs that the student is fitted to": pairs * (PAIR * (1 + group.several) + 2 * BLOCK) // group.size + sent,
        "vectors of a batch of the student":
            asked // max(1, min(BATCHES, asked // USERS)) * min(plan.places[1], items) * d * FLOAT // group.size,
        "lists and votes gathered for all users":
            users * kept if asked < users or group.several else 0,
    }  # fmt: skip
    largest = max(in_turn, key=lambda name: in_turn[name])
    return {
        "vectors of all voters and the student": heads * (users + local + 2 * items) * d * FLOAT,
        "lists and votes of the consensus": asked * kept // group.size,
        largest: in_turn[largest],
    }


def _heads_tables(
    data: Split, settings: ConCFSettings, group: ProcessGroup, objectives: Mapping[str, Objective]
) -> dict[str, int]:
    """Of Algorithm 1: the model with gradients and optimiser, copies of its best states, rankings, a batch."""
    model, consensus, training = settings.model, settings.consensus, settings.training
    (users, items), d, heads, several = data.train.shape, model.dimensions, len(objectives), settings.several
    rows, local = users + items, users // group.size
    first = heads if model.sharing in ("embedding", "none") else 1
    layers = first * d * d // 2 + (1 if model.sharing == "full" else heads) * d * d // 8
    size = d // 4 if model.encoder == "mlp" else d
    outputs = sum({"items": items, "users": users}.get(each.needs, 0) for each in objectives.values()) * (size + 1)
    embeddings, others = (heads if model.sharing == "none" else 1) * rows * d, outputs
    others += layers if model.encoder == "mlp" else 0
    taught = settings.teaches and training.epochs > consensus.first_consensus_epoch
    students = len(set(objectives) - set(consensus.undistilled)) if taught else 0
    copies = (heads + students) * rows * d
    k, kept = (min(each or items, items) for each in (consensus.top_k, consensus.kept))
    window = min(max(consensus.window, 2), 1 + training.epochs // consensus.every) if several else 0
    batch = min(training.pairs_of_batch(data.train.nnz), data.train.nnz) // group.size
    softmax = {"items", "users", "catalogue"} & {each.needs for each in objectives.values()}
    logits = min(batch * items, kernels.KEPT) if softmax else 0
    listed = students * min(batch, users) * min(consensus.length + (consensus.tail or 0), items)
    agreed = users * (2 * list_length(data, settings) * INT + 3 * heads * k * INT) if several else 0
    return {
        "embeddings of users and items": embeddings * FLOAT,
        "layers and output tables of the heads": others * FLOAT,
        "gradients of each head": (copies + embeddings + others) * FLOAT,
        "moments of Adam": 2 * (embeddings + others) * FLOAT,
        "best state of each head": (heads * rows * d + outputs + several * (embeddings + others)) * FLOAT,
        "rankings of the window": (window + 1) * heads * local * kept * INT,
        "lists and votes of the consensus": agreed,
        "pairs and encodings of a batch":
            data.train.nnz * DRAWN + (3 * heads * batch * d + listed + logits) * FLOAT,
    }  # fmt: skip


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still allocate, on a GPU or in main memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    free = [int(psutil.virtual_memory().available), *cgroup_memory()]
    with suppress(ImportError, AttributeError):  # process limits: Linux
        import resource

        used = psutil.Process().memory_info()
        for limit, size in ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data)):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY:
                free.append(soft - size)
    return max(min(free), 0)


def cgroup_memory(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Bytes left at every level with a limit, from the process's own control group up to the root of the mount.

    Inactive file pages count as free: the kernel reclaims them before it refuses memory.
    """
    free: list[int] = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            version = 2 if not controllers else 1
            if version == 1 and "memory" not in controllers.split(","):
                continue
            folder, limit, usage, reclaimable = CGROUPS[version]
            group = root / folder / path.lstrip("/")
            for level in (each for each in (group, *group.parents) if each.is_relative_to(root / folder)):
                with suppress(OSError, ValueError):  # a level outside the container, or "max": no limit
                    most, used = (int((level / name).read_text()) for name in (limit, usage))
                    stat = dict(each.split() for each in (level / "memory.stat").read_text().splitlines())
                    if most < UNLIMITED:
                        free.append(most - used + int(stat.get(reclaimable, 0)))
    return free


@contextmanager
def kept_memory(model: torch.nn.Module) -> Iterator[None]:
    """Keep freed memory inside the block, in a process of our own with a small model on the CPU.

    glibc has no getter for its thresholds, so a host program's could not be restored: there nothing is set.
    """
    parameters = list(model.parameters())
    size = sum(each.numel() * each.element_size() for each in parameters)
    on_gpu = any(each.is_cuda for each in parameters)
    if not own_process.is_set() or on_gpu or size > MOST or not _set_thresholds(KEPT):
        yield
        return
    try:
        yield
    finally:
        _set_thresholds(USUAL)
        _library("malloc_trim", ctypes.c_size_t(0))


def _set_thresholds(size: int) -> bool:
    """Whether both were taken."""
    return all(_library("mallopt", option, size) == 1 for option in (TRIM_THRESHOLD, MMAP_THRESHOLD))


def _library(name: str, *words: object) -> int | None:
    """Call a function of the C library; None where there is no such function."""
    with suppress(AttributeError, OSError):
        if sys.platform == "linux":
            function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
            return function(*words)
    return None
