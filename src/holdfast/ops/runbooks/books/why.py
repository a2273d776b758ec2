"""`holdfast why`: inspects everything and names the cause, without knowledge of which runbook applies.

The rules are ordered: a cause comes before its consequences, and a rule about a consequence does not apply while its
cause is known. So the first finding is the one to act on.
"""

from __future__ import annotations

from typing import Final

from holdfast.ops.runbooks.books import causes_servers, causes_work
from holdfast.ops.runbooks.collectors.locks import HELD_STEP, POLICY_STEP, lock_step
from holdfast.ops.runbooks.collectors.plane import DEBT_STEP, SNAPSHOT_STEP
from holdfast.ops.runbooks.collectors.servers import BUS_STEP, CLOCK_STEP, DATABASE_STEP, ROOM_STEP, STORE_STEP
from holdfast.ops.runbooks.collectors.work import FLEET_STEP, MISSING_STEP, WORK_STEP
from holdfast.ops.runbooks.model import FindingRule, Runbook
from holdfast.plane.locks.registry import FAMILIES, Scope

RULES: Final[tuple[FindingRule, ...]] = (*causes_servers.rules(), *causes_work.rules())

RUNBOOK: Final = Runbook(
    name="why",
    title="What is wrong, and what to do next",
    when="an alert fires, or something is wrong and the cause is unknown: `holdfast why` and `holdfast runbook` are "
    "the same",
    needs="the settings of the plane: `--config`, or `--database` and `--url`",
    over="run it again: the finding is gone and it exits 0. Findings about lost leases and dead letters "
    "stay for as long as `--since` looks back",
    steps=(
        DATABASE_STEP,
        STORE_STEP,
        BUS_STEP,
        WORK_STEP,
        FLEET_STEP,
        DEBT_STEP,
        HELD_STEP,
        MISSING_STEP,
        lock_step(
            "loops",
            "which processes lead the loops",
            *(each for each in FAMILIES.values() if each.scope is Scope.LOOP),
        ),
        SNAPSHOT_STEP,
        POLICY_STEP,
        ROOM_STEP,
        CLOCK_STEP,
    ),
    rules=RULES,
    fine="All servers answer quickly, every topic with waiting jobs has live workers, attempts make progress, and no "
    "lease was lost to the store.",
    essential=("database", "store", "bus", "work", "workers", "debt", "held", "leases", "loops"),
    causes_first=True,
)
