"""The context of a job function: its job, the lease under which it runs, and how much time is left.

Everything here is local and computed at the moment of the call, so calls are cheap. A function in a
thread gets a `BlockingContext`, whose lease can be waited for in threads; one on the event loop gets a `Context`, and
is cancelled when it must stop. Clock: time limits run on the longest of the host's clocks, as leases do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

from holdfast.aio.lease import Lease
from holdfast.core.lease.states import LeasePhase
from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.flows.log import log_event
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.leases.sync.lease import Lost
from holdfast.plane.client.request import UNSET
from holdfast.plane.jobs.children import JobParent
from holdfast.plane.jobs.progress import EmitReport, Progress, ProgressReport
from holdfast.plane.model.messages import PARENT_LABEL, RUN_LABEL, STEP_LABEL, Assignment, step_attempt
from holdfast.plane.model.records import check_text, encoded
from holdfast.plane.worker.children import BlockingChildJob, ChildJob, ChildPort, child_request, wait_in_thread
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.thread_runtime import Mutex, Wakeup
from holdfast.types import NS, Duration, Instant, duration_ns, elapsed_ns

R = TypeVar("R")

NOTE_CHARS_MAX: Final = 200
EMIT_BYTES_MAX: Final = 16_000
"""Of one emitted value, as JSON."""
EMITS_MAX: Final = 10_000
EMITTED_CHARS_MAX: Final = 8_000_000
"""Of all values of one attempt."""

_log: Final = logging.getLogger("holdfast.plane.job")
_about_logs: Final = logging.getLogger("holdfast.plane.worker")  # not by way of what has just failed


class Cancelled:
    """Whether a function should stop, as an event: `is_set()`, `wait()`, and `reason` once it is set.

    It is set when the attempt is out of time, stopped, or interrupted by the end of its worker; and when its lease is
    lost, which is visible here immediately, even while the event loop is busy.
    """

    __slots__ = ("_lease_record", "_reason", "_set", "_waiting")

    def __init__(self, lease: Lease) -> None:
        self._lease_record = lease._lease_record  # noqa: SLF001 - a lease on the loop, seen from threads: the same possession
        self._set = False
        self._waiting: list[Wakeup] = []  # without a mutex, so that a signal handler may end a lease at any point
        self._reason: str | None = None
        self._lease_record.subscribe(self._ended)

    def set(self, reason: str) -> None:
        """Ask the function to stop. The first reason is kept."""
        if self._reason is None:
            self._reason = reason
        self._ended(self._lease_record)

    def is_set(self) -> bool:
        """Whether it should stop, now."""
        return self._set or self._lease_record.current().phase is LeasePhase.LOST

    def wait(self, timeout: Duration | None = None) -> bool:
        """Block until it should stop; False when the time is over first. Takes the place of `time.sleep`."""
        limit_s = None if timeout is None else duration_ns("timeout", timeout) / NS
        wakeup = Wakeup()
        self._waiting.append(wakeup)  # before it reads `_set`, which is written before the waiting are notified
        try:
            if not self._set:
                wakeup.wait(limit_s)
        finally:
            self._waiting.remove(wakeup)
        return self.is_set()

    @property
    def reason(self) -> str | None:
        """Why, once it is set."""
        lost = self._lease_record.current().reason
        return self._reason or (None if lost is None else f"the lease was lost ({lost})")

    def __bool__(self) -> bool:
        return self.is_set()

    def _ended(self, _: LeaseRecord) -> None:
        self._set = True
        for each in self._waiting.copy():
            each.notify()


class LeaseView:
    """The lease of an attempt, for a function that runs in a thread. The worker renews and releases it."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def key(self) -> str:
        """The name of the lock."""
        return self._lease.key

    @property
    def owner(self) -> str:
        """Who holds it, for people."""
        return self._lease.owner

    @property
    def fence(self) -> int:
        """A number that rises with every grant of this lock. Give it to whatever you write to."""
        return self._lease.fence

    @property
    def ttl(self) -> float:
        """How long the store keeps the key without a renewal, in seconds."""
        return self._lease.ttl

    @property
    def held(self) -> bool:
        """Whether it may still be relied on, now."""
        return self._lease.held

    @property
    def lost(self) -> Lost:
        """The loss of this lease, to ask or to wait for."""
        return Lost(self._lease._lease_record)  # noqa: SLF001 - as above

    def remaining(self) -> float:
        """How many seconds the store is still bound to keep the key for us. Conservative; 0.0 when lost."""
        return self._lease.remaining()

    def ensure_held(self, min_remaining: Duration = 0) -> None:
        """Return if the lease is held and has at least `min_remaining` left; raise `LeaseLost` otherwise."""
        self._lease.ensure_held(min_remaining)

    def progress(self) -> None:
        """Report that the work is getting somewhere."""
        self._lease.progress()

    def __repr__(self) -> str:
        return f"<LeaseView of {self._lease!r}>"


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry job, attempt, tenant, topic and fence, besides what the caller adds.

    It never raises: a function must not fail, nor its result be lost, because a line of it could not be logged.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """See `logging.LoggerAdapter`."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the line is the caller's, and not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a broken handler, or a field that logging does not accept
            log_event(_about_logs, logging.WARNING, "a line of a job could not be logged", error, **(self.extra or {}))

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add what is known to one line."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class AnyContext:
    """What both kinds of function get."""

    def __init__(
        self,
        assignment: Assignment,
        lease: Lease,
        worker: str,
        clock: Clock,
        since: Instant,
        limit_ns: int | None,
        report: Callable[[ProgressReport], None] | None = None,
        emit: Callable[[EmitReport], None] | None = None,
        children: ChildPort | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`report` stores progress, `emit` values, both from any thread; `children` submits; None: nothing does.

        `loop` is that of the worker; None: the running one.
        """
        self._assignment = assignment
        self._held = lease
        self._clock = clock
        self._since = since
        self._limit_ns = limit_ns
        self._report = report
        self._emit = emit
        self._children = children
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._submitted = 0
        self._emitting = Mutex()  # values are numbered in the order in which they are stored
        self._emitted = 0
        self._emitted_chars = 0
        self.worker = worker
        self._progressed = since  # when it last reported progress, or began
        self.cancelled = Cancelled(lease)
        self.note: str | None = None  # as the function last reported
        self.fraction: float | None = None

    @cached_property
    def log(self) -> JobLog:
        """A logger whose lines say which attempt they are about."""
        assignment = self._assignment
        about = {
            "job": assignment.job,
            "attempt": assignment.attempt,
            "tenant": assignment.tenant,
            "topic": assignment.topic,
        }
        return JobLog(_log, {**about, "fence": self._held.fence})

    @property
    def job(self) -> str:
        """The id of the job."""
        return self._assignment.job

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; in a workflow, which attempt of the step."""
        return step_attempt(self._assignment.job, self._assignment.labels) or self._assignment.attempt

    @property
    def run(self) -> str | None:
        """The id of the workflow run whose step this job is; None: it is a job of its own."""
        return self._assignment.labels.get(RUN_LABEL)

    @property
    def step(self) -> str | None:
        """The step of that run, `pay` or in a fan-out `pay[3]`."""
        return self._assignment.labels.get(STEP_LABEL)

    @property
    def step_attempt(self) -> int | None:
        """Which attempt of its step this is, from 1; None: it is a job of its own."""
        return step_attempt(self._assignment.job, self._assignment.labels)

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of a job, or of a step of a run: names an effect that must happen once."""
        return f"{self.run}:{self.step}" if self.run and self.step else self._assignment.job

    @property
    def tenant(self) -> str:
        """Whose job it is."""
        return self._assignment.tenant

    @property
    def topic(self) -> str:
        """What kind of job it is."""
        return self._assignment.topic

    @property
    def labels(self) -> Mapping[str, str]:
        """What its submitter attached to it."""
        return MappingProxyType(dict(self._assignment.labels))

    @property
    def trace(self) -> str:
        """The trace that it belongs to, or nothing."""
        return self._assignment.trace

    @property
    def fence(self) -> int:
        """The fence of the lease under which this attempt runs. It rises with every attempt."""
        return self._held.fence

    @property
    def carried(self) -> CarriedFence:
        """The fence with the name of its lock, as guards take it and as it may be sent to other processes."""
        return carried(self._held)

    def remaining(self) -> float:
        """How many seconds are left: the least of lease, time limit and deadline. 0.0: stop now."""
        held = self._held.remaining()
        if self._limit_ns is None:
            return held
        left = self._limit_ns - elapsed_ns(self._since, self._clock.now())
        return max(0.0, min(held, left / NS))

    def ensure_held(self, min_remaining: Duration = 0) -> None:
        """Return if the lease is held and has at least `min_remaining` left; raise `LeaseLost` otherwise."""
        self._held.ensure_held(min_remaining)

    def idle_ns(self) -> int:
        """How long ago it last reported progress, or began."""
        return elapsed_ns(self._progressed, self._clock.now())

    def progress(self, note: str | None = None, fraction: float | None = None) -> None:
        """Report progress: what the function is doing, and how much of the work is done (0 to 1).

        The newest report is stored at most once a second and shown with the job (`holdfast jobs show`, the API, the
        page). A note or fraction that is not given stays as it was. With `stall_after`, an attempt that reports nothing
        for that long is stopped; a call without arguments is enough to continue.
        """
        if isinstance(note, int | float):
            raise BadInput("note", f"{note!r} is a number", "give the note first, or fraction= alone")
        if note is not None:
            self.note = check_text("note", note, NOTE_CHARS_MAX)
        if fraction is not None:
            self.fraction = _part(fraction)
        self._held.progress()
        self._progressed = now = self._clock.now()
        if self._report is not None:
            assignment = self._assignment
            progress = Progress(assignment.attempt, self._held.fence, now.wall, self.fraction, self.note)
            self._report(ProgressReport(assignment.job, assignment.made_ns, progress))

    @property
    def parent(self) -> str | None:
        """The job, or the step `RUN:STEP`, whose function submitted this job; None: it is no child."""
        return self._assignment.labels.get(PARENT_LABEL)

    async def _submit_child(
        self, job: Callable[..., Any] | str, payload: Any, key: str | None, detached: bool, given: dict[str, Any]
    ) -> ChildJob[Any]:
        if self._children is None:
            raise BadInput(
                "ctx.submit", "needs a plane", "run the function in a plane, or replace the call in the test"
            )
        about = self._assignment
        parent = JobParent.of(about.job, about.made_ns, about.labels)
        with self._emitting:
            self._submitted += key is None
            number = self._submitted
        request = child_request(parent, job, payload, number, key, given)
        self._held.ensure_held()
        view = await self._children.submit(parent, request, about, detached=detached)
        self._stay_alive()
        return ChildJob(self._children, about, view.id, request.function, self._stay_alive)

    def _stay_alive(self) -> None:
        """Waiting for a child counts as progress."""
        self._held.progress()
        self._progressed = self._clock.now()

    @property
    def has_emitted(self) -> bool:
        """Whether the function has emitted values."""
        return self._emitted > 0

    def emit(self, value: Any) -> None:
        """Publish a partial result: JSON of at most `EMIT_BYTES_MAX` bytes. Counts as progress.

        Readers get it within a fraction of a second (`job.events()`, the API, `holdfast jobs follow`, the page). Values
        are stored as long as the job, in order, with the number of the attempt: a retry emits its own, and those of
        earlier attempts stay. All values of an attempt are stored before its result. `BadInput`: the value is no JSON
        or too large, or the attempt emits too many, or faster than they can be stored. Any thread may call it.
        """
        text = encoded("value", value, EMIT_BYTES_MAX)
        with self._emitting:
            if self._emitted >= EMITS_MAX or self._emitted_chars + len(text) > EMITTED_CHARS_MAX:
                fix = f"emit at most {EMITS_MAX} values, and {EMITTED_CHARS_MAX} characters of JSON, in one attempt"
                raise BadInput("value", "is one too many", fix)
            assignment, number = self._assignment, self._emitted + 1
            if self._emit is not None:
                where = (assignment.job, assignment.made_ns, assignment.attempt, self._held.fence)
                self._emit(EmitReport(*where, number, self._clock.now().wall, text))
            self._emitted = number
            self._emitted_chars += len(text)
        self.progress()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job!r} attempt={self.attempt} fence={self.fence}>"


