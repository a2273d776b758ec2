"""Child jobs as a job function handles them: `await ctx.submit(…)`, `await child.result()`.

Promises: every attempt of a parent that submits with the same key, or in the same order, gets the same child. A parent
does not keep its slot from its children: if a child has waited for a slot for `YIELD_NS`, waiting raises `RetryLater`.
Then the attempt ends without being counted, its slot is free, and the next attempt finds the child again.

Clock: the event loop's, for timeouts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.errors import BadInput, RetryLater
from holdfast.plane.app import JobFunction
from holdfast.plane.client.request import UNSET, JobRequest
from holdfast.plane.client.views import JobCancelled, JobFailed, JobView
from holdfast.plane.jobs.children import JobParent, child_id
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import Assignment
from holdfast.types import NS, Duration, duration_ns

T = TypeVar("T")

YIELD_NS: Final = 2 * NS
"""How long a parent waits for a child that waits for a slot."""
POSTPONED_S_MAX: Final = 60.0
_NO_OPTIONS: Final = ("id", "idempotency_key", "tenant")
_CHECK_S: Final = 0.2  # how often a blocked thread checks whether it should stop


class ChildPort(Protocol):
    """Submits and reads children. `plane.service.children.ChildJobs` is one."""

    async def submit(
        self, parent: JobParent, request: JobRequest[Any], about: Assignment, *, detached: bool
    ) -> JobView:
        """Submit a child, or find the one that exists."""
        ...

    async def ended(self, child: str, tenant: str, timeout_ns: int) -> bool:
        """Wait for the end of a child. False: it has not ended in time."""
        ...

    async def job(self, child: str, tenant: str) -> JobView:
        """A child as it is now."""
        ...

    async def slot_awaited(self, child: str, tenant: str) -> str | None:
        """Why a child waits, if it waits for a slot."""
        ...

    async def traceback(self, child: str, tenant: str) -> str | None:
        """The end of the traceback of its last attempt that raised an error."""
        ...

    async def cancel(self, child: str, tenant: str, by: str, reason: str) -> bool:
        """Request its cancellation. False: it has ended already."""
        ...


class ChildJob(Generic[T]):
    """A child of the running job."""

    def __init__(
        self, port: ChildPort, about: Assignment, child: str, function: JobFunction | None, alive: Callable[[], None]
    ) -> None:
        self._port = port
        self._about = about
        self._function = function
        self._alive = alive
        self.id = child

    async def status(self) -> JobView:
        """The child as it is now."""
        return await self._port.job(self.id, self._about.tenant)

    async def result(self, timeout: Duration | None = None) -> T:
        """Wait for the result. Raises `JobFailed`, `JobCancelled` or `TimeoutError` as a client does.

        `RetryLater`: the child waits for a slot. Let it pass: the attempt ends, uncounted, and the next one goes on.
        """
        limit_s = None if timeout is None else duration_ns("timeout", timeout) / NS
        try:
            async with asyncio.timeout(limit_s):
                while not await self._port.ended(self.id, self._about.tenant, YIELD_NS):
                    self._alive()
                    waits = await self._port.slot_awaited(self.id, self._about.tenant)
                    if waits is not None:
                        delay_s = min(POSTPONED_S_MAX, float(self._about.attempt))
                        raise RetryLater(delay_s, f"waits for its child {self.id}: {waits}")
        except TimeoutError:
            raise TimeoutError(f"{self.id} has not ended within {limit_s or 0:g} s") from None
        job = await self.status()
        if job.state is JobState.SUCCEEDED:
            value: T = job.result if self._function is None else self._function.parameters.result(job.result)
            return value
        if job.state is JobState.CANCELLED:
            raise JobCancelled(job)
        raise JobFailed(job, await self._port.traceback(self.id, self._about.tenant))

    async def cancel(self, reason: str = "cancelled by its parent") -> bool:
        """Request its cancellation. False: it has ended already."""
        return await self._port.cancel(self.id, self._about.tenant, f"job {self._about.job}", reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"


class BlockingChildJob(Generic[T]):
    """A child of a job whose function is a `def`. See `ChildJob`."""

    def __init__(self, child: ChildJob[T], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._child = child
        self._run = run
        self.id = child.id

    def status(self) -> JobView:
        """The child as it is now."""
        seen: JobView = self._run(self._child.status())
        return seen

    def result(self, timeout: Duration | None = None) -> T:
        """Wait for the result. See `ChildJob.result`."""
        value: T = self._run(self._child.result(timeout))
        return value

    def cancel(self, reason: str = "cancelled by its parent") -> bool:
        """Request its cancellation. False: it has ended already."""
        asked: bool = self._run(self._child.cancel(reason))
        return asked

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"


def child_request(
    parent: JobParent, job: Callable[..., Any] | str, payload: Any, number: int, key: str | None, given: dict[str, Any]
) -> JobRequest[Any]:
    """The checked request for a child. Without a key it is the `number`th of its parent."""
    for name in _NO_OPTIONS:
        if name in given:
            fix = "give key= to name the child; it has the tenant of its parent"
            raise BadInput(name, "cannot be chosen for a child", fix)
    positional = () if payload is UNSET else (payload,)
    return JobRequest(job, *positional, id=child_id(parent, str(number) if key is None else key), **given)


def wait_in_thread(
    work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, stopped: Callable[[], str | None]
) -> T:
    """Run it on the loop of the worker, from the thread of a function; end with an error when that should stop."""
    running = asyncio.run_coroutine_threadsafe(work, loop)
    while True:  # ends with the work, or when the attempt is told to stop
        try:
            return running.result(_CHECK_S)
        except concurrent.futures.TimeoutError:
            if running.done():
                raise  # it is the error of the work
            if (reason := stopped()) is not None:
                running.cancel()
                raise RetryLater(0.0, f"the attempt was told to stop: {reason}") from None
