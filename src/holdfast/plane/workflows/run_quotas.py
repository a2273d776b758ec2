"""Quotas for runs: of a tenant, and of one run with all runs that it starts.

Promises: a run above a quota is not inserted. A caller gets `TooManyRuns`; the step of a run that starts another fails
with the reason. Counting reads an index, at most as many entries as the quota, in the transaction that inserts the run.
Runs of one tree are counted serially. On Postgres the quota of a tenant may be exceeded by the number of runs that are
inserted at the same moment.

A *tree* is a run that a caller started, with the runs that its steps start, and so on. Finished runs count too, as long
as they are stored. `plane.workflows.core.definition.DEPTH_MAX` limits the depth of a tree; its deadline applies to all
of it.

Does not promise anything about runs that an older version has started: they count for their tenant only.

Clock: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.workflows.core.run import Run, root_of

_OF_TENANT: Final = sql("run_quota_tenant")
_OF_TREE: Final = sql("run_quota_tree")
_HOLD: Final = sql("run_quota_hold_postgres")


class TooManyRuns(HoldfastError):
    """The tenant, or the tree of the run, has reached its quota. Nothing was done."""

    retry_after: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunQuotas:
    """The quotas of a plane."""

    live_per_tenant: int = 10_000
    per_tree: int = 2_000

    async def check(self, tx: Tx, run: Run) -> None:
        """Return if the run may be inserted, or raise `TooManyRuns`."""
        where = {"tenant": run.tenant, "most": self.live_per_tenant}
        if (await tx.query(_OF_TENANT, where))[0]["runs"] >= self.live_per_tenant:
            raise TooManyRuns(
                f"tenant {run.tenant} has {self.live_per_tenant} unfinished runs, which is the most "
                "(runs.live_per_tenant); wait for some to finish, or cancel them"
            )
        if run.parent is None:
            return
        root = root_of(run.id)
        if tx.dialect == "postgres":  # SQLite has one writer at a time anyway
            await tx.query(_HOLD, {"root": root})
        if (await tx.query(_OF_TREE, {"root": root, "most": self.per_tree}))[0]["runs"] >= self.per_tree - 1:
            raise TooManyRuns(
                f"run {root} has started {self.per_tree - 1} runs, directly and through them, which is the most "
                "(runs.per_tree, with the run itself); start fewer, or start them as runs of their own"
            )
