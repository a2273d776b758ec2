"""The state of the plane in one SQLite file: no server, safe through crashes.

Promises:

- A write is durable when it returns: always through the death of the process, and through a loss of power with
  `synchronous=full` (the default here; `normal` may lose the last moments). A reader may see a commit shortly before it
  is that durable.
- Concurrent writes share commits. Many processes may use the file, and it may also contain leases of Holdfast.
- Errors are those of `ports.Database`. A write that does not get the write lock before its deadline is `Unavailable`,
  and nothing was written.
- A task that is cancelled while its work is queued withdraws the work. Work that has begun is finished: its outcome is
  consistent, and unknown to the cancelled caller. `close` finishes queued work.

Does not promise: use from a second event loop or in a forked child (both are refused), or from several machines.

| Module | Contains |
|---|---|
| `threads`, `fsync_thread` | queued work, group commit, readers; durable commits |
| `connection`, `read_only`, `disk_space` | the file: transactions, read-only databases, a full disk |
| `notify`, `db.notifier` | notifications between processes, and within one |

Clock: the monotonic clock that is passed in, for statistics; the event loop's, for time limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, BadInput, Closed, Misconfigured
from holdfast.plane.db.notifier import ChannelSubscription, DatabaseNotifier
from holdfast.plane.db.ports import Tx, Work
from holdfast.plane.db.sqlite.connection import PlaneFile, SqliteConnection, SqliteTx, Synchronous, warn_if_shared
from holdfast.plane.db.sqlite.disk_space import check_room, described
from holdfast.plane.db.sqlite.fsync_thread import POSSIBLE, FsyncThread
from holdfast.plane.db.sqlite.notify import Poll, SocketListener
from holdfast.plane.db.sqlite.threads import CLOSED, Counts, Reader, WorkQueue, Writer
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import NS

T = TypeVar("T")

BUSY_TIMEOUT_NS: Final = 10 * NS
READERS: Final = 2
QUEUE_MAX: Final = 4096
GROUP_MAX: Final = 256
_ENROL_AGAIN_S: Final = 1.0
_STOP_LIMIT_S: Final = 120.0


class SqliteDatabase:
    """See `ports.Database`. Nothing is opened, and no thread started, before the first call."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(
        self,
        path: str,
        *,
        synchronous: Synchronous = "full",
        busy_timeout_ns: int = BUSY_TIMEOUT_NS,
        readers: int = READERS,
        queue_max: int = QUEUE_MAX,
        group_max: int = GROUP_MAX,
        hints: Literal["sockets", "polling"] = "sockets",
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        read_only: bool = False,
    ) -> None:
        """`queue_max`: how many works may be queued before callers wait for room; `group_max`: in one commit.

        `read_only`: the file must exist, and is not written; see the module `read_only`.
        """
        if synchronous not in {"full", "normal"}:
            raise BadInput("synchronous", f"{synchronous!r} is not a way to commit", "use full or normal")
        for name, number in (("readers", readers), ("queue_max", queue_max), ("group_max", group_max)):
            if number < 1:
                raise BadInput(name, f"{number} is too few", "give at least 1")
        self.path = self.file = str(Path(path).absolute())
        warn_if_shared(self.path)
        self._file = PlaneFile(self.path, read_only=read_only)
        self._synchronous: Synchronous = synchronous
        self._patience_ns = busy_timeout_ns
        self._reader_count = readers
        self._queue_max = queue_max
        self._group_max = group_max
        self._hints = hints
        self._clock = clock or SystemClock()
        self._entropy = entropy or SystemEntropy()
        self._pid = os.getpid()
        self._notifier = DatabaseNotifier()
        self._service: _Service | None = None
        self._socket_listener: SocketListener | Poll | None = None
        self._registering: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        """See `ports.Database`. There is one writer, who holds everything."""
        return await self._here().writing.ask(work, lasting=lasting)

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        """See `ports.Database`. It is always one view."""
        service = self._here()
        if lasting and service.writer.syncer is not None and service.writer.syncer.doubt is not None:
            await self.write(_nothing)  # which mends it first, or says why it cannot
        return await service.reading.ask(work, lasting=lasting)

    async def check_room(self) -> None:
        """See `writability.Describes`."""
        await check_room(self.path)

    def described(self, error: BackendError) -> str:
        """See `writability.Describes`."""
        return described(self.path, error)

    @property
    def durable(self) -> bool:
        """Whether what is acknowledged survives a loss of power."""
        return self._synchronous == "full"

    async def carry(self, step: Callable[[sqlite3.Connection], T], *, lasting: bool = True) -> T:
        """Run a step of another component, whose tables are in the file too, with the works of a commit.

        What it raises undoes it alone.
        """

        async def work(tx: Tx) -> T:
            return cast("SqliteTx", tx).step(step)

        return await self._here().writing.ask(work, lasting=lasting)

    def listen(self, channel: str) -> ChannelSubscription:
        """See `ports.Database`. Belongs to the running event loop."""
        service = self._here()
        listener = self._notifier.listen(channel)
        if self._socket_listener is None:
            self._listen(service)
        return listener

    async def close(self) -> None:
        """Finish queued work, and end the threads. Idempotent; later calls get `Closed`."""
        if self._pid != os.getpid():
            return  # the threads are the parent's
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    def statistics(self) -> dict[str, int]:
        """What was done so far. `write_works / commits` is how many works shared a commit."""
        service = self._service
        writer = Counts() if service is None else service.writer.counts
        readers = [] if service is None else [reader.counts for reader in service.readers]
        return {
            **{f"write_{name}": number for name, number in asdict(writer).items() if name != "commits"},
            "commits": writer.commits,
            "syncs": 0 if service is None or service.writer.syncer is None else service.writer.syncer.syncs,
            "read_works": sum(each.works for each in readers),
            "read_failed": sum(each.failed for each in readers),
            "write_line": 0 if service is None else len(service.writing),
            "read_line": 0 if service is None else len(service.reading),
            "bells": len(self._notifier),
        }

    def _here(self) -> _Service:
        if self._pid != os.getpid():
            raise Misconfigured("this process was forked after the database was opened; open another one in the child")
        if self._closing is not None:
            raise Closed(CLOSED)
        loop = asyncio.get_running_loop()
        if self._service is None:
            self._service = self._started(loop)
        if self._service.loop is not loop:
            raise Misconfigured("this database belongs to another event loop; open one for each")
        return self._service

    def _started(self, loop: asyncio.AbstractEventLoop) -> _Service:
        writing = WorkQueue(loop, room=self._queue_max, patience_ns=self._patience_ns)
        reading = WorkQueue(loop, room=self._queue_max, patience_ns=self._patience_ns)
        syncer = FsyncThread(self.path) if self._synchronous == "full" and POSSIBLE else None
        writer = Writer(
            writing,
            SqliteConnection(self._file, self._synchronous if syncer is None else "normal", writes=True),
            notifier=self._notifier,
            own_address=lambda: (
                self._socket_listener.address if isinstance(self._socket_listener, SocketListener) else ""
            ),
            group_max=self._group_max,
            patience_ns=self._patience_ns,
            clock=self._clock,
            entropy=self._entropy,
            syncer=syncer,
        )
        readers = [
            Reader(
                reading,
                SqliteConnection(self._file, self._synchronous, writes=False),
                patience_ns=self._patience_ns,
                clock=self._clock,
                entropy=self._entropy,
                syncer=syncer,
            )
            for _ in range(self._reader_count)
        ]
        return _Service(loop, writing, reading, writer, readers)

    # Hints from other processes.

    def _listen(self, service: _Service) -> None:
        if self._hints == "sockets":
            try:
                self._socket_listener = socket_listener = SocketListener(
                    service.loop, self._notifier.notify, self._notifier.notify_all
                )
            except (OSError, NotImplementedError):
                pass  # no such sockets here, or no way for the loop to read them
            else:
                self._registering = service.loop.create_task(self._register(service, socket_listener))
                return
        self._socket_listener = Poll(self._file, lambda: service.writing.call(self._notifier.notify_all))

    async def _register(self, service: _Service, socket_listener: SocketListener) -> None:
        async def register(tx: Tx) -> None:
            await socket_listener.register(tx, self._clock.now().wall)

        while True:  # ends when it is done, or the database is closed
            try:
                await service.writing.ask(register)
            except BackendError:
                await asyncio.sleep(_ENROL_AGAIN_S)
            except Closed:
                return
            else:
                break
        self._notifier.notify_all()  # commits of others since the listeners were made

    async def _close(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])
        socket_listener, service = self._socket_listener, self._service
        if service is not None and isinstance(socket_listener, SocketListener):
            # If it fails, the next sender of a hint finds no listener, and deletes the row.
            with contextlib.suppress(BackendError, Closed):
                await service.writing.ask(socket_listener.forget)
        if socket_listener is not None:
            socket_listener.close()
        if service is not None:
            await service.stop()
        self._notifier.close()


