"""What keeps a process from running, as a loss tells of it: collections, a blocked loop, threads that wake too late."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import aio
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.loss_diagnosis import NOISE_NS, sentences
from holdfast.runtime import stalls
from holdfast.runtime.renewer import Renewer
from holdfast.runtime.stalls import GarbageCollections, LoopWatch, garbage_collections
from holdfast.runtime.system import SystemClock
from holdfast.runtime.timer_thread import TimerThread
from holdfast.types import MS, NS, Instant
from support.harness.leases import LIMIT_S, ManualClock, Notebook


@pytest.mark.requires("R25")
def test_long_collections_are_remembered_and_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1 * NS, 1 * NS + 5 * MS, 2 * NS, 2 * NS + MS // 2, 3 * NS, 3 * NS + 2 * MS])
    monkeypatch.setattr(stalls, "monotonic_ns", lambda: next(moments))
    collections = GarbageCollections()
    for _ in range(3):
        collections("start", {})
        collections("stop", {})
    assert collections.longest_ns(0) == 5 * MS
    assert collections.longest_ns(2 * NS) == 2 * MS
    assert collections.longest_ns(4 * NS) == 0


def test_collections_are_timed_once_however_many_locks_there_are() -> None:
    first, second = garbage_collections(), garbage_collections()
    assert first is second
    assert gc.callbacks.count(first) == 1


@pytest.mark.requires("R25")
def test_a_thread_that_wakes_too_late_was_not_let_run() -> None:
    """The clock jumps while the thread sleeps: to the thread that is what a stopped process looks like."""
    clock = Jumping()
    acted = threading.Event()

    async def act(_items: list[str]) -> None:
        acted.set()

    ticker: TimerThread[str] = TimerThread("late", clock, act)
    ticker.put("item", clock.now().mono + 200 * MS)
    while not ticker._asleep_until_ns:
        assert not acted.wait(0.001)
    clock.jump(7 * NS)
    assert acted.wait(LIMIT_S)
    assert 6 * NS < ticker.late_ns(0) < 8 * NS
    assert ticker.late_ns(clock.now().mono) == 0
    ticker.stop(NS)


class Jumping:
    """The real clock, plus what it was told to jump."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._more = 0

    def now(self) -> Instant:
        mono, boot, wall = self._real.now()
        return Instant(mono + self._more, boot + self._more, wall + self._more)

    def jump(self, ns: int) -> None:
        self._more += ns


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_a_loop_that_does_not_answer_is_blocked_and_one_that_answered_late_was(loop: asyncio.AbstractEventLoop) -> None:
    clock = ManualClock()
    watch = LoopWatch(loop, clock)
    watch.ask()
    watch.ask()  # one answer is due, even if asked twice
    clock.move(3 * NS)
    assert watch.lag_ns(0) == 3 * NS
    loop.run_until_complete(asyncio.sleep(0))
    clock.move(NS)
    assert watch.lag_ns(0) == 3 * NS
    assert watch.lag_ns(clock.now().mono - NS) == 0, "that was before"
    watch.ask()
    loop.run_until_complete(asyncio.sleep(0))
    assert watch.lag_ns(clock.now().mono - 1) == 0


def test_a_closed_loop_can_be_asked() -> None:
    made, clock = asyncio.new_event_loop(), ManualClock()
    made.close()
    watch = LoopWatch(made, clock)
    watch.ask()
    clock.move(NS)
    assert watch.lag_ns(0) == NS


@pytest.mark.requires("R25")
@pytest.mark.asyncio
async def test_a_loss_says_that_the_event_loop_was_blocked(tmp_path: Path) -> None:
    """The renewer has threads of its own: it renews while the loop is blocked, and learns that the lease was broken."""
    url, notebook = f"sqlite:///{tmp_path}/leases.db", Notebook()
    async with aio.connect(url, observers=[notebook]) as locks:
        lease = await locks.lock("k", ttl=1.2).acquire()
        breaker = threading.Thread(target=_break_when_renewed, args=(url, locks.manager.renewer, notebook))
        breaker.start()
        breaker.join(LIMIT_S)  # on the loop, so that nothing else runs there
        assert not breaker.is_alive()
    [lost] = [record for record in notebook.records if record.kind is EventKind.LOST]
    assert lost.facts is not None
    assert lost.facts["loop_lag_ns"] > NOISE_NS
    assert "the event loop was blocked for" in " ".join(sentences(lost.reason, lost.facts))
    assert {"starved_ns", "collection_ns", "keeper_lag_ns", "suspended_ns"} <= lost.facts.keys()
    assert not any(_token(lease) in str(each) for each in notebook.records)


def _break_when_renewed(url: str, keeper: Renewer, notebook: Notebook) -> None:
    nothing = threading.Event()
    while not keeper.renewed:
        nothing.wait(0.005)
    with holdfast.connect(url) as others:
        others.force_release("k", reason="drill")
    while "lost" not in notebook.kinds():
        nothing.wait(0.005)


def _token(lease: aio.Lease | aio.DegradedLease) -> str:
    return lease._lease_record.token


def test_records_are_equal_and_hashed_by_what_they_say() -> None:
    one, same = (Record(EventKind.LOST, 1, "k", facts={"a": [1]}) for _ in range(2))
    assert one == same
    assert len({one, same}) == 1
