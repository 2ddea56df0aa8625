from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_run import CLI
from typer.main import get_command

from concf.cli.app import app
from concf.data.interactions import Filter
from concf.data.options import LogOptions
from concf.data.prepare import prepare
from concf.data.protocols import PROTOCOLS
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.simulate import Simulation
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.estimator import ConCF

LOG = (
    Simulation(users=30, items=20, events=900, tastes=3)
    .draw(1)
    .select("user_id", "item_id")
    .unique(maintain_order=True)
)
TINY = ("--single", "bpr", "--set", "training.epochs=1", "--set", "model.dimensions=4")


def tiny() -> ConCF:
    return ConCF("reference", training={"epochs": 1}, model={"dimensions": 4})


def odd(place: Path) -> Path:
    """A log whose columns, separator, ratings and times all have to be told."""
    path = place / "odd.txt"
    frame = LOG.select(
        member="user_id", film="item_id", liking=pl.int_range(pl.len()) % 5 + 1,
        when=pl.format("{}/{}/2024", pl.int_range(pl.len()) % 28 + 1, pl.int_range(pl.len()) % 12 + 1),
    )  # fmt: skip
    frame.write_csv(path, separator="^")
    return path


TOLD: dict[str, Any] = {
    "user": "member", "item": "film", "rating": "liking", "min_rating": 2.0, "timestamp": "when",
    "time_format": "%d/%m/%Y", "separator": "^", "header": True, "min_item": 3, "min_user": 4, "valid": 0.2,
    "test": 0.3, "at_least": 2, "protocol": "random",
}  # fmt: skip


def as_words(options: dict[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def test_one_set_of_options_everywhere() -> None:
    names = list(LogOptions.__annotations__)
    records = {*Reading.model_fields, *Filter.model_fields, "protocol"}
    records |= {name for kind in PROTOCOLS.values() for name in kind.model_fields}
    records -= {"name", "before_test"}  # which follow from the protocol
    assert set(names) == records
    assert inspect.signature(ConCF.fit).parameters["options"].annotation == "Unpack[LogOptions]"
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for command in (commands["prepare"], commands["data"].commands["stats"]):
        assert set(names) <= {each.name for each in command.params}
    assert len([each for each in commands["train"].params if each.opts[0].startswith("-") and not each.hidden]) <= 26


def test_commands_and_fit_read_and_divide_alike(concf: CLI, tmp_path: Path) -> None:
    path = odd(tmp_path)
    expected = prepare(str(path), seed=0, **TOLD)
    assert expected.recipe.filters == (Filter(min_item=3, min_user=4),)
    assert expected.interactions.timestamp is not None
    code, out, err = concf("prepare", path, *as_words(TOLD), "--out", tmp_path / "data", "--json")
    assert (code, json.loads(out)["split_hash"]) == (0, expected.hash), err
    code, out, err = concf("data", "stats", path, *as_words(TOLD), "--json")
    assert (code, json.loads(out)["split"]["hash"]) == (0, expected.hash), err
    assert json.loads(out)["statistics"][0]["interactions"] == len(expected.interactions)
    code, _, err = concf("train", path, *as_words(TOLD), *TINY, "--out", tmp_path / "run", "--json")
    assert (code, "option of `concf prepare`" in err) == (2, True)
    code, out, err = concf("train", tmp_path / "data", *TINY, "--out", tmp_path / "run", "--json")
    assert (code, json.loads(out)["split_hash"]) == (0, expected.hash), err
    assert tiny().fit(path, **TOLD).run.data.hash == expected.hash


def test_options_that_would_change_nothing_are_refused(concf: CLI, tmp_path: Path) -> None:
    split = prepare(LOG, protocol="random", out=tmp_path / "data")
    code, _, err = concf("train", tmp_path / "data", "--min-item", 3, *TINY, "--out", tmp_path / "run")
    assert (code, "--min-item: for a log" in err, (tmp_path / "run").exists()) == (2, True, False)
    for prepared in (split, tmp_path / "data"):
        with pytest.raises(ConfigError, match="min_rating=: for a log"):
            tiny().fit(prepared, min_rating=4)
    for wrong in ({"core": True}, {"protcol": "random"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            prepare(LOG, **wrong)


def test_an_ignored_rating_is_noted(concf: CLI, tmp_path: Path) -> None:
    frame = LOG.with_columns(stars=pl.int_range(pl.len()) % 5 + 1)
    with pytest.warns(ConcfWarning, match="'stars' is ignored"):
        read(frame)
    assert len(read(frame, Reading(min_rating=4))) < len(read(frame, Reading(rating="none")))
    frame.write_csv(tmp_path / "log.csv")
    for words, noted in (([], True), (["--rating", "none"], False)):
        code, _, err = concf("train", tmp_path / "log.csv", *words, *TINY, "--out", tmp_path / str(noted))
        assert (code, "--rating none keeps all" in err) == (0, noted), err


@pytest.mark.parametrize("time", ["03/05/2024", "03-05-2024 10:00"])
def test_a_date_that_may_be_read_two_ways_is_refused_unless_told(time: str) -> None:
    frame = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2], "time": ["2024-01-02", time]})
    for each in (frame, frame.reverse(), frame.tail(1)):
        with pytest.raises(DataError, match="ambiguous"):
            read(each)
    assert len(read(frame, Reading(timestamp="none"))) == 2


def test_a_told_form_of_times_is_taken_at_its_word() -> None:
    frame = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2], "time": ["03/05/2024", "04/05/2024"]})
    for form, days in {"%d/%m/%Y": ["2024-05-03", "2024-05-04"], "%m/%d/%Y": ["2024-03-05", "2024-04-05"]}.items():
        expected = read(frame.with_columns(time=pl.Series(days))).timestamp
        assert np.array_equal(read(frame, Reading(time_format=form)).timestamp, expected)
    late = frame.with_columns(time=pl.lit("15/03/2024"))
    wrong = [(late, "%m/%d/%Y", DataError), (frame, "%d/%m/%Y %H", ConfigError),
             (frame.with_columns(time=7), "%Y", DataError), (frame.drop("time"), "%Y", DataError)]  # fmt: skip
    for log, form, error in wrong:
        with pytest.raises(error):
            read(log, Reading(time_format=form))


def test_text_ids_that_may_stand_for_none_are_noted() -> None:
    users = ["NaN", "null", "None", "nan", "nan", "a", "Nancy", "nullify"]
    note = r"'NaN' in 1 rows, 'None' in 1 rows, 'nan' in 2 rows, 'null' in 1 rows"
    with pytest.warns(ConcfWarning, match=note):
        assert read(pl.DataFrame({"user_id": users, "item_id": list(range(8))})).n_users == 7


def test_unsigned_ids_beyond_64_bits_with_a_sign_are_not_called_missing() -> None:
    ids = {"user_id": np.array([5, 2**63], np.uint64), "item_id": np.array([3, 4], np.uint64)}
    with pytest.raises(DataError, match=r"row 1: .*above 2\^63 - 1"):
        read(pl.DataFrame(ids))
    ids["user_id"][1] -= 1
    assert len(read(pl.DataFrame(ids))) == 2


def test_a_folder_in_place_of_a_file_is_called_a_folder(tmp_path: Path) -> None:
    (tmp_path / "logs.csv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path / "logs.csv")
    prepare(LOG, protocol="random", out=tmp_path / "data")
    with pytest.raises(ConfigError, match="is a prepared data set already"):
        prepare(tmp_path / "data", out=tmp_path / "out")
