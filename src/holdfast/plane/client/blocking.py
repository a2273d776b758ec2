"""`Client` for programs without an event loop: the same methods, which block.

An event loop in a thread of its own runs the client, so any number of threads can use it together. An interrupt
(Ctrl-C) ends the wait of its thread and cancels the operation. Not for use inside of an event loop, which it would
block, and not after a fork: a child connects again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, Unpack, overload

from holdfast.errors import BadInput, Closed
from holdfast.plane.client.blocking_resource_locks import BlockingResourceLock
from holdfast.plane.client.request import UNSET, JobRequest
from holdfast.plane.client.schedules import NewSchedule, ScheduleView
from holdfast.plane.client.views import ApprovalView, JobUpdate, JobView, RunView
from holdfast.plane.db.caller_transaction import write_within
from holdfast.plane.resources.model import TTL_S, ResourceMode
from holdfast.runtime.run_sync import run_now
from holdfast.types import Duration

if TYPE_CHECKING:
    from holdfast.plane.client.client import Client, JobHandle, RunHandle

T = TypeVar("T")
R = TypeVar("R")


class BlockingJobHandle(Generic[T]):
    """One submitted job. See `JobHandle`."""

    def __init__(self, client: BlockingClient, handle: JobHandle[T]) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id
        self.new = handle.new

    def status(self) -> JobView:
        """The job as it is now."""
        return self._client.run_here(self._handle.status())

    def result(self, timeout: Duration | None = None) -> T:
        """Wait for the result. See `JobHandle.result`."""
        return self._client.run_here(self._handle.result(timeout))

    def events(self) -> Iterator[JobUpdate]:
        """The states and progress reports of the job. See `JobHandle.events`."""
        updates = self._handle.events()
        try:
            while (update := self._client.run_here(_next(updates))) is not None:
                yield update
        finally:
            self._client.run_here(_closed(updates))

    def cancel(self, reason: str = "cancelled on request") -> bool:
        """Request the cancellation of the job. False: it has ended already."""
        return self._client.run_here(self._handle.cancel(reason))

    def retry(self) -> BlockingJobHandle[T]:
        """Submit a failed job again, as a new job."""
        return BlockingJobHandle(self._client, self._client.run_here(self._handle.retry()))

    def __repr__(self) -> str:
        return f"<BlockingJobHandle {self.id!r}>"


class BlockingRunHandle:
    """One run of a workflow. See `RunHandle`."""

    def __init__(self, client: BlockingClient, handle: RunHandle) -> None:
        self._client = client
        self._handle = handle
        self.id = handle.id

    def status(self) -> RunView:
        """The run as it is now."""
        return self._client.run_here(self._handle.status())

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the output. See `RunHandle.result`."""
        return self._client.run_here(self._handle.result(timeout))

    def cancel(self, reason: str = "cancelled on request") -> bool:
        """Request the cancellation of the run. False: it has ended already."""
        return self._client.run_here(self._handle.cancel(reason))

    def __repr__(self) -> str:
        return f"<BlockingRunHandle {self.id!r}>"


