"""Run: its history, and each head and consensus at its best validation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.split import UPDATES, Split
from concf.errors import ConfigError, note, option
from concf.evaluation.metrics import METRICS
from concf.runs.settings import CONSENSUS, R_CONSENSUS, RunSettings
from concf.runtime.arguments import check_cutoffs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from concf.evaluation.evaluate import Evaluation
    from concf.evaluation.scorers import Factors, ListFunction, WithFallback
    from concf.runs.fold_in import FoldIn


@dataclass
class Best:
    """Recommender at its best validation.

    epoch: of its best validation, the last of equals, since longer training is preferred where a metric hardly changes
    rose:  epoch of the last strict improvement
    state: tensors of a head, or of the whole model at the best of the consensus
    lists: [users, shown] of a consensus
    votes: votes of the consensus, see `reference.RankingConsensus.votes`
    """

    validation: float = -1.0
    epoch: int = -1
    rose: int = -1
    state: dict[str, Tensor] = field(default_factory=dict)
    lists: Tensor | None = field(default_factory=lambda: None)  # a plain default would hide `StoredBest.__getattr__`
    votes: dict[str, Tensor] = field(default_factory=dict)

    def listed(self) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
        """[users, shown] each: the lists and, if there is a re-ranker, its scores, as arrays."""
        parts: dict[str, Any] = vars(self).get("kept", {}) | vars(self)
        both = parts["lists"], parts["votes"].get("reranked")
        two: list[Any] = [each if each is None or isinstance(each, np.ndarray) else each.cpu().numpy() for each in both]
        return two[0], two[1]


class StoredBest(Best):
    """Recommender in a checkpoint, in the arrays `kept`. Tensors are made, with PyTorch, when they are first used."""

    def __init__(self, device: str | torch.device, validation: float, epoch: int, rose: int, **kept: Any) -> None:
        vars(self).update(validation=validation, epoch=epoch, rose=rose, device=device, kept=kept)

    def __getattr__(self, name: str) -> Any:
        if name not in vars(self).get("kept", ()):
            raise AttributeError(name)
        vars(self)[name] = as_tensors(self.kept[name], self.device)
        return vars(self)[name]


def as_tensors(state: Any, device: str | torch.device) -> Any:
    """Convert the arrays of a state to tensors, which on a CPU share their memory."""
    import torch

    if isinstance(state, dict):
        return {name: as_tensors(each, device) for name, each in state.items()}
    return None if state is None else torch.from_numpy(state).to(device)


class Run(ABC):
    """Run of one of the models, unfinished or finished.

    unit:    what its history counts: epochs or stages
    best:    head name, "consensus" (R + C) or "R-consensus" -> its best state
    history: one record an epoch or stage: losses, settings chosen, validation, seconds
    epoch:   the next epoch or stage
    """

    unit: ClassVar[Literal["epochs", "stages"]]

    def __init__(self, data: Split, settings: RunSettings, seed: int, device: str | torch.device) -> None:
        self.data, self.settings, self.seed, self._device = data.weighted(settings.weights), settings, seed, device
        self.best: dict[str, Best] = {}
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.finished = False

    @cached_property
    def device(self) -> torch.device:
        """Where the run is trained."""
        import torch

        return torch.device(self._device)

    @abstractmethod
    def factors(self, head: str) -> Factors:
        """Vectors of a head at its best."""

    @property
    @abstractmethod
    def voters(self) -> dict[str, Factors]:
        """Voting heads at the best of the consensus, on the CPU."""

    @property
    @abstractmethod
    def fold_in(self) -> FoldIn:
        """The heads and the consensus for histories of new users."""

    @abstractmethod
    def objective(self, name: str) -> str | None:
        """Name of a head's objective; None for a consensus."""

    @abstractmethod
    def method(self) -> str:
        """Describe the training in a sentence or two."""

    @property
    def heads(self) -> list[str]:
        """Names of the heads."""
        return self.settings.heads

    @property
    def fixed_voters(self) -> tuple[str, ...]:
        """Voters without vectors."""
        return ()

    @property
    def learned(self) -> tuple[str, ...]:
        """Parts of the data set that the recommenders are fitted to."""
        return ("train",)

    @property
    def at_most(self) -> int | None:
        """Most epochs of the training; None: it has stages."""
        return None

    @property
    def n_validated(self) -> int:
        """Number of users that validation metrics are measured on."""
        everyone = len(self.data.validated)
        return min(everyone, self.settings.training.validated_users or everyone)

    def best_head(self) -> str:
        """Name of the head to deploy: the one with the best validation, the first of equals."""
        return max(self.heads, key=lambda name: self._best(name).validation)

    def why_best_head(self) -> str:
        """Give the reason for the choice of `best_head`."""
        if not set(self.heads) <= self.best.keys():
            return "no head was measured yet"
        return f"{self.best_head()} has the best validation of the heads"

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a run keeps, except its history."""
        best = {name: {part: getattr(each, part) for part in Best.__annotations__} for name, each in self.best.items()}
        return {"epoch": self.epoch, "finished": self.finished, "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, with arrays for tensors."""
        self.best = {name: StoredBest(self._device, **each) for name, each in state["best"].items()}
        self.epoch, self.finished = state["epoch"], state["finished"]

    @cached_property
    def metric(self) -> str:
        """Validation metric, such as recall@50."""
        from concf.evaluation.validation import fitting_metric

        return fitting_metric(self.settings.training.metric, self.data)

    def recommender(self, name: str, histories: csr_array | None = None) -> Factors | WithFallback | ListFunction:
        """Return a head's vectors, or the lists of a consensus, at their best: for `evaluate` and `rank`.

        Evaluated users without a learned pair get the most popular items.

        histories: [n, items] histories of new users; None: rank for the users of the log
        """
        from concf.evaluation.ranking import NOTHING, rank
        from concf.evaluation.scorers import ListFunction

        if histories is not None and name in self.heads:
            return self.fold_in.head(name, histories)
        if histories is not None:
            part = 0 if name == CONSENSUS else 1  # of `Agreed`
            return ListFunction(lambda users, _length: self.fold_in.agree(histories[users])[part])
        if name not in (CONSENSUS, R_CONSENSUS):
            factors = self.factors(name)
            evaluated = np.union1d(self.data.validated, self.data.evaluated)
            return self._with_fallback(factors) if self.unlearned[evaluated].any() else factors
        stored, _ = self._best(name).listed()
        if self.unlearned.any():
            stored = np.where(self.unlearned[:, None], NOTHING, stored)

        def listed(users: NDArray[np.int64], _length: int) -> NDArray[np.int32]:
            lists, empty = stored[users], np.flatnonzero(stored[users, 0] < 0)
            if len(empty):
                lists[empty] = rank(self._deployed, users[empty], lists.shape[1], seen=self.unlisted)
            return lists

        return ListFunction(listed)

    @cached_property
    def _deployed(self) -> WithFallback:
        return self._with_fallback(self.factors(self.best_head()).to("cpu"))

    def _with_fallback(self, factors: Factors) -> WithFallback:
        """Vectors, with popular items for users without a learned pair."""
        import torch

        from concf.evaluation.scorers import WithFallback

        fallback = WithFallback(factors, torch.from_numpy(self.unlearned), torch.from_numpy(self.popularity))
        return fallback.to(factors.user.device)

    @cached_property
    def unlearned(self) -> NDArray[np.bool_]:
        """[users] True for users without a learned pair, who get the most popular items."""
        return np.asarray(self.data.interactions.per_user(rows=self.data.rows(self.learned)) == 0)

    @cached_property
    def popularity(self) -> NDArray[np.float32]:
        """[items] number of learned pairs of each item."""
        return self.data.interactions.per_item(rows=self.data.rows(self.learned)).astype(np.float32)

    @property
    def notes(self) -> list[str]:
        """Notes for users of the run: those of the split, and users and items without a learned pair."""
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
        """[users, items] pairs that no consensus list holds: learned pairs and dislikes."""
        return self.log if self.data.disliked is None else (self.log + self.data.disliked).tocsr()

    @property
    def consensus_users(self) -> int | None:
        """Number of users for whom the consensus was computed; None: everyone."""
        key = "consensus_users"
        return next((record[key] for record in reversed(self.history) if key in record), None)

    def evaluate(
        self, *, on: Literal["valid", "test"] = "test", at: Iterable[int] | int = (20, 50),
        metrics: Iterable[str] = METRICS, everyone: bool = False,
    ) -> dict[str, Evaluation]:  # fmt: skip
        """Evaluate every head and consensus, each at its own best validation.

        Where the data set holds out users (`new-users`), these are evaluated, folded in from their histories.

        everyone: evaluate all users with held-out items, those without history too; see `concf.evaluate`
        """
        from concf.evaluation.evaluate import evaluate

        cuts, wanted, data = check_cutoffs("at", at), list(metrics), self.data.whole or self.data
        self.refuse_learned(on)
        data.note_if_few(on)
        if data.candidates(on) is not None:
            advice = "To rank them by attributes: concf evaluate --catalogue, or add_items"
            note(f"the test part has only new items, so that its metrics are at chance level. {advice}")
        histories = data.history if data.has_new_users else None
        return {
            name: evaluate(self.recommender(name, histories), data, on=on, at=cuts, metrics=wanted, everyone=everyone)
            for name in self.rows()
        }

    @cached_property
    def log(self) -> csr_array:
        """[users, items] learned pairs, by the weights of the settings."""
        return self.data.log(self.learned)

    @property
    def chosen(self) -> dict[str, dict[str, float]]:
        """Voter -> the settings that training chose for it on validation."""
        return {name: each for record in self.history for name, each in record.get("chosen", {}).items()}

    @property
    def validated_users(self) -> int:
        """Number of users behind the validation metrics, which an update may have carried over."""
        measured = [record["validated_users"] for record in self.history if "validated_users" in record]
        return measured[-1] if measured else self.n_validated

    @property
    def chosen_late(self) -> bool:
        """Whether the test part validated, see `Split.newest`."""
        return self.data.whole is not None and not self.data.has_new_users

    @property
    def carried_validation(self) -> bool:
        """Whether the validation metrics are those of the run before an update."""
        return any(record.get("carried_validation") for record in self.history)

    @property
    def updates(self) -> list[dict[str, Any]]:
        """Logs that the run was updated with, the oldest first: name, SHA-256, new pairs, pairs dropped before."""
        return list(self.data.recipe.source.get(UPDATES, []))

    def refuse_learned(self, on: str) -> None:
        """Refuse to measure on a part that was learned from; held-out users are always measurable."""
        if on in self.learned and not self.data.has_new_users:
            part = {"valid": "validation", "test": "test"}[on]
            advice = f"Choose {option('on', 'test')}" if "test" not in self.learned else "Train without --final to test"
            raise ConfigError(f"the run was refitted on its {part} part, so that a metric on it says nothing. {advice}")

    def summary(self) -> dict[str, Any]:
        """Validation metric and best epoch of each recommender, as `concf train --json` prints them."""
        rows = [
            {
                "name": name, "objective": self.objective(name), "validation": self.best[name].validation,
                "epoch": self.best[name].epoch if self.unit == "epochs" else None,
                "chosen": {} if self.objective(name) == "given" else self.chosen.get(name, {}),
            }
            for name in self.rows()
        ]  # fmt: skip
        return {
            "model": self.settings.kind,
            "split_hash": self.data.hash,
            "seed": self.seed,
            "epochs": self.epoch,
            "finished": self.finished,
            "metric": self.metric,
            "validated_users": self.validated_users,
            "carried_validation": self.carried_validation,
            "consensus_users": self.consensus_users,
            "tested_users": len((self.data.whole or self.data).evaluated),
            "best_head": self.best_head(),
            "why_best_head": self.why_best_head(),
            "notes": self.notes,
            "learned": list(self.learned),
            "updates": self.updates,
            "chosen": self.chosen,
            "recommenders": rows,
        }

    def rows(self) -> list[str]:
        """Names in the order of tables: heads, then the consensuses."""
        return [name for name in (*self.heads, R_CONSENSUS, CONSENSUS) if name in self.best]

    def _best(self, name: str) -> Best:
        if name not in self.best:
            raise ConfigError(f"unknown recommender {name!r}; available: {', '.join(self.best) or 'none yet'}")
        return self.best[name]
