from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.data.interactions import Interactions
from concf.data.prepare import prepare, split_of
from concf.data.protocols import TEST, TRAIN, VALID, Random
from concf.data.reading.read import read
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.experiments.compare import compare
from concf.inference.estimator import ConCF

CLI = Callable[..., tuple[int, str, str]]
TINY = ("--single", "bpr", "--set", "training.epochs=1", "--set", "model.dimensions=4")
RNG = np.random.default_rng(0)


def log(users: int, items: int, longer: int = 0, n_items: int = 30) -> pl.DataFrame:
    """Users with so many items each, and a few longer ones with twenty."""
    sizes = [items] * users + [20] * longer
    rows = [(user, int(item)) for user, size in enumerate(sizes) for item in RNG.permutation(n_items)[:size]]
    return pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.data.split.FEW_USERS", 300)


def held_out(data: Interactions, protocol: Random, part: int) -> list[int]:
    parts = protocol.assign(data, 0)
    return np.bincount(data.user[parts == part], minlength=data.n_users).tolist()


@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=12), st.floats(0.01, 0.98), st.floats(0.01, 0.98),
    st.integers(0, 3),
)  # fmt: skip
def test_a_user_holds_out_at_least_so_many_where_that_leaves_something(
    sizes: list[int], valid: float, rest: float, least: int
) -> None:
    test = max((1 - valid) * rest, 0.001)
    if valid + test >= 1:
        return
    protocol = Random(valid=valid, test=test, at_least=least)
    data = read((np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])))
    found = [held_out(data, protocol, part) for part in (VALID, TEST, TRAIN)]
    for size, n_valid, n_test, n_train in zip(sizes, *found, strict=True):
        floors = [int(np.floor(share * size + 1e-9)) for share in (valid, test)]
        raised = [max(each, least) for each in floors]
        assert [n_valid, n_test] == (raised if sum(raised) < size else floors)
        assert n_train == size - n_valid - n_test >= 1


def test_without_it_the_parts_are_those_of_the_share_alone(tmp_path: Path) -> None:
    data = prepare(log(40, 7), protocol="random", seed=3, out=tmp_path / "data")
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["recipe"]["protocol"].pop("at_least") == 0
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest))
    assert Split.load(tmp_path / "data").with_seed(3).hash == data.hash


@pytest.mark.parametrize("items", [3, 4, 6, 9])
def test_short_histories_are_validated_and_tested(items: int) -> None:
    frame = log(60, items, n_items=12)
    split = split_of(frame, 0, min_item=1)
    assert len(split.evaluated) >= 55  # an item that nobody trains on may be drawn
    assert split.counts()["valid"] == split.counts()["test"] == len(split.evaluated)
    assert split_of(frame.sample(fraction=1.0, shuffle=True, seed=5), 0, min_item=1).hash == split.hash
    with pytest.raises(DataError, match=r"at_least=1 evaluates every user with three items"):
        prepare(frame, protocol="random", valid=0.1, test=0.1)


def test_two_items_only_train() -> None:
    with pytest.raises(DataError, match="A user needs 3 items that others train on"):
        split_of(log(60, 2), 0, min_item=1)


def test_the_protocols_of_the_papers_know_nothing_of_it() -> None:
    for name in ("paper", "released"):
        with pytest.raises(ConfigError, match=f"protocol '{name}' has no at_least=, which is for random"):
            prepare(log(60, 9), protocol=name, at_least=1)


def test_a_log_of_six_items_each_is_trained_on(concf: CLI, tmp_path: Path) -> None:
    log(60, 6).write_csv(tmp_path / "log.csv")
    code, out, err = concf("train", tmp_path / "log.csv", *TINY, "--json", "--out", tmp_path / "run")
    assert code == 0, err
    told = json.loads(out)
    assert told["validated_users"] == told["tested_users"] == len(Split.load(tmp_path / "run" / "data").evaluated) >= 55


@pytest.mark.usefixtures("few")
def test_few_users_are_noted_in_python(tmp_path: Path) -> None:
    frame = log(400, 6, longer=2)
    said = r"^only 2 of 402 users are validated: figures and choices that rest on so few are uncertain$"
    with pytest.warns(ConcfWarning, match=said):
        split = prepare(frame, protocol="random", valid=0.1, test=0.1, out=tmp_path / "data")
    model = ConCF("reference", training={"epochs": 1}, model={"dimensions": 4})
    for figures in (
        lambda: model.fit(tmp_path / "data"),
        lambda: Split.load(tmp_path / "data").note_if_few(),
        lambda: compare(Split.load(tmp_path / "data"), ["popularity"], seeds=1),
    ):
        with pytest.warns(ConcfWarning, match=said):
            figures()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split.note_if_few()  # once of a split


@pytest.mark.usefixtures("few")
def test_many_users_are_not_noted(concf: CLI, tmp_path: Path) -> None:
    log(400, 6).write_csv(tmp_path / "log.csv")
    words = ("--protocol", "random", "--at-least", 1, "--out", tmp_path / "data")
    code, _, err = concf("prepare", tmp_path / "log.csv", *words)
    assert (code, err) == (0, "")


@pytest.mark.usefixtures("few")
def test_every_figure_says_of_how_many_users_it_is(concf: CLI, tmp_path: Path) -> None:
    log(60, 6).write_csv(tmp_path / "log.csv")
    note = "note: only 60 of 60 users are"
    words = ("--protocol", "random", "--at-least", 1, "--out", tmp_path / "data")
    for command in ("prepare", tmp_path / "log.csv", *words), ("data", "stats", tmp_path / "log.csv", *words[:-2]):
        _, out, err = concf(*command)
        assert (" evaluated users  60\n" in out, err.count(note)) == (True, 1)
    for source, name in ((tmp_path / "log.csv", "of-log"), (tmp_path / "data", "of-folder")):
        _, out, err = concf("train", source, *TINY, "--out", tmp_path / name)
        assert ("Validated on 60 users; 60 are held back to test on." in out, err.count(note)) == (True, 1)
    _, out, err = concf("evaluate", tmp_path / "of-log", "--at", 5)
    assert ("Means over 60 users, each at the epoch of its best validation (of 60 users)" in out, err.count(note)) == (
        True, 1,
    )  # fmt: skip
    words = ("--models", "popularity", "--seeds", 2)
    _, out, err = concf("compare", tmp_path / "data", *words)
    assert ("Means over 60 users" in out, err.count(note)) == (True, 1)
    assert json.loads(concf("compare", tmp_path / "data", *words, "--json")[1])["evaluated_users"] == [60, 60]
    _, _, err = concf("report", tmp_path / "of-log", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "means over 60 users" in page
    assert "Only 60 of 60 users are tested" in page
    assert err.count(note) == 1


def test_a_sample_of_the_validated_is_said(concf: CLI, tmp_path: Path) -> None:
    prepare(log(60, 6), protocol="random", at_least=1, min_item=1, out=tmp_path / "data")
    words = (*TINY, "--set", "training.validated_users=7", "--json", "--out", tmp_path / "run")
    told = json.loads(concf("train", tmp_path / "data", *words)[1])
    assert (told["validated_users"], told["tested_users"]) == (7, 60)
