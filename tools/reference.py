"""Write the reference from the code: `python tools/reference.py docs`.

Settings come from `Field(description=...)`, commands from `--help`; api.json lists commands and public names.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from concf.models import MODELS
from concf.runs.settings import RunSettings
from concf.runtime.files import new_file
from concf.runtime.settings import Settings
from concf.runtime.text_tables import markdown

TRAINING = Path(__file__).parents[1] / "docs" / "training.md"
WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "multiple_of": "in steps of {}"}
SETTINGS_HEAD = """\
Everything that a training run depends on, except the data and the seed. In Python, settings are passed by group:
`concf.train(data, {"budget": "fast"})`, `concf.ConCF(preset="reference", consensus={"weight": 0})`. Values of `paper`
and `released` that differ from `reference` are **bold**. `make docs` writes this section from the code; the
[glossary](glossary.md) explains the words.
"""
MARKS = "<!-- settings: written by tools/reference.py -->", "<!-- end of settings -->"
COMMANDS_HEAD = """# Commands

The output of `concf --help` and `concf COMMAND --help` on one page. A wrong option or bad data ends with a message and
exit code 2, Ctrl-C with 130. The [glossary](glossary.md) explains the words.

This page is written from the code by `make docs`.
"""


def training_page() -> str:
    """docs/training.md with its section of all settings of both models: name, type, value in each preset, meaning."""
    before, _, rest = TRAINING.read_text(encoding="utf-8").partition(MARKS[0])
    parts = [SETTINGS_HEAD]
    for model in MODELS.values():
        presets = [f"`{name}`" for name in _presets(model)]
        parts.append(f"### Settings of {', '.join(presets)}\n")
        header = ["setting", "type", *presets, "meaning"]
        parts.append(markdown(header, [row for group, kind in _groups(model) for row in _rows(model, group, kind)]))
    return "\n\n".join([before + MARKS[0], "\n".join(parts).strip(), MARKS[1] + rest.partition(MARKS[1])[2]])


def commands_page() -> str:
    """docs/commands.md: every command, with its arguments and options."""
    from typer.main import get_command

    from concf.cli.app import app

    return "\n".join([COMMANDS_HEAD, *_described(get_command(app), "concf")])


def index() -> str:
    """Every public name and every command, as JSON."""
    from typer.main import get_command

    import concf
    from concf.cli.app import app

    names = [_named(name, getattr(concf, name)) for name in concf.__all__]
    found = {"version": concf.__version__, "python": names, "commands": [*_commands(get_command(app), "concf")]}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


PAGES = {"training.md": training_page, "commands.md": commands_page, "api.json": index}


def write(folder: Path) -> None:
    """Write all pages into the folder of the documents."""
    for name, text in PAGES.items():
        with new_file(folder / name) as fresh:
            fresh.write_text(text(), encoding="utf-8")


def _groups(model: type[RunSettings]) -> Iterator[tuple[str, type[Settings]]]:
    """("", the settings themselves), then each group of them."""
    yield "", model
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield name, field.annotation


def _presets(model: type[RunSettings]) -> dict[str, RunSettings]:
    """Settings by preset, the model's own preset first."""
    return dict(sorted(model.presets.items(), key=lambda each: each[0] != model.kind))


def _rows(model: type[RunSettings], group: str, kind: type[Settings]) -> list[list[str]]:
    rows = []
    for name, field in kind.model_fields.items():
        if not group and name in dict(_groups(model)):
            continue
        groups = [getattr(chosen, group) if group else chosen for chosen in _presets(model).values()]
        shown = [f"`{_value(getattr(each, name))}`" for each in groups]
        bold = [text if text == shown[0] else f"**{text}**" for text in shown]
        full = f"`{group}.{name}`" if group else f"`{name}`"
        rows.append([full, _type(field), *bold, _escaped(field.description or "")])
    return rows


def _type(field: FieldInfo) -> str:
    """Type of a setting in words, with its bounds: `number, > 0, or none`."""
    bounds = [
        text.format(_value(getattr(bound, name)))
        for bound in field.metadata
        for name, text in BOUNDS.items()
        if hasattr(bound, name)
    ]
    words, none = _in_words(field.annotation)
    return ", ".join([words, *bounds, *(["or none"] if none else [])])


