"""Measure cells, several at a time, over the devices there are; what was measured before is not measured again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.errors import ConcfError, ConfigError
from concf.reference.objectives import Formulation
from concf.reference.settings import ReferenceSettings
from concf.runtime.executors import RAY, RUNS_PER_GPU, Done, execute, one_after_the_other
from concf.runtime.progress import working
from concf.runtime.settings import flat, nested
from reproduction.cells import measure
from reproduction.plan import Cell
from reproduction.variants import KEPT_SHARES

FIXED: dict[str, Any] = {  # settings of older lines that are constants now, or of objectives that are gone
    "losses.penalty": 0.03, "losses.squares_scale": 10.0, "losses.temperature": 0.15, "losses.softmax_power": 0.5,
    "consensus.clipped": ["bpr", "multinomial"], "balance.update": "batch", "balance.item_share": 0.5,
    "training.steps": None, "training.order": "pairs", "recipe": None, "losses.softmax_samples": None,
    "losses.unobserved": 0.05, "consensus.kept": 500, "consensus.tail": 50, "consensus.warm_up": None,
    "consensus.undistilled": ["multinomial-users"], "training.validate_every": 1, "training.watch": "all",
    "training.tf32": True, "model.layers": 3,
}  # fmt: skip
FOLLOWS: dict[str, tuple[str, dict[str, Any]]] = {  # settings of older lines that follow from another one now
    "losses.distance_scale": ("losses.distance", {"squared": 10.0, "plain": 1.0}),
    "balance.exponent": ("balance.ratio_of", {"own": 0.15, "whole": 1.0}),
    "balance.total": ("balance.optimiser", {"adam": None, "descent": 1.0}),
    "balance.floor": ("balance.optimiser", {"adam": 0.01, "descent": 1e-4}),
    "balance.learning_rate": ("balance.optimiser", {"adam": 0.01, "descent": 1e-4}),
}
POINTS = (  # settings of older lines that `formulation` chooses together now
    "losses.distance", "losses.error_scale", "consensus.begins", "consensus.window_moves", "consensus.newest_votes",
    "consensus.weight_range", "consensus.clip", "balance.ratio_of", "balance.optimiser", "balance.norm",
)  # fmt: skip
ALL_RANKINGS = {"consensus.window": 1_000_000, "consensus.warm_up": 5}  # of older lines: now consensus.window = none


def run_cells(
    cells: Sequence[Cell],
    log: ResultsLog,
    data: Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    engine: str = "processes",
    changes: Sequence[str] = (),
    minutes: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Measure the cells that are not in the log; returns the failures, one sentence a cell.

    data:    a folder for the prepared splits, `NAME-PROTOCOL-SEED` each; one that is missing is prepared
    device:  cpu or cuda; None: the GPUs, if there are any
    workers: cells at a time; None: a few for each GPU, one on a CPU, with Ray one for each core of the cluster
    engine:  processes or ray (see `executors`); with a cluster of several machines, `data` is on shared storage
    changes: settings over those of each variant, such as `training.epochs=2`; such lines are kept apart
    minutes: no cell is begun later than this; what is left is measured by the next call. None: all are
    say:     called with a sentence for every cell
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device or "cpu"):
        raise ConfigError(f"device {device!r}: choose cpu or cuda")
    for cell in {(cell.preset, cell.variant): cell for cell in cells}.values():
        cell.settings(changes)  # a misspelt change is refused at once
    missing = [cell for cell in cells if not is_current(log.find(cell.key(changes)), cell, changes)]
    unprepared = {folder: why for folder, cell in {cell.folder: cell for cell in missing}.items()
                  if (why := _prepare(cell, data))}  # fmt: skip
    failures = [f"{_name(cell)}: {unprepared[cell.folder]}" for cell in missing if cell.folder in unprepared]
    for failure in failures:
        say(failure)
    missing = [cell for cell in missing if cell.folder not in unprepared]
    end = None if minutes is None else time.time() + 60 * minutes
    with (
        working("measuring", len(missing)) as advance,
        closing(_measured(missing, data.absolute(), device, workers, engine, tuple(changes), end)) as measured,
    ):
        for (cell, _), future in measured:
            error, line = future.exception(), None if future.exception() else future.result()
            if line is not None:
                log.add(cell.key(changes), rounded(line))
                say(f"{_name(cell)}: {_summary(line)}")
            elif error is not None:  # whatever it was, the other cells are worth having
                kind = "" if isinstance(error, ConcfError) else f"{type(error).__name__}: "
                failures.append(f"{_name(cell)}: {kind}{error}")
                say(failures[-1])
            advance(1)
    return failures


def is_current(line: Mapping[str, Any] | None, cell: Cell, changes: Sequence[str] = ()) -> bool:
    """Whether a line has the cell's settings; those that are newer than the line have their defaults."""
    if line is None:
        return False
    chosen = cell.settings(changes)
    with suppress(ValidationError):
        return ReferenceSettings.model_validate(nested(_renewed(line, chosen))) == chosen
    return False


