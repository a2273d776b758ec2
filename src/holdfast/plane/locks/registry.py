"""Every lock that the plane takes, declared once: the single truth for defaults, inventory, metric labels and docs.

Nothing in the plane takes a lock that is not declared here; a test reads the code and says so. A lock is described by
its family and the ids in its name, never by a literal:

    async with families.SCHEDULER_JOB.lock(locks, job="42").acquire(): ...

Keys are declared under the default prefix (`core.name_prefixes`). A plane may choose another one (`names.keys`): then
its components use the families that `plane.settings.lock_times` derives from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from string import Formatter
from typing import Any, Final, NamedTuple, Self

from holdfast.aio.client import Locks
from holdfast.aio.lease import DegradedLease, Lease
from holdfast.aio.lock import Lock
from holdfast.core import backoff
from holdfast.core.lease.timing import DEFAULT_FAILURES
from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BadInput
from holdfast.types import NS


class Scope(StrEnum):
    """How a lock is held."""

    ITEM = "per item"  # taken for one piece of work, released when that is done
    LOOP = "loop"  # taken by the one replica that runs a periodic task


class Release(StrEnum):
    """How it ends."""

    EXPLICIT = "explicit"
    SHUTDOWN = "on shutdown"  # a sticky leader keeps it between its ticks
    EXPIRY = "expiry"  # a rotating hold is never released


class Retries(NamedTuple):
    """After how long a message comes again, for people."""

    busy: str = "500 ms"
    failed: str = "1 s"


_RETRIES: Final = Retries()


@lru_cache
def _places(pattern: str) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in Formatter().parse(pattern) if name is not None)


@lru_cache
def _halves(pattern: str) -> tuple[str, str, str] | None:
    """What stands before the place of a pattern that has one, its name, and what stands behind it."""
    name = places[0] if len(places := _places(pattern)) == 1 else None
    before, mark, after = pattern.partition(f"{{{name}}}")
    return (before, name, after) if name and mark else None


@dataclass(frozen=True, slots=True)
class LockFamily:
    """One kind of lock."""

    name: str  # metric label, alert label, unit of tuning
    pattern: str  # the key, with the ids of the item as places
    scope: Scope
    ttl: float  # seconds; loops: at the default interval
    release: Release
    on_busy: str  # for people; as `when_busy` it has the delay in effect in place of {busy}
    on_error: str  # the same, and {failed}
    used_by: str  # the module that takes it
    acquire_timeout: float | None = None
    retry: backoff.Backoff | None = None
    per_interval: float | None = None  # loops: the TTL is this many times the interval
    renewal: float | None = None  # seconds between two renewals; None: a third of the TTL
    failures: int = DEFAULT_FAILURES  # renewal periods in a row that may fail before the lease is given up
    retries: Retries = _RETRIES

    @property
    def when_busy(self) -> str:
        """What happens when another holder has the lock, for people."""
        return self.on_busy.format(**self.retries._asdict())

    @property
    def when_failed(self) -> str:
        """What happens when the store fails, for people."""
        return self.on_error.format(**self.retries._asdict())

    @property
    def places(self) -> tuple[str, ...]:
        """The ids in the key."""
        return _places(self.pattern)

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals."""
        return self.ttl / 3 if self.renewal is None else self.renewal

    def timed(self, ttl: float | None = None, renew_every: float | None = None, failures: int | None = None) -> Self:
        """The same locks with other times; what is not given stays as it is."""
        return replace(
            self,
            ttl=self.ttl if ttl is None else ttl,
            renewal=self.renewal if renew_every is None else renew_every,
            failures=self.failures if failures is None else failures,
        )

    def spread(self, jitter: float) -> Self:
        """The same locks with attempts that are up to `jitter` seconds early or late; 0: the delays as declared."""
        if not jitter or self.retry is None:
            return self
        middle_ns = (self.retry.shortest_ns() + self.retry.longest_ns()) // 2
        return replace(self, retry=backoff.jittered(middle_ns / NS, jitter))

    def under(self, prefix: str) -> Self:
        """The same locks with another word before the first colon of their keys."""
        return replace(self, pattern=f"{prefix}:{self.pattern.partition(':')[2]}")

    def names(self, key: str, **ids: str) -> bool:
        """Whether a key is that of these ids, under whichever prefix: a message may be older than the prefix."""
        return key.partition(":")[2] == self.key(**ids).partition(":")[2]

    def key(self, **ids: str) -> str:
        """The name of one lock."""
        if (halves := _halves(self.pattern)) is not None and len(ids) == 1 and halves[1] in ids:
            return f"{halves[0]}{ids[halves[1]]}{halves[2]}"  # nearly all, several times for every job
        if ids.keys() != set(self.places):
            raise BadInput(
                "ids", f"{sorted(ids)} do not fill {self.pattern}", f"give {', '.join(self.places) or 'none'}"
            )
        return self.pattern.format(**ids)

    def ttl_for(self, interval: float | None) -> float:
        """The TTL of a loop that ticks every `interval` seconds; other locks have the one that they have."""
        return self.ttl if interval is None or self.per_interval is None else self.per_interval * interval

    def lock(
        self,
        locks: Locks,
        *,
        interval: float | None = None,
        max_hold: float | None = None,
        stall_after: float | None = None,
        **ids: str,
    ) -> Lock[Lease]:
        """Describe the lock of one item or loop, with the settings of its family.

        `max_hold` caps the whole time that it may be held, for work that has a time limit of its own; `stall_after` how
        long it is renewed without `lease.progress()`.
        """
        settings = self._settings(self.ttl_for(interval), max_hold)
        if stall_after is not None:
            settings["stall_after"] = stall_after
        return locks.lock(self.key(**ids), **settings)

    def risky(self, locks: Locks, *, risk: str, **ids: str) -> Lock[Lease | DegradedLease]:
        """Describe a lock that follows the policy of a risk class when the store fails: the lease may be degraded."""
        return locks.lock(self.key(**ids), risk=risk, **self._settings(self.ttl, None))

    def _settings(self, ttl: float, max_hold: float | None) -> Any:
        settings: dict[str, Any] = {"ttl": ttl, "family": self.name, "max_hold": max_hold, "failures": self.failures}
        if self.renewal is not None:
            settings["renew_every"] = self.renewal
        if self.retry is not None:
            settings["retry"] = self.retry
        if self.acquire_timeout is not None:
            settings["timeout"] = self.acquire_timeout
        return settings

    def as_dict(self) -> dict[str, Any]:
        """One line of the inventory, for programs."""
        return {
            "family": self.name,
            "key": self.pattern,
            "scope": str(self.scope),
            "ttl": self.ttl,
            "renew_every": self.renew_every,
            "failures": self.failures,
            "release": str(self.release),
            "acquire_timeout": self.acquire_timeout,
            "on_busy": self.when_busy,
            "on_error": self.when_failed,
            "used_by": self.used_by,
        }


