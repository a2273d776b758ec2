"""Remains of an earlier run with the same id: they give way and are never used by the new run.

The id of a run is free when the run is deleted, and the ids of its jobs and child runs begin with it. They may be kept
for longer, because they ended later, or because their idempotency keys are still stored. A new run that found them
under its own ids would wait for finished jobs, use another run's results, or continue with another run's approval.

Promises: a finished job or run that an earlier run with this id had made is deleted when its id is needed again, in
that transaction. An unfinished one is not touched, and the step that needs its id is refused (`BadInput`). Objects of
other owners are never touched.

Clock: the wall clocks of the creation times of runs and jobs. They differ by as long as a run is kept.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.messages import own_key
from holdfast.plane.model.records import Job
from holdfast.plane.workflows.core.run import Run

LINES_MAX: Final = 2**31

_JOB: Final = sql("job_forget")
_HISTORY: Final = sql("event_forget")
_RUN: Final = sql("cleanup_run")
_LINES: Final = sql("cleanup_run_events")
_GATES: Final = sql("cleanup_gates")


async def job_gives_way(tx: Tx, there: Job, run: Run) -> bool:
    """Whether the existing job belonged to an earlier run with this id, and was deleted."""
    emptied = subjects.EMPTIED_LABEL in there.labels and there.idempotency_key == own_key(there.id)
    of_such_a_run = emptied or there.labels.get(subjects.RUN_LABEL) == run.id
    if not of_such_a_run or there.tenant != run.tenant or there.created_ns >= run.created_ns:
        return False
    if not there.state.terminal:
        raise _not_over(f"job {there.id}", run)
    await tx.query(_HISTORY, {"job": there.id})
    return bool(await tx.query(_JOB, {"id": there.id, "created_ns": there.created_ns}))


async def run_gives_way(tx: Tx, there: Run, run: Run) -> bool:
    """The same for a child run."""
    of_such_a_run = there.parent is not None and there.parent.run == run.id and there.tenant == run.tenant
    if not of_such_a_run or there.created_ns >= run.created_ns:
        return False
    if not there.status.terminal:
        raise _not_over(f"run {there.id}", run)
    await tx.query(_LINES, {"run": there.id, "most": LINES_MAX})
    await tx.query(_GATES, {"run": there.id})
    return bool(await tx.query(_RUN, {"run": there.id}))


def _not_over(what: str, run: Run) -> BadInput:
    fix = "wait for its end, or choose another id for the run"
    return BadInput("id", f"{what} of an earlier run {run.id} has not finished", fix)