class Context(AnyContext):
    """What an `async def` gets."""

    @overload
    async def submit(self, job: str, payload: Any = UNSET, /, **given: Any) -> ChildJob[Any]: ...
    @overload
    async def submit(
        self, job: Callable[..., Coroutine[Any, Any, R]], payload: Any = UNSET, /, **given: Any
    ) -> ChildJob[R]: ...
    @overload
    async def submit(self, job: Callable[..., R], payload: Any = UNSET, /, **given: Any) -> ChildJob[R]: ...
    async def submit(
        self,
        job: Callable[..., Any] | str,
        payload: Any = UNSET,
        /,
        *,
        key: str | None = None,
        detached: bool = False,
        **given: Any,
    ) -> ChildJob[Any]:
        """Submit a child job: a decorated function with its arguments, or a topic with a payload.

        Every attempt gets the same child for the same `key`; without one, for the same position among the calls
        without a key. The child has the tenant of this job, and is cancelled with it unless `detached`. Options are
        those of `JobRequest`, without `id`, `idempotency_key` and `tenant`. `RowExists`: an earlier attempt submitted
        another job under this key, or at this position.
        """
        return await self._submit_child(job, payload, key, detached, given)

    @property
    def lease(self) -> Lease:
        """The lease under which this attempt runs. The worker releases it."""
        return self._held


