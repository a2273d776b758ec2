"""The two colours of the SQLite store: in the caller's own thread, and on a worker thread for an event loop.

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
        self.ears = ThreadListeners()
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
            ear = self.ears.take()
        except OSError as error:
            raise Unavailable(f"no socket to listen with: {error.strerror or error}") from error
        try:
            store.ledger.listeners.add(key, ear.address, LISTEN_TTL_NS, timeout_ns)
            store.start_listening(key, ear.address)
            return ThreadSqliteWatch(store, self.ears, key, ear)
        except BaseException:
            store.stop_listening(ear.address)
            ear.close()  # it may be registered all the same: with the socket closed, the next notifier removes it
            raise

    async def close(self) -> None:
        """Close the idle sockets, and what the engine has open."""
        self.ears.close()
        self._close()


class ThreadSqliteWatch:
    """A blocking waiter's ear."""

    def __init__(self, store: SqliteStore, ears: ThreadListeners, key: str, ear: ThreadListener) -> None:
        self._store = store
        self._ears = ears
        self._key = key
        self._ear: ThreadListener | None = ear
        self._listed_ns = time.monotonic_ns()

    async def wait(self, timeout_ns: int) -> bool:
        """Block until there is a hint. A wait that outlasts the registration renews it on the way."""
        until = time.monotonic_ns() + timeout_ns
        while self._ear is not None:  # ends with a hint, or with the time
            now = time.monotonic_ns()
            refresh = self._listed_ns + _REFRESH_NS
            if now >= refresh:
                self._refresh(self._ear, now, until)
                continue
            if self._ear.wait(min(until, refresh) - now):
                return True
            if time.monotonic_ns() >= until:
                return False
        return False

    def _refresh(self, ear: ThreadListener, now: int, until: int) -> None:
        self._listed_ns = now
        limit = min(HINT_NS, max(0, until - now))
        try:
            self._store.ledger.listeners.extend(self._key, ear.address, LISTEN_TTL_NS, limit)
        except BackendError:
            return  # the next time, perhaps; until then the waiter polls

    async def close(self) -> None:
        """Stop listening. A grant has ended the registration already."""
        ear, self._ear = self._ear, None
        if ear is None:
            return
        try:
            if self._store.stop_listening(ear.address):
                self._store.stop_waiting(self._key, ear.address, ear.wait(0), HINT_NS)
        except BackendError:
            ear.close()  # still registered: with the socket closed, the next notifier removes it
        except BaseException:
            ear.close()
            raise
        else:
            self._ears.give_back(ear)


class LoopColor:
    """Everything happens on a worker thread, in order; one socket listens for the whole loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, close: Callable[[], None]) -> None:
        self._loop = loop
        self.worker = LoopWorker(loop, name)
        self._close = close
        self._ear: SharedLoopListener | None = None

    def caller(self) -> Hashable:
        """The task."""
        return asyncio.current_task()

    async def run(self, work: Callable[[int], T], timeout_ns: int) -> T:
        """Do it on the worker."""
        return await self.worker.run(work, timeout_ns)

    async def watch(self, store: SqliteStore, key: str, timeout_ns: int) -> LoopSqliteWatch:
        """Listen with the socket of the loop."""
        try:
            ear = self._ear = self._ear or SharedLoopListener(self._loop)
        except OSError as error:
            raise Unavailable(f"no socket to listen with: {error.strerror or error}") from error
        address, hint = ear.take()
        try:
            await self.run(lambda left: store.ledger.listeners.add(key, address, LISTEN_TTL_NS, left), timeout_ns)
        except BaseException:
            ear.give_back(address)
            # It may be registered all the same, or will be: a name that takes hints and does nothing with them.
            self.worker.post(lambda left: store.ledger.listeners.remove(key, address, left), HINT_NS)
            raise
        store.start_listening(key, address)
        return LoopSqliteWatch(store, self.worker, ear, key, address, hint)

    async def close(self) -> None:
        """Stop listening, and the worker, and close what the engine has: others who use it open it again."""
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
        await self.worker.stop(self._close, HINT_NS)


class LoopSqliteWatch:
    """A task's ear."""

    def __init__(
        self,
        store: SqliteStore,
        worker: LoopWorker,
        ear: SharedLoopListener,
        key: str,
        address: str,
        hint: asyncio.Event,
    ) -> None:
        self._store = store
        self._worker = worker
        self._ear = ear
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
            self._store.ledger.listeners.extend(self._key, self._address, LISTEN_TTL_NS, left)

        try:
            await self._worker.run(step, limit)
        except BackendError:
            return  # the next time, perhaps; until then the task polls

    async def close(self) -> None:
        """Stop listening. A grant has ended the registration already."""
        if self._closed:
            return
        self._closed = True
        self._ear.give_back(self._address)
        if not self._store.stop_listening(self._address):
            return
        hinted = self._hint.is_set()

        def step(left: int) -> None:
            # Errors stay here: a registration that is left expires.
            with contextlib.suppress(BackendError):
                self._store.stop_waiting(self._key, self._address, hinted, left)

        with contextlib.suppress(BackendError):
            await self._worker.run(step, HINT_NS, anyway=True)
