"""Combine models of the caller into a run: their consensus, distilled into one head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import csr_array

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.validation import fitting_metric, parsed, refuse_blind
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job, as_watchers, device_of
from concf.runs.watchers import Watch
from concf.runtime.arguments import check_seed
from concf.runtime.files import sha256
from concf.strong.combine_stages import Combine, GivenLists, Voters
from concf.strong.given_voters import as_voter
from concf.strong.run import StrongRun
from concf.strong.settings import StrongSettings
from concf.strong.train import check_memory, train_from

FINAL_VOTERS = "final voters (--final-voter, final_voters=)"


def combine(
    data: Split | str | Path,
    voters: Mapping[str, Any],
    *,
    final_voters: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    watch: Watch | Sequence[Watch] | None = None,
) -> StrongRun:
    """Combine your models: weigh and re-rank their votes on validation, and distil a student.

    data:     the data set, or its folder
    voters:   name -> voter, fitted on the training part alone: a file or a frame of lists (user, item, and score or
              rank; ids as in the log), (user vectors, item vectors[, item bias]), a model with factors() or
              scores(users), a model of implicit, a trained pipeline of LensKit, (model, dataset) of RecTools. Vectors,
              scores and implicit's models number users and items as `data.train` does
    final_voters: the same voters, fitted on the training and the validation part, for the final consensus and student;
              None: `voters` are used, and nothing is refitted
    settings: changes to the preset strong. {"own": True}: concf's own voters join. {"refit": "everything"}:
              `final_voters` were fitted on everything, the test part too; the run then has no test metrics
    seed, out, device, watch: as for `train`, which can resume the run in `out` from its first checkpoint on
    """
    _check_types(data, voters, final_voters, settings)
    split = (data if isinstance(data, Split) else Split.load(data)).known
    changes = dict(settings or {})
    own = bool(changes.pop("own", False))
    plain = StrongSettings().changed(changes)
    final = plain.refit == "everything"
    _check_voters(split, voters, final_voters, final)
    job = Job(None if out is None else RunFolder(out), watchers=as_watchers(watch))
    if job.folder is not None:
        job.folder.refuse_occupied()
    split, chosen_device = split.weighted(plain.weights), device_of(device)
    given = _made(voters, split, ("train",), plain, chosen_device)
    learned = ("train", "valid", "test") if final else ("train", "valid")
    refitted = _made(final_voters or {}, split, learned, plain, chosen_device)
    refit = "none" if final_voters is None else "everything" if final else "validation"
    chosen = _settings(plain, given, refitted, own, refit)
    check_memory(split, chosen, chosen_device)
    run = StrongRun(split, chosen, check_seed(seed), chosen_device)
    refuse_blind(run.metric, split)
    stages = Combine(run)
    stages.take(given, refitted)
    return train_from(stages, job, combine={"voters": _sources(voters), "final_voters": _sources(final_voters or {})})


def _check_types(data: Any, voters: Any, final_voters: Any, settings: Any) -> None:
    """Check argument types."""
    if not isinstance(data, Split | str | Path):
        raise ConfigError(f"data: expected a prepared data set or its folder, found {type(data).__name__}")
    for name, given in (("voters", voters), ("final_voters", final_voters or {})):
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            kind = "other keys" if isinstance(given, Mapping) else type(given).__name__
            raise ConfigError(f"{name}: expected a mapping of names to voters, as {{'als': model}}, found {kind}")
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"settings: expected changes to the preset strong, found {type(settings).__name__}")


def _check_voters(data: Split, voters: Mapping[str, Any], final_voters: Mapping[str, Any] | None, final: bool) -> None:
    """Refuse voters that cannot be combined."""
    if not voters:
        raise ConfigError("no voter was given. Name at least one, such as als=als.parquet")
    if data.has_new_users:
        problem = "the data set holds out users (protocol 'new-users'), for whom voters from outside have no lists"
        raise ConfigError(f"{problem}. Prepare it by another protocol")
    if final and final_voters is None:
        raise ConfigError(f"refit = everything (--final) needs voters that were fitted on everything: {FINAL_VOTERS}")
    if final_voters is not None and voters.keys() != final_voters.keys():
        name = min(voters.keys() ^ final_voters.keys())
        raise ConfigError(f"{FINAL_VOTERS}: expected the same names as the voters; {name!r} is only in one")
    for name, voter in (final_voters or {}).items():
        same = voter is voters[name] or (isinstance(voter, str | Path) and str(voter) == str(voters[name]))
        if same:
            fix = f"Fit it on the training and the validation part first, or leave out {FINAL_VOTERS}"
            raise ConfigError(f"final voter {name!r} is the voter itself. {fix}")


def _made(
    voters: Mapping[str, Any], data: Split, learned: Sequence[str], settings: StrongSettings, device: torch.device
) -> Voters:
    """Convert the voters; their lists leave out what users have used in the parts that were learned from."""
    log: csr_array = data.log(learned)
    seen, n_items = log if data.disliked is None else csr_array(log + data.disliked), data.interactions.n_items
    depth = parsed(fitting_metric(settings.training.metric, data))[1] if len(data.validated) else 0
    k = min(max(settings.consensus.top_k or n_items, depth), n_items)  # as many items as vote, or as the metric needs
    return {name: as_voter(name, source, data, seen, k, device) for name, source in voters.items()}


def _settings(plain: StrongSettings, given: Voters, refitted: Voters, own: bool, refit: str) -> StrongSettings:
    """Add the names of the voters and the dimensions of the longest vectors to the settings."""
    for name, voter in refitted.items():
        if isinstance(given[name], GivenLists) != isinstance(voter, GivenLists):
            raise ConfigError(f"voter {name!r} and its final voter: only one has vectors. Give both in one form")
    everyone = (*given.values(), *refitted.values())
    longest = max((voter[0].shape[1] for voter in everyone if not isinstance(voter, GivenLists)), default=0)
    lists = [name for name, voter in given.items() if isinstance(voter, GivenLists)]
    dimensions = max(plain.dimensions, -(-longest // 4) * 4)
    return plain.changed({
        "own": own, "given": lists, "given_vectors": [name for name in given if name not in lists],
        "refit": refit, "dimensions": dimensions,
    })  # fmt: skip


def _sources(voters: Mapping[str, Any]) -> dict[str, Any]:
    """Map each voter to its file and SHA-256, or to the type of the object."""
    return {
        name: {"name": str(source), "sha256": sha256(Path(source))}
        if isinstance(source, str | Path)
        else {"name": type(source[0] if isinstance(source, tuple) else source).__qualname__}
        for name, source in voters.items()
    }
