"""Concurrent calls with one time limit: no call can delay another one.

Promises: a result for every call at the limit at the latest, plus a short time (`GRACE_NS`) for calls that are being
cancelled. The result is the return value or the error of the call. A call that ignores its cancellation is abandoned.

Clock: the event loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.errors import Timeout
from holdfast.types import MS, NS

K = TypeVar("K")
T = TypeVar("T")

GRACE_NS: Final = 250 * MS


async def together(
    calls: Mapping[K, Callable[[], Awaitable[T]]], limit_ns: int, ended: Callable[[K], None] | None = None
) -> dict[K, T | Exception]:
    """The outcome of each call, in the order in which they were given. `ended` is told of each when it is over."""
    tasks = {key: asyncio.ensure_future(_made(call)) for key, call in calls.items()}
    for key, task in tasks.items():
        if ended is not None:
            task.add_done_callback(partial(_call_ended, ended, key))
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=limit_ns / NS)
    finally:
        late = {task for task in tasks.values() if not task.done()}
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=GRACE_NS / NS)
    return {key: _end(task, limit_ns) for key, task in tasks.items()}


async def within(limit_ns: int, call: Callable[[], Awaitable[T]]) -> T:
    """The same for one call: its answer, its error, or `Timeout`."""
    answer = (await together({"": call}, limit_ns))[""]
    if isinstance(answer, Exception):
        raise answer
    return answer


def begun(call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    """Begin a call that has a limit of its own, and await it later."""
    return asyncio.get_running_loop().create_task(call())


async def in_thread(call: Callable[[], T]) -> T:
    """Do something that blocks, and that has a limit of its own, without blocking the loop."""
    return await asyncio.to_thread(call)


async def pause(ns: int) -> None:
    """Let time pass."""
    await asyncio.sleep(ns / NS)


def _call_ended(ended: Callable[[K], None], key: K, _task: asyncio.Task[T]) -> None:
    ended(key)


async def _made(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _end(task: asyncio.Task[T], limit_ns: int) -> T | Exception:
    if not task.done() or task.cancelled():
        task.add_done_callback(_retrieve_error)
        return Timeout(f"no answer within {limit_ns / NS:g} s")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return task.result() if error is None else error


def _retrieve_error(task: asyncio.Task[T]) -> None:
    """Retrieve the error of an abandoned call, so that asyncio does not warn that it was never retrieved."""
    if not task.cancelled():
        task.exception()
