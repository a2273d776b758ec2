"""Bugs planted into the plane or around it, each with the rule that a simulated world finds broken."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import BackendError, RowExists
from holdfast.plane.approvals.rules import ApprovalConflict
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db import statements
from holdfast.plane.jobs import rules, updates
from holdfast.plane.jobs.insert import New, submit_many
from holdfast.plane.jobs.quotas import Counting
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model import job_states
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.process.parts import WorkerPart
from holdfast.plane.scheduler import scheduler
from holdfast.plane.schedules import store as schedule_store
from holdfast.plane.schedules.rules import Decided, Decision, DuePolicy, Timetable, decide
from holdfast.plane.worker import worker
from holdfast.testing.sim.worlds.resource import FencedResource

Plant = Callable[[pytest.MonkeyPatch], None]


def the_result_of_an_overtaken_worker_counts(patch: pytest.MonkeyPatch) -> None:
    """A report is believed by the number of its attempt, whatever fence it comes under."""
    patch.setattr(rules, "accepts", lambda seen, fence: True)


def a_scheduler_is_not_asked_for_its_fence(patch: pytest.MonkeyPatch) -> None:
    """A former holder of the lock of a job may write it, however late."""
    change, condition = (
        statements.script("job_change", "sqlite"),
        " AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)",
    )
    assert condition in change
    script = statements.script

    def unfenced(name: str, dialect: str) -> str:
        return change.replace(condition, "") if name == "job_change" else script(name, dialect)

    patch.setattr(statements, "script", unfenced)
    patch.setattr(updates, "accepts", lambda seen, fence: True)


def a_job_ends_twice(patch: pytest.MonkeyPatch) -> None:
    """An end is written over another end: no check whether the job is finished, and the table allows it."""
    ends = frozenset(each for each in JobState if each.terminal)
    for state in ends:
        patch.setitem(job_states.MOVES, state, ends | {JobState.RUNNING})
    standing = rules.standing_of_end

    def never_over(job: rules.CurrentAttempt, said: rules.ReportedAttempt) -> rules.ReportStanding:
        worth = standing(job, said)
        return rules.ReportStanding.CURRENT if worth is rules.ReportStanding.OVER else worth

    patch.setattr(scheduler, "standing_of_end", never_over)


def the_limit_of_a_tenant_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Places are counted and never refused."""
    patch.setattr(Counting, "take", lambda self, job, capacity: self._shift(job, 1))


def a_place_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    """A job that is over still counts."""
    patch.setattr(Counting, "give", lambda self, job: None)


def a_job_is_acknowledged_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """The answer does not wait for the commit."""

    async def at_once(self: JobStore, news: Sequence[New]) -> list[tuple[Job, bool]]:
        async def written() -> None:
            try:
                await self.database.write(lambda tx: submit_many(tx, self._bus, news))
            except (BackendError, RowExists):
                return

        asyncio.get_running_loop().create_task(written())
        return [(each.job(), True) for each in news]

    patch.setattr(JobStore, "_submit", at_once)


def the_resource_does_not_look_at_the_fence(patch: pytest.MonkeyPatch) -> None:
    """Any client may write."""
    patch.setattr(FencedResource, "accepts", lambda self, fence: True)


def a_second_run_does_not_know_what_the_first_has_done(patch: pytest.MonkeyPatch) -> None:
    """A function is told that nothing was done yet, each time."""
    read = FencedResource.read

    async def nothing(self: FencedResource, host: str, owner: str, fence: int) -> int:
        await read(self, host, owner, fence)
        return 0

    patch.setattr(FencedResource, "read", nothing)


def a_decision_may_be_made_again_otherwise(patch: pytest.MonkeyPatch) -> None:
    """The last decision is reported as effective."""
    decide = Approvals.decide

    async def anyhow(self: Approvals, *args: Any, **settings: Any) -> Any:
        try:
            return await decide(self, *args, **settings)
        except ApprovalConflict:
            return None

    patch.setattr(Approvals, "decide", anyhow)


def a_worker_does_not_end(patch: pytest.MonkeyPatch) -> None:
    """It is drained, and reports that only minutes later."""
    stop = WorkerPart.stop

    async def late(self: WorkerPart, grace: float) -> bool:
        done = await stop(self, grace)
        await asyncio.sleep(200)
        return done

    patch.setattr(WorkerPart, "stop", late)


def a_job_that_kills_is_run_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Workers that began an attempt and then vanished are not counted."""
    patch.setattr(worker, "given_up", lambda lost: None)


def a_due_time_is_submitted_whatever_was_decided_before(patch: pytest.MonkeyPatch) -> None:
    """A schedule forgets decided due times that are in the future of a clock, and draws the ids of its jobs."""
    numbers = itertools.count()

    def forgetful(timetable: Timetable, policy: DuePolicy, state: Decided, *, now_ns: int, running: bool) -> Decision:
        state = state._replace(done_ns=min(state.done_ns, now_ns))
        return decide(timetable, policy, state, now_ns=now_ns, running=running)

    patch.setattr(schedule_store, "decide", forgetful)
    patch.setattr(schedule_store, "job_id", lambda *_: f"drawn-{next(numbers)}")
