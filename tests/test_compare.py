"""Comparisons: tuned on validation alone, tested on every split, resumed from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import ItemKNN
from concf.baselines.table import Candidate
from concf.comparison.compare import compare
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.runtime.settings import Settings

LOG = Simulation(users=150, items=80, events=5000).draw(2)
MODELS = {"popularity": Candidate(Popularity), "knn": Candidate(ItemKNN, {"neighbours": (5, 20, 60)})}
FITS: list[dict[str, Any]] = []


def pairs_of(*parts: csr_array) -> set[tuple[int, int]]:
    return {(user, item) for part in parts for user, item in np.argwhere(part.toarray())}


class Counted(Settings):
    """A model that remembers that it was fitted."""

    neighbours: int = 20

    def fit(self, train: csr_array, seed: int = 0, device: str = "cpu") -> Any:
        FITS.append(
            {"neighbours": self.neighbours, "seed": seed, "pairs": set(zip(*map(list, train.nonzero()), strict=True))}
        )
        return ItemKNN(neighbours=self.neighbours).fit(train)


@pytest.fixture(scope="module")
def data() -> Split:
    return prepare(LOG, protocol="random")


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    models = [{name: value for name, value in model.items() if name != "fit_seconds"} for model in report["models"]]
    return report | {"models": models}


def test_the_best_on_validation_is_tested_on_every_split(data: Split) -> None:
    result = compare(data, MODELS, seeds=3)
    by_hand = {
        n: evaluate(ItemKNN(neighbours=n).fit(data.train), data, on="valid").means()["recall@50"] for n in (5, 20, 60)
    }
    knn = next(entrant for entrant in result.entrants if entrant.name == "knn")
    best = max(by_hand, key=lambda n: by_hand[n])
    assert knn.settings["neighbours"] == best
    assert knn.validation == by_hand[best]
    for seed, figures in enumerate(knn.tests):
        split = data.with_seed(seed)
        pairs = csr_array(split.train.toarray() + split.valid.toarray())
        assert figures == evaluate(ItemKNN(neighbours=best).fit(pairs), split).means()
    assert result.split_hashes == [data.with_seed(seed).hash for seed in range(3)]


def test_what_is_tested_was_fitted_on_training_and_validation_pairs(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[set[tuple[int, int]]] = []

    def watched(model: Any, users: Any, k: int, *, seen: csr_array, **rest: Any) -> Any:
        masks.append(pairs_of(seen))
        return rank(model, users, k, seen=seen, **rest)

    monkeypatch.setattr("concf.evaluation.evaluate.rank", watched)
    models, log = {"counted": Candidate(Counted, {"neighbours": (5, 20)})}, tmp_path / "log.jsonl"
    alone, both = pairs_of(data.train), pairs_of(data.train, data.valid)
    FITS.clear()
    result = compare(data, models, seeds=1, log=log)
    assert [fit["pairs"] for fit in FITS] == [alone, alone, both]
    assert masks == [alone, alone, both]
    assert result.as_dict()["models"][0]["fitted_on"] == "train and valid"


def test_mean_std_and_significance_are_the_textbook_s(data: Split) -> None:
    result = compare(data, MODELS, seeds=4)
    first, second = (np.array([test["recall@50"] for test in entrant.tests]) for entrant in result.entrants)
    assert result.entrants[0].mean("recall@50") == pytest.approx(first.mean())
    assert result.entrants[0].std("recall@50") == pytest.approx(first.std(ddof=1))
    assert result.p_values("recall@50") == [None, pytest.approx(stats.ttest_rel(first, second).pvalue)]
    result = compare(data, MODELS, seeds=1)
    first, second = (entrant.per_user["recall@50"] for entrant in result.entrants)
    assert len(first) == len(data.evaluated)
    assert result.p_values("recall@50")[1] == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert "over users" in result.as_dict()["test"]


def test_what_the_log_holds_is_not_run_again(data: Split, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    models = {"counted": Candidate(Counted, {"neighbours": (5, 20)}), "popularity": Candidate(Popularity)}
    FITS.clear()
    whole = compare(data, models, seeds=3, log=log).as_dict()
    assert len(FITS) == 2 + 3
    assert compare(data, models, seeds=3, log=log).as_dict() == whole
    assert len(FITS) == 5
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]) + lines[-2][:40])  # killed while writing the last line but one
    again = compare(data, models, seeds=3, log=log).as_dict()
    assert len(FITS) == 5 + 2
    assert without_seconds(whole) == without_seconds(again)
    log.write_bytes(b"user_id,item_id\n1,2\n")
    with pytest.raises(DataError, match="--log"):
        compare(data, models, seeds=1, log=log)
    assert log.read_bytes() == b"user_id,item_id\n1,2\n"


def test_nonsense_is_refused(data: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = [
        (["magic"], {}), ([], {}), (MODELS, {"metrics": ("magic",)}), (MODELS, {"metrics": ("gini@5", "recall@5")}),
        (MODELS, {"metrics": ["recall"]}), (MODELS, {"metrics": []}), (MODELS, {"engine": "processes", "workers": 0}),
        (MODELS, {"engine": "spark"}),
    ]  # fmt: skip
    for models, words in asked:
        with pytest.raises(ConfigError):
            compare(data, models, **words)
    with pytest.raises(ConfigError, match="one split only"):
        compare(prepare(LOG, protocol="time", valid=0.2, test=0.2), MODELS, seeds=2)
    monkeypatch.setattr("concf.comparison.compare.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="baselines"):
        compare(data, ["popularity", "ials"], seeds=1)
