"""An event loop on a thread of its own, for blocking code that needs an asyncio library.

Promises: a call ends at its time limit, whatever the loop does, and then cancels what it has started. A signal handler
may raise at any point of a call, or make another call: callers take no lock that a handler could meet, and each call
has its own wake-up. A forked child gets a loop and a thread of its own, and never touches those of its parent. The
thread starts with the first call and ends with `close`, or with the process.

Does not promise: that what a cancelled call has started had no effect. Clock: the monotonic one, for time limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from holdfast.core.failpoints import reach
from holdfast.errors import Timeout, Unavailable
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.types import MS, NS

T = TypeVar("T")

GRACE_NS: Final = 20 * MS  # by which a call may overrun its own limit on the loop before it is given up
CLOSE_S: Final = 3.0

# Loops of the parent: to close one here would unregister its sockets from the parent's selector.
_inherited: list[_Home] = []


class _Call(Generic[T]):
    """One call of a blocking caller."""

    __slots__ = ("_error", "_make", "_result", "_task", "_wakeup", "over")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.over = False
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._wakeup = Wakeup()
        self._result: T | None = None
        self._error: BaseException | None = None

    def start(self, home: _Home) -> None:
        """On the loop."""
        if not self.over:
            self._task = home.loop.create_task(self._run())
            home.calls[self] = None
            self._task.add_done_callback(lambda _task: home.calls.pop(self, None))

    async def _run(self) -> None:
        try:
            self._result = await self._make()
        except asyncio.CancelledError:
            self._error = Timeout("the store was closed during the request; it may have taken effect")
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            self._error = error
        self.over = True
        self._wakeup.notify()

    def cancel(self) -> None:
        """On the loop."""
        self.over = True
        if self._task is not None:
            self._task.cancel()

    def wait(self, timeout_ns: int) -> bool:
        """By the caller: wait for the end. False: it took too long."""
        return self._wakeup.wait(timeout_ns / NS)

    def result(self) -> T:
        """By the caller, after the end."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # without an error the coroutine has returned a T


class _Home:
    """One loop and its thread."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.up = False
        self.calls: dict[_Call[Any], None] = {}
        self._name = name
        self._running = threading.Lock()  # by the first thread; an interrupted start may be repeated
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self.up = True
        try:
            self.loop.run_forever()
        finally:
            self._clear()
            self.loop.close()

    def _clear(self) -> None:
        """End what is under way: its callers get an error that reports what is known."""
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_S))

    def stop(self) -> None:
        if self.pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self.loop.stop)
                if not self.up:
                    self.start()  # so that it is closed
            thread = self._thread
            if thread is not None and thread.ident is not None and thread is not threading.current_thread():
                thread.join(CLOSE_S)


class LoopThread:
    """See the module."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = Mutex()
        self._pid = os.getpid()
        self._homes: list[_Home] = []  # at most one
        weakref.finalize(self, _stop_all, self._homes)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], timeout_ns: int) -> T:
        """Run a coroutine that bounds itself, and wait for its result."""
        call = _Call(make)
        home = self._submit(call)
        try:
            reach("runtime.loop.asked")
            if not call.wait(timeout_ns + GRACE_NS):
                raise Timeout("the request was not over in time; it may have taken effect")
            reach("runtime.loop.answered")
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
                home.loop.call_soon_threadsafe(call.cancel)
            raise
        return call.result()

    def begin(self, make: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin a coroutine without waiting for it, if the loop runs. Its error is dropped."""
        for home in [] if self.idle else self._homes[:]:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                home.loop.call_soon_threadsafe(_Call(make).start, home)

    def _submit(self, call: _Call[Any]) -> _Home:
        for _ in range(3):
            home = self._home()
            try:
                home.loop.call_soon_threadsafe(call.start, home)
            except RuntimeError:  # closed by another thread since
                continue
            return home
        raise Unavailable("the store is being closed by another thread; the request was not sent")

    def _home(self) -> _Home:
        if self._pid != os.getpid():  # a thread of the parent may have held the mutex at the fork
            _inherited.extend(self._homes)
            self._mutex = Mutex()
            self._homes.clear()
            self._pid = os.getpid()  # last: an interrupt before it repeats the others
        with self._mutex:
            if not self._homes:
                self._homes.append(_Home(self._name))
            home = self._homes[0]
        if not home.up:
            home.start()
        return home

    @property
    def idle(self) -> bool:
        """Whether there is no thread to end."""
        return self._pid != os.getpid() or not self._homes

    def close(self) -> None:
        """End the thread and its loop. The next call starts others."""
        if self._pid != os.getpid():
            return  # those of the parent are not here
        with self._mutex:
            homes = self._homes[:]
            self._homes.clear()
        _stop_all(homes)

    def __repr__(self) -> str:
        return f"<LoopThread {self._name}>"


def _stop_all(homes: list[_Home]) -> None:
    for home in homes:
        home.stop()
