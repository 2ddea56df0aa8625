"""A run of the recipe that is killed in any stage goes on to the same end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_recipe import CLI, STAGES, assert_same, data, small
from small_run import Killed, assert_same_end, die_after, history

from concf.errors import ConfigError, DataError
from concf.training.checkpoint import RunFolder, load_run
from concf.training.run import Run
from concf.training.train import train

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(data(), small(), seed=3, out=out)
    return out


@pytest.mark.parametrize("last", range(len(STAGES)), ids=STAGES)
def test_a_run_that_is_killed_after_a_stage_goes_on_to_the_same_end(whole: Path, tmp_path: Path, last: int) -> None:
    with pytest.raises(Killed):
        train(data(), small(), seed=3, out=tmp_path / "cut", watch=die_after(last))
    seen: list[str] = []
    run = train(data(), out=tmp_path / "cut", resume=True, watch=lambda record: seen.append(record["stage"]))
    assert seen == STAGES[last + 1 :]
    assert_same_end(tmp_path / "cut", whole)
    assert_same(run, load_run(whole, data()))


def test_a_stage_whose_checkpoint_was_not_written_is_done_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, last = RunFolder.save, 3

    def dying(self: RunFolder, run: Run, *rest: Any) -> None:
        if run.epoch == last + 1:
            raise Killed
        save(self, run, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", dying)
        with pytest.raises(Killed):
            train(data(), small(), seed=3, out=tmp_path / "cut")
    assert len(history(tmp_path / "cut")) == last + 1
    train(data(), out=tmp_path / "cut", resume=True)
    assert_same_end(tmp_path / "cut", whole)


def test_an_unfinished_run_has_nothing_to_recommend_with(tmp_path: Path, concf: CLI) -> None:
    with pytest.raises(Killed):
        train(data(), small(), seed=3, out=tmp_path / "cut", watch=die_after(2))
    with pytest.raises(DataError, match="not finished"):
        load_run(tmp_path / "cut", data())
    RunFolder(tmp_path / "cut").keep(data())
    code, _, err = concf("evaluate", tmp_path / "cut")
    assert (code, "--resume" in err) == (2, True)
    with pytest.raises(ConfigError, match=r"the run has other settings: recipe\.refit"):
        train(data(), {"recipe": {"refit": "none"}}, out=tmp_path / "cut", resume=True)
