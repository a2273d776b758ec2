"""The reconciler ends jobs that have been in one state for too long, and jobs whose deadline has passed.

Promises: a job is ended under its own lock, and only if it is still overdue then; so it never overtakes a result that
is being written. The state, the message that the job has finished, the message to its worker and the dead letter are
one transaction. A job whose lock is busy is left for the next tick. Every state in which a job can be stuck has a
limit, and all overdue jobs are found, however many there are. Settings are refused under which a replay could only come
after the time limit. While a store is away no job can go on, and that does not count against the jobs: the first good
tick after a failed one ends only jobs past their deadline, and leaves the others to the replayer and to the next tick.

Does not promise that a job ends at its limit: the next tick after it does that, and the one after if its lock was busy.

Clock: the wall clock, on which jobs carry their times.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core.retry_delays import AnyDelays
from holdfast.errors import BackendError, BadInput, RetryLater
from holdfast.flows.log import log_event
from holdfast.guards.bearer import carried
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.rules import JobCode, StateLimits, overdue
from holdfast.plane.jobs.store import JobStore, Writing
from holdfast.plane.jobs.updates import ending, facts_of
from holdfast.plane.locks.job_lock import JobLockStatistics, job_lock
from holdfast.plane.locks.registry import RECONCILER, RETRY_DELAYS, SCHEDULER_JOB, LockFamily
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.loops.scan import AT_ONCE, BATCH, BATCHES, Scan
from holdfast.plane.model.job_states import ACTIVE, JobState
from holdfast.plane.model.paging import Place
from holdfast.plane.model.records import Job
from holdfast.types import Duration

INTERVAL: Final = 30.0

_log: Final = logging.getLogger("holdfast.plane.loops")

_OVERDUE: Final = sql("reconcile_overdue")
_COUNT: Final = sql("reconcile_count")
_EXPIRED: Final = sql("reconcile_expired")


@dataclass(frozen=True, slots=True)
class ReconcilerStatistics:
    """What a reconciler has done since it was made, and what it last found."""

    timed_out: Mapping[JobState, int]  # jobs that were in a state for too long, by that state
    expired: Mapping[JobState, int]  # jobs whose deadline passed, by the state they were in
    spared: int  # no longer overdue when their lock was acquired
    left: int  # left for the next tick: their lock was held
    errors: int  # skipped after an unexpected error
    stale: Mapping[JobState, int]  # how many jobs were overdue in each state when the last tick began
    lock: JobLockStatistics


class Reconciler:
    """The reconciler of one plane."""

    def __init__(
        self,
        store: JobStore,
        locks: Locks,
        *,
        limits: StateLimits | None = None,
        delays: AnyDelays = RETRY_DELAYS,
        family: LockFamily = SCHEDULER_JOB,
        batch: int = BATCH,
        batches: int = BATCHES,
        at_once: int = AT_ONCE,
    ) -> None:
        self.limits = check_limits(limits or StateLimits())
        self._store = store
        self._locks = locks
        self._delays = delays
        self._family = family
        self._lock_statistics = JobLockStatistics()
        self._timed_out: Counter[JobState] = Counter()
        self._expired: Counter[JobState] = Counter()
        self._spared = 0
        self._left = 0
        self._was_away = False  # the last tick failed because of a store
        self._stale = dict.fromkeys(self._limited(), 0)
        sizes: dict[str, Any] = {"batch": batch, "batches": batches, "at_once": at_once}
        self._scans = [
            Scan(f"reconciler of {state}", partial(self._overdue, state), "updated_ns", **sizes)
            for state in self._limited()
        ]
        self._deadlines = Scan("reconciler of deadlines", self._expiring, "deadline_ns", **sizes)

    def loop(
        self,
        *,
        family: LockFamily = RECONCILER,
        interval: Duration = INTERVAL,
        mode: Mode | str = Mode.STICKY,
        **settings: Any,
    ) -> Loop:
        """The loop that runs it."""
        return Loop("reconciler", family, interval, self.tick, locks=self._locks, mode=mode, **settings)

    def statistics(self) -> ReconcilerStatistics:
        """Counts so far, and the jobs that were stale when the last tick began."""
        errors = sum(scan.errors for scan in (*self._scans, self._deadlines))
        return ReconcilerStatistics(
            dict(self._timed_out),
            dict(self._expired),
            self._spared,
            self._left,
            errors,
            dict(self._stale),
            self._lock_statistics,
        )

    async def tick(self, tick: Tick) -> None:
        """Count what is stale, and end it."""
        spare, self._was_away = self._was_away, False
        try:
            self._stale = await self._count()
            if spare:
                stale = sum(self._stale.values())
                log_event(_log, logging.WARNING, "time limits wait for a tick, since a store was away", stale=stale)
            for scan in () if spare else self._scans:
                await scan.walk(tick, self._settle)
            await self._deadlines.walk(tick, self._settle)
        except BackendError:
            self._was_away = True
            raise

    async def _settle(self, row: Row) -> None:
        """End one job, if it is still overdue under its lock."""
        job_id = row["id"]
        code: JobCode | None = None

        def decide(job: Job) -> Writing | None:
            nonlocal code
            end = overdue(
                facts_of(job),
                updated_ns=job.updated_ns,
                timeout_ns=job.timeout_ns,
                now_ns=self._now_ns(),
                limits=self.limits,
            )
            code = None if end is None else end.code
            return None if end is None else ending(job, end, fence, actor="reconciler")

        try:
            async with self._lock(job_id) as lease:
                fence = carried(lease)
                changed = await self._store.change(lease, job_id, decide)
        except RetryLater as later:
            if isinstance(later.__cause__, BackendError):
                raise later.__cause__ from later
            self._left += 1
            return
        if changed.before is None or changed.after is None:
            self._spared += 1
        elif code is JobCode.DEADLINE:
            self._expired[changed.before.state] += 1
        else:
            self._timed_out[changed.before.state] += 1

    def _lock(self, job_id: str) -> AbstractAsyncContextManager[Lease]:
        counts = self._lock_statistics
        return job_lock(self._locks, job_id, self._delays, statistics=counts, timeout=0.0, family=self._family)

    # What is read.

    def _limited(self) -> list[JobState]:
        return [state for state in JobState if state in ACTIVE and self.limits.limit_ns(state) is not None]

    def _now_ns(self) -> int:
        return self._store.clock.now().wall

    def _values(self, state: JobState) -> dict[str, Any]:
        now_ns, limit_ns = self._now_ns(), self.limits.limit_ns(state) or 0
        # A running job may have a limit of its own, which may be shorter.
        until_ns = now_ns if state is JobState.RUNNING else now_ns - limit_ns
        return {"state": str(state), "limit_ns": limit_ns, "now_ns": now_ns, "until_ns": until_ns}

    async def _overdue(self, state: JobState, after: Place, most: int) -> Sequence[Row]:
        values = {**self._values(state), "updated_ns": after.at_ns, "id": after.id, "most": most}
        return await self._store.database.read(lambda tx: tx.query(_OVERDUE, values))

    async def _expiring(self, after: Place, most: int) -> Sequence[Row]:
        values = {"now_ns": self._now_ns(), "deadline_ns": after.at_ns, "id": after.id, "most": most}
        return await self._store.database.read(lambda tx: tx.query(_EXPIRED, values))

    async def _count(self) -> dict[JobState, int]:
        async def work(tx: Tx) -> dict[JobState, int]:
            return {state: int((await tx.query(_COUNT, self._values(state)))[0]["jobs"]) for state in self._limited()}

        return await self._store.database.read(work)


def check_limits(limits: StateLimits) -> StateLimits:
    """The limits themselves, or `BadInput`."""
    problems = limits.problems()
    if problems:
        raise BadInput("limits", "; ".join(problems), "let replay_ns be the shortest, and every limit above zero")
    return limits