def _in_words(annotation: Any) -> tuple[str, bool]:
    """A type in words, and whether it may be none."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    (kind,) = (each for each in kinds if each is not NoneType)
    if get_origin(kind) is Literal:
        words = ", ".join(f"`{choice}`" for choice in get_args(kind))
    elif get_origin(kind) in (tuple, list):
        first, *rest = get_args(kind)
        words = f"two {WORDS[first]}s" if rest and rest[0] is not Ellipsis else "names" if rest else WORDS[first]
    else:
        words = WORDS[kind]
    return words, NoneType in kinds


def _value(value: object) -> str:
    """Write a value as in TOML or `--set`."""
    if isinstance(value, tuple):
        return json.dumps(value)
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value).replace("None", "none")


def _escaped(text: str) -> str:
    """Escape bars, which would end the cell of a table."""
    return text.replace("|", "\\|")


def _described(command: Any, path: str) -> Iterator[str]:
    """A command and those below it. command: click's, by the few attributes that typer's own share with it."""
    if path != "concf":
        yield f"{'##' if path.count(' ') == 1 else '###'} {path}\n"
    yield inspect.cleandoc(command.help or "") + "\n"
    if command.params:
        yield f"```text\n{_usage(command, path)}\n```\n"
        yield markdown(["", "value", "default", "meaning"], [*_parameters(command)])
    for name, below in getattr(command, "commands", {}).items():
        yield from _described(below, f"{path} {name}")


def _usage(command: Any, path: str) -> str:
    words = [_name(each) if each.required else f"[{_name(each)}]" for each in command.params if not _is_option(each)]
    needed = [f"{each.opts[0]} {each.name.upper()}" for each in command.params if _is_option(each) and each.required]
    return " ".join([path, *words, *needed, "[OPTIONS]"])


def _parameters(command: Any) -> Iterator[list[str]]:
    """Yield a row for each argument, then for each option in the order of `--help`."""
    hints = get_type_hints(command.callback)
    for each in sorted((each for each in command.params if not each.hidden), key=_is_option):
        words, _ = _in_words(hints[each.name])
        flag = getattr(each, "is_flag", False)
        names = " ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)) if _is_option(each) else ""
        yield [names or f"`{_name(each)}`", "" if flag else words, _default(each), _escaped(each.help or "")]


def _named(name: str, value: Any) -> dict[str, Any]:
    """A public name: kind, signature and first sentence; of a class its public methods and properties, too."""
    if not callable(value):
        return {"name": name, "kind": "constant", "type": type(value).__name__}
    if inspect.isclass(value) and issubclass(value, Warning | Exception):
        return {"name": name, "kind": "exception", "doc": _first_sentence(value)}
    kind = "class" if inspect.isclass(value) else "function"
    found = {"name": name, "kind": kind, "module": value.__module__, **_callable(value)}
    if kind == "class":
        members = [each for each in inspect.classify_class_attrs(value) if _is_public(each)]
        found["members"] = [_member(each.name, each.kind, each.object, value) for each in members]
    return found


def _is_public(each: inspect.Attribute) -> bool:
    """Whether an attribute is a method or property of ours rather than of a library."""
    described = each.kind != "data" and inspect.getdoc(each.object) is not None
    return described and each.name[0] != "_" and each.defining_class.__module__.startswith("concf")


def _member(name: str, kind: str, attribute: Any, owner: type) -> dict[str, Any]:
    if kind == "property" or not callable(getattr(owner, name)):
        return {"name": name, "kind": "property", "doc": _first_sentence(attribute)}
    return {"name": name, "kind": kind, **_callable(getattr(owner, name))}


def _callable(value: Any) -> dict[str, str]:
    """Signature, as the source has it, and first sentence."""
    if inspect.isclass(value) and issubclass(value, Settings):
        defaults = {name: field.get_default(call_default_factory=True) for name, field in value.model_fields.items()}
        shown = {
            name: f"{type(it).__name__}()" if isinstance(it, Settings) else repr(it) for name, it in defaults.items()
        }
        fields = [f"{name}: {kind} = {shown[name]}" for name, kind in value.__annotations__.items() if name in shown]
        return {"signature": f"({', '.join(fields)})", "doc": _first_sentence(value)}
    signature = re.sub(r"(: |-> )(?:'([^']*)'|\"([^\"]*)\")", r"\1\2\3", str(inspect.signature(value)))
    signature = re.sub(r"<function (\w+) at 0x\w+>", r"\1", signature)
    return {"signature": signature, "doc": _first_sentence(value)}


def _first_sentence(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _commands(command: Any, path: str) -> Iterator[dict[str, Any]]:
    """A command with its arguments and options, then those below it."""
    if command.params and path != "concf":
        options = [
            {"name": names.replace("`", ""), "value": value, "default": default.replace("`", ""), "doc": meaning}
            for names, value, default, meaning in _parameters(command)
        ]
        doc = inspect.cleandoc(command.help or "").partition("\n\n")[0]
        yield {"name": path, "usage": _usage(command, path), "doc": " ".join(doc.split()), "options": options}
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")


def _default(each: Any) -> str:
    if each.required:
        return "needed"
    if isinstance(each.show_default, str):
        return each.show_default
    return "" if each.default is None or each.default is False else f"`{_value(each.default)}`"


def _is_option(each: Any) -> bool:
    return bool(each.opts[0].startswith("-"))


def _name(each: Any) -> str:
    return str(each.metavar or each.name.upper())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
