"""Runs job functions in unit tests: in memory, without a plane, under a real lease.

    assert testing.run(app, "invoice.charge", {"invoice": 7, "amount": 100}) == Receipt(7, 100)

    async with testing.context(attempt=2) as ctx:
        await charge(7, 100, ctx=ctx)
        assert ctx.note == "asking the bank"

Promises: arguments and results are converted as by a client and a worker, so what passes here is valid JSON there. The
lease has a fence and is released at the end. An error of the function is raised unchanged.

Does not promise retries, time limits, or anything else that a scheduler does.

Clock: that of the host.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from holdfast import aio
from holdfast.aio.lease import Lease
from holdfast.core.ports import Clock
from holdfast.errors import BadInput
from holdfast.plane.app import App, JobFunction, job_of_function
from holdfast.plane.client.request import UNSET
from holdfast.plane.jobs.progress import EmitReport
from holdfast.plane.model.messages import Assignment
from holdfast.plane.model.records import check_id, check_whole
from holdfast.plane.parameters import plain_json
from holdfast.plane.worker.context import BlockingContext, Context
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import check_label

ATTEMPT_MAX: Final = 1_000
TTL_S: Final = 3_600.0


def run(
    app: App,
    job: Callable[..., Any] | str,
    payload: Any = UNSET,
    /,
    *,
    attempt: int = 1,
    tenant: str = "default",
    labels: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """Run a job of an app once, and return its result as a client would get it. For tests without an event loop."""
    return asyncio.run(run_async(app, job, payload, attempt=attempt, tenant=tenant, labels=labels, **arguments))


async def run_async(
    app: App,
    job: Callable[..., Any] | str,
    payload: Any = UNSET,
    /,
    *,
    attempt: int = 1,
    tenant: str = "default",
    labels: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Any:
    """The same in an event loop. `job` is a topic with a payload, or a decorated function with its arguments."""
    function = _function(app, job)
    positional = () if payload is UNSET else (payload,)
    sent = plain_json("payload", function.parameters.payload(positional, arguments))
    async with context(topic=function.topic, attempt=attempt, tenant=tenant, labels=labels) as made:
        if function.asynchronous:
            value = function.judged(await function.call(sent, made))
        else:
            value = await asyncio.to_thread(lambda: function.judged(function.call(sent, made.blocking)))
    return function.parameters.result(plain_json("result", value))


class TestContext(Context):
    """A context for a test. `note` and `fraction` are the last progress, `emitted` the emitted values, as JSON.

    `blocking` is for a `def`.
    """

    __test__ = False  # it is not a test class

    def __init__(self, assignment: Assignment, lease: Lease, clock: Clock) -> None:
        """See `testing.context`."""
        self.emitted: list[Any] = []

        def emit(report: EmitReport) -> None:
            self.emitted.append(json.loads(report.text))

        super().__init__(assignment, lease, "test", clock, clock.now(), None, emit=emit)

    @property
    def blocking(self) -> BlockingContext:
        """The same context as a function in a thread gets it."""
        limits = (self.worker, self._clock, self._since, self._limit_ns)
        return BlockingContext(self._assignment, self._held, *limits, emit=self._emit, loop=self._loop)


@asynccontextmanager
async def context(
    *,
    job: str = "job-1",
    topic: str = "test",
    attempt: int = 1,
    tenant: str = "default",
    labels: Mapping[str, str] | None = None,
) -> AsyncIterator[TestContext]:
    """A context with a lease on a memory store, as long as the block runs."""
    assignment = Assignment(
        check_id("job", job),
        check_whole("attempt", attempt, 1, ATTEMPT_MAX),
        check_label("topic", topic),
        check_label("tenant", tenant),
        None,
        labels=dict(labels or {}),
    )
    clock = SystemClock()
    async with (
        aio.connect(f"memory://{SystemEntropy().token()}", service="test") as locks,
        locks.lock(f"job:{job}", ttl=TTL_S) as lease,
    ):
        yield TestContext(assignment, lease, clock)


def _function(app: App, job: Callable[..., Any] | str) -> JobFunction:
    if not isinstance(job, str):
        found = job_of_function(job)
        if app.functions.get(found.topic) is not found:
            raise BadInput("job", f"{found.topic!r} is not a topic of {app.name}", "give a function of this app")
        return found
    if job not in app.functions:
        known = ", ".join(sorted(app.functions)) or "none"
        raise BadInput("job", f"{job!r:.80} is not a topic of {app.name}", f"use one of {known}")
    return app.functions[job]
