"""How a thread waits for the write lock of a file that another process has."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import pytest

from holdfast.plane.db.sqlite.connection import WriteLockBusy
from holdfast.plane.db.sqlite.threads import Counts, Pauses, pause_ns
from holdfast.types import MS, NS, Instant


class Sleeper:
    """A clock that only sleeping moves on, and chance that is always in the middle."""

    def __init__(self) -> None:
        self.ns = 1
        self.slept: list[int] = []

    def now(self) -> Instant:
        return Instant(self.ns, self.ns, self.ns)

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * NS))
        self.ns += self.slept[-1]

    def below(self, bound: int) -> int:
        return bound // 2

    def token(self) -> str:
        raise AssertionError("no token is needed")


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Sleeper:
    sleeper = Sleeper()
    monkeypatch.setattr(time, "sleep", sleeper.sleep)
    return sleeper


def free_after(sleeper: Sleeper, ns: int) -> Callable[[], sqlite3.Connection]:
    def attempt() -> sqlite3.Connection:
        if sleeper.ns <= ns:
            raise WriteLockBusy
        return sqlite3.connect(":memory:")

    return attempt


@pytest.mark.parametrize("held_ns", [MS // 2, 2 * MS, 10 * MS, 100 * MS, NS])
def test_nobody_comes_much_later_than_the_lock_is_free(sleeper: Sleeper, held_ns: int) -> None:
    """And it is not asked for all the time: a few attempts for a short wait, a few hundred for a second."""
    counts = Counts()
    connection = Pauses(sleeper, sleeper, counts).until(free_after(sleeper, held_ns), lambda: True)
    assert connection is not None
    connection.close()
    late_ns = sleeper.ns - held_ns
    assert 0 < late_ns <= min(max(MS // 10, held_ns // 4), 5 * MS)
    assert counts.busy == len(sleeper.slept) <= 30 + held_ns // (5 * MS)
    assert counts.busy_ns == sleeper.ns - 1


def test_when_nobody_wants_it_any_more_the_wait_is_over(sleeper: Sleeper) -> None:
    counts = Counts()
    wanted = iter([True, True, False])
    assert Pauses(sleeper, sleeper, counts).until(free_after(sleeper, NS), lambda: next(wanted)) is None
    assert (counts.busy, len(sleeper.slept)) == (3, 2)
    assert counts.busy_ns == sum(sleeper.slept)


def test_pauses_grow_with_the_wait_between_two_bounds() -> None:
    assert [pause_ns(each) for each in (0, MS // 10, MS, 8 * MS, 20 * MS, 3600 * NS)] == [
        MS // 10,
        MS // 10,
        MS // 4,
        2 * MS,
        5 * MS,
        5 * MS,
    ]