class _Service:
    """The threads of one database, while they run."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writing: WorkQueue,
        reading: WorkQueue,
        writer: Writer,
        readers: list[Reader],
    ) -> None:
        self.loop = loop
        self.writing = writing
        self.reading = reading
        self.writer = writer
        self.readers = readers
        self._threads = [
            self._thread("holdfast-plane-write", writer.serve),
            *(self._thread("holdfast-plane-read", reader.serve) for reader in readers),
        ]

    async def stop(self) -> None:
        """Finish queued work, and end the threads. A thread that hangs in a disk that does not answer is abandoned."""
        writing, *reading = self._threads
        # The one that writes leaves last: closing the last connection moves the log into the file, and takes it away.
        for line, threads in ((self.reading, reading), (self.writing, [writing])):
            line.close()
            await asyncio.wait([ended for _, ended in threads], timeout=_STOP_LIMIT_S)
            for thread, ended in threads:
                if ended.done():
                    thread.join()  # it has said that it is done, and only has to leave

    def _thread(self, name: str, serve: Callable[[], None]) -> tuple[threading.Thread, asyncio.Future[None]]:
        ended: asyncio.Future[None] = self.loop.create_future()

        def body() -> None:
            try:
                serve()
            finally:
                self.writing.call(_settle, [ended])

        # A daemon: a program that forgot to close its database must still be able to end.
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread, ended


async def _nothing(tx: Tx) -> None:
    """A work that does nothing."""


def _settle(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
