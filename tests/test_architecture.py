"""The structure of the package: imports run down the floors, without a circle, and no folder holds too much."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from floors import FLOORS

import concf

ROOT = Path(__file__).parents[1] / "src" / "concf"
MOST = 17  # files of a room


def modules(root: Path) -> dict[str, Path]:
    """Dotted name below the package -> file; a package stands for its `__init__`."""
    files = {path.relative_to(root).with_suffix("").parts: path for path in root.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for parts, path in files.items()}


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports, wherever it does: inside functions and for types alone too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "concf":
                below = name.removeprefix("concf").lstrip(".")
                yield below if below in known else below.rpartition(".")[0]


def graph(root: Path) -> dict[str, set[str]]:
    names = modules(root)
    return {name: set(imports(path, set(names))) - {name} for name, path in names.items()}


def upward(edges: dict[str, set[str]]) -> list[str]:
    """Imports of something on a higher floor. The package itself and `__main__` stand on the roof."""
    height = {room: floor for floor, room in enumerate(FLOORS)}

    def floor_of(name: str) -> int:
        room = name.split(".")[0]
        return len(FLOORS) if room in ("", "__main__") else height[room]

    pairs = ((name, each) for name, below in edges.items() for each in below)
    return [f"{name} imports {each}" for name, each in pairs if floor_of(each) > floor_of(name)]


def circle(edges: dict[str, set[str]]) -> list[str]:
    """One circle of imports, if there is any; a package that lies above its own modules is none."""
    own = {name: {each for each in below if not name.startswith(f"{each}.")} for name, below in edges.items()}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_run_down_the_floors() -> None:
    assert upward(graph(ROOT)) == []


def test_there_is_no_circle_of_imports() -> None:
    assert circle(graph(ROOT)) == []


def test_every_room_has_a_floor_and_every_floor_a_room() -> None:
    rooms = {path.stem for path in ROOT.iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert rooms == set(FLOORS)


def test_no_folder_holds_too_many_files() -> None:
    """At the top entries of all kinds are counted, below files; what Python asks for, and lines of data, are not."""
    folders = [path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    sizes = {
        path.name: sum(each.is_file() and each.name[0] != "_" and each.suffix != ".toml" for each in path.iterdir())
        for path in folders
    }
    sizes["concf"] = sum(each.name[0] != "_" and each.name != "py.typed" for each in ROOT.iterdir())
    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_neither_model_imports_the_other() -> None:
    edges = graph(ROOT)
    for own, other in (("strong", "reference"), ("reference", "strong")):
        below = {each for name, imported in edges.items() if name.startswith(f"{own}.") for each in imported}
        assert not {each for each in below if each.split(".")[0] == other}


def test_an_unknown_name_is_no_attribute_of_the_package() -> None:
    assert not hasattr(concf, "nothing")


def test_no_public_function_takes_more_than_eight_parameters() -> None:
    counts = {}
    for name in concf.__all__:
        value = getattr(concf, name)
        methods = {f"{name}.{method}": each for method, each in vars(value).items()} if inspect.isclass(value) else {}
        for called, each in {name: value, **methods}.items():
            function, own = getattr(each, "__func__", each), called.rpartition(".")[2]  # of a class method
            if inspect.isfunction(function) and (own[0] != "_" or own == "__init__"):
                counts[called] = len(inspect.signature(function).parameters) - ("." in called)
    assert {name for name, count in counts.items() if count > 8} == set()
    assert {"Recommender.recommend", "ConCF.load", "Rules.__init__", "train"} <= counts.keys()
