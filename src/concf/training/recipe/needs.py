"""How much memory the default needs at least, said before it begins rather than by a kill after an hour."""

from __future__ import annotations

from itertools import product
from tempfile import gettempdir
from typing import NamedTuple

import torch

from concf.consensus.reranker import MOST_LEARNERS, TOP, n_features
from concf.data.split import Split
from concf.errors import ConfigError, note
from concf.runtime.process_group import ProcessGroup
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.memory import available_disk, available_memory
from concf.training.recipe.plan import PLANS, list_length, n_asked
from concf.training.recipe.students import BATCHES, USERS
from concf.training.run import n_validated

FLOAT = PLACE = 4  # bytes
PAIR, BLOCK = 24, 16  # bytes of a pair that is fitted, and of its place in the blocks of a side
SMALLER = ((500, 200), (256, 128, 64), (200, 100, 50))  # places shown, factors, items of a vote that advice may name
ROOM = 1.6  # times the least, that what is advised shall have, and what is not spilled


class Needs(NamedTuple):
    """Bytes of a process. memory: at least; spilled: at least, with lists and votes on disk; disk: of these files."""

    memory: int
    spilled: int
    disk: int


def least_needs(data: Split, settings: ConCFSettings, group: ProcessGroup) -> Needs:
    """What the tensors take that are there together in a process, at the fullest of five moments.

    When the re-ranker is fitted: the features of its learners. When voters are asked in the end: their lists, once
    more as they are kept, and what is known of listed items. When the student is solved: the lists that are kept, and
    the pairs of the log and of the consensus, of both sides; of several processes also the pairs as they were sent, and
    the vectors of all users, twice. When it is taught: the lists, and the vectors of what a batch lists. In the end:
    the lists and votes of all users, or with sharded tables of its own.

    On disk are the lists of voters, their scores for a while, and what is kept of them; in the end also of those who
    were not asked for, and once more of the users of all processes.
    """
    recipe, (users, items) = settings.recipe, data.train.shape
    assert recipe is not None
    own = group.share(users)
    n, k, several = own.stop - own.start, min(settings.consensus.top_k or items, items), int(group.several)
    held, factors = n if group.sharded else users, settings.model.dimensions
    heads, fixed = len(settings.heads), len(set(recipe.fixed_voters) - {"ease"})  # which large logs do without
    voters = heads - 1 + fixed
    rows, whole = (
        (items // group.size, (heads - 1) * items) if group.sharded else (items, 0)
    )  # while lists are re-ranked
    tables = (heads * (held + n + 2 * rows) + whole) * factors * FLOAT  # the model's, and the recipe's own
    lists, votes = 3 * list_length(data, settings) * PLACE, voters * k * PLACE  # of a user
    everyone = n_asked(data.train.shape, settings)
    m, plan = everyone // group.size, PLANS[recipe.budget]
    listed = m * (lists + (2 * voters * PLACE + 3 * fixed * FLOAT) * k)
    learned = data.train.nnz + (0 if recipe.refit == "none" else data.valid.nnz)
    pairs = learned // group.size + m * plan.places[0]
    solved = pairs * (PAIR * (1 + several) + 2 * BLOCK) + several * 2 * users * factors * FLOAT
    taught = m // max(1, min(BATCHES, everyone // USERS)) * min(plan.places[1], items) * factors * FLOAT
    learners = min(n_validated(data, settings), MOST_LEARNERS) * min(TOP, items) // group.size
    fitted = learners * n_features(voters, heads - 1, fixed) * FLOAT
    most = max(fitted, listed, m * (lists + votes) + max(solved, taught), held * (lists + votes))
    kept = lists + (heads + len(recipe.fixed_voters)) * k * PLACE  # the student and whoever is not there have rows too
    copies = n * (everyone < users) + users * (several and not group.sharded)
    disk = m * kept + max(m * (voters * PLACE + 4 * fixed * FLOAT) * k, copies * kept)
    return Needs(*(int(each) for each in (tables + most, tables + max(fitted, solved, taught), disk)))


def least_memory(data: Split, settings: ConCFSettings, group: ProcessGroup) -> int:
    """Bytes of memory that a process needs at least, with everything in memory."""
    return least_needs(data, settings, group).memory


def must_spill(
    data: Split, settings: ConCFSettings, device: torch.device, group: ProcessGroup, resume: bool = False
) -> bool:
    """Whether lists and votes are to lie on disk, since memory is short; a note says so.

    What does not fit into the memory that is there even so is refused, with what would; not if it has begun before.
    """
    there, needs, on_cpu = available_memory(device), least_needs(data, settings, group), device.type == "cpu"
    if there is None:
        return False
    there //= group.local_size if on_cpu else 1  # each process has a GPU of its own
    if needs.memory * ROOM <= there:
        return False
    helps = on_cpu and needs.spilled < needs.memory and (needs.spilled <= there or resume)
    if helps and needs.disk <= available_disk() // group.local_size:
        if group.local_rank == 0:
            note(
                f"memory is short: training needs more than {needs.memory / 1e9:.1f} GB, and there are "
                f"{there / 1e9:.1f} GB{' for each process' * group.several}. Up to {needs.disk / 1e9:.1f} GB of lists "
                f"and votes will lie in temporary files in {gettempdir()} (TMPDIR)"
            )
        return True
    if needs.memory <= there or resume:
        return False
    advice = _advice(data, settings, group, there)
    if helps:
        advice += f"; or set TMPDIR to a folder on a disk that has {needs.disk / 1e9:.1f} GB for lists and votes"
    raise ConfigError(
        f"training needs more than {needs.memory / 1e9:.1f} GB of memory for {data.train.shape[0]:,} users and "
        f"{data.train.shape[1]:,} items, and there are {there / 1e9:.1f} GB. {advice}"
    )


def _advice(data: Split, settings: ConCFSettings, group: ProcessGroup, there: int) -> str:
    """Settings that need less than the bytes that are there, if any do."""
    assert settings.recipe is not None
    for budget, *sizes in product(dict.fromkeys((settings.recipe.budget, "fast")), *SMALLER):
        now = (settings.consensus.shown, settings.model.dimensions, settings.consensus.top_k or data.train.shape[1])
        shown, factors, k = map(min, sizes, now)
        consensus = {"shown": shown, "top_k": k}
        changes = {"model": {"dimensions": factors}, "consensus": consensus, "recipe": {"budget": budget}}
        if least_memory(data, choose_settings(settings, changes), group) * ROOM <= there:
            return (
                f"With model.dimensions={factors} consensus.top_k={k} consensus.shown={shown} recipe.budget={budget} "
                "it may fit"
            )
    return "Take a machine with more, or fewer users (--min-user)"
