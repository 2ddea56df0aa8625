"""A consensus of models that others have trained, distilled into one head: a run like any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import csr_array

from concf.consensus.consensus import consistencies
from concf.data.split import Split
from concf.errors import ConfigError, note, option
from concf.evaluation.validation import fitting_metric, parsed, refuse_blind
from concf.runtime.arguments import check_seed
from concf.runtime.files import new_folder, sha256
from concf.training.checkpoint import RUN, RunFolder
from concf.training.combining.voters import as_voter, ranking
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings, RecipeSettings
from concf.training.memory import refuse_too_large
from concf.training.recipe.combine import NOBODY, Combine, GivenLists, Voters
from concf.training.run import Run, make_model
from concf.training.tracking.watchers import Watch, watched
from concf.training.train import all_stages, device_of, train

FINAL_VOTERS = "final voters (--final-voter, final_voters=)"


def combine(
    data: Split | str | Path,
    voters: Mapping[str, Any],
    *,
    final_voters: Mapping[str, Any] | None = None,
    with_own: bool = False,
    final: bool = False,
    settings: ConCFSettings | Mapping[str, Any] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    verbose: bool = False,
    watch: Watch | Sequence[Watch] | None = None,
) -> Run:
    """A run in which models of yours vote: they are weighed and re-ranked on validation, and a student is distilled.

    data:     the data set, or its folder
    voters:   name -> who votes, fitted on the training part alone: a file or a frame of lists (user, item, and score or
              rank; ids as in the log), (user vectors, item vectors[, item bias]), a model with factors() or
              scores(users), a model of implicit, a trained pipeline of LensKit, (model, dataset) of RecTools. Vectors,
              scores and implicit's models number users and items as `data.train` does. als@1, als@2 are the same
              voter at two times: the last one votes, and how its ranks have changed is its consistency (Eq. 11)
    final_voters: the same voters, fitted on the training and the validation part, for the consensus and the student
              that are recommended from; None: those are made of `voters`, and nothing is refitted
    with_own: concf's own voters join
    final:    `final_voters` were fitted on everything, the test part too; the run then has no test figures
    settings: all of them, or changes to the preset strong such as {"consensus": {"top_k": 100}}
    seed, out, device, verbose, watch: as for `train`, which resumes the run in `out` once its folder is there
    """
    _refuse_types(data, voters, final_voters, settings)
    split = (data if isinstance(data, Split) else Split.load(data)).known
    _refuse(split, voters, final_voters, final)
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        folder.refuse_occupied()
    refit = "none" if final_voters is None else "everything" if final else "validation"
    plain = settings if isinstance(settings, ConCFSettings) else choose_settings("strong", settings)
    if plain.recipe is None:
        raise ConfigError("settings: voters are combined by the recipe of the preset strong. Begin with that preset")
    split, here = split.weighted(plain.weights), device_of(device)
    given = _made(voters, split, ("train",), plain, here)
    learned = ("train", "valid", "test") if final else ("train", "valid")
    refitted = NOBODY if final_voters is None else _made(final_voters, split, learned, plain, here)
    _refuse_other_kinds(given, refitted)
    for name, value, why in (("refit", refit, FINAL_VOTERS), ("own", with_own, option("with_own"))):
        wanted = getattr(plain.recipe, name)
        if wanted not in (value, RecipeSettings.model_fields[name].default):
            note(f"recipe.{name}={wanted}: not used. It follows from {why}: {value}")
    chosen = _settings(plain, given, refitted, with_own, refit)
    refuse_too_large(split, chosen, here)
    run = Run(split, chosen, 0 if seed is None else check_seed(seed), make_model(split, chosen).to(here))
    refuse_blind(run.metric, split)
    stages = Combine(run, here)
    stages.take(given, refitted)
    watchers = [] if watch is None else [watch] if callable(watch) else list(watch)
    if folder is None:
        with watched(run, None, watchers):
            all_stages(run, stages, None, verbose, watchers)
        return run
    kept = None if isinstance(data, Split) else str(Path(data).absolute())
    with new_folder(folder.path, marker=RUN) as beside:
        home = RunFolder(beside)
        if kept is None:
            home.keep(split)
        home.begin(run, kept, combine={"voters": _sources(voters), "final_voters": _sources(final_voters or {})})
        home.save(run, stages)
    return train(split, device=here, out=out, resume=True, verbose=verbose, watch=watchers)


def _refuse_types(data: Any, voters: Any, final_voters: Any, settings: Any) -> None:
    """Refuse what is not what the arguments are for."""
    if not isinstance(data, Split | str | Path):
        raise ConfigError(f"data: expected a prepared data set or its folder, found {type(data).__name__}")
    for name, each in (("voters", voters), ("final_voters", final_voters or {})):
        if not isinstance(each, Mapping) or not all(isinstance(key, str) for key in each):
            kind = "other keys" if isinstance(each, Mapping) else type(each).__name__
            raise ConfigError(f"{name}: expected names and who votes, as {{'als': model}}, found {kind}")
    if not isinstance(settings, ConCFSettings | Mapping | None):
        raise ConfigError(f"settings: expected settings or changes to them, found {type(settings).__name__}")


def _refuse(data: Split, voters: Mapping[str, Any], final_voters: Mapping[str, Any] | None, final: bool) -> None:
    """Refuse what cannot come to a consensus."""
    if not voters:
        raise ConfigError("no voter was given. Name at least one, such as als=als.parquet")
    if data.has_new_users:
        raise ConfigError(
            "the data set holds out users (protocol 'new-users'), for whom voters from outside have no lists. Prepare "
            "it by another protocol"
        )
    if final and final_voters is None:
        raise ConfigError(
            f"{option('final', True)}: only you can fit your voters on everything. Give them too ({FINAL_VOTERS})"
        )
    if final_voters is not None and voters.keys() != final_voters.keys():
        odd = sorted(voters.keys() ^ final_voters.keys())
        raise ConfigError(f"{FINAL_VOTERS}: expected the same names as the voters; {odd[0]!r} is only in one")
    for name, voter in (final_voters or {}).items():
        same = voter is voters[name] or (isinstance(voter, str | Path) and str(voter) == str(voters[name]))
        if same:
            raise ConfigError(
                f"final voter {name!r}: is the voter itself. Fit it on the training and the validation part first, or "
                f"leave out {FINAL_VOTERS}"
            )


def _length(data: Split, settings: ConCFSettings) -> int:
    """Of a voter's list: what votes, or what its figure looks at."""
    depth = parsed(fitting_metric(settings.training.metric, data))[1] if len(data.validated) else 0
    n_items = data.interactions.n_items
    return min(max(settings.consensus.top_k or n_items, depth), n_items)