class BlockingContext(AnyContext):
    """What a `def` gets, in its thread."""

    @overload
    def submit(self, job: str, payload: Any = UNSET, /, **given: Any) -> BlockingChildJob[Any]: ...
    @overload
    def submit(
        self, job: Callable[..., Coroutine[Any, Any, R]], payload: Any = UNSET, /, **given: Any
    ) -> BlockingChildJob[R]: ...
    @overload
    def submit(self, job: Callable[..., R], payload: Any = UNSET, /, **given: Any) -> BlockingChildJob[R]: ...
    def submit(
        self,
        job: Callable[..., Any] | str,
        payload: Any = UNSET,
        /,
        *,
        key: str | None = None,
        detached: bool = False,
        **given: Any,
    ) -> BlockingChildJob[Any]:
        """Submit a child job. See `Context.submit`."""
        child: ChildJob[Any] = self._run_on_loop(self._submit_child(job, payload, key, detached, given))
        return BlockingChildJob(child, self._run_on_loop)

    def _run_on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return wait_in_thread(work, self._loop, lambda: self.cancelled.reason if self.cancelled.is_set() else None)

    @property
    def lease(self) -> LeaseView:
        """The lease under which this attempt runs. The worker releases it."""
        return LeaseView(self._held)


def _part(fraction: object) -> float:
    if isinstance(fraction, bool) or not isinstance(fraction, float | int) or not 0 <= fraction <= 1:
        raise BadInput("fraction", f"{fraction!r} is not a part of the work", "give a number from 0 to 1")
    return float(fraction)
