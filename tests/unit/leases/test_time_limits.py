"""Time limits on a hung server: it accepts connections and requests, and never answers.

A limit must hold for the whole call it is put around, to within 50 ms. The machine may be busy, so each limit is
tried again for up to half a minute: scheduling delays some tries, a mechanism that overshoots delays all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import holdfast
from holdfast import AcquireTimeout, BackendError, aio
from holdfast.core.backoff import Fixed
from holdfast.stores.redis.store import RELEASE
from holdfast.testing.proxy import HELD_LIMIT_S as LIMIT_S
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS
from support.servers.redis import RedisServer

OVERSHOOT_S = 0.05
TRYING_S = 30.0
TIMEOUT_S = 0.2
REQUEST_S = 0.3

Sync = Callable[[holdfast.Locks], object]
Async = Callable[[aio.Locks], Awaitable[object]]


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """A server that can be made to hang."""
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: FaultProxy, redis_url: str) -> str:
    return f"redis://{proxy.address}?{redis_url.partition('?')[2]}"


def held_to(limit_s: float, once: Callable[[], float]) -> None:
    """Measure until one try keeps the limit. A try that ended much too early was not held up at all."""
    seen: list[float] = []
    until = time.monotonic() + TRYING_S
    while not seen or (min(seen) >= limit_s + OVERSHOOT_S and time.monotonic() < until):
        seen.append(once())
        assert seen[-1] > 0.7 * limit_s, f"it ended before its limit of {limit_s} s: {seen}"
    assert min(seen) < limit_s + OVERSHOOT_S, f"the limit of {limit_s} s did not hold: {seen}"


def sync_once(url: str, proxy: FaultProxy, act: Sync, **options: Any) -> float:
    locks = holdfast.connect(url, **options)
    try:
        locks.ping()
        proxy.stall("to_client")
        began = time.monotonic()
        act(locks)
        return time.monotonic() - began
    finally:
        proxy.resume()
        locks.close()


def async_once(url: str, proxy: FaultProxy, act: Async, **options: Any) -> float:
    async def main() -> float:
        async with aio.connect(url, **options) as locks:
            await locks.ping()
            proxy.stall("to_client")
            try:
                began = time.monotonic()
                await act(locks)
                return time.monotonic() - began
            finally:
                proxy.resume()

    return asyncio.run(main())


def failing(act: Sync) -> Sync:
    def run(locks: holdfast.Locks) -> None:
        with pytest.raises(BackendError):
            act(locks)

    return run


def failing_async(act: Async) -> Async:
    async def run(locks: aio.Locks) -> None:
        with pytest.raises(BackendError):
            await act(locks)

    return run


def degraded(lease: Any) -> Any:
    assert not lease.guaranteed
    return lease.release()  # without the store, and so immediately


CALLS: dict[str, tuple[Sync, Async, float]] = {
    "acquire": (
        failing(lambda locks: locks.lock("k", ttl=30).acquire(timeout=TIMEOUT_S)),
        failing_async(lambda locks: locks.lock("k", ttl=30).acquire(timeout=TIMEOUT_S)),
        TIMEOUT_S,
    ),
    "acquire fair": (
        failing(lambda locks: locks.lock("k", ttl=30, fair=True).acquire(timeout=TIMEOUT_S)),
        failing_async(lambda locks: locks.lock("k", ttl=30, fair=True).acquire(timeout=TIMEOUT_S)),
        TIMEOUT_S,
    ),
    "with": (
        failing(lambda locks: locks.lock("k", ttl=30, timeout=TIMEOUT_S).__enter__()),
        failing_async(lambda locks: locks.lock("k", ttl=30, timeout=TIMEOUT_S).__aenter__()),
        TIMEOUT_S,
    ),
    "acquire without a wait": (
        failing(lambda locks: locks.lock("k", ttl=30).acquire(timeout=0)),
        failing_async(lambda locks: locks.lock("k", ttl=30).acquire(timeout=0)),
        REQUEST_S,
    ),
    "try_acquire": (
        failing(lambda locks: locks.lock("k", ttl=30).try_acquire()),
        failing_async(lambda locks: locks.lock("k", ttl=30).try_acquire()),
        REQUEST_S,
    ),
    "hold": (
        failing(lambda locks: locks.hold("k", ttl=30)),
        failing_async(lambda locks: locks.hold("k", ttl=30)),
        REQUEST_S,
    ),
    "acquire_token": (
        failing(lambda locks: locks.acquire_token("k", 30)),
        failing_async(lambda locks: locks.acquire_token("k", 30)),
        REQUEST_S,
    ),
    "campaign": (
        failing(lambda locks: locks.leader("k").campaign(timeout=TIMEOUT_S)),
        failing_async(lambda locks: locks.leader("k").campaign(timeout=TIMEOUT_S)),
        TIMEOUT_S,
    ),
    "locked": (
        failing(lambda locks: locks.lock("k", ttl=30).locked()),
        failing_async(lambda locks: locks.lock("k", ttl=30).locked()),
        REQUEST_S,
    ),
}


@pytest.mark.requires("R14")
@pytest.mark.parametrize("call", CALLS)
def test_a_time_limit_holds_on_a_hung_server(url: str, proxy: FaultProxy, call: str) -> None:
    sync, _, limit = CALLS[call]
    held_to(limit, lambda: sync_once(url, proxy, sync, request_timeout=REQUEST_S))


@pytest.mark.requires("R14")
@pytest.mark.parametrize("call", CALLS)
def test_a_time_limit_holds_on_a_hung_server_in_asyncio(url: str, proxy: FaultProxy, call: str) -> None:
    _, act, limit = CALLS[call]
    held_to(limit, lambda: async_once(url, proxy, act, request_timeout=REQUEST_S))


@pytest.mark.parametrize(("timeout", "limit"), [(TIMEOUT_S, TIMEOUT_S), (None, REQUEST_S)])
def test_the_first_fallback_comes_within_the_limit(
    url: str, proxy: FaultProxy, timeout: float | None, limit: float
) -> None:
    options: dict[str, Any] = {"policy": {"low": "fail_open"}, "request_timeout": REQUEST_S}

    async def fall_back(locks: aio.Locks) -> None:
        await degraded(await locks.lock("k", ttl=30, risk="low").acquire(timeout))

    held_to(
        limit,
        lambda: sync_once(
            url, proxy, lambda locks: degraded(locks.lock("k", ttl=30, risk="low").acquire(timeout)), **options
        ),
    )
    held_to(limit, lambda: async_once(url, proxy, fall_back, **options))


def test_after_three_failures_fallbacks_are_immediate(url: str, proxy: FaultProxy) -> None:
    with holdfast.connect(url, policy={"low": "fail_open"}, request_timeout=0.1) as locks:
        locks.ping()
        proxy.stall("to_client")
        for number in range(3):
            degraded(locks.lock(f"k{number}", ttl=30, risk="low").acquire())
        accepted = proxy.accepted
        assert locks.statistics().breaker_open
        degraded(locks.lock("k", ttl=30, risk="low").acquire())
        assert locks.statistics().fallbacks == 4
        assert proxy.accepted <= accepted + 1  # of a cleanup that connects, and none for the fourth
        proxy.resume()


def test_a_server_that_hangs_after_it_said_busy_does_not_hold_up_the_waiter(
    url: str, proxy: FaultProxy, redis_url: str
) -> None:
    """The last request is cut short by the caller's own deadline: as far as is known, the lock is busy."""
    timeout = 0.6

    def sync() -> float:
        with holdfast.connect(url) as locks:
            locks.ping()
            stalls = threading.Thread(target=_stall_when, args=(locks, proxy))
            stalls.start()
            began = time.monotonic()
            with pytest.raises((AcquireTimeout, BackendError)):
                locks.lock("k", ttl=30, retry=Fixed(50 * MS)).acquire(timeout=timeout)
            took = time.monotonic() - began
            stalls.join()
            proxy.resume()
            return took

    def asynchronous() -> float:
        async def main() -> float:
            async with aio.connect(url) as locks:
                await locks.ping()
                stalls = asyncio.create_task(asyncio.to_thread(_stall_when, locks, proxy))
                began = time.monotonic()
                with pytest.raises((AcquireTimeout, BackendError)):
                    await locks.lock("k", ttl=30, retry=Fixed(50 * MS)).acquire(timeout=timeout)
                took = time.monotonic() - began
                await stalls
                proxy.resume()
                return took

        return asyncio.run(main())

    with holdfast.connect(redis_url) as holder, holder.lock("k", ttl=30):
        held_to(timeout, sync)
        held_to(timeout, asynchronous)


