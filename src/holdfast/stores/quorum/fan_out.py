"""Asking several nodes at the same time, in either colour: all of a quorum that knows about loops and threads.

A *job* is a coroutine that asks one node and bounds itself. It runs beside its starter and is not cut short when the
starter is cancelled or has enough answers. A *signal* is what the starter waits on meanwhile.

`LoopCrew` runs jobs as tasks of one event loop. `ThreadCrew` drives each on a thread of its node: a few threads for
each, so that a node that does not answer holds up only its own callers. Clock: the loop's, or the monotonic one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias

from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Mutex
from holdfast.runtime.wakeup import Wakeup
from holdfast.types import NS

Job: TypeAlias = Coroutine[Any, Any, None]

CLOSING_NS = 2 * NS  # how long a store that is closed waits for what is under way
THREADS_MAX = 8  # for each node; jobs are queued when all are waiting for it
IDLE_S = 10.0


class Signal(Protocol):
    """Something has happened."""

    def set(self) -> None:
        """Say so. From any thread, for a crew of threads."""
        ...

    def clear(self) -> None:
        """Look out for the next thing."""
        ...

    async def wait(self, timeout_ns: int) -> bool:
        """Wait until it is set. False: it was not set in time."""
        ...


class Crew(Protocol):
    """Those who ask the nodes."""

    def signal(self) -> Signal:
        """A new signal."""
        ...

    def start(self, node: int, job: Job) -> object:
        """Begin to ask a node."""
        ...

    def stop(self, started: object) -> None:
        """The answers are no longer needed. A job that cannot be stopped goes on, and ends within its own bound."""
        ...

    async def close(self) -> None:
        """Wait a moment for what is under way, and end it. The crew can be used again."""
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


class LoopCrew:
    """Tasks of the loop on which the store is used."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # held until they are done, in order

    def signal(self) -> Signal:
        """See `Crew`."""
        return _LoopSignal()

    def start(self, node: int, job: Job) -> object:
        """See `Crew`."""
        task = asyncio.get_running_loop().create_task(job, name=f"quorum node {node}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def stop(self, started: object) -> None:
        """See `Crew`."""
        if isinstance(started, asyncio.Task):
            started.cancel()

    async def close(self) -> None:
        """See `Crew`."""
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
        self._wakeup.ring()

    def clear(self) -> None:
        self._set = False

    async def wait(self, timeout_ns: int) -> bool:
        until = time.monotonic_ns() + timeout_ns
        while not self._set:
            left = until - time.monotonic_ns()
            if left <= 0 or not self._wakeup.wait(left / NS):
                break
        return self._set


class _InFlight:
    """The threads of one node. They come when there is something to do and go when there has been nothing for long."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = Mutex()
        self._changed = threading.Condition(self._mutex)
        self._jobs: deque[Job] = deque()
        self._idle = 0
        self._threads = 0
        self._dismissed = False

    def take(self, job: Job) -> None:
        with self._mutex:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._threads < THREADS_MAX:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.notify()

    def drop(self, job: Job) -> bool:
        """Take a job back that no thread has begun."""
        with self._mutex:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
        job.close()
        return True

    def dismiss(self) -> None:
        """Let them go when there is nothing left to do."""
        with self._mutex:
            self._dismissed = True
            self._changed.notify_all()

    def gone(self, within_s: float) -> None:
        """Wait until they are."""
        with self._mutex:
            self._changed.wait_for(lambda: not self._threads, within_s)

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs or self._dismissed, IDLE_S)
                self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            run_now(job)


class ThreadCrew:
    """Threads, a few for each node. In a forked child they are others: those of the parent are not there."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._mutex = Mutex()
        self._pid = os.getpid()
        self._in_flight: list[_InFlight] = []

    def signal(self) -> Signal:
        """See `Crew`."""
        return _ThreadSignal()

    def start(self, node: int, job: Job) -> object:
        """See `Crew`."""
        in_flight = self._present()[node]
        in_flight.take(job)
        return in_flight, job

    def stop(self, started: object) -> None:
        """See `Crew`. A thread that has begun goes on."""
        if isinstance(started, tuple):
            in_flight, job = started
            in_flight.drop(job)

    async def close(self) -> None:
        """See `Crew`. What takes longer bounds itself, and its thread ends with it."""
        if self._pid != os.getpid():
            return  # those of the parent are not here
        with self._mutex:
            in_flight, self._in_flight = self._in_flight, []
        for each in in_flight:
            each.dismiss()
        until = time.monotonic() + CLOSING_NS / NS
        for each in in_flight:
            each.gone(max(0.0, until - time.monotonic()))

    def _present(self) -> list[_InFlight]:
        if self._pid != os.getpid():  # a thread of the parent may have held the mutex at the fork
            self._mutex, self._pid, self._in_flight = Mutex(), os.getpid(), []
        with self._mutex:
            if not self._in_flight:
                self._in_flight = [_InFlight(f"holdfast-quorum {name}") for name in self._names]
            return self._in_flight