# The 25 ms between two attempts that operators know; a wake-up on release is quicker. Jitter spreads the waiters of
# jobs and runs, which may be many. An approval has few, and its delay is exact unless `approvals.lock_jitter` spreads
# it.
_BASE: Final = 0.025
_QUICK: Final = backoff.jittered(_BASE, 0.010)

SCHEDULER_JOB: Final = LockFamily(
    name="scheduler.job",
    pattern="holdfast:scheduler:job:{job}",
    scope=Scope.ITEM,
    ttl=60.0,
    release=Release.EXPLICIT,
    on_busy="wait 2 s, then retry after {busy}",
    on_error="retry after {failed}",
    used_by="holdfast.plane.locks.job_lock",
    acquire_timeout=2.0,
    retry=_QUICK,
)

WORKER_JOB: Final = LockFamily(
    name="worker.job",
    pattern="holdfast:worker:job:{job}",
    scope=Scope.ITEM,
    ttl=30.0,
    release=Release.EXPLICIT,
    on_busy="another worker runs it: retry after {busy}",
    on_error="retry after {failed}",
    used_by="holdfast.plane.worker.worker",
    acquire_timeout=0.0,
)

RECONCILER: Final = LockFamily(
    name="reconciler",
    pattern="holdfast:reconciler:default",
    scope=Scope.LOOP,
    ttl=60.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.reconciler",
    per_interval=2.0,
)

