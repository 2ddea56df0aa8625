"""A model file with a flipped bit is refused, wherever the bit is; its checksum never lags behind what it is of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from small_run import CLI, SMALL, checkpoint, often, small_data

from concf.data.split import Split
from concf.errors import DataError
from concf.models import choose_settings, load_run, train
from concf.runs.checkpoint import CHECKPOINT
from concf.runtime.files import BLANK, FIELD, PLACE, refuse_changed, seal

DAMAGED = r"checkpoint\.safetensors: cut short or damaged"
seen = set[bytes]()  # the checksums of a run on its way


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    data, out = small_data(home / "data"), home / "run"

    def look(record: dict[str, Any]) -> None:
        refuse_changed(out / CHECKPOINT)
        checksum = PLACE.search((out / CHECKPOINT).read_bytes())
        assert checksum is not None
        seen.add(checksum[1])

    chosen = choose_settings("reference", words=[*SMALL, "training.epochs=3"])
    with often():
        train(Split.load(data), chosen, out=out, watch=look)
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


def test_a_flipped_bit_is_found_anywhere_and_in_every_byte_around_the_checksum(run: Path) -> None:
    path, rng = run / CHECKPOINT, np.random.default_rng(0)
    whole = path.read_bytes()
    checksum = PLACE.search(whole)
    assert checksum is not None
    around = (*range(8), *range(checksum.start() - 20, checksum.end() + 20))
    for place in (*rng.integers(len(whole), size=16).tolist(), *around):
        flip(path, place, int(rng.integers(8)))
        with pytest.raises(DataError, match=DAMAGED):
            refuse_changed(path)
        path.write_bytes(whole)
    load_run(run)
    assert len(seen) == 3  # every checkpoint on the way had its own


def test_every_command_refuses_the_file_by_name(run: Path, concf: CLI) -> None:
    flip(run / CHECKPOINT, -5)
    for words in (["evaluate", run], ["recommend", run], ["train", "--resume", "--out", run], ["report", run]):
        code, out, err = concf(*words)
        assert (code, out, f"{run / CHECKPOINT}: cut short or damaged: its SHA-256 is" in err) == (2, "", True), words


def test_a_file_without_a_checksum_is_refused_and_one_without_a_place_for_it_not_sealed(run: Path) -> None:
    state, tensors = checkpoint(run)
    save_file(tensors, run / CHECKPOINT, metadata={"concf": json.dumps(state)})
    with pytest.raises(DataError, match=f"{DAMAGED}.* its checksum is gone"):
        load_run(run)
    save_file(tensors, run / "bare", metadata={"concf": f'{{"{FIELD}": "{BLANK}"}}'})
    with pytest.raises(ValueError, match="no field for a checksum"):
        seal(run / "bare")
