"""A signal handler that raises, or that releases leases, at every bytecode of acquire, renew, release and close.

Whatever the moment: renewal goes on, no thread spins, nothing stays locked, the pool keeps its size, and the key is
free in the end. A share of the bytecodes is tried, another one in each run; `HOLDFAST_EVERY_BYTECODE=1` tries all.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from bytecodes import At, every, raise_interrupted
from holdfast.blocking.lock import Lock
from holdfast.core.lease import Event
from holdfast.runtime.keeper import Orphan
from holdfast.runtime.ticker import Ticker
from servers import RedisServer, redis_executables, start_redis

pytestmark = pytest.mark.filterwarnings(
    # An interrupt before a coroutine is started leaves it unstarted; one that loses a lease leaves it to expire.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore:the lease of .* was dropped:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

SECONDS = 30.0  # by which any condition must hold
ALL = bool(os.environ.get("HOLDFAST_EVERY_BYTECODE"))


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + SECONDS
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < end, what
        pause.wait(0.002)


def tickers(locks: holdfast.Locks) -> list[Ticker[Any]]:
    keeper = locks.house.keeper
    found: list[Any] = [keeper._alarms, keeper._renewals, keeper._loose_ends]
    return found


def whole(pool: dict[str, int]) -> bool:
    """Whether all connections are back in the pool. The cleanup in the background may have one for a while."""
    return pool["open"] == pool["idle"] and not pool["waiting"]


# The end of a block has not begun there, and the interpreter never calls it again: the lease is dropped with its lock.
BLOCK_ENDS = {f"/blocking/lock.py:{Lock.__exit__.__code__.co_firstlineno + 3} +2"}


def expire(locks: holdfast.Locks) -> None:
    """A lease that was dropped is not renewed. Do what its TTL would do later."""
    items = {item for ticker in tickers(locks) for item in ticker.items() if not isinstance(item, Orphan)}
    (tenure,) = (item for item in items if item.key == "k" and item.recorded.live)
    assert tenure.forsaken
    locks.force_release("k", reason="the end of its TTL")
    tenure.end(Event.REFUSED)


def reachable(ticker: Ticker[Any]) -> bool:
    """Whether each item of a timer queue is in the slot at which it is due."""
    return all(item in ticker._calendar._slots.get(slot, ()) for item, slot in list(ticker._calendar._due.items()))


def check(locks: holdfast.Locks, where: str) -> None:
    """What must hold after every interrupt. The key is free when the reaper has had its turn."""
    gate: Any = locks.ports.runtime.gate
    if where in BLOCK_ENDS and gate.lines:
        expire(locks)
    # A thread of the runtime may hold the last reference to the lease for a moment; the queue is left when it goes.
    until(f"a caller is still in the local queue after an interrupt at {where}", lambda: not gate.lines)
    # While its thread takes an item out, the item is in one of the two tables.
    until(f"an item of a timer queue never comes out: {where}", lambda: all(map(reachable, tickers(locks))))
    until(f"the key is still held after an interrupt at {where}", lambda: not locks.inspect("k").held)
    pool = getattr(locks.engine.blocking, "_driver", None)
    if pool is not None:
        until(f"a connection is missing after an interrupt at {where}", lambda: whole(pool.statistics()))
    lease = locks.lock("k", ttl=60).try_acquire()
    assert lease is not None, f"the lock cannot be acquired after an interrupt at {where}"
    assert lease.release()


def check_renewal(locks: holdfast.Locks) -> None:
    """A lease is renewed as ever, and the threads of the runtime sleep in between."""
    lease = locks.lock("renewed", ttl=0.6).acquire()
    renewed, used = locks.statistics().renewed, time.process_time()
    until("the lease is not renewed any more", lambda: locks.statistics().renewed >= renewed + 3)
    assert lease.held
    assert time.process_time() - used < 0.5, "a thread spins"
    assert lease.release()
    assert all(ticker.crashes == 0 for ticker in tickers(locks))
    until("an item is left in a timer queue", lambda: not any(_left(ticker) for ticker in tickers(locks)))


def _left(ticker: Ticker[Any]) -> list[Any]:
    """Items that are neither dropped leases, which go when they are due, nor orphans, which go when they expire."""
    tenures = [each for each in ticker.items() if not isinstance(each, Orphan)]
    return [each for each in tenures if not each.forsaken and each.recorded.live]


def acquire(locks: holdfast.Locks, at: At) -> None:
    lease = locks.lock("k", ttl=60).acquire()
    At.pause()
    lease.release()
    del at


def try_acquire(locks: holdfast.Locks, at: At) -> None:
    lease = locks.lock("k", ttl=60).try_acquire()
    At.pause()
    assert lease is not None
    lease.release()
    del at


def block(locks: holdfast.Locks, at: At) -> None:
    with locks.lock("k", ttl=60):
        pass
    del at


def release(locks: holdfast.Locks, at: At) -> None:
    At.pause()
    lease = locks.lock("k", ttl=60).acquire()
    at.resume()
    try:
        lease.release()
    finally:
        At.pause()
        lease.release()  # as a `finally` of the caller's would


def renew(locks: holdfast.Locks, at: At) -> None:
    At.pause()
    lease = locks.lock("k", ttl=60).acquire()
    try:
        at.resume()
        lease.renew()
        lease.progress()
        lease.ensure_held()
    finally:
        At.pause()
        lease.release()


WORKS = [acquire, try_acquire, block, release, renew]


def memory(_: pytest.FixtureRequest) -> str:
    return "memory://"


def sqlite(request: pytest.FixtureRequest) -> str:
    path: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{path}/leases.db"


def redis(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("newest_redis")
    space = uuid.uuid4().hex[:10]
    return f"{server.url}?prefix={space}:&namespace=aux-{space}"


NEEDS_REDIS = [pytest.mark.server, pytest.mark.skipif(not redis_executables(), reason="no redis-server")]
STORES = [
    pytest.param(memory, 1 if ALL else 5, id="memory"),
    pytest.param(sqlite, 1 if ALL else 61, id="sqlite"),
    pytest.param(redis, 1 if ALL else 61, id="redis", marks=NEEDS_REDIS),
]


@pytest.fixture(scope="session")
def newest_redis() -> Iterator[RedisServer]:
    with start_redis(redis_executables()[-1]) as server:
        yield server


@pytest.fixture
def locks(url: Callable[[pytest.FixtureRequest], str], request: pytest.FixtureRequest) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url(request), request_timeout=0.5) as locks:
        locks.lock("k", ttl=60).acquire().release()  # connected, and its threads run
        yield locks


@pytest.mark.requires("R48", "R81")
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("url", "step"), STORES)
def test_an_interrupt_at_any_bytecode_leaves_nothing_behind(
    locks: holdfast.Locks, work: Callable[[holdfast.Locks, At], None], step: int
) -> None:
    places = 0
    for where in every(lambda at: work(locks, at), raise_interrupted, step=step, first=random.randrange(step)):
        check(locks, where)
        places += 1
    assert places * step > 100
    check_renewal(locks)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("url", "step"), STORES)
def test_a_signal_handler_may_release_another_lease_at_any_bytecode(
    locks: holdfast.Locks, work: Callable[[holdfast.Locks, At], None], step: int
) -> None:
    """The handler of SIGTERM that docs show: it releases, and whatever was interrupted goes on."""
    others: list[holdfast.Lease] = []

    def prepared(at: At) -> None:
        At.pause()
        others[:] = [locks.lock("other", ttl=60).acquire()]
        at.resume()
        work(locks, at)

    def handler() -> None:
        others[0].release()

    for where in every(prepared, handler, step=step, first=random.randrange(step)):
        assert not others[0].held, where
        until(f"released by a handler at {where}", lambda: not locks.inspect("other").held)
        check(locks, where)
    others[0].release()
    check_renewal(locks)


@pytest.mark.parametrize("work", [block, release, renew])
@pytest.mark.parametrize(("url", "step"), STORES)
def test_a_signal_handler_may_release_the_lease_at_hand_at_any_bytecode(
    locks: holdfast.Locks, work: Callable[[holdfast.Locks, At], None], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[holdfast.Lease] = []
    make = holdfast.Lease.__init__

    def remember(self: holdfast.Lease, *args: Any) -> None:
        make(self, *args)
        made[:] = [self]

    monkeypatch.setattr(holdfast.Lease, "__init__", remember)

    def attempt(at: At) -> None:
        made.clear()
        with contextlib.suppress(holdfast.LeaseLost):  # it is not held any more when it is used
            work(locks, at)

    def handler() -> None:
        for lease in made:
            lease.release()

    for where in every(attempt, handler, step=step, first=random.randrange(step)):
        check(locks, where)
    monkeypatch.undo()
    check_renewal(locks)
