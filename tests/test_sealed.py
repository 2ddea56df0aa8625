"""A model file with a flipped bit is refused, wherever the bit is; its checksum never lags behind what it is of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from small_run import SMALL, checkpoint, small_data, trained_run

from concf.data.split import Split
from concf.errors import DataError
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.runtime.files import BLANK, FIELD, PLACE, refuse_changed, seal
from concf.training.checkpoint import CHECKPOINT, load_run
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
DAMAGED = r"checkpoint\.safetensors: cut short or damaged"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(data, tmp_path_factory.mktemp("trained") / "run", "training.epochs=3")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


def test_a_flipped_bit_anywhere_in_the_model_file_is_found(run: Path) -> None:
    path, rng = run / CHECKPOINT, np.random.default_rng(0)
    whole = path.read_bytes()
    for place in rng.integers(len(whole), size=16).tolist():
        flip(path, place, int(rng.integers(8)))
        with pytest.raises(DataError, match=DAMAGED):
            load_run(run)
        path.write_bytes(whole)
    load_run(run)


def test_a_flipped_bit_in_any_byte_around_the_checksum_is_found(run: Path) -> None:
    """The length of the header, the name of the checksum, the checksum, and what stands beside it."""
    path = run / CHECKPOINT
    whole = path.read_bytes()
    checksum = PLACE.search(whole)
    assert checksum is not None
    for place in (*range(8), *range(checksum.start() - 20, checksum.end() + 20)):
        for bit in (0, 3, 5):
            flip(path, place, bit)
            with pytest.raises(DataError, match=DAMAGED):
                load_run(run)
            path.write_bytes(whole)


def test_the_message_says_which_file_and_both_checksums(run: Path, concf: CLI) -> None:
    path = run / CHECKPOINT
    checksum = PLACE.search(path.read_bytes())
    assert checksum is not None
    flip(path, path.stat().st_size - 5)
    expected = f"{path}: cut short or damaged: its SHA-256 is "
    for words in (["evaluate", run], ["recommend", run], ["train", "--resume", "--out", run], ["report", run]):
        code, out, err = concf(*words)
        assert (code, out) == (2, ""), words
        assert expected in err
        assert f"and was {checksum[1][:16].decode()} when it was written. Restore a copy, or remove it" in err


def test_every_way_to_write_a_run_seals_it(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training": {"epochs": 2}, "model": {"dimensions": 8}, "consensus": {"every": 1}}
    model = ConCF("reference", **changes).fit(Split.load(data), out=tmp_path / "fitted")
    model.save(tmp_path / "saved")
    for folder in ("fitted", "saved"):
        refuse_changed(tmp_path / folder / CHECKPOINT)
        flip(tmp_path / folder / CHECKPOINT, -7)
        with pytest.raises(DataError, match=DAMAGED):
            Recommender.load(tmp_path / folder)
        with pytest.raises(DataError, match=DAMAGED):
            ConCF.load(tmp_path / folder)


def test_every_checkpoint_on_the_way_has_its_own_checksum(data: Path, tmp_path: Path) -> None:
    seen = set()

    def look(record: dict[str, Any]) -> None:
        path = tmp_path / "run" / CHECKPOINT
        refuse_changed(path)
        checksum = PLACE.search(path.read_bytes())
        assert checksum is not None
        seen.add(checksum[1])

    chosen = choose_settings("reference", words=[*SMALL, "training.epochs=4"])
    train(Split.load(data), chosen, out=tmp_path / "run", checkpoint_seconds=0, watch=look)
    assert len(seen) == 4


def test_a_file_without_a_checksum_is_refused(run: Path) -> None:
    state, tensors = checkpoint(run)
    save_file(tensors, run / CHECKPOINT, metadata={"concf": json.dumps(state)})
    with pytest.raises(DataError, match=f"{DAMAGED}.* its checksum is gone"):
        load_run(run)


def test_a_file_without_a_place_for_it_cannot_be_sealed(tmp_path: Path, run: Path) -> None:
    _, tensors = checkpoint(run)
    save_file(tensors, tmp_path / "bare", metadata={"concf": f'{{"{FIELD}": "{BLANK}"}}'})
    with pytest.raises(ValueError, match="no place for a checksum"):
        seal(tmp_path / "bare")
