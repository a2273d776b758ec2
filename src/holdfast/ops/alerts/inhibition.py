"""Which alerts are consequences of which: while the cause fires, they are not sent.

The keys are ordered from the most general cause. An alert that a cause does not explain is never in its set: a flush of
the store during an outage of the bus still pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LATE: Final = frozenset(
    {
        *("HoldfastLoopLate", "HoldfastNoLeader", "HoldfastTakeoverBurn", "HoldfastRecoveryDebt"),
        *("HoldfastStaleJobsAccelerating", "HoldfastOrphansAccelerating", "HoldfastJobsWait", "HoldfastPoolFull"),
        "HoldfastScheduleLate",
        *("HoldfastTakeoverLate", "HoldfastJobLockWaitAccelerating", "HoldfastAttemptsHang"),
    }
)
_LOCKS: Final = frozenset(
    {
        *("HoldfastLockDebt", "HoldfastLockWait", "HoldfastJobLockWait", "HoldfastRunLockWait"),
        *("HoldfastJobLockAbandoned", "HoldfastRunLockAbandoned", "HoldfastLeaseAbandoned"),
        *("HoldfastLeaseAbandonedInOutage", "HoldfastLeasesLostFast", "HoldfastLeasesLostSlow"),
        *("HoldfastNotOwnedFast", "HoldfastNotOwnedSlow", "HoldfastRenewalSlow", "HoldfastRenewalMarginThin"),
        *("HoldfastFallback", "HoldfastRetryWaves", "HoldfastRetryWavesOfFleet"),
    }
)
_UNREADY: Final = frozenset({"HoldfastNotReady", "HoldfastPartFailed", "HoldfastDependencySlow"})

INHIBITED: Final[Mapping[str, frozenset[str]]] = {
    "HoldfastSilent": frozenset({"HoldfastProcessDown", "HoldfastPartMissing", *_LATE}),
    "HoldfastDiskFull": frozenset(
        {*_LATE, *_LOCKS, *_UNREADY, "HoldfastDiskLow", "HoldfastDatabaseDown", "HoldfastStoreDown"}
    ),
    "HoldfastDatabaseDown": frozenset({*_LATE, *_LOCKS, *_UNREADY, "HoldfastBusDown", "HoldfastPolicyDiverged"}),
    "HoldfastStoreDown": frozenset({*_LATE, *_LOCKS, *_UNREADY}),
    "HoldfastBusDown": frozenset({*_LATE, *_UNREADY}),
    "HoldfastDependencySlow": frozenset({*_LATE, *_LOCKS}),
    "HoldfastLeasesForgotten": frozenset({*_LOCKS, "HoldfastNoLeader", "HoldfastTakeoverBurn"}),
    "HoldfastTopicUnserved": frozenset({"HoldfastJobsWait", "HoldfastPartMissing"}),
    "HoldfastAttemptsHang": frozenset({"HoldfastJobsWait", "HoldfastPoolFull", "HoldfastRecoveryDebt"}),
    "HoldfastPoolFull": frozenset({"HoldfastJobsWait"}),
    "HoldfastPoisonJob": frozenset({"HoldfastDeadLetters", "HoldfastProcessDown"}),
}
