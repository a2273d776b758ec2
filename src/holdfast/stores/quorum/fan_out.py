"""Asks several nodes at the same time, with asyncio or threads. Nothing else of a quorum knows loops and threads.

A *job* is a coroutine that asks one node and bounds itself. It runs beside its starter and is not cut short when the
starter is cancelled or has enough answers. A *signal* is what the starter waits on meanwhile.

`LoopRunner` runs jobs as tasks of one event loop. `ThreadRunner` runs each on a thread of its node: a few threads for
each, so that a node that does not answer holds up only its own callers. A signal handler may raise at any point of a
call, or ask the nodes itself: no thread is lost, and no thread waits for a lock of the caller. Clock: the loop's, or
the monotonic one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Coroutine
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.types import NS

Job: TypeAlias = Coroutine[Any, Any, None]
_Slot: TypeAlias = list[Job]  # one job, until a thread takes it out or it is dropped; `pop` is one step

CLOSING_NS = 2 * NS  # how long a store that is closed waits for what is under way
THREADS_MAX = 8  # for each node; jobs are queued when all are waiting for it
IDLE_S = 10.0


class Signal(Protocol):
    """Wakes the caller that waits for answers."""

    def set(self) -> None:
        """Wake the caller. From any thread, for a runner of threads."""
        ...

    def clear(self) -> None:
        """Wait for the next `set`."""
        ...

    async def wait(self, timeout_ns: int) -> bool:
        """Wait until it is set. False: it was not set in time."""
        ...


class NodeRunner(Protocol):
    """Runs the jobs that ask the nodes."""

    def signal(self) -> Signal:
        """A new signal."""
        ...

    def start(self, node: int, job: Job) -> object:
        """Start a job that asks a node."""
        ...

    def stop(self, started: object) -> None:
        """The answers are no longer needed. A job that cannot be stopped continues, and ends within its own bound."""
        ...

    async def close(self) -> None:
        """Wait a moment for running jobs, and end them. The runner can be used again."""
        ...


class _LoopSignal:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set = self._event.set
        self.clear = self._event.clear

    async def wait(self, timeout_ns: int) -> bool:
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0, timeout_ns) / NS):
                    await self._event.wait()
            except TimeoutError:
                return self._event.is_set()
        return True


class LoopRunner:
    """Tasks of the loop on which the store is used."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # held until they are done, in order

    def signal(self) -> Signal:
        """See `NodeRunner`."""
        return _LoopSignal()

    def start(self, node: int, job: Job) -> object:
        """See `NodeRunner`."""
        task = asyncio.get_running_loop().create_task(job, name=f"quorum node {node}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def stop(self, started: object) -> None:
        """See `NodeRunner`."""
        if isinstance(started, asyncio.Task):
            started.cancel()

    async def close(self) -> None:
        """See `NodeRunner`."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSING_NS / NS)
        late = list(self._tasks)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


class _ThreadSignal:
    def __init__(self) -> None:
        self._set = False
        self._wakeup = Wakeup()

    def set(self) -> None:
        self._set = True
        self._wakeup.notify()

    def clear(self) -> None:
        self._set = False

    async def wait(self, timeout_ns: int) -> bool:
        until = time.monotonic_ns() + timeout_ns
        while not self._set:
            left = until - time.monotonic_ns()
            if left <= 0 or not self._wakeup.wait(left / NS):
                break
        return self._set


class _NodeThreads:
    """The threads of one node. They start when there are jobs, and end after `IDLE_S` without one.

    Callers take no lock: a signal handler may raise at any point, or ask the nodes itself. A caller enters a job and
    then reads `_idle` and `_threads`; a thread that is no longer idle leaves those and then reads the jobs. So one of
    the two always sees the other.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Slot | None] = SimpleQueue()  # None wakes an idle thread
        self._idle: dict[threading.Thread, None] = {}
        self._threads: dict[threading.Thread, None] = {}
        self._dismissed = False

    def put(self, slot: _Slot) -> None:
        self._jobs.put(slot)
        self._start_missing()

    def dismiss(self) -> None:
        """Let them go when there is nothing left to do."""
        self._dismissed = True
        for _ in list(self._idle):
            self._jobs.put(None)

    def gone(self, within_s: float) -> None:
        """Wait until they are."""
        until = time.monotonic() + within_s
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _start_missing(self) -> None:
        if self._jobs.qsize() > len(self._idle) and len(self._threads) < THREADS_MAX:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        me = threading.current_thread()
        self._threads[me] = None
        try:
            while (slot := self._next(me)) is not None:
                self._start_missing()  # the caller may have counted on this thread for another job
                try:
                    job = slot.pop()
                except IndexError:
                    continue  # dropped
                run_now(job)
        finally:
            self._threads.pop(me, None)

    def _next(self, me: threading.Thread) -> _Slot | None:
        """The next job. None: the thread is to end."""
        while True:
            self._idle[me] = None
            try:
                slot = self._jobs.get(timeout=0 if self._dismissed else IDLE_S)
            except Empty:
                slot = None
            del self._idle[me]
            if slot is not None:
                return slot
            del self._threads[me]
            if self._jobs.empty():
                return None
            self._threads[me] = None


class ThreadRunner:
    """Threads, a few for each node. In a forked child they are others: those of the parent are not there."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._mutex = Mutex()
        self._pid = os.getpid()
        self._nodes: list[_NodeThreads] = []

    def signal(self) -> Signal:
        """See `NodeRunner`."""
        return _ThreadSignal()

    def start(self, node: int, job: Job) -> object:
        """See `NodeRunner`."""
        slot = [job]
        self._present()[node].put(slot)
        return slot

    def stop(self, started: object) -> None:
        """See `NodeRunner`. A job that a thread has begun continues."""
        if isinstance(started, list):
            with contextlib.suppress(IndexError):
                started.pop().close()

    async def close(self) -> None:
        """See `NodeRunner`. What takes longer bounds itself, and its thread ends with it."""
        if self._pid != os.getpid():
            return  # those of the parent are not here
        closing = list(self._nodes)
        for each in closing:
            each.dismiss()  # a job that comes later is run all the same
        until = time.monotonic() + CLOSING_NS / NS
        for each in closing:
            each.gone(max(0.0, until - time.monotonic()))
        with self._mutex:
            self._nodes = [each for each in self._nodes if each not in closing]

    def _present(self) -> list[_NodeThreads]:
        if self._pid != os.getpid():  # a thread of the parent may have held the mutex at the fork
            self._mutex, self._nodes = Mutex(), []
            self._pid = os.getpid()  # last: an interrupt before it repeats the others
        with self._mutex:
            if not self._nodes:
                self._nodes = [_NodeThreads(f"holdfast-quorum {name}") for name in self._names]
            return self._nodes
