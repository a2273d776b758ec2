"""What is forgotten of workflows: runs that have been over for long enough, their timelines, and old approvals.

Promises: nothing that is not over is ever removed, and no definition is. A run is kept for thirty days from its end;
one that was started with an idempotency key for as long as that key is remembered, so that the same key still gives the
same run. Its timeline and its approvals go with it. An approval of a job goes when the job is gone and thirty days have
passed. A run that waits for months needs none of its finished jobs, which go sooner: their outputs are in it.

Does not promise that a run is there with all lines of its timeline until it goes: a long one goes in several steps.

Clock: the wall clock.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from holdfast.plane.cleanup import Cleanup, Progress
from holdfast.plane.db.ports import Tx
from holdfast.plane.jobs.rows import sql

RUNS_MAX: Final = 100
LINES_MAX: Final = 5_000
"""How much one transaction forgets: it must not keep others waiting, and timelines may be long."""

_OVER: Final = (sql("cleanup_runs"), sql("cleanup_runs_keyed"))
_LINES: Final = sql("cleanup_run_lines")
_GATES: Final = sql("cleanup_gates")
_RUN: Final = sql("cleanup_run")
_APPROVALS: Final = sql("cleanup_approvals")


async def finished_runs(cleanup: Cleanup, tx: Tx, progress: Progress) -> tuple[Counter[str], Progress, bool]:
    """One batch of runs. A timeline that is too long for one batch goes on in the next, and its run goes last."""
    now_ns, kept = cleanup.now_ns(), cleanup.retention
    most = min(cleanup.batch, RUNS_MAX)
    values = {"before_ns": now_ns - kept.runs_ns, "keys_before_ns": now_ns - kept.keys_ns, "most": most}
    found = [row["id"] for statement in _OVER for row in await tx.query(statement, values)][:most]
    counts: Counter[str] = Counter(runs=0)
    room = LINES_MAX
    for run in found:
        room -= len(await tx.query(_LINES, {"run": run, "most": room}))
        if room == 0:
            return counts, progress, True
        counts["approvals"] += len(await tx.query(_GATES, {"run": run}))
        counts["runs"] += len(await tx.query(_RUN, {"run": run}))
    return counts, progress, len(found) == most


async def old_approvals(cleanup: Cleanup, tx: Tx, progress: Progress) -> tuple[Counter[str], Progress, bool]:
    """One batch of approvals whose job has been forgotten."""
    values = {"before_ns": cleanup.now_ns() - cleanup.retention.runs_ns, "most": cleanup.batch}
    gone = await tx.query(_APPROVALS, values)
    return Counter(approvals=len(gone)), progress, len(gone) == cleanup.batch
