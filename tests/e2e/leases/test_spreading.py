"""Work on several cores gives what it gives on one, also when a process dies over it."""

from __future__ import annotations

import os

import pytest

from holdfast.runtime.process_pool import cores, spread


def doubled(number: int) -> int:
    return 2 * number


def refused(number: int) -> int:
    if number == 3:
        raise ValueError("not this one")
    return 2 * number


def fatal_elsewhere(home: int) -> int:
    """Ends any process but the one that it names."""
    if os.getpid() != home:
        os._exit(9)
    return home


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_parts_and_what_the_work_raises_is_raised_here(processes: int) -> None:
    results = spread(refused, range(5), processes)
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(ValueError, match="not this one"):
        next(results)


def test_what_a_dead_process_left_undone_is_done_here() -> None:
    assert list(spread(fatal_elsewhere, [os.getpid()] * 3, 2)) == [os.getpid()] * 3


def test_where_no_process_can_be_started_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pool(*_: object, **__: object) -> None:
        raise OSError("no semaphores")

    monkeypatch.setattr("holdfast.runtime.process_pool.ProcessPoolExecutor", no_pool)
    assert list(spread(doubled, range(3), 2)) == [0, 2, 4]


def test_a_process_knows_its_cores() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
