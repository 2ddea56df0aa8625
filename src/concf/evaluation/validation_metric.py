"""The figure that epochs are chosen by, such as recall@50: one that can tell them apart on the data at hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from concf.data.split import Split
from concf.errors import ConfigError, note
from concf.evaluation.metrics import ACCURACY

AUTO = "auto"
USUAL = "recall@50"  # the paper's
SMALL = 500  # candidates: with fewer, 50 places are no longer few beside them
SHORTEST = 5  # places that NDCG looks at, at least
ORDERLESS = ("recall", "precision", "hit")  # of whatever order the first places are in
BLUNT = 0.5  # share of its greatest value that a random order comes to


def parsed(metric: str) -> tuple[str, int]:
    """The name and the length of a metric such as recall@50."""
    name, _, n = metric.partition("@")
    if name not in ACCURACY or not n.isdecimal() or int(n) < 1:
        raise ConfigError(
            f"training.metric = {metric!r}: expected one of {', '.join(ACCURACY)} at a length, as {USUAL}, or {AUTO}"
        )
    return name, int(n)


def fitting_metric(metric: str, data: Split) -> str:
    """The metric itself; in place of `auto` recall@50 or, where a user has few candidates, NDCG at a tenth of them.

    Candidates are the items that a user has not trained on: on average over the validated users.
    """
    if metric != AUTO:
        parsed(metric)
        return metric
    candidates = float(_candidates(data).mean())
    return USUAL if candidates >= SMALL else f"ndcg@{max(int(candidates / 10), SHORTEST)}"


def refuse_blind(metric: str, data: Split) -> None:
    """Refuse a metric that is the same for every order of the items; note one to which the order hardly matters."""
    name, n = parsed(metric)
    if name not in ORDERLESS:
        return
    share = np.minimum(1.0, n / np.maximum(_candidates(data), 1))
    if name == "hit":
        share = 1 - (1 - share) ** np.diff(data.valid.indptr)[data.validated]
    chance = float(share.mean())
    better = f"Choose {fitting_metric(AUTO, data)}, or leave it at {AUTO}"
    if chance == 1:
        raise ConfigError(
            f"training.metric = {metric!r} cannot tell one epoch from another: no validated user has more than {n} "
            f"items to rank. {better}"
        )
    if chance >= BLUNT:
        note(
            f"training.metric = {metric!r}: a random order comes to {chance:.0%} of its greatest value, so that it "
            f"hardly tells one epoch from another. {better}"
        )


def _candidates(data: Split) -> NDArray[np.float64]:
    """[v] items that each validated user has not trained on."""
    if not len(data.validated):
        raise ConfigError("no user has validation items: there is nothing to choose the best epoch by")
    trained = np.diff(data.train.indptr)[data.validated]
    return np.asarray(data.train.shape[1] - trained, np.float64)