def _made(
    voters: Mapping[str, Any], data: Split, learned: Sequence[str], settings: ConCFSettings, device: torch.device
) -> Voters:
    """The voters, with what users have not used of the parts that were learned from."""
    log: csr_array = data.log(learned)
    seen, k = log if data.disliked is None else csr_array(log + data.disliked), _length(data, settings)
    found, consistency = {}, {}
    for name, sources in _over_time(voters).items():
        made = [as_voter(name, source, data, seen, k, device) for source in sources]
        found[name] = made[-1]
        if len(made) > 1:
            rankings = [ranking(each, seen, k)[None] for each in made]
            steady = consistencies(rankings[-1], rankings, seen.shape[1], settings.consensus.temperature)[0]
            consistency[name] = steady.masked_fill_(rankings[-1][0] < 0, 0.0)
    return Voters(found, consistency)


def _over_time(voters: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Voter -> what it was at several times, the last one last: als@1 and als@2 are both als."""
    times: dict[str, dict[int, Any]] = {}
    for word, source in voters.items():
        match = re.fullmatch(r"(.*)@(\d+)", word)
        name, time = (match[1], int(match[2])) if match else (word, -1)
        if time in times.setdefault(name, {}):
            raise ConfigError(f"voter {name!r}: is there twice at the time {time}. Number its times 1, 2, 3")
        times[name][time] = source
    for name, known in times.items():
        if -1 in known and len(known) > 1:
            raise ConfigError(
                f"voter {name!r}: is there once without a time and once as {name}@{max(known)}. Number all"
            )
    return {name: [known[time] for time in sorted(known)] for name, known in times.items()}


def _refuse_other_kinds(given: Voters, refitted: Voters) -> None:
    for name, voter in refitted.by_name.items():
        if isinstance(given.by_name[name], GivenLists) != isinstance(voter, GivenLists):
            raise ConfigError(
                f"final voter {name!r}: one of the two has vectors and the other has none. Give both alike"
            )


def _settings(plain: ConCFSettings, given: Voters, refitted: Voters, own: bool, refit: str) -> ConCFSettings:
    """The settings, with the names of the voters, and vectors as long as the longest."""
    everyone = (*given.by_name.values(), *refitted.by_name.values())
    longest = max((voter[0].shape[1] for voter in everyone if not isinstance(voter, GivenLists)), default=0)
    lists = [name for name, voter in given.by_name.items() if isinstance(voter, GivenLists)]
    recipe = {"own": own, "given": lists, "given_vectors": [name for name in given.by_name if name not in lists],
              "snapshots": list(given.consistency), "refit": refit}  # fmt: skip
    dimensions = max(plain.model.dimensions, -(-longest // 4) * 4)
    return choose_settings(plain, {"recipe": recipe, "model": {"dimensions": dimensions}})


def _sources(voters: Mapping[str, Any]) -> dict[str, Any]:
    """Voter -> its file and SHA-256, or the type of the object."""
    return {
        name: {"name": str(source), "sha256": sha256(Path(source))}
        if isinstance(source, str | Path)
        else {"name": type(source[0] if isinstance(source, tuple) else source).__qualname__}
        for name, source in voters.items()
    }