def _stall_when(locks: holdfast.Locks | aio.Locks, proxy: FaultProxy) -> None:
    until = time.monotonic() + LIMIT_S
    while not locks.statistics().busy and time.monotonic() < until:
        threading.Event().wait(0.001)
    proxy.stall("to_client")


def test_a_cancelled_task_ends_promptly_on_a_hung_server(url: str, proxy: FaultProxy) -> None:
    async def cancelled(work: Callable[[aio.Locks], Awaitable[object]]) -> float:
        async with aio.connect(url) as locks:
            await locks.ping()
            proxy.stall("to_client")
            try:
                task = asyncio.ensure_future(work(locks))
                await asyncio.to_thread(proxy.wait_held, "to_client")
                began = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return time.monotonic() - began
            finally:
                proxy.resume()

    async def block(locks: aio.Locks) -> None:
        async with locks.lock("k", ttl=30):
            pass

    for work in (
        lambda locks: locks.lock("k", ttl=30).acquire(),
        lambda locks: locks.lock("k", ttl=30).try_acquire(),
        lambda locks: locks.lock("k", ttl=30, fair=True).acquire(),
        lambda locks: locks.acquire_token("k", 30),
        block,
    ):
        held_to(0, lambda work=work: asyncio.run(cancelled(work)))  # type: ignore[misc]


