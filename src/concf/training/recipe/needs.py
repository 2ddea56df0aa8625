"""How much memory the default needs at least, said before it begins rather than by a kill after an hour."""

from __future__ import annotations

from itertools import product

import torch

from concf.consensus.reranker import MOST_LEARNERS, TOP, n_features
from concf.data.split import Split
from concf.errors import ConfigError
from concf.runtime.process_group import ProcessGroup
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.memory import available_memory
from concf.training.recipe.plan import PLANS, list_length, n_asked
from concf.training.run import n_validated

FLOAT = PLACE = 4  # bytes
PAIR, BLOCK = 24, 16  # bytes of a pair that is fitted, and of its place in the blocks of a side
SMALLER = ((500, 200), (256, 128, 64), (200, 100, 50))  # places shown, factors, items of a vote that advice may name
ROOM = 1.6  # times the least, that what is advised shall have


def least_memory(data: Split, settings: ConCFSettings, group: ProcessGroup) -> int:
    """Bytes of the tensors that are there together in a process, at the fullest of four moments.

    When the re-ranker is fitted: the features of its learners. When voters are asked in the end: their lists, once
    more as they are kept, and what is known of listed items. When the student is solved: the lists that are kept, and
    the pairs of the log and of the consensus, of both sides; of several processes also the pairs as they were sent, and
    the vectors of all users, twice. In the end: the lists and votes of all users, or with sharded tables of its own.
    """
    recipe, (users, items) = settings.recipe, data.train.shape
    assert recipe is not None
    own = group.share(users)
    n, k, several = own.stop - own.start, min(settings.consensus.top_k or items, items), int(group.several)
    held, factors = n if group.sharded else users, settings.model.dimensions
    heads, fixed = len(settings.heads), len(set(recipe.fixed_voters) - {"ease"})  # which large logs do without
    voters = heads - 1 + fixed
    tables = heads * (held + n + 2 * items) * factors * FLOAT  # the model's, and the recipe's own
    lists, votes = 3 * list_length(data, settings) * PLACE, voters * k * PLACE  # of a user
    m = n_asked(data.train.shape, settings) // group.size
    asked = m * (lists + (2 * voters * PLACE + 3 * fixed * FLOAT) * k)
    learned = data.train.nnz + (0 if recipe.refit == "none" else data.valid.nnz)
    pairs = learned // group.size + m * PLANS[recipe.budget].places[0]
    solved = m * (lists + votes) + pairs * (PAIR * (1 + several) + 2 * BLOCK) + several * 2 * users * factors * FLOAT
    learners = min(n_validated(data, settings), MOST_LEARNERS) * min(TOP, items) // group.size
    fitted = learners * n_features(voters, heads - 1, fixed) * FLOAT
    return int(tables + max(fitted, asked, solved, held * (lists + votes)))


def refuse_too_large(data: Split, settings: ConCFSettings, device: torch.device, group: ProcessGroup) -> None:
    """Refuse what does not fit into the memory that is there, and say what would."""
    there, needed = available_memory(device), least_memory(data, settings, group)
    if there is None:
        return
    there //= group.local_size if device.type == "cpu" else 1  # each process has a GPU of its own
    if needed <= there:
        return
    assert settings.recipe is not None
    for budget, *sizes in product(dict.fromkeys((settings.recipe.budget, "fast")), *SMALLER):
        now = (settings.consensus.shown, settings.model.dimensions, settings.consensus.top_k or data.train.shape[1])
        shown, factors, k = map(min, sizes, now)
        consensus = {"shown": shown, "top_k": k}
        changes = {"model": {"dimensions": factors}, "consensus": consensus, "recipe": {"budget": budget}}
        if least_memory(data, choose_settings(settings, changes), group) * ROOM <= there:
            advice = (
                f"With model.dimensions={factors} consensus.top_k={k} consensus.shown={shown} recipe.budget={budget} "
                "it may fit"
            )
            break
    else:
        advice = "Take a machine with more, or fewer users (--min-user)"
    raise ConfigError(
        f"training needs more than {needed / 1e9:.1f} GB of memory for {data.train.shape[0]:,} users and "
        f"{data.train.shape[1]:,} items, and there are {there / 1e9:.1f} GB. {advice}"
    )