REPLAYER: Final = LockFamily(
    name="replayer",
    pattern="holdfast:replayer:pending",
    scope=Scope.LOOP,
    ttl=60.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.replayer",
    per_interval=2.0,
)

SNAPSHOT_WRITER: Final = LockFamily(
    name="snapshot.writer",
    pattern="holdfast:scheduler:snapshot:writer",
    scope=Scope.LOOP,
    ttl=10.0,
    release=Release.SHUTDOWN,
    on_busy="skip the write",
    on_error="skip the write",
    used_by="holdfast.plane.maintenance.worker_snapshot",
    per_interval=2.0,
)

DEAD_LETTER_CLEANUP: Final = LockFamily(
    name="deadletter.cleanup",
    pattern="holdfast:deadletter:cleanup",
    scope=Scope.LOOP,
    ttl=120.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.retention",
    per_interval=2.0,
)

WORKFLOW_RUN: Final = LockFamily(
    name="workflow.run",
    pattern="holdfast:wf:run:lock:{run}",
    scope=Scope.ITEM,
    ttl=30.0,
    release=Release.EXPLICIT,
    on_busy="wait 2 s, then retry after {busy}",
    on_error="by risk class",
    used_by="holdfast.plane.locks.run_lock",
    acquire_timeout=2.0,
    retry=_QUICK,
)

APPROVAL: Final = LockFamily(
    name="approval",
    pattern=SCHEDULER_JOB.pattern,  # the scheduler's own lock, so that a decision and a handler exclude each other
    scope=Scope.ITEM,
    ttl=10.0,
    release=Release.EXPLICIT,
    on_busy="wait 2 s, then 409 approval lock busy",
    on_error="immediate error",
    used_by="holdfast.plane.approvals.service",
    acquire_timeout=2.0,
    retry=backoff.fixed(_BASE),
)

WORKFLOW_RECONCILER: Final = LockFamily(
    name="workflow.reconciler",
    pattern="holdfast:workflow-engine:reconciler:default",
    scope=Scope.LOOP,
    ttl=10.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.run_reconciler",
    per_interval=2.0,
)

WORKFLOW_DELAYS: Final = LockFamily(
    name="workflow.delays",
    pattern="holdfast:wf:delay:poller",
    scope=Scope.LOOP,
    ttl=10.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.timers",
    per_interval=2.0,
)

SCHEDULES: Final = LockFamily(
    name="schedules",
    pattern="holdfast:schedules:default",
    scope=Scope.LOOP,
    ttl=10.0,
    release=Release.SHUTDOWN,
    on_busy="skip the tick",
    on_error="skip the tick",
    used_by="holdfast.plane.maintenance.schedule_loop",
    per_interval=2.0,
)

FAMILIES: Final[Mapping[str, LockFamily]] = {
    family.name: family
    for family in (
        SCHEDULER_JOB,
        WORKER_JOB,
        WORKFLOW_RUN,
        APPROVAL,
        RECONCILER,
        REPLAYER,
        SNAPSHOT_WRITER,
        DEAD_LETTER_CLEANUP,
        WORKFLOW_RECONCILER,
        WORKFLOW_DELAYS,
        SCHEDULES,
    )
}

RETRY_DELAYS: Final = RetryDelays()
