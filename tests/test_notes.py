from __future__ import annotations

import warnings

import pytest

from concf.errors import ConcfWarning, command_line, note, option


def test_a_note_is_a_warning_in_python_and_a_line_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(ConcfWarning, match=r"^few users$"):
        note("few users")
    with command_line():
        for _ in range(2):
            note("few users")
    assert capsys.readouterr().err == "note: few users\n" * 2


def test_other_warnings_are_shown_as_ever() -> None:
    with command_line(), pytest.warns(DeprecationWarning, match="old"):
        warnings.warn("old", DeprecationWarning, stacklevel=1)


def test_messages_name_an_argument_in_python_and_an_option_on_the_command_line() -> None:
    with command_line():
        assert option("min_item") == "--min-item"
    assert option("min_item") == "min_item="
