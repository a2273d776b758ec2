"""A blocking lock around a coroutine function: the waiting happens on a thread, the body on the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from holdfast.runtime.asyncio_runtime import this_task


class _Lease(Protocol):
    def release(self) -> bool: ...

    def _leave_block(self, error: BaseException | None) -> None: ...


class _Lock(Protocol):
    def _acquire(self, timeout: None, caller: object) -> _Lease: ...


def exclusively(
    function: Callable[..., Any],
    lock_for: Callable[[tuple[Any, ...], Mapping[str, Any]], _Lock],
    extra: Callable[[Any], dict[str, Any]],
) -> Callable[..., Any]:
    """Wrap a coroutine function. A lease that the thread of a cancelled wait still gets is released."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        lock = lock_for(args, kwargs)
        # The task holds the lease, not the thread of the pool that waits for it.
        waiting = asyncio.ensure_future(asyncio.to_thread(lock._acquire, None, this_task()))  # noqa: SLF001 - as below
        try:
            lease = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(_give_back)
            raise
        error: BaseException | None = None
        try:
            return await function(*args, **kwargs, **extra(lease))
        except BaseException as raised:
            error = raised
            raise
        finally:
            await _to_the_end(asyncio.to_thread(lease._leave_block, error))  # noqa: SLF001 - the block that `with` would be

    return run


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the release even while being cancelled; it bounds itself."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as raised:
            if task.cancelled():
                raise
            cancelled = raised
    if cancelled is not None:
        raise cancelled
    task.result()


def _give_back(waiting: asyncio.Future[_Lease]) -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, waiting.result().release)
