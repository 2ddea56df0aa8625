"""Train the model strong: all its stages, with a checkpoint after each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from concf.consensus.voters import LISTED_FEATURES
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.validation import refuse_blind
from concf.runs.checkpoint import RUN, RunFolder
from concf.runs.job import Job
from concf.runs.memory import FLOAT, INT, Tables, refuse_too_large
from concf.runs.watchers import note_of
from concf.runtime.files import new_folder
from concf.runtime.process_group import ALONE, ProcessGroup, fingerprint
from concf.runtime.progress import working
from concf.strong.combine_stages import Combine
from concf.strong.decision import EARLIER_USERS
from concf.strong.recipe import Recipe
from concf.strong.reranker import MOST_LEARNERS, TOP, n_features
from concf.strong.run import StrongRun
from concf.strong.search import PLANS, has_a_vote, list_length, n_consensus_users
from concf.strong.settings import StrongSettings
from concf.strong.students import BATCHES, LENGTH, USERS
from concf.strong.update_stages import Update, UpdateSettings

CPU = torch.device("cpu")
SLIST = 40  # bytes per pair of items: five tables in double precision
EASE = 12  # bytes per pair of items: the inverse in double precision, and the weights
SMALLER = {  # table: settings that make it smaller
    "vectors of all voters and the student": ("dimensions", "budget"),
    "lists and votes of the consensus": ("consensus.top_k", "consensus.shown"),
    "lists and votes gathered for all users": ("consensus.top_k", "consensus.shown"),
    "features of the re-ranker": ("training.validated_users",),
    "lists and scores of the voters": ("consensus.top_k", "consensus_users"),
    "weights of EASE^R": ("budget",),
    "tables of SLIST": ("budget",),
    "pairs that the student is fitted to": ("consensus_users",),
    "vectors of a batch of the student": ("dimensions", "consensus_users"),
}
PAIR, BLOCK = 24, 16  # bytes per pair that ALS is fitted to, and per position in the blocks of a side


def train_strong(
    data: Split, settings: StrongSettings, seed: int = 0, device: torch.device = CPU, job: Job | None = None
) -> StrongRun:
    """Train all stages; with `job.resume` the run in its folder is continued."""
    job = job or Job()
    if settings.refit == "everything" and data.has_new_users:
        problem = "the users that protocol 'new-users' holds out are never trained on. Choose another protocol"
        raise ConfigError(f"refit = everything (--final): {problem}")
    if not job.resume:
        check_memory(data, settings, device, job.group)
    run = StrongRun(data, settings, seed, device)
    stages = _stages(run, job)
    with job.begun(run, stages):
        run_stages(run, stages, job)
    return run


def train_from(stages: Recipe, job: Job, **made: Any) -> StrongRun:
    """Train the stages of an update or a combination; in a folder, from a first checkpoint that can be resumed.

    made: see `RunFolder.begin`
    """
    run = stages.run
    if job.folder is None:
        with job.begun(run, stages):
            run_stages(run, stages, job)
        return run
    with new_folder(job.folder.path, marker=RUN) as fresh:
        home = RunFolder(fresh)
        if run.data.folder is None:
            home.keep(run.data)
        home.begin(run, **made)
        home.save(run, stages)
    return train_strong(run.data, run.settings, run.seed, run.device, replace(job, resume=True))


def run_stages(run: StrongRun, stages: Recipe, job: Job) -> None:
    """Run the remaining stages, with a checkpoint after each."""
    with working("training", len(stages.stages)) as advance:
        advance(run.epoch)
        while not run.finished:
            job.group.refuse_orphan()
            record = stages.stage(run.epoch)
            job.group.refuse_difference({"result of a stage": fingerprint(stages.tables())})
            job.record(run, record)
            run.finished = run.epoch == len(stages.stages)
            job.save(run, stages)
            job.tell(record)
            advance(1, note_of(record, run.metric))


def _stages(run: StrongRun, job: Job) -> Recipe:
    """Make the stages of a new run, or of a resumed training, update or combination."""
    before = job.folder.description() if job.folder is not None and job.resume else {}
    if job.group.several and ("update" in before or "combine" in before):
        raise ConfigError("an update or a run of concf combine resumes in one process. Start it without torchrun")
    if "update" in before:
        return Update(run, UpdateSettings.model_validate(before["update"]))
    if job.group.is_main:
        refuse_blind(run.metric, run.data)
    if "combine" in before:
        return Combine(run)
    if run.settings.foreign:
        raise ConfigError("given, given_vectors: voters from outside are for concf combine")
    return Recipe(run, job.group)


def check_memory(data: Split, settings: StrongSettings, device: torch.device, group: ProcessGroup = ALONE) -> None:
    """Refuse a log whose tables do not fit into free memory."""
    refuse_too_large(large_tables(data, settings, device, group), data.train.shape, settings, device, group)


def large_tables(
    data: Split, settings: StrongSettings, device: torch.device = CPU, group: ProcessGroup = ALONE
) -> Tables:
    """Tables that a process holds at a time: the permanent ones, and the largest of the temporary ones."""
    shape, plan = data.train.shape, PLANS[settings.budget]
    users, items = shape
    local, d = users // group.size, settings.dimensions // (2 if plan.halved and not settings.foreign else 1)
    by_time = data.recipe.protocol.time_cut == "all"
    timed = settings.own_timed if by_time else ()
    fixed = [name for name in (*settings.fixed_voters, *timed) if has_a_vote(name, shape, device)]
    heads = sum(not (by_time and head.startswith("softmax")) for head in settings.heads)
    voters = heads - 1 + len(fixed)
    k = min(settings.consensus.top_k or items, items)
    consensus_users = n_consensus_users(shape, settings)
    kept = 3 * list_length(data, settings) * INT + (heads + len(fixed)) * k * INT  # of a user
    learners = min(len(data.validated), plan.fitted, settings.training.validated_users or plan.fitted, MOST_LEARNERS)
    if by_time:  # all windows, and again while they are joined
        learners = 2 * (learners + plan.earlier * min(learners, EARLIER_USERS * plan.users))
    pairs = data.train.nnz + (0 if settings.refit == "none" else data.valid.nnz) + consensus_users * LENGTH
    sent = 2 * users * d * FLOAT if group.several else 0  # user vectors of all processes, and a copy
    batch = consensus_users // max(1, min(BATCHES, consensus_users // USERS))
    in_turn = {
        "features of the re-ranker":
            learners * min(TOP, items) * n_features(voters, heads - 1, len(fixed), timed=True) * FLOAT // group.size,
        "weights of EASE^R": min(shape) ** 2 * EASE if "ease" in fixed else 0,
        "tables of SLIST": items**2 * SLIST if "slist" in fixed else 0,
        "lists and scores of the voters":
            consensus_users * k * (voters * INT + len(fixed) * LISTED_FEATURES * FLOAT) // group.size,
        "pairs that the student is fitted to": pairs * (PAIR * (1 + group.several) + 2 * BLOCK) // group.size + sent,
        "vectors of a batch of the student":
            batch * min(plan.depth, items) * d * FLOAT // group.size,
        "lists and votes gathered for all users":
            users * kept if consensus_users < users or group.several else 0,
    }  # fmt: skip
    largest = max(in_turn, key=lambda name: in_turn[name])
    sizes = {
        "vectors of all voters and the student": heads * (users + local + 2 * items) * d * FLOAT,
        "lists and votes of the consensus": consensus_users * kept // group.size,
        largest: in_turn[largest],
    }
    return {name: (size, SMALLER[name]) for name, size in sizes.items()}
