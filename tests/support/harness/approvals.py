"""Where approvals are tested: replicas with rules, and what a decision did or did not do.

Locks are the real ones, and so is the database; where a moment in the middle of a decision matters, `Staged` stops it
there.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg

from holdfast.aio.lease import Lease
from holdfast.plane.approvals.rules import ApprovalRules, ApprovalStatus, ApprovalVerdict, DecisionFacts, parse_rules
from holdfast.plane.approvals.service import Approvals, DecisionResult
from holdfast.plane.locks.registry import SCHEDULER_JOB
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Submission
from holdfast.plane.process.components import Components
from support.fixtures.workflows import ASKER, DECIDER, FlowReplica, FlowStage

PAYMENTS = parse_rules([{"name": "payments", "topics": ["bank.*"], "message": "Check the amount."}])
FROZEN = parse_rules([{"name": "frozen", "effect": "deny", "topics": ["bank.*"]}])

GATED = """
name: refund
steps:
  agreed: {kind: approval, message: "Refund ${ input.amount }?", timeout: 1h}
  pay: {kind: job, topic: bank.pay, after: [agreed], input: "${ steps.agreed.output.approved_by }"}
output: "${ steps.pay.output }"
"""

HANDLED = """
name: handled
steps:
  agreed: {kind: approval, message: "Go?", on_error: apologise}
  apologise: {kind: transform, input: "sorry"}
"""


class Staged(Approvals):
    """Approvals that can be stopped: when everything was looked at under the lock, and when all is committed."""

    looked: Callable[[], Awaitable[None]] | None = None
    committed: Callable[[], Awaitable[None]] | None = None
    lease: Lease | None = None

    async def _facts(self, request: Any) -> tuple[DecisionFacts, Job]:
        found = await super()._facts(request)
        if self.lease is not None and self.looked is not None:
            await self.looked()
        return found

    async def _decide(self, lease: Lease, request: Any) -> DecisionResult:
        self.lease = lease
        decision = await super()._decide(lease, request)
        if self.committed is not None:
            await self.committed()
        return decision


def staged(components: Components, **settings: Any) -> Staged:
    return Staged(components.database, components.store, components.locks, components.approvals.rules, **settings)


async def stage_of(flow_stage: FlowStage, rules: ApprovalRules = PAYMENTS, *, serve: bool = False) -> FlowReplica:
    replica = await flow_stage.replica(serve=serve)
    replica.components.approvals.rules = rules
    return replica


async def asked(replica: FlowReplica, **more: Any) -> Job:
    """A job that waits for a person."""
    job, made = await replica.components.service.submit(ASKER, Submission("bank.pay", {"amount": 12}, **more))
    assert (made, job.state) == (True, JobState.APPROVAL_REQUIRED)
    return job


async def decide(
    replica: FlowReplica, job: str, verdict: ApprovalVerdict = ApprovalVerdict.APPROVE, **more: Any
) -> DecisionResult:
    return await replica.components.flows.decide(DECIDER, job, verdict, **more)


async def waiting(replica: FlowReplica, **more: Any) -> list[str]:
    return [each.job for each in (await replica.components.flows.approvals(ASKER, **more)).items]


async def untouched(replica: FlowReplica, job: str) -> None:
    """No decision was made: nothing was written, nothing was sent, and the lock is free."""
    found, approval = await replica.job(job), await replica.components.approvals.get(job)
    assert found is not None
    assert approval is not None
    assert (found.state, found.version) == (JobState.APPROVAL_REQUIRED, 1)
    assert (approval.status, approval.revision) == (ApprovalStatus.WAITING, 0)
    assert await told(replica, job) == []
    assert not (await replica.components.locks.inspect(SCHEDULER_JOB.key(job=job))).held


async def told(replica: FlowReplica, job: str) -> list[str]:
    """The subjects of all messages that were ever staged about a job."""
    rows = await replica.query("SELECT DISTINCT id, subject FROM plane_message")
    return sorted(row["subject"] for row in rows if job in row["id"])


@asynccontextmanager
async def going_on(work: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Something that continues meanwhile, and does not outlive the test."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def held_up(url: str, job: str) -> Iterator[None]:
    """Another transaction blocks every write to a job; reads continue."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.rollback()
            connection.close()
    else:
        with psycopg.connect(url) as held:
            held.execute("SELECT 1 FROM plane_job WHERE id = %s FOR UPDATE", [job])
            yield
            held.rollback()