class BlockingClient:
    """The jobs and runs of one plane. Made by `Client.blocking`. Safe from any thread."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """`make` is called on the loop of this client; bad input is raised by `Client.blocking` already."""
        self._client = make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def open(self) -> Self:
        """Connect. `with` does it."""
        if self._loop is not None:
            raise BadInput("client", "was opened before", "make another one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast client", daemon=True)
        self._thread.start()
        try:
            self.run_here(self._client.open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Give back connections and the thread. Idempotent. `with` does it."""
        if self._closed or self._loop is None or self._thread is None or self._pid != os.getpid():
            return
        try:
            self.run_here(self._client.close())
        finally:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Jobs.

    @overload
    def submit(self, job: str, payload: Any = UNSET, /, **given: Any) -> BlockingJobHandle[Any]: ...
    @overload
    def submit(
        self, job: Callable[..., Coroutine[Any, Any, R]], payload: Any = UNSET, /, **given: Any
    ) -> BlockingJobHandle[R]: ...
    @overload
    def submit(self, job: Callable[..., R], payload: Any = UNSET, /, **given: Any) -> BlockingJobHandle[R]: ...
    def submit(
        self, job: Callable[..., Any] | str, payload: Any = UNSET, /, *, connection: Any = None, **given: Any
    ) -> BlockingJobHandle[Any]:
        """Submit a job. See `Client.submit`. A `connection` is used in this thread."""
        if connection is not None:
            request, prepared = self.run_here(self._client.prepared(job, payload, given))
            found = run_now(write_within(connection, prepared.database, prepared.insert, awaited=False))
            return BlockingJobHandle(self, self._client.inserted(request, found))
        return BlockingJobHandle(self, self.run_here(self._client.submit(job, payload, **given)))

    def submit_many(self, requests: Sequence[JobRequest[Any]]) -> list[BlockingJobHandle[Any]]:
        """Submit jobs. See `Client.submit_many`."""
        return [BlockingJobHandle(self, each) for each in self.run_here(self._client.submit_many(requests))]

    def job(self, job: str, function: Callable[..., Any] | None = None) -> BlockingJobHandle[Any]:
        """The handle of an existing job, by its id."""
        return BlockingJobHandle(self, self._client.job(job, function))

    # Runs and approvals.

    def start(
        self,
        workflow: str,
        /,
        *,
        idempotency_key: str | None = None,
        id: str | None = None,
        deadline: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> BlockingRunHandle:
        """Start a run of a workflow with its inputs."""
        starting = self._client.start(
            workflow, idempotency_key=idempotency_key, id=id, deadline=deadline, labels=labels, **inputs
        )
        return BlockingRunHandle(self, self.run_here(starting))

    def run(self, run: str) -> BlockingRunHandle:
        """The handle of an existing run, by its id."""
        return BlockingRunHandle(self, self._client.run(run))

    def resource(
        self,
        resource: str,
        *,
        mode: ResourceMode | Literal["exclusive", "shared"] = ResourceMode.EXCLUSIVE,
        ttl: Duration = TTL_S,
        timeout: Duration | None = None,
        owner: str | None = None,
    ) -> BlockingResourceLock:
        """A lock on a resource, renewed while it is held. See `Client.resource`."""
        lock = self._client.resource(resource, mode=mode, ttl=ttl, timeout=timeout, owner=owner)
        return BlockingResourceLock(self, lock)

    def approvals(self) -> list[ApprovalView]:
        """What waits for the decision of a person, oldest first."""
        return self.run_here(self._client.approvals())

    def approve(self, job: str, note: str = "") -> None:
        """Approve a job or a step, by the `job` of its approval."""
        self.run_here(self._client.approve(job, note))

    def reject(self, job: str, note: str = "") -> None:
        """Reject a job or a step, by the `job` of its approval."""
        self.run_here(self._client.reject(job, note))

    # Schedules.

    def schedule(
        self, job: Callable[..., Any] | str, payload: Any = UNSET, /, **options: Unpack[NewSchedule]
    ) -> ScheduleView:
        """Create a schedule of a job, or change it. See `Client.schedule`."""
        return self.run_here(self._client.schedule(job, payload, **options))

    def schedules(self) -> list[ScheduleView]:
        """All schedules, by tenant and name."""
        return self.run_here(self._client.schedules())

    def get_schedule(self, name: str) -> ScheduleView:
        """One schedule with its next due times."""
        return self.run_here(self._client.get_schedule(name))

    def pause_schedule(self, name: str, reason: str = "") -> ScheduleView:
        """Stop firing until `resume_schedule`."""
        return self.run_here(self._client.pause_schedule(name, reason))

    def resume_schedule(self, name: str) -> ScheduleView:
        """Fire again, from the next due time on."""
        return self.run_here(self._client.resume_schedule(name))

    def run_schedule(self, name: str) -> BlockingJobHandle[Any]:
        """Submit a job of the schedule now, besides its due times."""
        return BlockingJobHandle(self, self.run_here(self._client.run_schedule(name)))

    def delete_schedule(self, name: str) -> bool:
        """Delete a schedule; its jobs stay. False: there is none."""
        return self.run_here(self._client.delete_schedule(name))

    # For handles.

    def run_here(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop of this client, and wait for it."""
        problem = self._problem()
        if problem is not None or self._loop is None:
            work.close()
            raise Closed(f"the client {problem}; use it inside of `with Client.blocking(…) as client`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _problem(self) -> str | None:
        if self._pid != os.getpid():
            return "belongs to the parent process"
        if self._loop is None or self._closed:
            return "is closed" if self._closed else "is not open"
        if threading.current_thread() is self._thread:
            return "was called on its own thread"
        return None


async def _next(updates: AsyncIterator[JobUpdate]) -> JobUpdate | None:
    return await anext(updates, None)


async def _closed(updates: Any) -> None:
    await updates.aclose()
