from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.main import get_command

from concf.cli.app import app
from concf.cli.reading import OPTIONS
from concf.data import options as options_module
from concf.data.filters import Filter
from concf.data.options import LogOptions
from concf.data.prepare import prepare, split_of
from concf.data.protocols import PROTOCOLS, Given
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, DataError
from concf.inference.estimator import ConCF

CLI = Callable[..., tuple[int, str, str]]
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
    assert names == list(OPTIONS)
    records = {*Reading.model_fields, *Filter.model_fields, "protocol", "dislikes"}
    records |= {name for kind in (*PROTOCOLS.values(), Given) for name in kind.model_fields} - {"name"}
    assert set(names) == records
    assert inspect.signature(ConCF.fit).parameters["options"].annotation == "Unpack[LogOptions]"
    assert all(re.search(rf"\b{name}\b", str(ConCF.fit.__doc__)) for name in names)
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for command in (commands["prepare"], commands["data"].commands["stats"]):
        assert set(names) <= {each.name for each in command.params}
    assert len([each for each in commands["train"].params if each.opts[0].startswith("-") and not each.hidden]) <= 25


def test_messages_of_the_data_floor_name_no_option_by_hand() -> None:
    for path in Path(inspect.getfile(options_module)).parent.glob("*.py"):
        for line in path.read_text().splitlines():
            assert not re.search(
                r"[^-]--[a-z]", line.replace("concf prepare SOURCE --out DIR", "").replace("--json", "")
            )


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
    assert (code, "--rating, --time-format, --separator, --header, --at-least: see `concf prepare`" in err) == (2, True)
    code, out, err = concf("train", tmp_path / "data", *TINY, "--out", tmp_path / "run", "--json")
    assert (code, json.loads(out)["split_hash"]) == (0, expected.hash), err
    assert tiny().fit(path, **TOLD).run.data.hash == expected.hash


@pytest.mark.parametrize("protocol", ["leave-last", "time", "released", "paper", "given"])
def test_training_divides_by_every_protocol(concf: CLI, tmp_path: Path, protocol: str) -> None:
    frame = LOG.with_columns(timestamp=pl.int_range(pl.len()))
    frame.write_csv(tmp_path / "log.csv")
    options: dict[str, Any] = {"protocol": protocol}
    if protocol == "given":
        for name in ("valid", "test"):
            frame.filter(pl.col("timestamp") % 6 == len(options)).write_csv(tmp_path / f"{name}.csv")
            options[name] = str(tmp_path / f"{name}.csv")
        frame.filter(pl.col("timestamp") % 6 > 2).write_csv(tmp_path / "log.csv")
    code, out, err = concf(
        "train", tmp_path / "log.csv", *as_words(options), *TINY, "--out", tmp_path / "run", "--json"
    )
    assert code == 0, err
    own = {} if protocol in ("released", "paper", "given") else {"min_item": 5}  # these say it themselves
    expected = prepare(str(tmp_path / "log.csv"), **own, **options)
    assert json.loads(out)["split_hash"] == expected.hash


@pytest.mark.parametrize("form", ["user-lines", "counted-lines"])
def test_training_takes_one_line_a_user(concf: CLI, tmp_path: Path, form: str) -> None:
    lists = [group["item_id"].to_list() for _, group in LOG.sort("user_id").group_by("user_id", maintain_order=True)]
    first = [len(each) if form == "counted-lines" else user for user, each in enumerate(lists)]
    lines = [" ".join(map(str, [head, *each])) for head, each in zip(first, lists, strict=True)]
    (tmp_path / "users.dat").write_text("\n".join(lines) + "\n")
    code, out, err = concf("train", tmp_path / "users.dat", *TINY, "--out", tmp_path / "0", "--json")
    assert (code, json.loads(out)["split_hash"]) == (0, split_of(LOG, 0).hash), err
    (tmp_path / "even.dat").write_text("1 2 3\n4 5 6\n")
    code, _, err = concf("train", tmp_path / "even.dat", "--out", tmp_path / "run")
    assert (code, "Set --format table or --format user-lines" in err) == (2, True)


