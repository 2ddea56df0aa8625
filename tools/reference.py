"""The reference pages, written from the code itself: `python tools/reference.py docs`.

Settings: what `Field(description=...)` says. Commands: what `--help` says. And an index of both commands and public
names that a program can read.
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

from concf.models import PRESETS
from concf.runs.settings import RunSettings
from concf.runtime.files import new_file
from concf.runtime.settings import Settings
from concf.runtime.text_tables import markdown

WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "multiple_of": "in steps of {}"}
SETTINGS_HEAD = """# Settings

Everything that a training run depends on, but for the data and the seed. Where no preset is named it is `strong`, and
for one objective alone `reference`; values of a preset that differ from `reference` are **bold**. Change one with
`--set consensus.weight=0`, several with a TOML file (`--config`), or in Python by group: `concf.train(data,
{"consensus": {"weight": 0}})`, `concf.ConCF(consensus={"weight": 0})`. Why the presets differ:
[training.md](training.md#presets). The words are explained in the [glossary](glossary.md).

This page is written from the code by `make docs`.
"""
COMMANDS_HEAD = """# Commands

What `concf --help` and `concf COMMAND --help` say, on one page. A mistake in what you say or in the data ends with a
message and exit code 2; a run that is stopped by Ctrl-C with 130. The words are explained in the
[glossary](glossary.md).

This page is written from the code by `make docs`.
"""


def settings_page() -> str:
    """Every setting: its name, its type, its value in each preset, its meaning."""
    parts = [SETTINGS_HEAD]
    for group, kind in _groups():
        parts += [f"## {group or 'objectives'}\n", f"{inspect.getdoc(kind)}\n" if group else "Which heads there are.\n"]
        parts.append(
            markdown(["setting", "type", *(f"`{name}`" for name in _presets()), "meaning"], _rows(group, kind))
        )
    return "\n".join(parts)


def commands_page() -> str:
    """Every command: what it does, what it takes."""
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


PAGES = {"settings.md": settings_page, "commands.md": commands_page, "api.json": index}


def write(folder: Path) -> None:
    """All of them into the folder of the documents."""
    for name, text in PAGES.items():
        with new_file(folder / name) as fresh:
            fresh.write_text(text(), encoding="utf-8")


def _groups() -> Iterator[tuple[str, type[Settings]]]:
    """("", the settings themselves), then each group of them."""
    yield "", RunSettings
    for name, field in RunSettings.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):  # a group, or a group that may be none
            if isinstance(kind, type) and issubclass(kind, Settings):
                yield name, kind


def _presets() -> dict[str, RunSettings]:
    """The default first."""
    return dict(sorted(PRESETS.items(), key=lambda each: each[0] != "reference"))


def _rows(group: str, kind: type[Settings]) -> list[list[str]]:
    rows = []
    for name, field in kind.model_fields.items():
        if not group and name in dict(_groups()):
            continue
        groups = [getattr(chosen, group) if group else chosen for chosen in _presets().values()]
        shown = ["no recipe" if each is None else f"`{_value(getattr(each, name))}`" for each in groups]
        bold = [text if text == shown[0] else f"**{text}**" for text in shown]
        full = f"`{group}.{name}`" if group else f"`{name}`"
        rows.append([full, _type(field), *bold, _escaped(field.description or "")])
    return rows


def _type(field: FieldInfo) -> str:
    """In words, with its bounds: `number, > 0, or none`."""
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
    """As TOML or `--set` have it."""
    if isinstance(value, tuple):
        return json.dumps(value)
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value).replace("None", "none")


def _escaped(text: str) -> str:
    """A bar would end the cell of a table."""
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
    """A row each: arguments, then options in the order of `--help`."""
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
