"""Work that is divided among threads: the same results, in order, whatever their number."""

from __future__ import annotations

import threading

import pytest
import torch

from concf.runtime.executors import in_blocks, in_threads, n_threads, one_thread_each

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_blocks_have_all_threads_and_an_operation_one():
    with one_thread_each():
        assert (torch.get_num_threads(), n_threads()) == (1, 3)
        with one_thread_each():  # a stage within a stage
            assert (torch.get_num_threads(), n_threads()) == (1, 3)
        meeting = threading.Barrier(3, timeout=30)  # passed only by three at a time
        found = list(in_blocks(lambda job: (meeting.wait() < 3, torch.get_num_threads(), job), range(6), CPU))
        assert found == [(True, 1, job) for job in range(6)]
        assert torch.get_num_threads() == 1
    assert (torch.get_num_threads(), n_threads()) == (3, 3)


def test_an_error_leaves_everything_as_it_was():
    with pytest.raises(ZeroDivisionError), one_thread_each():
        list(in_blocks(lambda job: 1 // job, [2, 1, 0], CPU))
    assert (torch.get_num_threads(), n_threads()) == (3, 3)


def test_a_worker_that_divides_its_own_work_does_it_alone():
    def nested(job: int) -> list[str]:
        return [*in_threads(lambda _: threading.current_thread().name, range(4), 3), str(job)]

    for job, found in enumerate(in_threads(nested, range(12), 3)):
        assert len(set(found)) == 2
        assert found[-1] == str(job)


def test_nobody_works_on_after_an_error():
    begun, ended = [], []

    def work(job: int) -> None:
        begun.append(job)
        if job == 0:
            raise ZeroDivisionError
        threading.Event().wait(0.05)
        ended.append(job)

    with pytest.raises(ZeroDivisionError):
        list(in_threads(work, range(100), 3))
    assert sorted(ended) == sorted(set(begun) - {0})
    assert len(begun) < 100
