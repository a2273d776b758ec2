"""The threads of the plane's SQLite file, one that writes and a few that read, and the queue of their work.

**The queue** is between the tasks of one event loop and the threads. A work is begun once or not at all: beginning it
and withdrawing it exclude each other, so a caller can rely on the answer that nothing was written. A work that was
cancelled, or not begun before its deadline, is never begun. The queue is bounded: when it is full, callers wait for
room until their deadline. Work that was queued when the queue was closed is still done. The loop is woken once for all
results of a group.

**The writer.** Works that wait together share one transaction and one commit, and with it one `fsync`. Each is in a
savepoint of its own, so that an error undoes its work alone. No success is reported before the commit. When a
transaction falls as a whole and certainly had no effect (a deferred constraint, a full disk), each of its works is run
again alone, so that every caller gets its own result and none gets another's error. With a syncer, the next transaction
runs while the last one is synced, and callers that asked for that get their results after the sync. Other callers get
them immediately; the next sync covers their work too.

Other processes write to the same file. The writer retries to get the write lock, in short random pauses, as long as a
queued caller still waits. It reads the queue only after it has the lock, so that all work that was queued meanwhile
takes part.

Clock: the one that is passed in, for statistics and for the deadline of a work that is run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from holdfast.core.failpoints import reach
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import Closed, HoldfastError, Timeout, Unavailable
from holdfast.plane.db.notifier import DatabaseNotifier
from holdfast.plane.db.ports import Work
from holdfast.plane.db.sqlite.connection import SqliteConnection, SqliteTx, WriteLockBusy
from holdfast.plane.db.sqlite.fsync_thread import FsyncThread
from holdfast.plane.db.sqlite.notify import HintBroadcaster
from holdfast.stores.sqlite.errors import code_of
from holdfast.types import MS, NS

T = TypeVar("T")

CLOSED: Final = "this database is closed; open it again"
_ANSWER_LIMIT_NS: Final = 60 * NS  # after which a disk that does not answer is given up


class QueuedWork:
    """One queued work, and the future of the task that waits for it."""

    __slots__ = ("begun", "future", "lasting", "withdrawn", "work")

    def __init__(self, work: Work[Any], future: asyncio.Future[Any], *, lasting: bool) -> None:
        self.work = work
        self.future = future
        self.lasting = lasting  # its caller waits until it is durable
        self.begun = False
        self.withdrawn = False


class Answer(NamedTuple):
    """The result of a queued work."""

    entry: QueuedWork
    result: Any = None
    error: BaseException | None = None


class WorkQueue:
    """See the module. `ask` and `close` are called on the loop, everything else in the threads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, room: int, patience_ns: int, limit_ns: int = _ANSWER_LIMIT_NS
    ) -> None:
        self._loop = loop
        self._room = asyncio.Semaphore(room)
        self._patience_s = patience_ns / NS
        self._limit_s = limit_ns / NS
        self._waiting: deque[QueuedWork] = deque()
        # `with` takes the mutex, and not the condition: an exception of a signal handler could skip the Python code by
        # which a condition releases it. No handler can enter it again: it is taken on the loop and in the threads only.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, work: Work[T], *, lasting: bool = True) -> T:
        """Queue a work, and wait for its result; `lasting`: until it is durable, where that comes later."""
        end = self._loop.time() + self._patience_s
        await self._enter()
        try:
            entry = QueuedWork(work, self._loop.create_future(), lasting=lasting)
            with self._mutex:
                if self._closed:
                    raise Closed(CLOSED)
                self._waiting.append(entry)
                self._changed.notify()
            timer = self._loop.call_at(end, self._deadline_passed, entry)
            try:
                result: T = await entry.future
            except asyncio.CancelledError:
                self._withdraw(entry)
                raise
            finally:
                timer.cancel()
            return result
        finally:
            self._room.release()

    async def _enter(self) -> None:
        if not self._room.locked():
            await self._room.acquire()  # does not suspend
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await self._room.acquire()
        except TimeoutError:
            raise Unavailable("too many requests are queued; nothing was changed") from None

    def _deadline_passed(self, entry: QueuedWork) -> None:
        if entry.future.done():
            return
        if self._withdraw(entry):
            entry.future.set_exception(
                Unavailable(
                    f"waited for {self._patience_s:g} s: another process holds the write lock of the file, or the "
                    "queue is too long; nothing was changed"
                )
            )
        else:
            self._loop.call_later(self._limit_s, _no_answer, entry)

    def _withdraw(self, entry: QueuedWork) -> bool:
        """Withdraw a work. False: it has begun."""
        with self._mutex:
            if entry.begun:
                return False
            entry.withdrawn = True
            # From the middle of a long queue this is slow, and rare: it needs a cancellation or an overload.
            with contextlib.suppress(ValueError):
                self._waiting.remove(entry)
            return True

    def close(self) -> None:
        """Accept no more work. The threads end when the queue is empty."""
        with self._mutex:
            self._closed = True
            self._changed.notify_all()

    # For the threads.

    def wait(self) -> bool:
        """Block until work is queued. False: the queue is empty and closed."""
        with self._mutex:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return bool(self._waiting)

    def begin(self, most: int) -> list[QueuedWork]:
        """Take works from the head of the queue. From here on they are done, even if their tasks are cancelled."""
        with self._mutex:
            entries = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            for entry in entries:
                entry.begun = True
            return entries

    def answer(self, answers: Sequence[Answer], also: Callable[[], None] | None = None) -> None:
        """Pass the results to the tasks, and call `also` on the loop."""
        self.call(_deliver, answers, also)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the loop. If the loop is closed, no caller waits any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def _deliver(answers: Sequence[Answer], also: Callable[[], None] | None) -> None:
    for entry, result, error in answers:
        if entry.future.done():
            continue
        if error is None:
            entry.future.set_result(result)
        else:
            entry.future.set_exception(error)
    if also is not None:
        also()


