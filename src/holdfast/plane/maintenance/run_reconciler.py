"""The workflow reconciler finds runs that missed an event, and delivers it.

Promises: an unfinished run that was not written for a while is compared with the jobs and runs that its steps wait for.
If one of them has finished and the run has missed that, the event is applied under the lock of the run, as if its
message had come. The comparison acquires no lock. A job that does not exist any more fails its step, so that no run
waits forever. A run whose lock is busy is left for the next tick.

Messages are durable, so there should be nothing to find; each event that was missed is counted.

The cost of a tick does not grow with the number of idle runs: a tick reads at most `MOVING_PER_TICK` pending or running
runs and `WAITING_PER_TICK` runs that wait for an approval, and the next tick continues after them. So a missed message
is found in the next tick while there are fewer idle runs than that; with 5,000 runs that wait for approvals, in eight
minutes. Neither concerns decisions and time limits that arrive: these have messages and the delay poller.

Clock: the wall clock, on which runs and jobs carry their times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from holdfast.aio.client import Locks
from holdfast.errors import BackendError, RetryLater
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.locks.registry import WORKFLOW_RECONCILER, LockFamily
from holdfast.plane.locks.run_lock import run_lock
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.loop import Loop, Tick
from holdfast.plane.loops.scan import Scan
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import own_key
from holdfast.plane.model.paging import Place
from holdfast.plane.workflows.core.advance import advance
from holdfast.plane.workflows.core.definition import StepKind
from holdfast.plane.workflows.core.run import (
    CheckRun,
    ChildEnded,
    Event,
    EventOutcome,
    JobEnded,
    RunStatus,
    StepState,
    StepStatus,
    StoredRun,
)
from holdfast.plane.workflows.engine import NOT_AGAIN, WorkflowEngine
from holdfast.plane.workflows.expressions.builtins import Budget, OverBudget
from holdfast.plane.workflows.run_store import IN_TRANSACTION_COST
from holdfast.types import Duration, duration_ns

INTERVAL: Final = 5.0
PATIENCE: Final = 10.0  # how long a message may take before it counts as missed
MOVING_PER_TICK: Final = 200  # idle pending or running runs that one tick reads
WAITING_PER_TICK: Final = 50  # likewise of those that wait for an approval

_MOVING: Final = sql("run_live")
_WAITING: Final = sql("run_live_waiting")
_JOBS: Final = {"sqlite": sql("run_jobs_sqlite"), "postgres": sql("run_jobs_postgres")}


@dataclass(frozen=True, slots=True)
class RunReconcilerStatistics:
    """Counts of a reconciler since it was made."""

    looked_at: int
    told: int  # ends that were missed
    orphaned: int  # steps whose job did not exist any more
    woken: int  # runs that should have gone on
    left: int  # left for the next tick: their lock was busy, or their tenant had spent what its expressions may cost
    errors: int


class RunReconciler:
    """The workflow reconciler of one plane."""

    def __init__(self, engine: WorkflowEngine, locks: Locks, *, patience: Duration = PATIENCE) -> None:
        self.engine = engine
        self._locks = locks
        self._patience_ns = duration_ns("patience", patience)
        self._counts = dict.fromkeys(("looked_at", "told", "orphaned", "woken", "left"), 0)
        self._scans = [
            Scan("workflow reconciler", partial(self._idle, statement), "updated_ns", batch=most, batches=1)
            for statement, most in ((_MOVING, MOVING_PER_TICK), (_WAITING, WAITING_PER_TICK))
        ]

    def loop(
        self,
        *,
        family: LockFamily = WORKFLOW_RECONCILER,
        interval: Duration = INTERVAL,
        mode: Mode | str = Mode.STICKY,
        **settings: Any,
    ) -> Loop:
        """The loop that runs it."""
        return Loop("runs", family, interval, self.tick, locks=self._locks, mode=mode, **settings)

    def statistics(self) -> RunReconcilerStatistics:
        """Counts so far."""
        return RunReconcilerStatistics(**self._counts, errors=sum(scan.errors for scan in self._scans))

    async def tick(self, tick: Tick) -> None:
        """Check a bounded number of idle runs, continuing where the last tick ended."""
        for scan in self._scans:
            await scan.walk(tick, self._settle)

    async def _settle(self, row: Row) -> None:
        self._counts["looked_at"] += 1
        try:
            self.engine.runs.expression_quota.check(row["id"])
        except RetryLater:  # a costly run of a tenant over its quota: its own message will come
            self._counts["left"] += 1
            return
        stored = await self.engine.runs.get(row["id"])
        if stored is None or not (missed := await self._missed(stored)):
            return
        try:
            async with run_lock(
                *(self._locks, stored.run.id, stored.risk, self.engine.delays),
                statistics=self.engine.lock_statistics,
                timeout=0.0,
                family=self.engine.family,
            ) as lease:
                told = await self.engine.move_all_held(lease, stored.run.id, missed, actor="reconciler")
                for event, changed in zip(missed, told, strict=False):  # the next round has the others
                    self._count(event, changed.outcome)
        except RetryLater as later:
            if isinstance(later.__cause__, BackendError):
                raise later.__cause__ from later
            self._counts["left"] += 1

    def _count(self, event: Event, heard: EventOutcome) -> None:
        if heard is EventOutcome.APPLIED:
            gone = isinstance(event, JobEnded | ChildEnded) and event.reason in (_GONE, _FORGOTTEN)
            self._counts["woken" if isinstance(event, CheckRun) else "orphaned" if gone else "told"] += 1

    async def _missed(self, stored: StoredRun) -> list[Event]:
        """The events that the run should have by now. Each is checked again under the lock."""
        now_ns = self.engine.runs.clock.now().wall
        awaited = dict(_awaited(stored))
        jobs = await self._jobs([name for name, kind in awaited.items() if kind is not StepKind.WORKFLOW])
        missed: list[Event] = []
        for name, kind in awaited.items():
            event = (
                await self._child(name, now_ns, stored)
                if kind is StepKind.WORKFLOW
                else self._job(name, jobs.get(name), now_ns, stored)
            )
            if event is not None:
                missed.append(event)
        if missed:
            return missed
        draw = self.engine.runs.entropy.below
        try:
            budget = Budget(IN_TRANSACTION_COST)
            would = advance(stored.run, CheckRun(), now_ns - self._patience_ns, draw, budget=budget)
        except OverBudget:  # it has steps to start, with costly expressions: those are evaluated apart
            return [CheckRun()]
        return [CheckRun()] if would.outcome is EventOutcome.APPLIED else []

    def _job(self, name: str, row: Row | None, now_ns: int, stored: StoredRun) -> Event | None:
        if row is None or not _own(row, stored):
            late = stored.updated_ns + self._patience_ns <= now_ns
            return JobEnded(name, JobState.FAILED, None, _GONE, retryable=False) if late else None
        state = JobState(row["state"])
        if not state.terminal or row["updated_ns"] + self._patience_ns > now_ns:
            return None
        if state is JobState.SUCCEEDED and subjects.EMPTIED_LABEL in json.loads(
            row["labels"]
        ):  # a result is never invented
            return JobEnded(name, JobState.FAILED, None, _FORGOTTEN, retryable=False)
        result = None if row["result"] is None else json.loads(row["result"])
        return JobEnded(name, state, result, row["reason"], row["code"] not in NOT_AGAIN)

    async def _child(self, name: str, now_ns: int, stored: StoredRun) -> Event | None:
        child = await self.engine.runs.get(name)
        if child is None or not stored.started(child):
            return ChildEnded(name, RunStatus.FAILED, None, _GONE)
        if not child.run.status.terminal or child.updated_ns + self._patience_ns > now_ns:
            return None
        return ChildEnded(name, child.run.status, child.run.output, child.run.error)

    async def _jobs(self, names: Sequence[str]) -> dict[str, Row]:
        if not names:
            return {}

        async def work(tx: Tx) -> list[Row]:
            return await tx.query(_JOBS[tx.dialect], {"ids": json.dumps(names)})

        return {row["id"]: row for row in await self.engine.runs.database.read(work)}

    async def _idle(self, statement: str, after: Place, most: int) -> Sequence[Row]:
        until_ns = self.engine.runs.clock.now().wall - self._patience_ns
        values = {"until_ns": until_ns, "updated_ns": after.at_ns, "id": after.id, "most": most}
        return await self.engine.runs.query(statement, values)


_GONE: Final = "what the step waits for does not exist any more"
_FORGOTTEN: Final = "its job succeeded, and was forgotten with its result before the run could hear of it"


def _awaited(stored: StoredRun) -> Iterator[tuple[str, StepKind]]:
    """The jobs, gates and runs that the run waits for, by name."""
    for name, state in stored.run.steps.items():
        kind = stored.run.workflow.steps[name].kind
        for each in state.children or (state,):
            if _waits(each) and each.job is not None:
                yield each.job, kind


def _own(row: Row, stored: StoredRun) -> bool:
    """Whether a job is one of the run, and not of another run or tenant that has its id."""
    labels = json.loads(row["labels"])
    if row["tenant"] != stored.run.tenant:
        return False
    if subjects.EMPTIED_LABEL in labels:
        return bool(row["idempotency_key"] == own_key(row["id"]))
    return bool(labels.get(subjects.RUN_LABEL) == stored.run.id)


def _waits(state: StepState) -> bool:
    return state.status in (StepStatus.RUNNING, StepStatus.WAITING)
