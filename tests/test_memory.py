"""A run that cannot fit into memory is refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_recipe import LOG, SMALL, data, small, trained

from concf.errors import ConfigError
from concf.models import choose_settings, train
from concf.reference import train as reference
from concf.reference.model import Model
from concf.reference.trainer import Trainer
from concf.runs import memory
from concf.runs.memory import available_memory, cgroup_memory
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.process_group import ProcessGroup
from concf.strong import train as strong
from concf.strong.combine import combine
from concf.strong.update import update

CPU = torch.device("cpu")


def sizes(tables: memory.Tables) -> dict[str, int]:
    return {name: size for name, (size, _) in tables.items()}


def set_free(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(memory, "available_memory", lambda device: size)


def write(level: Path, **files: object) -> None:
    level.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (level / f"memory.{name}").write_text(f"{text}\n")


def own(folder: Path, *lines: str) -> Path:
    (folder / "cgroup").write_text("".join(f"{line}\n" for line in lines))
    return folder / "cgroup"


def test_every_level_of_nested_control_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", max=1000, current=400, stat="anon 300\ninactive_file 100")
    write(tmp_path / "a/b", max="max", current=300, stat="inactive_file 100")
    write(tmp_path / "a/b/c", max=900, current=100, stat="inactive_file 0")
    assert sorted(cgroup_memory(own(tmp_path, "0::/a/b/c"), tmp_path)) == [700, 800]
    assert cgroup_memory(own(tmp_path, "0::/a"), tmp_path) == [700]
    assert cgroup_memory(own(tmp_path, "5:cpuset:/x", "0::/"), tmp_path) == []
    assert cgroup_memory(tmp_path / "nowhere", tmp_path) == []
    assert available_memory(CPU) > 0
    monkeypatch.setattr(memory, "cgroup_memory", lambda: [5000, 300])
    assert available_memory(CPU) == 300


@pytest.mark.parametrize("preset", ["strong", "reference"])
def test_nothing_is_allocated_for_a_run_that_is_refused(
    preset: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the allocator grants whatever it is asked for."""
    monkeypatch.setattr(Model, "__init__", lambda *_, **__: pytest.fail("a model was allocated"))
    set_free(monkeypatch, 10**9)
    wide = choose_settings(preset, {"dimensions": 10**12} if preset == "strong" else {"model": {"dimensions": 10**12}})
    with pytest.raises(ConfigError, match=r"GB .* 48 users and 40 items, and 1.0 GB are free.*dimensions"):
        train(data(), wide, device="cpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_updates_and_combinations_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run, vectors = trained(), (torch.ones(48, 4), torch.eye(40, 4))
    monkeypatch.setattr(Model, "__init__", lambda *_, **__: pytest.fail("a model was allocated"))
    set_free(monkeypatch, 1000)
    calls: list[Callable[[], object]] = [
        lambda: update(run, LOG.draw(2), device="cpu"),
        lambda: combine(data(), {"mine": vectors}, settings=SMALL, device="cpu"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"needs at least .*min_user= of prepare, or drop_before= of an update"):
            call()


def test_a_run_that_goes_on_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = train(data(), small(budget="fast", refit="none"), device="cpu", out=tmp_path / "run")
    set_free(monkeypatch, 1)
    assert train(data(), device="cpu", out=tmp_path / "run", resume=True).history == whole.history


def test_processes_share_the_memory_of_a_machine_and_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ProcessGroup(0, 2)
    set_free(monkeypatch, sum(size for size, _ in strong.large_tables(data(), small(), CPU, two).values()))
    strong.check_memory(data(), small(), torch.device("cuda"), two)
    with pytest.raises(ConfigError, match="for each process"):
        strong.check_memory(data(), small(), CPU, two)


def test_the_estimate_of_the_default_is_what_a_run_holds() -> None:
    run, tables = trained(), sizes(strong.large_tables(data(), small()))
    both = run.best[CONSENSUS], run.best[R_CONSENSUS]
    lists = [both[0].lists, both[1].lists, both[0].votes["reranked"], both[0].votes["items"]]
    assert tables["lists and votes of the consensus"] == sum(each.nbytes for each in lists if each is not None)
    vectors = sum(each.nbytes for head in run.heads for each in run.best[head].state.values())
    assert tables["vectors of all voters and the student"] == 2 * vectors  # those of the run, and of the stages


@pytest.mark.parametrize("changes", [{"sharing": "full"}, {"sharing": "none", "encoder": "mf"}])
def test_the_estimate_of_the_heads_is_what_a_trainer_holds(changes: dict[str, str]) -> None:
    consensus = {"every": 1, "window": 2, "top_k": 6}
    balance, training = {"on": changes.get("sharing") != "none"}, {"epochs": 3, "batch": 100}
    parts = {"model": {"dimensions": 16} | changes, "consensus": consensus, "balance": balance, "training": training}
    settings = choose_settings("reference", parts)
    tables, trainer = sizes(reference.large_tables(data(), settings)), Trainer(data(), settings)
    model = trainer.model
    assert tables["embeddings of users and items"] == model.user.nbytes + model.item.nbytes
    others = sum(each.nbytes for each in trainer.others)
    small_maps = sum(each.nbytes for head in model.heads for each in head.parameters() if each.numel() <= 17 * 16)
    biases = sum(each.nbytes for name, each in model.encoder.named_parameters() if "bias" in name)
    tables_of_heads = tables["layers and output tables of the heads"]
    assert others - small_maps - biases <= tables_of_heads <= others
    trainer.epoch(0)
    for _ in range(2):
        trainer.consensus.update()
    state = trainer.optimiser.state.values()
    moments = sum(each[name].nbytes for each in state for name in ("exp_avg", "exp_avg_sq"))
    assert tables["moments of Adam"] == moments - 2 * (others - tables_of_heads)
    queue = sum(each.nbytes for each in trainer.consensus.queue)
    assert tables["rankings of the window"] == queue + queue // 2  # two rankings, and the lists of a new one