def test_a_timeout_of_asyncio_holds_on_a_hung_server(url: str, proxy: FaultProxy) -> None:
    async def bounded(locks: aio.Locks) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await locks.lock("k", ttl=30).acquire()

    held_to(TIMEOUT_S, lambda: async_once(url, proxy, bounded))


def test_a_cancelled_release_ends_promptly_on_a_hung_server(url: str, proxy: FaultProxy) -> None:
    async def once() -> float:
        async with aio.connect(url) as locks:
            lease = await locks.lock("k", ttl=30).acquire()
            proxy.stall("to_client")
            try:
                task = asyncio.create_task(lease.release())
                await asyncio.to_thread(proxy.wait_held, "to_client")
                began = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                return time.monotonic() - began
            finally:
                proxy.resume()

    held_to(0, lambda: asyncio.run(once()))


class _Alarm(Exception):
    pass


def test_an_interrupt_ends_a_blocking_acquire_promptly_on_a_hung_server(url: str, proxy: FaultProxy) -> None:
    def ring(*_: object) -> None:
        raise _Alarm

    def interrupted(locks: holdfast.Locks) -> None:
        with pytest.raises(_Alarm):
            signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
            locks.lock("k", ttl=30).acquire()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        held_to(TIMEOUT_S, lambda: sync_once(url, proxy, interrupted))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Commands:
    """What the server is asked, as MONITOR shows it."""

    def __init__(self, client: Any, key: str) -> None:
        self._monitor = client.monitor()
        self._key = key
        self._asked: list[str] = []

    def __enter__(self) -> Self:
        self._monitor.__enter__()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.connection.disconnect()
        self._thread.join(LIMIT_S)

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # the end of the connection is the end of it
            while True:
                command = self._monitor.next_command()["command"]
                if self._key in command and command.startswith("EVAL"):
                    self._asked.append(command)

    def releases(self) -> int:
        return sum(RELEASE.sha.decode() in command for command in self._asked)

    def acquires(self) -> int:
        return len(self._asked) - self.releases()


@pytest.mark.parametrize("how", ["timeout", "cancellation", "blocking"])
def test_the_cleanup_of_an_unanswered_acquire_is_sent_once(
    url: str, proxy: FaultProxy, redis_url: str, redis_raw: Any, how: str
) -> None:
    """The server granted the lock and its answer was held up; when the server answers again, the key is free."""
    with holdfast.connect(redis_url) as direct:
        direct.lock("warm", ttl=5).acquire().release()  # so that the server knows the scripts
        with Commands(redis_raw, ":job") as commands:
            if how == "blocking":
                _unanswered_blocking(url, proxy, direct)
            else:
                asyncio.run(_unanswered(url, proxy, direct, how))
            assert not direct.lock("job", ttl=5).locked()
            assert (commands.acquires() >= 1, commands.releases()) == (True, 1)


