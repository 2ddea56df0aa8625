"""Errors that a user can fix: each message says where, what was found and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_on_the_command_line: ContextVar[bool] = ContextVar("_on_the_command_line", default=False)

FLAGS = {"bad_times": "drop-bad-times"}  # options whose command-line flag includes the value


class ConcfWarning(UserWarning):
    """Warning for the user, which the command line prints as a note."""


class ConcfError(Exception):
    """Error that the user can fix; the command line prints only the message and exits with code 2."""


class DataError(ConcfError):
    """The data cannot be used as they are."""


class ConfigError(ConcfError):
    """A setting is invalid, alone or together with others."""


class PeerError(ConcfError):
    """Another process of the same job has ended or does not respond."""


class MissingExtraError(ConcfError):
    """An optional library is needed and is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        problem = f"{purpose} needs the library {library!r}, which is not installed"
        super().__init__(f"{problem}. Try: pip install 'concf[{extra}]'")


def note(message: str) -> None:
    """Issue a `ConcfWarning`; on the command line it is printed as a note."""
    warnings.warn(message, ConcfWarning, stacklevel=3)


def option(name: str, value: object = None) -> str:
    """Name an option, alone or with its value: `min_item=` in Python, `--min-item` on the command line."""
    if not _on_the_command_line.get():
        return f"{name}=" if value is None else f"{name}={value!r}"
    flag = FLAGS.get(name, name.replace("_", "-"))
    if value is None or isinstance(value, bool) or name in FLAGS:
        return f"--no-{flag}" if value is False else f"--{flag}"
    return f"--{flag} {value}"


@contextmanager
def command_line() -> Iterator[None]:
    """Inside the block, messages name command-line options, and every note is a line on standard error."""
    import typer

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ConcfWarning):
            typer.echo(f"note: {message}", err=True)
        else:
            usual(message, category, *where, **more)

    before = _on_the_command_line.set(True)
    try:
        with warnings.catch_warnings():
            usual = warnings.showwarning
            warnings.showwarning = show
            warnings.simplefilter("always", ConcfWarning)
            yield
    finally:
        _on_the_command_line.reset(before)