def _no_answer(entry: QueuedWork) -> None:
    if not entry.future.done():
        entry.future.set_exception(Timeout("the file did not answer in time; the change may take effect yet"))


_PAUSE_MIN_NS: Final = 100_000  # about the length of a commit without `fsync`
_PAUSE_MAX_NS: Final = 5 * MS


@dataclass(slots=True)
class Counts:
    """What a thread has done. Written by that thread alone."""

    works: int = 0
    failed: int = 0
    commits: int = 0
    largest_group: int = 0
    run_again: int = 0
    busy: int = 0  # attempts that found the file locked by another connection
    busy_ns: int = 0


class Pauses:
    """Pauses that grow with the time that was waited, drawn by chance, and the account of them.

    Other processes have the lock for a millisecond or so, and try as often: a process that sleeps for longer than they
    write comes too late again and again. So a pause is at most about a quarter of the time that was waited already.
    """

    def __init__(self, clock: Clock, entropy: Entropy, counts: Counts) -> None:
        self._clock = clock
        self._entropy = entropy
        self._counts = counts

    def until(self, attempt: Callable[[], sqlite3.Connection], wanted: Callable[[], bool]) -> sqlite3.Connection | None:
        """Try until it is no longer busy. None: no caller waits any more."""
        began = waited = 0
        while True:  # ends with a connection, an error, or without callers
            try:
                connection = attempt()
            except WriteLockBusy:
                now = self._clock.now().mono
                began = began or now
                waited = now - began
                self._counts.busy += 1
            else:
                if began:
                    self._counts.busy_ns += self._clock.now().mono - began
                return connection
            if not wanted():
                self._counts.busy_ns += waited
                return None
            pause = pause_ns(waited)
            time.sleep((pause // 2 + self._entropy.below(pause)) / NS)


def pause_ns(waited_ns: int) -> int:
    """How long to sleep, in the middle, after so long a wait."""
    return min(max(_PAUSE_MIN_NS, waited_ns // 4), _PAUSE_MAX_NS)


class Writer:
    """The body of the thread that writes."""

    def __init__(
        self,
        line: WorkQueue,
        connection: SqliteConnection,
        *,
        notifier: DatabaseNotifier,
        own_address: Callable[[], str],
        group_max: int,
        patience_ns: int,
        clock: Clock,
        entropy: Entropy,
        syncer: FsyncThread | None = None,
    ) -> None:
        """`syncer`: who makes commits safe; None: the connection does it itself."""
        self.counts = Counts()
        self.syncer = syncer
        self._line = line
        self._connection = connection
        self._notifier = notifier
        self._own_address = own_address
        self._group_max = group_max
        self._patience_ns = patience_ns
        self._clock = clock
        self._pauses = Pauses(clock, entropy, self.counts)
        self._broadcaster = HintBroadcaster()

    def serve(self) -> None:
        """Serve the line until it is closed and empty."""
        try:
            while self._line.wait():
                self._turn()
        finally:
            if self.syncer is not None:
                self.syncer.close()
            self._connection.close()
            self._broadcaster.close()

    def _turn(self) -> None:
        try:
            if self.syncer is not None and self.syncer.doubt is not None:
                self._connection.checkpoint()
                self.syncer.trust()
            connection = self._pauses.until(self._connection.begin, lambda: len(self._line) > 0)
        except Exception as error:  # noqa: BLE001 - it belongs to those who asked, and the thread has to go on
            self._refuse(self._line.begin(self._group_max), error)
            return
        if connection is None:
            return
        entries = self._line.begin(self._group_max)
        if not entries:  # they gave up at the last moment
            self._connection.rollback()
            return
        try:
            self._together(connection, entries)
        except Timeout as error:
            self._refuse(entries, error)
        except Exception as error:  # noqa: BLE001 - as above
            if len(entries) == 1:
                self._refuse(entries, error)
                return
            self.counts.run_again += len(entries)
            for entry in entries:
                self._alone(entry)

    def _alone(self, entry: QueuedWork) -> None:
        end = self._clock.now().mono + self._patience_ns
        try:
            connection = self._pauses.until(self._connection.begin, lambda: self._clock.now().mono < end)
            if connection is None:
                raise Unavailable(f"{self._connection.path} is locked by another process; nothing was changed")
            self._together(connection, [entry])
        except Exception as error:  # noqa: BLE001 - it belongs to the one who asked
            self._refuse([entry], error)

    def _together(self, connection: sqlite3.Connection, entries: Sequence[QueuedWork]) -> None:
        """Run a group in the open transaction, commit it, and pass the results on. Raises when it fails as a whole."""
        answers: list[Answer] = []
        channels: set[str] = set()
        calls: list[Callable[[], None]] = []
        try:
            reach("plane.sqlite.begin")
            for entry in entries:
                tx = SqliteTx(connection, self._connection.path)
                answer = _in_savepoint(connection, tx, entry) if len(entries) > 1 else _by_itself(tx, entry)
                answers.append(answer)
                if answer.error is None:
                    channels |= tx.channels
                    calls += tx.calls
            good = sum(answer.error is None for answer in answers)
            listeners: list[str] = []
            if good:
                listeners = self._broadcaster.listeners(connection, self._own_address()) if channels else []
                reach("plane.sqlite.written")
                self._connection.commit()
                reach("plane.sqlite.committed")
                self.counts.commits += 1
        finally:
            self._connection.rollback()
        if good < len(entries) and any(_is_read_only(each.error) for each in answers):
            self._connection.close()  # it stays as it was opened; the next one finds out whether that has ended
        self.counts.works += len(entries)
        self.counts.failed += len(entries) - good
        self.counts.largest_group = max(self.counts.largest_group, len(entries))
        if self.syncer is None:
            self._line.answer(answers, partial(_call, calls))
            self._tell(channels, listeners)
            return
        at_once = [each for each in answers if not each.entry.lasting]
        if at_once:
            self._line.answer(at_once)
        waiting = [each for each in answers if each.entry.lasting]
        if waiting or calls:
            self.syncer.put(partial(self._safe, waiting, calls), changed=good > 0)
        # Others may see it by now, and are told before it is safe: what they do about it is safe only with it. But the
        # sync is requested first, because a notified thread may take the CPU core of this one.
        self._tell(channels, listeners)

    def _tell(self, channels: set[str], listeners: Sequence[str]) -> None:
        if channels and self._notifier:  # a later subscription reads the database first, and sees what was committed
            self._line.call(self._notifier.notify, channels)
        if listeners:
            self._broadcaster.send(listeners, sorted(channels))

    def _safe(self, answers: Sequence[Answer], calls: Sequence[Callable[[], None]], doubt: OSError | None) -> None:
        """Tell those who asked for it that it is on the disk, or may not be."""
        if doubt is not None:
            error = Timeout(f"{self._connection.path} took the change and may lose it: it was not synced ({doubt})")
            self._line.answer([each if each.error else Answer(each.entry, error=_copy(error)) for each in answers])
            return
        self._line.answer(answers, partial(_call, calls))

    def _refuse(self, entries: Sequence[QueuedWork], error: Exception) -> None:
        self.counts.works += len(entries)
        self.counts.failed += len(entries)
        self._line.answer([Answer(entry, error=_copy(error)) for entry in entries])


class Reader:
    """The body of a thread that reads. Each work has a transaction of its own, and so one view of the file.

    A caller that needs durable results gets them after that view is on the disk: a sync, unless nothing was written
    since the last one.
    """

    def __init__(
        self,
        line: WorkQueue,
        connection: SqliteConnection,
        *,
        patience_ns: int,
        clock: Clock,
        entropy: Entropy,
        syncer: FsyncThread | None = None,
    ) -> None:
        self.counts = Counts()
        self._syncer = syncer
        self._seen: tuple[sqlite3.Connection, int] | None = None  # the last view, as SQLite numbers them
        self._safe: tuple[sqlite3.Connection, int] | None = None  # the last one that is known to be on the disk
        self._line = line
        self._connection = connection
        self._patience_ns = patience_ns
        self._clock = clock
        self._pauses = Pauses(clock, entropy, self.counts)

    def serve(self) -> None:
        """Serve the line until it is closed and empty."""
        try:
            while self._line.wait():
                for entry in self._line.begin(1):
                    self._tell(self._answered(entry))
        finally:
            self._connection.close()

    def _tell(self, answer: Answer) -> None:
        syncer, seen = self._syncer, self._seen
        if syncer is None or answer.error is not None or not answer.entry.lasting or seen == self._safe:
            self._line.answer([answer])
        else:
            syncer.put(partial(self._synced, answer, seen), changed=True)

    def _synced(self, answer: Answer, seen: tuple[sqlite3.Connection, int] | None, doubt: OSError | None) -> None:
        """By the thread that syncs: what was seen is on the disk, or may not be."""
        if doubt is None:
            self._safe = seen
            self._line.answer([answer])
        else:
            error = Unavailable(f"{self._connection.path} could not be synced, so what it says may not last ({doubt})")
            self._line.answer([Answer(answer.entry, error=error)])

    def _answered(self, entry: QueuedWork) -> Answer:
        self.counts.works += 1
        end = self._clock.now().mono + self._patience_ns
        results: list[Any] = []

        def attempt() -> sqlite3.Connection:
            connection = self._connection.begin()
            try:
                results.append(SqliteTx(connection, self._connection.path, reads=True).run(entry.work))
                if self._syncer is not None and entry.lasting:
                    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
                    self._seen = self._safe if self._connection.still else (connection, version)
            finally:
                self._connection.rollback()
            return connection

        try:
            if self._pauses.until(attempt, lambda: self._clock.now().mono < end) is None:
                raise Unavailable(f"{self._connection.path} is locked by another process")
        except BaseException as error:  # noqa: BLE001 - it belongs to the one who asked
            self.counts.failed += 1
            return Answer(entry, error=error)
        return Answer(entry, results[0])


def _call(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _by_itself(tx: SqliteTx, entry: QueuedWork) -> Answer:
    try:
        return Answer(entry, tx.run(entry.work))
    except WriteLockBusy:
        raise
    except BaseException as error:  # noqa: BLE001 - it belongs to the one who asked
        return Answer(entry, error=error)


def _in_savepoint(connection: sqlite3.Connection, tx: SqliteTx, entry: QueuedWork) -> Answer:
    connection.execute("SAVEPOINT work")
    answer = _by_itself(tx, entry)
    if answer.error is not None:
        # Some errors end the whole transaction (a full disk, ROLLBACK in a trigger): then this raises, and each
        # work is run again alone.
        connection.execute("ROLLBACK TO work")
    connection.execute("RELEASE work")
    return answer


def _is_read_only(error: BaseException | None) -> bool:
    cause = None if error is None else error.__cause__
    return isinstance(cause, sqlite3.Error) and code_of(cause) == sqlite3.SQLITE_READONLY


def _copy(error: Exception) -> Exception:
    """An error of its own for each who is told: tracebacks grow, and are not to be shared between tasks."""
    if not isinstance(error, HoldfastError):
        return Unavailable(f"the transaction failed; nothing was changed ({type(error).__name__}: {error})")
    copy = type(error).__new__(type(error))
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