def _unanswered_blocking(url: str, proxy: FaultProxy, direct: holdfast.Locks) -> None:
    with holdfast.connect(url) as locks:
        locks.ping()
        proxy.stall("to_client")
        with pytest.raises(BackendError):
            locks.lock("job", ttl=30).acquire(timeout=TIMEOUT_S)
        assert direct.lock("job", ttl=5).locked()
        proxy.resume()
        _until(lambda: locks.statistics().compensated == 1)


async def _unanswered(url: str, proxy: FaultProxy, direct: holdfast.Locks, how: str) -> None:
    async with aio.connect(url) as locks:
        await locks.ping()
        proxy.stall("to_client")
        task = asyncio.ensure_future(locks.lock("job", ttl=30).acquire(TIMEOUT_S if how == "timeout" else None))
        await asyncio.to_thread(proxy.wait_held, "to_client")
        if how == "cancellation":
            assert direct.lock("job", ttl=5).locked()
            task.cancel()
        await asyncio.wait([task])
        assert locks.statistics().compensated == 0  # the store has not answered, and no caller waits for it
        proxy.resume()
        await asyncio.to_thread(_until, lambda: locks.statistics().compensated == 1)


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        threading.Event().wait(0.005)


def test_an_acquire_that_arrives_after_its_cleanup_leaves_no_key_behind(
    url: str, proxy: FaultProxy, redis_url: str, redis_raw: Any
) -> None:
    """Requests are held back on their way. When they arrive, in whatever order, the grant must not stay."""
    with (
        holdfast.connect(redis_url) as direct,
        Commands(redis_raw, ":job") as commands,
        holdfast.connect(url) as locks,
    ):
        locks.ping()
        proxy.stall("to_server")
        with pytest.raises(BackendError):
            locks.lock("job", ttl=60).acquire(timeout=TIMEOUT_S)
        assert commands.acquires() == 0
        proxy.resume()
        _until(lambda: commands.acquires() >= 1 and not direct.lock("job", ttl=5).locked())


def test_closing_waits_a_bounded_time_for_cleanup_and_completes_it(url: str, proxy: FaultProxy, redis_url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as locks:
            await locks.ping()
            proxy.stall("to_client")
            task = asyncio.create_task(locks.lock("job", ttl=60).acquire())
            await asyncio.to_thread(proxy.wait_held, "to_client")
            task.cancel()
            await asyncio.wait([task])
            proxy.resume()

    def blocking() -> None:
        with holdfast.connect(url) as locks:
            locks.ping()
            proxy.stall("to_client")
            with pytest.raises(BackendError):
                locks.lock("job", ttl=60).acquire(timeout=TIMEOUT_S)
            proxy.resume()

    with holdfast.connect(redis_url) as direct:
        asyncio.run(main())
        assert not direct.lock("job", ttl=5).locked()
        blocking()
        assert not direct.lock("job", ttl=5).locked()


HOLD_THE_WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_time_limit_holds_on_a_file_whose_writer_is_held(tmp_path: Path) -> None:
    """Another process is in the middle of a write transaction: for SQLite, that is a hung server."""
    path = tmp_path / "leases.db"
    url = f"sqlite:///{path}"
    with holdfast.connect(url) as locks:
        locks.lock("k", ttl=5).acquire().release()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        held_to(TIMEOUT_S, lambda: _sqlite_once(url))
        held_to(TIMEOUT_S, lambda: asyncio.run(_sqlite_async_once(url)))
    finally:
        holder.communicate("")


def _sqlite_once(url: str) -> float:
    with holdfast.connect(url) as locks:
        began = time.monotonic()
        with pytest.raises(BackendError):
            locks.lock("k", ttl=5).acquire(timeout=TIMEOUT_S)
        return time.monotonic() - began


async def _sqlite_async_once(url: str) -> float:
    """Behind another caller of the same loop, who has more time: all work on one file is done in order."""
    async with aio.connect(url, request_timeout=1) as locks:
        patient = asyncio.create_task(locks.lock("other", ttl=5).try_acquire())
        await asyncio.sleep(0)
        began = time.monotonic()
        with pytest.raises(BackendError):
            await locks.lock("k", ttl=5).acquire(timeout=TIMEOUT_S)
        took = time.monotonic() - began
        with pytest.raises(BackendError):
            await patient
        return took