def test_options_that_would_change_nothing_are_refused(concf: CLI, tmp_path: Path) -> None:
    split = prepare(LOG, protocol="random", out=tmp_path / "data")
    words = ("--min-item", 3, "--user", "user_id", *TINY, "--out", tmp_path / "run")
    code, _, err = concf("train", tmp_path / "data", *words)
    assert (code, "--user, --min-item: for a log, but " in err, (tmp_path / "run").exists()) == (2, True, False)
    assert concf("train", tmp_path / "data", *TINY, "--out", tmp_path / "run")[0] == 0
    for data in ([tmp_path / "data"], []):
        code, _, err = concf("train", *data, "--resume", "--valid", 0.3, "--out", tmp_path / "run")
        assert (code, "--valid: the data set of a run that goes on is made already" in err) == (2, True)
    for prepared in (split, tmp_path / "data", str(tmp_path / "data")):
        with pytest.raises(ConfigError, match=r"min_rating=: for a log, but .* is split already"):
            tiny().fit(prepared, min_rating=4)
    code, _, err = concf("train", tmp_path / "nowhere.csv", "--user", "who", "--out", tmp_path / "other")
    assert (code, "nowhere.csv: no such file or folder" in err) == (2, True)


def test_options_without_effect_and_unknown_ones_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"core=: nothing to filter by. Set min_user= or min_item= too"):
        prepare(LOG, core=True)
    with pytest.raises(ConfigError, match=r"unknown option protcol=; the options are user=, item="):
        prepare(LOG, protcol="random")  # type: ignore[call-arg]


def test_advice_is_of_arguments_in_python_and_of_options_on_the_command_line(concf: CLI, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("member,film\n1,2\n3,4\n")
    with pytest.raises(DataError, match="Name the columns with user= and item=, or set header=False"):
        tiny().fit(tmp_path / "log.csv")
    code, _, err = concf("train", tmp_path / "log.csv", "--out", tmp_path / "run")
    assert (code, "Name the columns with --user and --item, or set --no-header" in err) == (2, True)


def test_an_ignored_rating_is_noted(concf: CLI, tmp_path: Path) -> None:
    frame = LOG.with_columns(stars=pl.int_range(pl.len()) % 5 + 1)
    note = r"column 'stars' is ignored: every row counts as positive.*Set min_rating=4 .*, or rating='none' to keep all"
    with pytest.warns(ConcfWarning, match=note):
        read(frame)
    with pytest.warns(ConcfWarning, match=note):
        tiny().fit(frame)
    assert len(read(frame, Reading(min_rating=4))) < len(read(frame, Reading(rating="none")))  # and no note: see below
    frame.write_csv(tmp_path / "log.csv")
    for command in (["train", tmp_path / "log.csv", *TINY], ["prepare", tmp_path / "log.csv"]):
        for words, times in (([], 1), (["--min-rating", 2], 0)):
            out = tmp_path / f"{command[0]}{words[:1]}"
            code, _, err = concf(*command, "--protocol", "random", *words, "--out", out)
            assert (code, err.count("'stars' is ignored")) == (0, times)


def test_how_much_a_filter_left_out_is_noted(concf: CLI, tmp_path: Path) -> None:
    rare = pl.DataFrame({"user_id": list(range(80)), "item_id": list(range(1000, 1080))})
    frame = pl.concat([LOG, rare], how="vertical_relaxed")
    before, after = (read(each).statistics() for each in (frame, LOG))
    shares = [f"{1 - after[name] / before[name]:.0%}".replace("%", " %") for name in ("items", "users", "interactions")]
    note = "left out {} of the items, {} of the users, {} of the interactions. To keep more, lower min_item=".format(
        *shares
    )
    with pytest.warns(ConcfWarning, match=re.escape(note)):
        tiny().fit(frame)
    with pytest.warns(ConcfWarning, match=re.escape("left out")):
        prepare(frame, min_item=5, protocol="random")
    frame.write_csv(tmp_path / "log.csv")
    code, _, err = concf("train", tmp_path / "log.csv", *TINY, "--out", tmp_path / "run")
    assert (code, note.replace("min_item=", "--min-item") in err) == (0, True)
    code, _, err = concf("train", tmp_path / "log.csv", "--min-item", 1, *TINY, "--out", tmp_path / "all")
    assert (code, "left out" in err) == (0, False)


@pytest.mark.parametrize("time", ["03/05/2024", "3.5.2024", "03-05-2024 10:00", "03/05/24"])
def test_a_date_that_may_be_read_two_ways_is_refused_unless_told(concf: CLI, tmp_path: Path, time: str) -> None:
    frame = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2], "time": ["2024-01-02", time]})
    for each in (frame, frame.reverse(), frame.tail(1)):
        with pytest.raises(DataError, match=r"ambiguous, the day or the month first.*time_format='%d/%m/%Y'"):
            read(each)
    frame.tail(1).write_csv(tmp_path / "log.csv")
    code, _, err = concf("prepare", tmp_path / "log.csv", "--out", tmp_path / "data")
    assert (code, "log.csv:2: column 'time': ambiguous" in err, "--time-format %d/%m/%Y" in err) == (2, True, True)
    assert len(read(frame, Reading(timestamp="none"))) == 2