def _renewed(line: Mapping[str, Any], chosen: ReferenceSettings) -> dict[str, Any]:
    """Settings of a line, flat, by today's names; a value that no setting can have any more stays, to be refused.

    chosen: the settings whose formulation it should have
    """
    measured = flat(line.get("settings") or {})
    implied = (
        FIXED
        | {"consensus.share": KEPT_SHARES.get(line["cell"]["variant"])}
        | {name: values.get(str(measured.get(other))) for name, (other, values) in FOLLOWS.items()}
    )
    if measured.get("training.watch") in measured.get("objectives", ()) and len(measured["objectives"]) == 1:
        implied["training.watch"] = measured["training.watch"]  # all there is to watch
    if ALL_RANKINGS.items() <= measured.items():
        measured, implied = measured | {"consensus.window": None}, implied | ALL_RANKINGS
    points: dict[str, Any] = {
        name.partition(".")[2]: tuple(value) if isinstance(value, list) else value
        for name, value in measured.items()
        if name in POINTS
    }
    if points:
        form = Formulation(**points)
        measured["formulation"] = chosen.formulation if form == chosen.form else None
    kept = {name: value for name, value in measured.items() if name not in POINTS}
    return {name: value for name, value in kept.items() if name not in implied or value != implied[name]}


def _measured(
    cells: list[Cell], data: Path, device: str | None, workers: int | None, engine: str, changes: tuple[str, ...],
    end: float | None,
) -> Done[tuple[Cell, str | None], dict[str, Any] | None]:  # fmt: skip
    """Each cell when it is done: in this process if one is enough, else in workers."""
    work = partial(_measure, data, changes, end)
    if engine == RAY:  # it chooses the machine and the GPU
        gpus = 0.0 if device == "cpu" else 1 / RUNS_PER_GPU
        return execute(work, [(cell, device) for cell in cells], engine, workers, gpus)
    devices = _devices(device)
    workers = min(workers or (RUNS_PER_GPU * len(devices) if devices[0] != "cpu" else 1), max(len(cells), 1))
    if workers == 1:
        return one_after_the_other(work, [(cell, devices[0]) for cell in cells])
    return execute(work, list(zip(cells, cycle(devices), strict=False)), engine, workers)


def _measure(
    data: Path, changes: tuple[str, ...], end: float | None, job: tuple[Cell, str | None]
) -> dict[str, Any] | None:
    """Measure a cell on a device, None: the first GPU, or the CPU; nothing after the end."""
    cell, device = job
    if end is not None and time.time() > end:
        return None
    return measure(cell, Split.load(data / cell.folder), device or _devices(None)[0], changes)


def _prepare(cell: Cell, data: Path) -> str | None:
    """Prepare the cell's split unless it is there; returns why it cannot be."""
    if (data / cell.folder).exists():
        return None
    from concf.data.prepare import prepare

    try:
        prepare(cell.data, protocol=cell.protocol, seed=cell.seed).save(data / cell.folder)
    except ConcfError as error:
        return str(error)
    return None


def _name(cell: Cell) -> str:
    return f"{cell.variant}, {cell.data} {cell.protocol}, split {cell.seed}, {cell.preset}"


def rounded(value: Any) -> Any:
    """The same with figures of six digits, so that lines stay readable."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def _devices(device: str | None) -> list[str]:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [f"cuda:{index}" for index in range(max(torch.cuda.device_count(), 1))] if device == "cuda" else [device]


def _summary(line: dict[str, Any]) -> str:
    """The best row in a few words."""
    rows = {name: row["test"]["recall@50"] for name, row in line.get("rows", {}).items()}
    if not rows:
        return "counted"
    best = max(rows, key=rows.__getitem__)
    return f"R@50 {rows[best]:.4f} ({best}), {line['seconds']:.0f} s"
