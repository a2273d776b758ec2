"""What is left of an earlier run that had the id of this one: it gives way, and is never taken for this one's own.

The id of a run is free when the run is forgotten, and those of its jobs and of the runs that it started begin with it.
They may be kept for longer, because they ended later, or because their idempotency keys are remembered; a run that
found them under the ids of its own would wait for what is over, take another's result, or go on by another's approval.

Promises: what was made before this run was, for a run of the same id, and is over, is forgotten when the same id is
wanted again, in that transaction. What is not over is left alone, and the step that wants its id is refused
(`BadInput`). What belongs to anybody else is never touched.

Clock: the wall clocks by which runs and jobs say when they were made. They lie apart by as long as a run is kept.
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
_LINES: Final = sql("cleanup_run_lines")
_GATES: Final = sql("cleanup_gates")


async def job_gives_way(tx: Tx, there: Job, run: Run) -> bool:
    """Whether a job that stands where one of this run should was an earlier run's, and is forgotten now."""
    emptied = subjects.EMPTIED_LABEL in there.labels and there.idempotency_key == own_key(there.id)
    of_such_a_run = emptied or there.labels.get(subjects.RUN_LABEL) == run.id
    if not of_such_a_run or there.tenant != run.tenant or there.created_ns >= run.created_ns:
        return False
    if not there.state.terminal:
        raise _not_over(f"job {there.id}", run)
    await tx.query(_HISTORY, {"job": there.id})
    return bool(await tx.query(_JOB, {"id": there.id, "created_ns": there.created_ns}))


async def run_gives_way(tx: Tx, there: Run, run: Run) -> bool:
    """The same of a run that stands where one that a step of this run starts should."""
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
    return BadInput("id", f"{what} of an earlier run {run.id} is not over", fix)
