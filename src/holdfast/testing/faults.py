"""What can happen at a failpoint: each fault is made here, and armed with `armed`.

    from holdfast.testing import faults

    with faults.armed("flow.release.send", faults.lose()):
        lease.release()          # the store is not told; the key is released when it answers again

`pause` and `kill` are for processes that a test has started, not for the one that runs the tests. `delay` and `Hold`
wait in the color of the point: a task that waits lets others run, a thread that waits blocks. A point of a flow is
asynchronous code that the blocking facade also uses; there they block.

Clock: the event loop's, or the monotonic one of the process, for `delay`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import NoReturn

from holdfast.core.failpoints import POINTS, Act, armed, points, recorded
from holdfast.errors import BadInput, Timeout
from holdfast.types import NS, Duration, duration_ns

__all__ = ["POINTS", "Hold", "Lost", "armed", "cancel", "delay", "fail", "kill", "lose", "pause", "points", "recorded"]


class Lost(Timeout):
    """A request or its reply was lost. The sender cannot tell which, so the outcome is unknown."""


def lose() -> Act:
    """Lose what is on its way. Before it is sent nothing happens at the other side; after it, it has happened."""

    def act() -> NoReturn:
        raise Lost("lost on the way, by a failpoint; it may have taken effect")

    return act


def fail(error: BaseException | type[BaseException]) -> Act:
    """Raise an error."""

    def act() -> NoReturn:
        raise error

    return act


def kill() -> Act:
    """End the process without any grace: no handler runs, nothing is flushed, no `finally` is reached."""
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def pause() -> Act:
    """Stop the whole process, until it receives SIGCONT."""
    return lambda: os.kill(os.getpid(), signal.SIGSTOP)


class _Cancel:
    def __call__(self) -> None:
        task = asyncio.current_task() if _on_loop() else None
        if task is None:
            raise BadInput("act", "there is no task to cancel here", "arm it at a point that a task reaches")
        task.cancel()

    async def awaited(self) -> None:
        self()
        await asyncio.sleep(0)  # here it is delivered; a point in ordinary code leaves that to the next await


def cancel() -> Act:
    """Cancel the task that arrives."""
    return _Cancel()


class _Delay:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        time.sleep(self._seconds)

    async def awaited(self) -> None:
        if _on_loop():
            await asyncio.sleep(self._seconds)
        else:
            self()


def delay(duration: Duration) -> Act:
    """Hold it up for a while."""
    return _Delay(duration_ns("duration", duration) / NS)


class Hold:
    """Blocks every caller until it is opened. Arm it, wait until a caller has arrived, interfere, then `open`."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._open = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __call__(self) -> None:
        """A caller arrives in blocking code."""
        self._there.set()
        self._open.wait()

    async def awaited(self) -> None:
        """A caller arrives in asynchronous code."""
        if not _on_loop():
            self()
            return
        event = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), event))
        self._there.set()
        if not self._open.is_set():
            await event.wait()

    def open(self) -> None:
        """Let all callers continue, including later ones."""
        self._open.set()
        for loop, event in self._waiting:
            loop.call_soon_threadsafe(event.set)

    def reached(self, timeout: Duration) -> bool:
        """Wait, in a thread, until a caller has arrived. False: none did."""
        return self._there.wait(duration_ns("timeout", timeout) / NS)

    async def areached(self, timeout: Duration) -> bool:
        """Wait, in a task, until a caller has arrived. False: none did."""
        return await asyncio.to_thread(self.reached, timeout)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
