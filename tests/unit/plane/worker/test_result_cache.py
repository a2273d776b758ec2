"""The results that a worker remembers: bounded in number and size, newest kept."""

from __future__ import annotations

from holdfast.plane.model.records import Message
from holdfast.plane.worker.worker import ResultCache


def result(n: int) -> Message:
    return Message(f"m{n}", "job.result", {"result": n})


def test_the_newest_are_kept_when_there_are_too_many() -> None:
    finished = ResultCache(most=2)
    for n in range(3):
        finished.keep(("j", 0, n), result(n), 1)
    assert (finished.get(("j", 0, 0)), finished.get(("j", 0, 1)), finished.get(("j", 0, 2))) == (
        None,
        result(1),
        result(2),
    )
    assert len(finished) == 2


def test_large_results_make_room_for_each_other() -> None:
    finished = ResultCache(chars=10)
    finished.keep(("a", 0, 1), result(1), 6)
    finished.keep(("b", 0, 1), result(2), 4)
    assert len(finished) == 2
    finished.keep(("c", 0, 1), result(3), 5)
    assert (finished.get(("a", 0, 1)), finished.get(("b", 0, 1)), finished.get(("c", 0, 1))) == (
        None,
        result(2),
        result(3),
    )
    finished.keep(("d", 0, 1), result(4), 11)
    assert len(finished) == 0


def test_keeping_one_again_does_not_count_it_twice() -> None:
    finished = ResultCache(chars=10)
    for n in range(5):
        finished.keep(("a", 0, 1), result(n), 6)
    assert finished.get(("a", 0, 1)) == result(4)
    finished.forget(("a", 0, 1))
    finished.forget(("a", 0, 1))
    finished.keep(("b", 0, 1), result(9), 10)
    assert len(finished) == 1
