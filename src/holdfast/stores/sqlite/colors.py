"""The two colors of the SQLite store: in the caller's own thread, and on a worker thread for an event loop.

Promises: no blocking call ever suspends; no asynchronous one ever blocks the loop. Ending a wait early (cancellation,
Ctrl-C) leaves at worst a registration behind, which expires.

Clock: the monotonic clock, for time limits only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from holdfast.errors import BackendError, Unavailable
from holdfast.stores.sqlite.notify import LISTEN_TTL_NS, SharedLoopListener, ThreadListener, ThreadListeners
from holdfast.stores.sqlite.store import HINT_NS, SqliteStore
from holdfast.stores.sqlite.worker_thread import LoopWorker
from holdfast.types import NS

T = TypeVar("T")

_REFRESH_NS: Final = LISTEN_TTL_NS // 2


class ThreadColor:
    """Everything happens in the thread of the caller."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.pool = ThreadListeners()
        self._close = close

    def caller(self) -> Hashable:
        """The thread."""
        return threading.get_ident()

    async def run(self, work: Callable[[int], T], timeout_ns: int) -> T:
        """Do it here and now."""
        return work(timeout_ns)

    async def watch(self, store: SqliteStore, key: str, timeout_ns: int) -> ThreadSqliteWatch:
        """Listen with a socket of one's own."""
        try:
            listener = self.pool.take()
        except OSError as error:
            raise Unavailable(f"no socket to listen with: {error.strerror or error}") from error
        try:
            store.leases.listeners.add(key, listener.address, LISTEN_TTL_NS, timeout_ns)
            store.start_listening(key, listener.address)
            return ThreadSqliteWatch(store, self.pool, key, listener)
        except BaseException:
            store.stop_listening(listener.address)
            listener.close()  # it may be registered all the same: with the socket closed, the next notifier removes it
            raise

    async def close(self) -> None:
        """Close the idle sockets, and what the engine has open."""
        self.pool.close()
        self._close()


class ThreadSqliteWatch:
    """A blocking waiter's listener."""

    def __init__(self, store: SqliteStore, listeners: ThreadListeners, key: str, listener: ThreadListener) -> None:
        self._store = store
        self._idle_listeners = listeners
        self._key = key
        self._listener: ThreadListener | None = listener
        self._listed_ns = time.monotonic_ns()

    async def wait(self, timeout_ns: int) -> bool:
        """Block until there is a hint. A wait that outlasts the registration renews it on the way."""
        until = time.monotonic_ns() + timeout_ns
        while self._listener is not None:  # ends with a hint, or with the time
            now = time.monotonic_ns()
            refresh = self._listed_ns + _REFRESH_NS
            if now >= refresh:
                self._refresh(self._listener, now, until)
                continue
            if self._listener.wait(min(until, refresh) - now):
                return True
            if time.monotonic_ns() >= until:
                return False
        return False

    def _refresh(self, listener: ThreadListener, now: int, until: int) -> None:
        self._listed_ns = now
        limit = min(HINT_NS, max(0, until - now))
        try:
            self._store.leases.listeners.extend(self._key, listener.address, LISTEN_TTL_NS, limit)
        except BackendError:
            return  # the next time, perhaps; until then the waiter polls

    async def close(self) -> None:
        """Stop listening. A grant has ended the registration already."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        try:
            if self._store.stop_listening(listener.address):
                self._store.stop_waiting(self._key, listener.address, listener.wait(0), HINT_NS)
        except BackendError:
            listener.close()  # still registered: with the socket closed, the next notifier removes it
        except BaseException:
            listener.close()
            raise
        else:
            self._idle_listeners.put_back(listener)


class LoopColor:
    """Everything happens on a worker thread, in order; one socket listens for the whole loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, close: Callable[[], None]) -> None:
        self._loop = loop
        self.worker = LoopWorker(loop, name)
        self._close = close
        self._listener: SharedLoopListener | None = None

    def caller(self) -> Hashable:
        """The task."""
        return asyncio.current_task()

    async def run(self, work: Callable[[int], T], timeout_ns: int) -> T:
        """Do it on the worker."""
        return await self.worker.run(work, timeout_ns)

    async def watch(self, store: SqliteStore, key: str, timeout_ns: int) -> LoopSqliteWatch:
        """Listen with the socket of the loop."""
        try:
            listener = self._listener = self._listener or SharedLoopListener(self._loop)
        except OSError as error:
            raise Unavailable(f"no socket to listen with: {error.strerror or error}") from error
        address, hint = listener.take()
        try:
            await self.run(lambda left: store.leases.listeners.add(key, address, LISTEN_TTL_NS, left), timeout_ns)
        except BaseException:
            listener.put_back(address)
            # It may be registered all the same, or will be: a name that takes hints and does nothing with them.
            self.worker.post(lambda left: store.leases.listeners.remove(key, address, left), HINT_NS)
            raise
        store.start_listening(key, address)
        return LoopSqliteWatch(store, self.worker, listener, key, address, hint)

    async def close(self) -> None:
        """Stop listening, and the worker, and close what the engine has: others who use it open it again."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        await self.worker.stop(self._close, HINT_NS)


class LoopSqliteWatch:
    """A task's listener."""

    def __init__(
        self,
        store: SqliteStore,
        worker: LoopWorker,
        listener: SharedLoopListener,
        key: str,
        address: str,
        hint: asyncio.Event,
    ) -> None:
        self._store = store
        self._worker = worker
        self._listener = listener
        self._key = key
        self._address = address
        self._hint = hint
        self._listed_ns = time.monotonic_ns()
        self._closed = False

    async def wait(self, timeout_ns: int) -> bool:
        """Suspend until there is a hint. A wait that outlasts the registration renews it on the way."""
        until = time.monotonic_ns() + timeout_ns
        while not self._hint.is_set():  # ends with a hint, or with the time
            now = time.monotonic_ns()
            refresh = self._listed_ns + _REFRESH_NS
            if now >= refresh:
                await self._refresh(now, until)
                continue
            if now >= until:
                return False
            try:
                async with asyncio.timeout((min(until, refresh) - now) / NS):
                    await self._hint.wait()
            except TimeoutError:
                continue
        self._hint.clear()
        return True

    async def _refresh(self, now: int, until: int) -> None:
        self._listed_ns = now
        limit = min(HINT_NS, max(0, until - now))

        def step(left: int) -> None:
            self._store.leases.listeners.extend(self._key, self._address, LISTEN_TTL_NS, left)

        try:
            await self._worker.run(step, limit)
        except BackendError:
            return  # the next time, perhaps; until then the task polls

    async def close(self) -> None:
        """Stop listening. A grant has ended the registration already."""
        if self._closed:
            return
        self._closed = True
        self._listener.put_back(self._address)
        if not self._store.stop_listening(self._address):
            return
        hinted = self._hint.is_set()

        def step(left: int) -> None:
            # Errors stay here: a registration that is left expires.
            with contextlib.suppress(BackendError):
                self._store.stop_waiting(self._key, self._address, hinted, left)

        with contextlib.suppress(BackendError):
            await self._worker.run(step, HINT_NS, anyway=True)
