"""`concf export`: whoever searches the exported vectors finds the head's own lists, under the ids of the log."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from small_run import CLI, SMALL

from concf.data.ids import Ids
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import DataError
from concf.evaluation.ranking import rank
from concf.inference.export import ABOUT, export, write_npz, write_parquet
from concf.models import choose_settings, load_run, train
from concf.reference.objectives import OBJECTIVES
from concf.runs.run import Run

Patch = pytest.MonkeyPatch
ROUNDING = 1e-5
LIVELY = (*SMALL, "model.dimensions=32", "model.initial_std=0.5")  # scores that differ after an epoch already


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of every objective there is."""
    folder = tmp_path_factory.mktemp("run") / "run"
    chosen = choose_settings("reference", changes={"objectives": list(OBJECTIVES)}, words=LIVELY)
    train(Split.load(data), chosen, out=folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def named() -> Run:
    """A run on a log whose ids are words."""
    log = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
    words = {"user": [f"Zoë {n}" for n in log["user_id"]], "item": [f"{'長' * (n % 7)}/{n}🎈" for n in log["item_id"]]}
    chosen = choose_settings("reference", words=(*LIVELY, "training.epochs=1"))
    return train(prepare(pl.DataFrame(words), protocol="random"), chosen)


Lists = tuple[NDArray[Any], NDArray[Any]]  # [users, k] scores, [users, k] positions


def from_npz(out: Path, k: int) -> Lists:
    with np.load(out, allow_pickle=False) as file:
        return by_hand(file["user_vectors"], file["item_vectors"], k)


def from_parquet(out: Path, k: int) -> Lists:
    users, items = (pl.read_parquet(out / f"{side}.parquet")["vector"] for side in ("users", "items"))
    return by_hand(users.to_numpy(), items.to_numpy(), k)


def by_hand(users: NDArray[np.float32], items: NDArray[np.float32], k: int) -> Lists:
    assert users.dtype == items.dtype == np.float32
    scores = users @ items.T
    order = np.argsort(-scores, 1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


SEARCH = {"npz": from_npz, "parquet": from_parquet}


def parts(run: Run, head: str) -> list[NDArray[np.float32]]:
    """User vectors, item vectors, item bias."""
    factors = run.factors(head)
    return [part.detach().numpy() for part in (factors.user, factors.item, factors.bias) if part is not None]


def assert_lists_of_the_head(run: Run, head: str, found: Lists, k: int) -> None:
    """The same scores at every place; the same items wherever rounding cannot swap two."""
    user, item, bias = (part.astype(np.float64) for part in parts(run, head))
    exact = user @ item.T + bias
    scale = np.abs(exact).max()
    scores, places = found
    expected = rank(run.recommender(head), np.arange(len(user)), k)
    best = np.take_along_axis(exact, expected, 1)
    np.testing.assert_allclose(np.take_along_axis(exact, places, 1) / scale, best / scale, atol=ROUNDING)
    np.testing.assert_allclose(scores / scale, best / scale, atol=ROUNDING)
    rivals = np.sort(exact, 1)[:, ::-1]
    gaps = np.pad(-np.diff(rivals, axis=1), ((0, 0), (1, 1)), constant_values=np.inf)
    clear = (np.minimum(gaps[:, 1:], gaps[:, :-1]) > ROUNDING * scale)[:, :k]
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(places[clear], expected[clear])


@pytest.mark.parametrize(
    ("to", "head"), [*((to, "cml") for to in SEARCH), *(("npz", head) for head in OBJECTIVES if head != "cml")]
)
def test_exact_search_gives_the_lists_of_the_head(run: Run, tmp_path: Path, to: str, head: str) -> None:
    report = export(run, head, to, tmp_path / "out")
    n_items = run.data.interactions.n_items
    for k in (5, n_items):
        assert_lists_of_the_head(run, head, SEARCH[to](tmp_path / "out", k), k)
    assert (report["head"], report["items"], report["finished"]) == (head, n_items, True)


@pytest.mark.parametrize("to", SEARCH)
def test_ids_come_back_unchanged(run: Run, named: Run, tmp_path: Path, to: str) -> None:
    for each in (run, named):
        out, known = tmp_path / str(each is run), each.data.interactions
        export(each, None, to, out)
        assert ids_of(to, out) == [known.user_ids.values.tolist(), known.item_ids.values.tolist()]
        assert_lists_of_the_head(each, each.best_head(), SEARCH[to](out, 5), 5)


def test_an_id_that_numpy_would_cut_is_not_cut_in_silence(tmp_path: Path) -> None:
    ids = Ids(np.array(["a", "a\0"], dtype=object))
    sides = dict.fromkeys(("user", "item"), (ids, np.ones((2, 3), np.float32)))
    with pytest.raises(DataError, match=r"ends in a NUL character, which NumPy's strings drop\. Export with --to parq"):
        write_npz(sides, {}, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    write_parquet(sides, {}, tmp_path)
    assert ids_of("parquet", tmp_path) == [["a", "a\0"]] * 2


def test_the_command_says_what_it_wrote(concf: CLI, folder: Path, run: Run, tmp_path: Path) -> None:
    code, said, err = concf("export", folder, "--to", "parquet", "--out", tmp_path / "exact")
    assert (code, err) == (0, "")
    assert f"Head {run.best_head()}" in said
    code, said, _ = concf("export", folder, "--head", "cml", "--to", "npz", "--out", tmp_path / "out.npz", "--json")
    report = json.loads(said)
    assert (code, report["files"]) == (0, {"out.npz": (tmp_path / "out.npz").stat().st_size})
    assert about("npz", tmp_path / "out.npz").items() <= report.items()


def test_mistakes_are_answered_and_write_nothing(
    concf: CLI, folder: Path, run: Run, tmp_path: Path, monkeypatch: Patch
) -> None:
    for words, message in (
        (["--to", "npz", "--head", "hinge"], "no head is called 'hinge'"),
        (["--to", "npz", "--head", "consensus"], "a consensus is lists, not vectors"),
        (["--to", "hdf5"], "choose from npz, parquet"),
    ):
        code, out, err = concf("export", folder, "--out", tmp_path / "new" / "out", *words)
        assert (code, out, message in err) == (2, "", True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(DataError, match="could not be written"):
        export(run, None, "parquet", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(concf: CLI, folder: Path, tmp_path: Path) -> None:
    file, mine = tmp_path / "mine.txt", tmp_path / "mine"
    mine.mkdir()
    file.write_text("mine")
    for to in ("npz", "parquet"):  # a file and a folder
        for occupied in (file, mine):
            code, _, err = concf("export", folder, "--to", to, "--out", occupied)
            assert (code, "exists already; it is left alone" in err) == (2, True)
    assert (file.read_text(), list(mine.iterdir())) == ("mine", [])
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", "mine"}


def ids_of(to: str, out: Path) -> list[list[Any]]:
    """The users' and the items' ids, in the order of positions."""
    if to == "npz":
        with np.load(out, allow_pickle=False) as file:
            return [file[f"{side}_ids"].tolist() for side in ("user", "item")]
    return [pl.read_parquet(out / f"{side}s.parquet")[f"{side}_id"].to_list() for side in ("user", "item")]


def about(to: str, out: Path) -> dict[str, Any]:
    if to != "npz":
        return dict(json.loads((out / ABOUT).read_text()))
    with np.load(out, allow_pickle=False) as file:
        return dict(json.loads(str(file["metadata"])))
