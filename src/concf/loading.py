"""Load the run in a folder. PyTorch is imported when the run needs it: its stored lists do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from concf.data.split import Split
from concf.errors import DataError, note
from concf.runs.checkpoint import RUN, RunFolder, refuse_other_data
from concf.runs.settings import RunSettings
from concf.runtime.provenance import VERSION
from concf.strong.run import StrongRun
from concf.strong.settings import StrongSettings

if TYPE_CHECKING:
    import torch

    from concf.reference.run import ReferenceRun


def load_run(
    folder: str | Path, data: Split | str | Path | None = None, device: str | torch.device = "cpu"
) -> StrongRun | ReferenceRun:
    """Load the run in a folder, each head and consensus at its best; no GPU is needed, wherever it was trained.

    data: the data set that it was trained on, or its folder; None: at its place when the run was trained
    """
    home = RunFolder(folder)
    chosen, description = run_settings(home), home.description()
    split = (home.data() if data is None else data if isinstance(data, Split) else Split.load(data)).known
    refuse_other_data(description, split, home.path)
    kind: Any = StrongRun
    if not isinstance(chosen, StrongSettings):
        from concf.reference.run import ReferenceRun as kind
    run: StrongRun | ReferenceRun = kind(split, chosen, description["seed"], device)
    home.load(run)
    advice = f"Continue with: concf train --resume --out {home.path}"
    if not run.finished and run.unit == "stages":
        raise DataError(f"{home.path}: not finished, without a recommender before the last stage. {advice}")
    if not run.finished:
        note(f"{home.path}: the run is not finished; this is the best of its first {run.epoch} epochs. {advice}")
    return run


def run_settings(folder: RunFolder) -> RunSettings:
    """Settings of the run in a folder."""
    description, path = folder.description(), folder.path / RUN
    kind: type[RunSettings] = StrongSettings
    if description["model"] != kind.kind:
        from concf.reference.settings import ReferenceSettings as kind
    if description["model"] != kind.kind:
        raise DataError(f"{path}: damaged: no model is called {description['model']!r}. Restore a copy")
    try:
        return kind.model_validate(description["settings"])
    except ValidationError as error:
        unknown = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
        raise DataError(f"{path}: settings that concf {VERSION} refuses: {unknown}. Train the run again") from None
