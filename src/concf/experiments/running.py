"""Measure cells, several at a time, over the devices there are; what was measured before is not measured again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from concf.book import Book
from concf.data.split import Split
from concf.errors import ConcfError
from concf.experiments.cells import measure
from concf.experiments.plan import Cell
from concf.experiments.variants import VARIANTS
from concf.learning.presets import choose_settings
from concf.progress import working

A_GPU = 6  # cells that share a card well


def run_cells(
    cells: Sequence[Cell],
    book: Book,
    data: Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    changes: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Measure what `book` does not have; gives what went wrong, one sentence a cell.

    data:    a folder for the prepared splits, `NAME-PROTOCOL-SEED` each; one that is missing is prepared
    device:  cpu or cuda; None: the GPUs, if there are any. workers: processes; None: a few for each GPU, or one
    changes: settings over those of each variant, such as `training.epochs=2`; such lines stand apart from the others
    say:     called with a sentence for every cell
    """
    for preset, variant in {(cell.preset, cell.variant) for cell in cells}:
        choose_settings(preset, words=[*VARIANTS[variant], *changes])  # a misspelt change is refused at once
    missing = [cell for cell in cells if book.find(cell.key(changes)) is None]
    refused = {
        cell.folder: why for cell in {cell.folder: cell for cell in missing}.values() if (why := _prepared(cell, data))
    }
    failures = [f"{_name(cell)}: {refused[cell.folder]}" for cell in missing if cell.folder in refused]
    for failure in failures:
        say(failure)
    missing = [cell for cell in missing if cell.folder not in refused]
    devices = _devices(device)
    n_workers = min(workers or (A_GPU * len(devices) if devices[0] != "cpu" else 1), max(len(missing), 1))
    with working("measuring", len(missing)) as advance:
        for cell, future in _measured(missing, data, devices, n_workers, tuple(changes)):
            name = _name(cell)
            error = future.exception()
            if error is None:
                book.add(cell.key(changes), rounded(future.result()))
                say(f"{name}: {_figure(future.result())}")
            else:  # whatever it was, the other cells are worth having
                kind = "" if isinstance(error, ConcfError) else f"{type(error).__name__}: "
                failures.append(f"{name}: {kind}{error}")
                say(failures[-1])
            advance(1)
    return failures


def _measured(
    cells: list[Cell], data: Path, devices: list[str], workers: int, changes: tuple[str, ...]
) -> Iterator[tuple[Cell, Future[dict[str, Any]]]]:
    """Each cell when it is done: here if one worker is enough, else in processes of their own."""
    if workers == 1:
        for cell in cells:
            future: Future[dict[str, Any]] = Future()
            try:
                future.set_result(_measure(cell, data, devices[0], changes))
            except Exception as error:
                future.set_exception(error)
            yield cell, future
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(_measure, cell, data, device, changes, threads): cell
            for cell, device in zip(cells, cycle(devices), strict=False)
        }
        try:
            for done in as_completed(futures):
                yield futures[done], done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _measure(cell: Cell, data: Path, device: str, changes: tuple[str, ...], threads: int = 0) -> dict[str, Any]:
    """threads: of this process; 0: as they are."""
    if threads:
        torch.set_num_threads(threads)
    return measure(cell, Split.load(data / cell.folder), device, changes)


def _prepared(cell: Cell, data: Path) -> str | None:
    """Prepare the cell's split unless it is there; why it cannot be."""
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
    """The same with figures of six digits: lines are kept and read by people."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def _devices(asked: str | None) -> list[str]:
    if asked == "cpu" or (asked is None and not torch.cuda.is_available()):
        return ["cpu"]
    if asked not in (None, "cuda"):
        return [str(asked)]
    return [f"cuda:{place}" for place in range(max(torch.cuda.device_count(), 1))]


def _figure(line: dict[str, Any]) -> str:
    """The best row in a few words."""
    rows = {name: row["test"]["recall@50"] for name, row in line.get("rows", {}).items()}
    if not rows:
        return "counted"
    best = max(rows, key=rows.__getitem__)
    return f"R@50 {rows[best]:.4f} ({best}), {line['seconds']:.0f} s"
