"""The experiments by name: which cells each is made of, on which data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from concf.errors import ConfigError
from concf.models import choose_settings
from concf.reference.settings import ReferenceSettings
from reproduction.variants import (
    ALONE,
    BY_MEAN,
    DIFFERENCES,
    DROPOUT,
    FROM_ALS,
    HYPERPARAMETERS,
    SHARES,
    SLOW,
    VARIANTS,
)

CITEULIKE = (("citeulike", "released"),)
CIAO = (("ciao", "paper"),)
CIAO_TOO = (*CITEULIKE, *CIAO)  # where the data is the paper's and its figures can be met
ALL_ROWS = (*CIAO_TOO, ("ciao", "released"), ("foursquare", "released"))
STATISTICS = (("citeulike", "paper"), *ALL_ROWS)


def choose_reference(preset: str, words: Iterable[str]) -> ReferenceSettings:
    """Settings of Algorithm 1: words such as `consensus.weight=0` over a preset."""
    chosen = choose_settings(preset, words=words)
    assert isinstance(chosen, ReferenceSettings)
    return chosen


@dataclass(frozen=True)
class Cell:
    """What a line of results is of: a variant on a split under a preset."""

    variant: str
    data: str
    protocol: str
    seed: int
    preset: str = "reference"

    def key(self, changes: Sequence[str] = ()) -> dict[str, Any]:
        """The key of its line of results. changes: settings of the caller's over the variant's."""
        return asdict(self) | ({"set": list(changes)} if changes else {})

    def settings(self, changes: Sequence[str] = ()) -> ReferenceSettings:
        """Settings of its variant over its preset. changes: the caller's over them"""
        return choose_reference(self.preset, [*VARIANTS[self.variant], *changes])

    @property
    def in_detail(self) -> bool:
        """Whether groups of users and single users are measured too: only under `reference`, which is drawn."""
        return self.preset == "reference"

    @property
    def folder(self) -> str:
        """The name of its prepared data."""
        return f"{self.data}-{self.protocol}-{self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: variants on data, over several splits.

    presets: beside `reference`, on the data whose figures can be compared with the paper's
    """

    title: str
    variants: tuple[str, ...]
    data: tuple[tuple[str, str], ...]
    splits: int
    presets: tuple[str, ...] = ()

    def cells(self, more: tuple[tuple[str, str], ...] = ()) -> list[Cell]:
        """Its cells, also on more data: the default preset first, each data set whole before the next."""
        return [
            Cell(variant, name, protocol, seed, preset)
            for preset in ("reference", *self.presets)
            for name, protocol in (*self.data, *more)
            if preset == "reference" or (name, protocol) in (*CIAO_TOO, *more)
            for seed in range(self.splits)
            for variant in self.variants
        ]


EXPERIMENTS: dict[str, Experiment] = {
    "stats": Experiment("Statistics of the data", ("statistics",), STATISTICS, 1),
    "main": Experiment("Recommendation performance", ("ConCF", "SingleCF"), ALL_ROWS, 5, ("paper", "released")),
    "schemes": Experiment("SingleCF, without consensus learning, ConCF; CHR by scheme",
                          ("ConCF", "SingleCF", "without CL"), ALL_ROWS, 5),
    "groups": Experiment("Gain by user activity", ("ConCF", "SingleCF"), ALL_ROWS, 5),
    "per": Experiment("Pairwise exclusive-hit ratio of the objectives", ("SingleCF",), ALL_ROWS, 5),
    "consistency": Experiment("Consistency of right and wrong predictions; what it adds to a consensus",
                              ("consistency",), CITEULIKE, 5),
    "homogeneous": Experiment("Homogeneous objectives and PCL",
                              ("ConCF", "SingleCF", "homogeneous", "PCL", f"homogeneous{BY_MEAN}", f"PCL{BY_MEAN}"),
                              CITEULIKE, 5),
    "distillation": Experiment("Two-stage distillation", ("ConCF", "SingleCF", "distillation"), CITEULIKE, 5),
    "selection": Experiment("Selection of one objective a pair: ConCF-S, AutoML",
                            ("ConCF", "SingleCF", "ConCF-S", "ConCF-S, all heads taught", "AutoML"), CITEULIKE, 5),
    "chr": Experiment("Complementary hit ratio by initial condition, model size, objective",
                      ("SingleCF", "initial conditions", "model sizes"), ALL_ROWS, 5),
    "hyperparameters": Experiment("Balancing, alpha, |Q| and p", ("ConCF", *HYPERPARAMETERS), CITEULIKE, 5),
    "sharing": Experiment("Levels of parameter sharing",
                          ("ConCF", "sharing=full", "sharing=layer", "sharing=none"), CITEULIKE, 5),
    "alone": Experiment("CF-B and CF-E alone: epochs, margin, learning rate, scale",
                        ("SingleCF", *ALONE), CIAO_TOO, 3),
    "differences": Experiment("Each difference between paper and released code, switched alone",
                              ("ConCF", *DIFFERENCES), CITEULIKE, 3),
    "protocol": Experiment("CiteULike by the paper's own protocol", ("ConCF", "SingleCF"),
                           (("citeulike", "paper"),), 5),
    "taught": Experiment("CF-E as a student, by the weight of the consensus loss", ("taught CF-E",), CITEULIKE, 5),
    "share": Experiment("The consensus loss of each head at a share of its gradient", ("ConCF", *SHARES), CITEULIKE, 5),
    "share-ciao": Experiment("The same on Ciao", ("ConCF", "share=0.3"), CIAO, 3),
    "dropout": Experiment("CF-E alone, by dropout", ("SingleCF", *DROPOUT), CIAO_TOO, 5),
    "slow": Experiment("CF-B alone on Ciao: start, weight decay, bias", ("SingleCF", *SLOW), CIAO, 3),
    "base": Experiment("Consensus learning over a strong base", (*FROM_ALS, "strong"), CIAO_TOO, 5),
    "ten": Experiment("Ten splits, where they decide",
                      ("ConCF", "without CL", "without balancing", "sharing=none"), CITEULIKE, 10),
}  # fmt: skip
ALL = "all"


def cells_of(
    names: Iterable[str],
    *,
    data: Sequence[str] = (),
    protocols: Sequence[str] = (),
    presets: Sequence[str] = (),
    variants: Sequence[str] = (),
    splits: int | None = None,
) -> list[Cell]:
    """The cells of those experiments, each once; of those data sets, protocols, presets, variants and first splits.

    Those under `reference` come first. A data set that no experiment has, such as `demo`, is taken as one more.
    """
    names = list(names)
    for name in names:
        if name not in (*EXPERIMENTS, ALL):
            raise ConfigError(f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)} and {ALL}")
    names = list(EXPERIMENTS) if ALL in names else names
    others = [name for name in data if name not in dict(STATISTICS)]
    more = tuple((name, protocol) for name in others for protocol in protocols or ("released",))
    planned = (cell for name in names for cell in EXPERIMENTS[name].cells(more))
    cells = [
        cell
        for cell in dict.fromkeys(planned)
        if (not data or cell.data in data)
        and (not protocols or cell.protocol in protocols)
        and (not presets or cell.preset in presets)
        and (not variants or cell.variant in variants)
        and (splits is None or cell.seed < splits)
    ]
    if not cells:
        raise ConfigError(f"nothing of {', '.join(names)} is left; see --list for what there is")
    return sorted(cells, key=lambda cell: cell.preset != "reference")
