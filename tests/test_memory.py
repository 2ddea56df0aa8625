"""The C library is told to keep what a step frees, and told otherwise in the end."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from concf.model.model import Model
from concf.training import memory
from concf.training.memory import KEPT, MMAP_THRESHOLD, TRIM_THRESHOLD, USUAL, kept_memory


class Small(Model):
    """As much of a model as is looked at."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.user = torch.nn.Parameter(torch.ones(3))


class Library:
    """Notes what it is told, and answers as it is made to."""

    def __init__(self, answer: int | None) -> None:
        self.answer = answer
        self.told: list[tuple[object, ...]] = []

    def __call__(self, *words: object) -> int | None:
        self.told.append((words[0], *(getattr(word, "value", word) for word in words[1:])))
        return self.answer


def thresholds(size: int) -> list[tuple[object, ...]]:
    return [("mallopt", TRIM_THRESHOLD, size), ("mallopt", MMAP_THRESHOLD, size)]


@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_kept_inside_and_given_back_afterwards_even_after_an_error(monkeypatch, fails: bool) -> None:
    library = Library(1)
    monkeypatch.setattr(memory, "_library", library)
    with suppress(ZeroDivisionError), kept_memory(Small()):
        assert library.told == thresholds(KEPT)
        if fails:
            raise ZeroDivisionError
    assert library.told == [*thresholds(KEPT), *thresholds(USUAL), ("malloc_trim", 0)]


@pytest.mark.parametrize("answer", [0, None])
def test_a_library_that_cannot_be_told_is_not_asked_again(monkeypatch, answer: int | None) -> None:
    library = Library(answer)
    monkeypatch.setattr(memory, "_library", library)
    with kept_memory(Small()):
        pass
    assert library.told == thresholds(KEPT)[:1]


def test_a_large_model_keeps_nothing(monkeypatch) -> None:
    library = Library(1)
    monkeypatch.setattr(memory, "_library", library)
    monkeypatch.setattr(memory, "MOST", 11)
    with kept_memory(Small()):
        pass
    assert library.told == []


def test_a_function_that_is_not_there_is_no_error() -> None:
    assert memory._library("no_such_function", 1) is None
