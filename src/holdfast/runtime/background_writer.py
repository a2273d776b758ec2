"""A background thread that writes items to a disk, so that no caller waits for the disk.

Promises: `put` returns immediately, never raises, may be called from any thread and from a signal handler, and keeps
memory bounded: items are dropped and counted when the queue is full. The caller provides `write`, which is called in
batches by one thread, and is told how many were dropped before. A `write` that raises costs its batch (which is counted
as dropped), not the thread. A child process starts with an empty line: what was in it is the parent's to write.

Does not promise that anything is written when the process is killed: what is in the line then is lost.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast.flows.log import OutageLog
from holdfast.runtime.thread_runtime import Wakeup

T = TypeVar("T")

_log = logging.getLogger("holdfast")

BATCH_MAX = 1_000
LINGER_S = 0.01  # a burst is written together
IDLE_S = 60.0
EXIT_S = 2.0


class BackgroundWriter(Generic[T]):
    """A bounded line of things to write, and the thread that writes them."""

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T], int], None],
        tick: Callable[[], None],
        *,
        room: int,
        tick_s: float,
    ) -> None:
        """`write` gets a batch and how many were dropped before it; `tick` is called a while later."""
        self._name = name
        self._write = write
        self._tick = tick
        self._tick_s = tick_s
        self._room = room
        self._trouble = OutageLog(
            _log,
            "a writer failed; what it should have written is counted as dropped",
            "a writer works again",
            level=logging.ERROR,
            writer=name,
        )
        self._closed = False
        self._start_again()
        _BACKGROUND_WRITERS.add(self)

    def _start_again(self) -> None:
        self._line: queue.SimpleQueue[T | Wakeup] = queue.SimpleQueue()
        self._mutex = threading.RLock()  # one that a signal handler may enter again
        self._thread: threading.Thread | None = None
        self._unticked = False  # something was written since the last tick
        self._dropped = 0  # and not yet told to `write`
        self.dropped = 0
        self.failures = 0  # of `write` and `tick`

    def put(self, item: T, *, rare: bool = False) -> None:
        """Have it written soon. What is `rare` has a quarter of the room more, for when the rest is full."""
        room = self._room + self._room // 4 if rare else self._room
        if self._closed or self._line.qsize() >= room:
            self._drop(1)
            return
        self._line.put(item)
        if self._thread is None:
            self._start()

    def queued(self) -> int:
        """How many wait to be written, about."""
        return self._line.qsize()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was put before is written (or dropped). False: the time was over first."""
        mark = Wakeup()  # not an event: an interrupt of this wait could leave that locked for the thread
        self._line.put(mark)
        if self._thread is None:
            self._start()
        return mark.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what is left and end the thread. What is put from now on is dropped. Idempotent."""
        if self._closed:
            return True
        done = self.flush(timeout_s)
        self._closed = True
        self._line.put(Wakeup())  # wakes the thread, which sees that it is closed
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        return done

    def forked(self) -> None:
        """In a child process."""
        self._start_again()

    def _drop(self, count: int) -> None:
        with self._mutex:
            self._dropped += count
            self.dropped += count

    def _start(self) -> None:
        with self._mutex:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had, or the interpreter ends: it waits in the line for the next try
                return
            self._thread = thread

    def _run(self) -> None:
        ticked = time.monotonic()
        while not (self._closed and self._line.empty()):
            batch, marks = self._gathered()
            self._written(batch)
            for mark in marks:
                mark.notify()
            self._unticked = self._unticked or bool(batch)
            if self._unticked and time.monotonic() - ticked >= self._tick_s:
                ticked = time.monotonic()
                self._unticked = False
                self._guarded(self._tick)

    def _gathered(self) -> tuple[list[T], list[Wakeup]]:
        """What is in the line, after a moment in which a burst comes together."""
        batch: list[T] = []
        marks: list[Wakeup] = []
        with contextlib.suppress(queue.Empty):
            first = self._line.get(timeout=self._tick_s if self._unticked else IDLE_S)
            if not isinstance(first, Wakeup):
                time.sleep(LINGER_S)
            item: T | Wakeup = first
            while True:
                if isinstance(item, Wakeup):
                    marks.append(item)
                else:
                    batch.append(item)
                if len(batch) >= BATCH_MAX or marks:
                    break
                item = self._line.get_nowait()
        return batch, marks

    def _written(self, batch: list[T]) -> None:
        with self._mutex:
            dropped, self._dropped = self._dropped, 0
        if (batch or dropped) and not self._guarded(lambda: self._write(batch, dropped)):
            with self._mutex:
                self._dropped += dropped + len(batch)
                self.dropped += len(batch)

    def _guarded(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not cost the thread
            self.failures += 1
            with contextlib.suppress(Exception):  # the log itself may be what is broken
                self._trouble.met(error)
            return False
        with contextlib.suppress(Exception):  # as above
            self._trouble.ended()
        return True


_BACKGROUND_WRITERS: weakref.WeakSet[BackgroundWriter[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for background_writer in list(_BACKGROUND_WRITERS):
        background_writer.forked()


@atexit.register
def _at_exit() -> None:
    for background_writer in list(_BACKGROUND_WRITERS):
        if background_writer.queued():
            background_writer.flush(EXIT_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
