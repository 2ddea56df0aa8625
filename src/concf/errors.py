"""What can go wrong by a user's hand: each message says where, what was found and what to do."""

from __future__ import annotations


class ConcfError(Exception):
    """A mistake that the user can mend; the command line prints the message alone and exits with 2."""


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