def test_a_told_form_of_times_is_taken_at_its_word() -> None:
    frame = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2], "time": ["03/05/2024", "04/05/2024"]})
    iso = pl.DataFrame({"user_id": ["a", "b"], "item_id": [1, 2]})
    for form, days in {"%d/%m/%Y": ["2024-05-03", "2024-05-04"], "%m/%d/%Y": ["2024-03-05", "2024-04-05"]}.items():
        expected = read(iso.with_columns(time=pl.Series(days))).timestamp
        assert np.array_equal(read(frame, Reading(time_format=form)).timestamp, expected)
    with pytest.raises(DataError, match=r"not a time, found .*15/03/2024.*Times are of the form '%m/%d/%Y'"):
        read(frame.with_columns(time=pl.lit("15/03/2024")), Reading(time_format="%m/%d/%Y"))
    with pytest.raises(ConfigError, match=r"time_format='%d/%m/%Y %H': Invalid format"):
        read(frame, Reading(time_format="%d/%m/%Y %H"))
    with pytest.raises(DataError, match="time_format= is for times in text"):
        read(frame.with_columns(time=7), Reading(time_format="%Y"))
    with pytest.raises(DataError, match="time_format= needs a timestamp"):
        read(iso, Reading(time_format="%Y"))


def test_text_ids_that_may_stand_for_none_are_noted(tmp_path: Path) -> None:
    users = ["NaN", "null", "None", "nan", "nan", "a", "Nancy", "nullify"]
    frame = pl.DataFrame({"user_id": users, "item_id": list(range(8))})
    note = r"the user id is 'NaN' in 1 row, 'None' in 1 row, 'nan' in 2 rows, 'null' in 1 row. It is read as an id"
    with pytest.warns(ConcfWarning, match=note):
        assert read(frame).n_users == 7
    frame.write_csv(tmp_path / "log.csv")
    with pytest.warns(ConcfWarning, match=note):
        read(tmp_path / "log.csv")


@pytest.mark.filterwarnings("error::concf.errors.ConcfWarning")
def test_ordinary_logs_are_read_without_a_word(tmp_path: Path) -> None:
    split = prepare(LOG.with_columns(time=pl.lit("2024-05-03T10:00:00Z")), protocol="random", out=tmp_path / "data")
    assert Split.load(tmp_path / "data").hash == split.hash
    read(LOG.with_columns(rating=3), Reading(rating="none"))
    read(LOG.with_columns(rating=3), Reading(min_rating=2))


@pytest.mark.parametrize("side", ["user_id", "item_id"])
def test_unsigned_ids_beyond_64_bits_with_a_sign_are_not_called_missing(side: str) -> None:
    ids = {"user_id": np.array([1, 2], np.uint64), "item_id": np.array([3, 4], np.uint64)}
    ids[side] = np.array([5, 2**63], np.uint64)
    name = side[:4]
    with pytest.raises(DataError, match=rf"row 1: column '{side}': the {name} id is above 2\^63 - 1, found .*Cast"):
        read(pl.DataFrame(ids))
    ids[side] = np.array([5, 2**63 - 1], np.uint64)
    assert len(read(pl.DataFrame(ids))) == 2


def test_a_folder_in_place_of_a_file_is_called_a_folder(concf: CLI, tmp_path: Path) -> None:
    (tmp_path / "logs.csv").mkdir()
    (tmp_path / "logs").mkdir()
    for place in (tmp_path / "logs.csv", tmp_path / "logs"):
        for command in (["prepare", place, "--out", tmp_path / "out"], ["data", "stats", place]):
            code, _, err = concf(*command)
            assert (code, f"{place}: is a folder, not a file." in err, "*.csv" in err) == (2, True, True)
        with pytest.raises(DataError, match="is a folder, not a file"):
            read(place)
    prepare(LOG, protocol="random", out=tmp_path / "data")
    code, _, err = concf("prepare", tmp_path / "data", "--out", tmp_path / "out")
    assert (code, "is a prepared data set already" in err) == (2, True)
