"""What training leaves behind: the history, and each head and consensus at the epoch of its best validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.protocols import PARTS, origin
from concf.data.split import UPDATES, Split
from concf.errors import ConfigError, note
from concf.evaluation.evaluate import METRICS, Evaluation, evaluate
from concf.evaluation.ranking import NOTHING, rank
from concf.evaluation.validation import fitting_metric
from concf.model.encoders import EncoderMaker
from concf.model.model import Model
from concf.model.objectives import Objective, choose
from concf.model.scorers import Factors, ListFunction, WithFallback
from concf.runtime.arguments import check_cutoffs
from concf.runtime.process_group import ProcessGroup
from concf.runtime.settings import named
from concf.training.config.settings import ConCFSettings
from concf.training.recipe.fold_in import FoldIn

RECIPE_USERS = 8192  # validated users whom a recipe fits its re-ranker and measures its figures on, at most
OF_IT_ALONE = ("consistency", "reranked")  # votes of the consensus that the R-consensus does without
STUDENT_MARGIN = 0.02  # a student is shipped if its validation is at most this share below the best factor head's


@dataclass
class Best:
    """One recommender at its best.

    epoch: of its best validation, the last of equals: what has trained for longer is what a figure that hardly changes
           should not keep us from
    rose:  the first of equals: a tie is no rise to be patient for
    state: parameters: of a head its single-branch model's, of the consensus the whole model's; {}: those that the run's
           model has now
    lists: [users, shown] of a consensus
    votes: what the consensus was made of, see `RankingConsensus.votes`
    """

    validation: float = -1.0
    epoch: int = -1
    rose: int = -1
    state: dict[str, Tensor] = field(default_factory=dict)
    lists: Tensor | None = None
    votes: dict[str, Tensor] = field(default_factory=dict)


class Run:
    """A run, under way or finished.

    best:    head name, "consensus" (R + C) or "R-consensus" -> its best state
    history: one record an epoch: losses, weights, gradient scales, validation, seconds
    model:   the branches as they are now; `keep` and `recommender` take the best state of each
    """

    def __init__(self, data: Split, settings: ConCFSettings, seed: int, model: Model) -> None:
        self.data, self.settings, self.seed, self.model = data.weighted(settings.weights), settings, seed, model
        self.best: dict[str, Best] = {}
        self.history: list[dict[str, Any]] = []
        self.epoch = 0  # the next one
        self.finished = False

    def notice(
        self, epoch: int, validation: dict[str, float], lists: dict[str, Tensor],
        votes: Callable[[], dict[str, Tensor]], whole: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:  # fmt: skip
        """Take over every recommender that is as good as ever. whole: a copy of the lists, of all users."""
        for name, value in validation.items():
            best = self.best.setdefault(name, Best())
            if value >= best.validation:
                best.rose = epoch if value > best.validation else best.rose
                best.validation, best.epoch = value, epoch
                if name in self.model.names:
                    best.state = _state(self.model.keep(name))
                else:
                    best.state = _state(self.model) if name == CONSENSUS else {}
                    best.lists = whole(lists[name])
                    made_of = votes()
                    best.votes = {
                        part: made_of[part] for part in made_of if name == CONSENSUS or part not in OF_IT_ALONE
                    }

    def state_dict(self) -> dict[str, Any]:
        """What a run leaves behind, but for its history."""
        best = {name: dict(vars(each)) for name, each in self.best.items()}
        empty = self.settings.recipe is not None and not self.finished  # its vectors are with the stages
        model = {} if empty else self.model.state_dict()
        return {"epoch": self.epoch, "finished": self.finished, "model": model, "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        if state["model"]:
            self.model.load_state_dict(state["model"])
        self.best = {name: Best(**each) for name, each in state["best"].items()}
        self.epoch, self.finished = state["epoch"], state["finished"]

    @cached_property
    def metric(self) -> str:
        """What validation figures are of, such as recall@50."""
        return fitting_metric(self.settings.training.metric, self.data)

    def objective(self, name: str) -> str | None:
        """What a head learns, as its settings say it, or that it was given; None of a consensus."""
        if self.settings.recipe is not None and name in self.settings.recipe.given_vectors:
            return "given"
        return dict(map(named, self.settings.objectives)).get(name)

    def best_head(self) -> str:
        """The head to deploy: the one with the best validation, or a student within 2 % of it."""
        student = self.model.names[-1]
        if self.settings.recipe is None:
            return self._best_factors()
        if not self.finished:
            return student
        least = (1 - STUDENT_MARGIN) * self._of(self._best_factors()).validation
        return student if self._of(student).validation >= least else self._best_factors()

    def _best_factors(self) -> str:
        """The head with the best validation, the first of equals."""
        return max(self.model.names, key=lambda name: self._of(name).validation)

    def why_best_head(self) -> str:
        """Why `best_head` is the one to deploy; nothing before anything was measured."""
        if not set(self.model.names) <= self.best.keys():
            return "no head was measured yet"
        best, name, student = self._best_factors(), self.best_head(), self.model.names[-1]
        figure, lower = self._of(best).validation, self._of(student).validation
        if self.settings.recipe is None or best == student or not self.finished:
            return f"{name} has the best validation of the heads"
        place = "within 2 % of" if name == student else "more than 2 % below"
        return f"the student ({lower:.4f}) is {place} the best other head, {best} ({figure:.4f})"

    def keep(self, head: str) -> Model:
        """The single-branch model of a head at its best: no trace of the others."""
        best, alone = self._of(head), self.model.keep(head)
        if best.state:
            alone.load_state_dict(best.state)
        return alone

    @cached_property
    def voters(self) -> dict[str, Factors]:
        """The voting heads at the best epoch of the consensus."""
        best, model = self.best[CONSENSUS], deepcopy(self.model)
        if best.state:
            model.load_state_dict(best.state)
        voting = set(self.model.names) - set(self.settings.consensus.non_voting)
        return {name: factors.to("cpu") for name, factors in model.factors().items() if name in voting}

    @cached_property
    def fold_in(self) -> FoldIn:
        """The heads and the consensus for histories of new users."""
        heads = {name: self.keep(name).factors()[name].to("cpu") for name in self.model.names}
        several = CONSENSUS in self.best
        votes = self.best[CONSENSUS].votes if several else {}
        return FoldIn(self.log, self.settings, self.chosen, heads, self.voters if several else {}, votes)

    def recommender(self, name: str, histories: csr_array | None = None) -> Factors | WithFallback | ListFunction:
        """A head's vectors, or the consensus' lists, at their best: for `evaluate` and `rank`.

        Where a user who is evaluated has no learned pair, the vectors come with the popularity of the items for it.

        histories: [n, items] of new users, whom the vectors or lists are then of; None: of the users of the log
        """
        if histories is not None and name in self.model.names:
            return self.fold_in.head(name, histories)
        if histories is not None:
            part = 0 if name == CONSENSUS else 1  # of `Agreed`
            return ListFunction(lambda users, _length: self.fold_in.agree(histories[users])[part])
        if name not in (CONSENSUS, R_CONSENSUS):
            factors = self.keep(name).factors()[name]
            evaluated = np.union1d(self.data.validated, self.data.evaluated)
            return self._with_fallback(factors) if self.unlearned[evaluated].any() else factors
        lists = self._of(name).lists
        assert lists is not None
        stored = lists.cpu().numpy()
        if self.unlearned.any():
            stored = np.where(self.unlearned[:, None], NOTHING, stored)
        return _listed(stored, lambda users, length: rank(self._deployed, users, length, seen=self.unlisted))

    @cached_property
    def _deployed(self) -> WithFallback:
        name = self.best_head()
        return self._with_fallback(self.keep(name).factors()[name].to("cpu"))

    def _with_fallback(self, factors: Factors) -> WithFallback:
        """The vectors, and popular items for users without a learned pair."""
        return WithFallback(factors, torch.from_numpy(self.unlearned), torch.from_numpy(self.popularity)).to(
            factors.user.device
        )

    @cached_property
    def unlearned(self) -> NDArray[np.bool_]:
        """[users] who have no learned pair: the most popular items are recommended to them."""
        return np.asarray(self.data.interactions.per_user(rows=self._learned_pairs) == 0)

    @cached_property
    def popularity(self) -> NDArray[np.float32]:
        """[items] how many users of the learned pairs have used each."""
        return self.data.interactions.per_item(rows=self._learned_pairs).astype(np.float32)

    @property
    def _learned_pairs(self) -> NDArray[np.bool_]:
        """[pairs] of the data set that were learned from."""
        return np.isin(origin(self.data.parts), [PARTS[part] for part in self.learned])

    @property
    def notes(self) -> list[str]:
        """What a user of the run should know: notes of the split, and who was left without a learned pair."""
        notes, log = list(self.data.notes), self.data.interactions
        for side, ids, cold, then in (
            ("users", log.user_ids, self.unlearned, "popular items are recommended to them"),
            ("items", log.item_ids, self.popularity == 0, "they can hardly be recommended"),
        ):
            if cold.any():
                example = ids.named(np.flatnonzero(cold)[:1])[0]
                notes.append(f"{cold.sum():,} {side} have no learned pair (for example {example!r}): {then}")
        return notes

    @cached_property
    def unlisted(self) -> csr_array:
        """[users, items] what no list of the consensus has: what was learned from, and dislikes."""
        return self.log if self.data.disliked is None else (self.log + self.data.disliked).tocsr()

    @property
    def asked_users(self) -> int | None:
        """How many users the voters were asked for in the end; None: everyone."""
        return next((record["asked_users"] for record in reversed(self.history) if "asked_users" in record), None)

    def evaluate(
        self, *, on: Literal["valid", "test"] = "test", at: Iterable[int] | int = (20, 50),
        metrics: Iterable[str] = METRICS,
    ) -> dict[str, Evaluation]:  # fmt: skip
        """Every head and consensus, each at the epoch of its own best validation.

        Where the data set holds out users (`new-users`), the figures are of them, folded in from their histories.
        """
        cuts, wanted, data = check_cutoffs("at", at), list(metrics), self.data.whole or self.data
        self.refuse_learned(on)
        data.note_if_few(on)
        if data.candidates(on) is not None:
            note(
                "the test part is of new items, about which nothing was learned: these figures are of chance. "
                "Attributes rank new items: concf evaluate --catalogue, or add_items"
            )
        histories = data.history if data.has_new_users else None
        return {
            name: evaluate(self.recommender(name, histories), data, on=on, at=cuts, metrics=wanted)
            for name in self.rows()
        }

    @property
    def learned(self) -> tuple[str, ...]:
        """The parts of the data set that the recommenders were fitted to."""
        refit = "none" if self.settings.recipe is None else self.settings.recipe.refit
        return {"none": ("train",), "validation": ("train", "valid"), "everything": ("train", "valid", "test")}[refit]

    @cached_property
    def log(self) -> csr_array:
        """[users, items] of those parts, by the weights of the settings."""
        return self.data.log(self.learned)

    def share_log(self, group: ProcessGroup) -> None:
        """Have the processes of a machine share its pages."""
        vars(self)["log"] = group.shared(lambda: self.data.log(self.learned))

    @property
    def chosen(self) -> dict[str, dict[str, float]]:
        """Voter -> the settings that training chose for it on validation."""
        return {name: each for record in self.history for name, each in record.get("chosen", {}).items()}

    @property
    def validated_users(self) -> int:
        """How many users its validation figures are of, which an update may have carried over."""
        measured = [record["validated_users"] for record in self.history if "validated_users" in record]
        return measured[-1] if measured else n_validated(self.data, self.settings)

    @property
    def carried_validation(self) -> bool:
        """Whether its validation figures are those of the run before an update."""
        return any(record.get("carried_validation") for record in self.history)

    @property
    def updates(self) -> list[dict[str, Any]]:
        """The logs that it was updated with, the oldest first: name, SHA-256, new pairs, pairs dropped before."""
        return list(self.data.recipe.source.get(UPDATES, []))

    def refuse_learned(self, on: str) -> None:
        """Refuse to measure on what was learned from; of new users nothing was."""
        if self.data.has_new_users:
            return
        if on == "valid" and self.settings.recipe and on not in self.learned:
            raise ConfigError(
                "the re-ranker of this run was fitted to the validation part, so that a figure on it would flatter. "
                "Cross-fitted figures are in its summary and report; choose --on test"
            )
        if on in self.learned:
            part = {"valid": "validation", "test": "test"}[on]
            advice = "--on test" if "test" not in self.learned else "recipe.refit=validation when you train"
            raise ConfigError(
                f"this run was refitted on its {part} part (recipe.refit), so that a figure on it would say nothing. "
                f"What was measured before the refit is in its summary and report; choose {advice}"
            )

    def summary(self) -> dict[str, Any]:
        """What `concf train --json` says: the validation figure of each, and the epoch that it is of."""
        rows = [
            {
                "name": name, "objective": self.objective(name), "validation": self.best[name].validation,
                "epoch": None if self.settings.recipe else self.best[name].epoch,
                "chosen": {} if self.objective(name) == "given" else self.chosen.get(name, {}),
            }
            for name in self.rows()
        ]  # fmt: skip
        return {
            "split_hash": self.data.hash,
            "seed": self.seed,
            "epochs": self.epoch,
            "finished": self.finished,
            "metric": self.metric,
            "validated_users": self.validated_users,
            "carried_validation": self.carried_validation,
            "asked_users": self.asked_users,
            "tested_users": len((self.data.whole or self.data).evaluated),
            "best_head": self.best_head(),
            "why_best_head": self.why_best_head(),
            "notes": self.notes,
            "learned": list(self.learned),
            "updates": self.updates,
            "chosen": self.chosen,
            "recommenders": rows,
        }

    def _of(self, name: str) -> Best:
        if name not in self.best:
            raise ConfigError(f"nothing is called {name!r} in this run; there are {', '.join(self.best) or 'none yet'}")
        return self.best[name]

    def rows(self) -> list[str]:
        """The names in the order of tables: heads, then the consensuses."""
        return [name for name in (*self.model.names, R_CONSENSUS, CONSENSUS) if name in self.best]


def n_validated(data: Split, settings: ConCFSettings) -> int:
    """How many users the choice of the best rests on."""
    everyone = len(data.validated)
    most = everyone if settings.recipe is None else RECIPE_USERS
    return min(everyone, most, settings.training.validated_users or everyone)


def _state(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _listed(lists: NDArray[np.int32], otherwise: Callable[[NDArray[np.int64], int], NDArray[np.int32]]) -> ListFunction:
    """Lists [users, L], and others for users whose list is empty."""

    def listed(users: NDArray[np.int64], _length: int) -> NDArray[np.int32]:
        found, empty = lists[users], np.flatnonzero(lists[users, 0] < 0)
        if len(empty):
            found[empty] = otherwise(users[empty], found.shape[1])
        return found

    return ListFunction(listed)


def make_model(
    data: Split,
    settings: ConCFSettings,
    objectives: Mapping[str, Objective] | None = None,
    encoder: EncoderMaker | None = None,
    seed: int = 0,
) -> Model:
    """The model before training, drawn on the CPU: the same on every device. objectives, encoder: your own, if any."""
    made = settings.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(
            data.train, choose(settings.objectives, settings.losses, objectives), dimensions=made.dimensions,
            encoder=encoder or made.make_encoder(), sharing=made.sharing, initial_std=made.initial_std,
        )  # fmt: skip
