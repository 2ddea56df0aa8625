"""What can go wrong by a user's hand: each message says where, what was found and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_on_the_command_line: ContextVar[bool] = ContextVar("_on_the_command_line", default=False)


class ConcfWarning(UserWarning):
    """Something that is done as asked, but that the user should know of; the command line prints it as a note."""


class ConcfError(Exception):
    """A mistake that the user can fix; the command line prints the message alone and exits with 2."""


class DataError(ConcfError):
    """The data cannot be used as it is."""


class ConfigError(ConcfError):
    """A setting makes no sense, or none with the others."""


class PeerError(ConcfError):
    """Another process of the same job has ended, or does not answer."""


class MissingExtraError(ConcfError):
    """An optional library is needed and not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the library {library!r}, which is not installed. Try: pip install 'concf[{extra}]'"
        )


def note(message: str) -> None:
    """Warn of something; on the command line print it as a note."""
    warnings.warn(message, ConcfWarning, stacklevel=3)


def option(name: str, value: object = None) -> str:
    """How messages name an option, or one with its value: `min_item=` in Python, `--min-item` on the command line."""
    if not _on_the_command_line.get():
        return f"{name}=" if value is None else f"{name}={value!r}"
    flag = name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return f"--no-{flag}" if value is False else f"--{flag}"
    return f"--{flag} {value}"


@contextmanager
def command_line() -> Iterator[None]:
    """Within it messages speak of options, and every note is a line on standard error."""
    import typer

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, ConcfWarning):
            typer.echo(f"note: {message}", err=True)
        else:
            usual(message, category, *place, **more)

    before = _on_the_command_line.set(True)
    try:
        with warnings.catch_warnings():
            usual = warnings.showwarning
            warnings.showwarning = show
            warnings.simplefilter("always", ConcfWarning)
            yield
    finally:
        _on_the_command_line.reset(before)
