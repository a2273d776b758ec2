"""Ctrl-C, `SystemExit` and friends in blocking code: at every line, before and after every request.

Whatever the moment: the interrupt reaches the caller as itself, no caller is queued any more, and the key is free
(or was never taken). A lease that the caller already holds is the caller's own affair.
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import holdfast
from holdfast.runtime.run_sync import run_now
from support.harness.leases import Stage, plain

# An interrupt before the start of a coroutine leaves it unstarted.
pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

PACKAGE = str(Path(holdfast.__file__).parent)
OUTSIDE = (
    "/memory/store.py",
    "/memory/table.py",
    "/run_sync.py",
)  # the last has no point at which a signal could arrive


class Interrupt:
    """Raises at the k-th line that is executed inside the package, in this thread, and then never again."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left = at
        self.error = error
        self.where: str | None = None
        # One object for as long as anything is traced: the interpreter was seen to call one that was gone.
        self._tracer = self._trace

    def __enter__(self) -> Self:
        sys.settrace(self._tracer)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_filename.endswith(OUTSIDE):
            return None
        if event == "line" and self.where is None and not _is_no_place(frame):
            self.left -= 1
            if self.left < 0:
                self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise self.error
        return self._tracer


def _is_no_place(frame: FrameType) -> bool:
    """Whether no interpreter delivers a signal at this line: it looks for one when it calls, not between.

    The end of a `with` is traced as its first line again, where an exception would skip the end; `try:` does nothing.
    What remains open is the entry of `__exit__` itself, as for every context manager that is written in Python.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line.startswith("with ") or line == "try:"


@pytest.fixture
def locks(threads: Stage) -> holdfast.Locks:
    locks: holdfast.Locks = plain(threads.locks())
    return locks


def mutexes(locks: holdfast.Locks) -> Any:
    return locks.ports.runtime.mutexes


def nothing_is_left(locks: holdfast.Locks, threads: Stage, where: str | None) -> None:
    """The key is free, in the store and locally, immediately or when the clean-up in the background is done."""
    done = threading.Event()
    for _ in range(200):
        if not locks.inspect("k").held and not mutexes(locks).queues:
            break
        done.wait(0.01)
    assert not locks.inspect("k").held, f"the key is still taken after an interrupt at {where}"
    assert not mutexes(locks).queues, f"a caller is still queued after an interrupt at {where}"
    lease = locks.lock("k", ttl=60).try_acquire()
    assert lease is not None, f"the lock cannot be taken after an interrupt at {where}"
    assert lease.release()


def every_line(locks: holdfast.Locks, threads: Stage, work: Callable[[], Any]) -> set[str]:
    """Do the work again and again, interrupted one line later each time, until it gets through."""
    places: set[str] = set()
    for at in range(2_000):
        interrupt = Interrupt(at, KeyboardInterrupt)
        got = None
        try:
            with interrupt:
                got = work()
        except KeyboardInterrupt:
            assert interrupt.where is not None
        if interrupt.where is None:
            return places
        places.add(interrupt.where)
        if isinstance(got, holdfast.Lease):
            got.release()
        del got
        nothing_is_left(locks, threads, interrupt.where)
    raise AssertionError("the work never got through")


@pytest.mark.requires("R81")
def test_an_interrupt_at_any_line_of_acquire_leaves_nothing_behind(locks: holdfast.Locks, threads: Stage) -> None:
    lock = locks.lock("k", ttl=60)

    def work() -> None:
        lease = lock.acquire()
        sys.settrace(None)
        lease.release()

    assert len(every_line(locks, threads, work)) > 20


def test_an_interrupt_at_any_line_of_try_acquire_leaves_nothing_behind(locks: holdfast.Locks, threads: Stage) -> None:
    lock = locks.lock("k", ttl=60)

    def work() -> None:
        lease = lock.try_acquire()
        sys.settrace(None)
        assert lease is not None
        lease.release()

    assert len(every_line(locks, threads, work)) > 20


def test_an_interrupt_at_any_line_of_release_leaves_nothing_behind(locks: holdfast.Locks, threads: Stage) -> None:
    lock = locks.lock("k", ttl=60)
    tracing = sys.gettrace

    def work() -> None:
        trace, lease = tracing(), None
        sys.settrace(None)
        lease = lock.acquire()
        sys.settrace(trace)
        try:
            lease.release()
        finally:
            sys.settrace(None)
            lease.release()  # as a `finally` of the caller's would

    assert len(every_line(locks, threads, work)) > 10


def test_an_interrupt_at_any_line_of_a_with_block_leaves_nothing_behind(locks: holdfast.Locks, threads: Stage) -> None:
    lock = locks.lock("k", ttl=60)

    def work() -> None:
        with lock:
            pass

    assert len(every_line(locks, threads, work)) > 30


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["acquire", "release"])
def test_an_interrupt_around_a_request_leaves_nothing_behind(
    locks: holdfast.Locks, threads: Stage, operation: str, when: str, error: type[BaseException]
) -> None:
    def strike() -> None:
        raise error

    threads.plan.once(when, operation, strike)
    with pytest.raises(error), locks.lock("k", ttl=60):
        pass
    nothing_is_left(locks, threads, f"{when} {operation}")


@pytest.mark.requires("R48", "R81")
def test_an_interrupted_wait_in_line_steps_out_of_it(locks: holdfast.Locks, threads: Stage) -> None:
    """`signal.raise_signal` would do the same; the strike comes from the wait itself, so that it cannot miss."""
    lock = locks.lock("k", ttl=60)
    holder = lock.acquire()
    waiting = threads.start(_acquire(lock))
    for _ in range(200):
        if locks.statistics().waiting:
            break
        threading.Event().wait(0.01)

    class Struck:
        def acquire(self, timeout: float = -1) -> bool:
            if timeout != -1:
                raise KeyboardInterrupt
            return True

    original = threading.Lock
    threading.Lock = Struck  # type: ignore[assignment] # the lock that the place waits on is the one that strikes
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(timeout=5)
    finally:
        threading.Lock = original
    assert locks.statistics().waiting == 1  # the other one still waits
    holder.release()
    lease = run(waiting.result())
    assert lease.held
    lease.release()
    nothing_is_left(locks, threads, "queued")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, ZeroDivisionError])
def test_what_ends_the_body_ends_the_lease_and_is_not_masked(
    locks: holdfast.Locks, threads: Stage, error: type[BaseException]
) -> None:
    with pytest.raises(error), locks.lock("k", ttl=60):
        raise error
    nothing_is_left(locks, threads, "the body")
    threads.plan.down("release")
    with pytest.raises(error), locks.lock("k", ttl=60):
        raise error
    threads.plan.well()


async def _acquire(lock: holdfast.Lock[holdfast.Lease]) -> holdfast.Lease:
    return lock.acquire()


def run(work: Any) -> Any:
    from holdfast.runtime.run_sync import run_now

    return run_now(work)


def test_a_keeper_that_cannot_be_started_costs_one_acquire_and_not_the_lease_of_the_next(
    locks: holdfast.Locks, threads: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is out of threads: the grant is released, and when there are threads again, renewal works."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name in {"holdfast-keeper", "holdfast-alarm"}:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as poor:
        poor.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            locks.lock("k", ttl=0.5).acquire()
    assert not locks.inspect("k").held
    assert not mutexes(locks).queues
    lease = locks.lock("k", ttl=0.5).acquire()
    assert not lease.lost.wait(1.0)
    assert lease.held
    lease.release()


@pytest.mark.parametrize("ask", ["acquire", "try_acquire"])
def test_a_second_interrupt_in_the_clean_up_does_not_block_the_key_in_this_process(
    monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    with holdfast.connect("memory://") as locks:
        lock, calls = locks.lock("k", ttl=60), []

        def interrupted(flow: Any) -> None:
            calls.append(flow)
            if len(calls) == 1:
                run_now(flow)  # granted, and the caller never gets it
            flow.close()
            raise KeyboardInterrupt

        with monkeypatch.context() as struck:
            struck.setattr("holdfast.leases.sync.lock.run_now", interrupted)
            with pytest.raises(KeyboardInterrupt):
                getattr(lock, ask)()
        assert len(calls) == 2
        assert not mutexes(locks).queues
