"""For every rule of every runbook the facts by which it applies, and facts that are just not enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.core.history.events import EventKind
from holdfast.errors import Unavailable
from holdfast.leases.inspection import ForcedRelease
from holdfast.ops.runbooks.evidence.ledger import Cause, LedgerFact, Loss
from holdfast.ops.runbooks.evidence.locks import (
    ClassFact,
    FamilyHeld,
    ForcedFact,
    HeldFact,
    LockFact,
    LocksFact,
    ProofFact,
    StoreFact,
)
from holdfast.ops.runbooks.evidence.plane import JobFact, RunFact, SnapshotFact
from holdfast.ops.runbooks.examples import AT_NS, held_lock, policy
from holdfast.plane.model.job_states import JobState
from support.ops.runbook_cases_debt import CALM, DEBT_WELL, DEBTS, WAVES
from support.ops.runbook_cases_why import WHY_WELL, WHYS
from support.ops.runbook_facts import FREE_LOOP, LOOPS, Facts, Told, numbers

WELL = StoreFact("redis", 5, 5, 0.001, "", {"role": "master", "maxmemory_policy": "noeviction"})
DOWN = StoreFact("redis", 1, 0, None, "redis at leases:6379 cannot be reached")
CLOSED_OPEN = policy()


def losses(cause: Cause, times: int, granted: int = 20, **more: Any) -> LedgerFact:
    found = tuple(
        Loss(f"k:{each}", "scheduler.job", "plane@web-4:1/a", each, AT_NS, cause, "why") for each in range(times)
    )
    return LedgerFact(900.0, granted + times, {str(EventKind.GRANTED): granted}, found, **more)


FORCED = ForcedFact(
    tuple(
        ForcedRelease(
            datetime.fromtimestamp(AT_NS / 1e9, UTC), f"k:{each}", "ada", "stuck", "plane@web-4:1/a", each, 99
        )
        for each in range(4)
    ),
    900.0,
)
QUIET: Facts = {"losses": losses(Cause.OTHER, 0), "store": WELL, "forced": ForcedFact((), 900.0)}


def _burst(cause: Cause, words: str) -> Told:
    return Told({**QUIET, "losses": losses(cause, 3)}, words, {**QUIET, "losses": losses(cause, 2)})


_LATE = FamilyHeld("scheduler.job", 1, 0, held_lock("k"), (held_lock("k", remaining=11.0),))
_NOT_OWNED = {
    "store down": Told({**QUIET, "store": DOWN}, "does not answer", QUIET),
    "burst: pause": _burst(Cause.PAUSE, "paused processes"),
    "burst: network": _burst(Cause.NETWORK, "slower than the TTL allows"),
    "burst: outlived": _burst(Cause.OUTLIVED, "outlived their lease"),
    "burst: taken": Told(
        {**QUIET, "losses": losses(Cause.TAKEN, 3)},
        "reports another owner",
        {**QUIET, "losses": losses(Cause.TAKEN, 3), "forced": FORCED},
    ),
    "burst: clock": _burst(Cause.CLOCK, "clocks that were set"),
    "ratio": Told(
        {"rates": numbers("not-owned", lost={"scheduler.job expired": 0.6}, granted={"scheduler.job": 10.0})},
        "Metrics do not show the cause",
        {"rates": numbers("not-owned", lost={"scheduler.job expired": 0.4}, granted={"scheduler.job": 10.0})},
    ),
    "keeper behind": Told(
        {"rates": numbers("not-owned", keeper_behind={"h:1": 1.0})},
        "The renewer of h:1",
        {"rates": numbers("not-owned", keeper_behind={"h:1": 0.9})},
    ),
    "slow store": Told(
        {"store": replace(WELL, slowest=1.0)}, "A PING took 1 s", {"store": replace(WELL, slowest=0.99)}
    ),
    "forced": Told({**QUIET, "losses": losses(Cause.TAKEN, 3), "forced": FORCED}, "broken by force (ada)", QUIET),
    "few": Told({**QUIET, "losses": losses(Cause.PAUSE, 2)}, "no reason to page", QUIET),
    "renewals behind": Told(
        {"held": HeldFact((_LATE,))}, "missed a renewal: k", {"held": HeldFact((replace(_LATE, late=()),))}
    ),
}

_JOB = JobFact("j", "acme", "t", JobState.RUNNING, 1, 3, 5.0, 50, 51, "w", (), ())
_SCHEDULER, _WORKER = "holdfast:scheduler:job:j", "holdfast:worker:job:j"
_JOB_LOCKS = LocksFact((held_lock(_SCHEDULER, fence=50), held_lock(_WORKER, fence=51)))
_JOB_WELL: Facts = {"job": _JOB, "locks": _JOB_LOCKS, "loops": LOOPS}
_FREED = LocksFact((LockFact(_SCHEDULER, False), LockFact(_WORKER, False)))
_DUPLICATES = {
    "wrong history": Told(
        {**_JOB_WELL, "job": replace(_JOB, problems=("it ended 2 times",))}, "it ended 2 times", _JOB_WELL
    ),
    "broken rule": Told(
        {**_JOB_WELL, "ledger": losses(Cause.OTHER, 0, violations=("C2 k: a later grant has the lower fence",))},
        "C2 k",
        {**_JOB_WELL, "ledger": losses(Cause.OTHER, 0)},
    ),
    "stale holder": Told(
        {**_JOB_WELL, "locks": LocksFact((held_lock(_SCHEDULER, fence=49), held_lock(_WORKER)))},
        "lost a newer grant",
        _JOB_WELL,
    ),
    "abandoned": Told(
        {**_JOB_WELL, "locks": _FREED, "job": replace(_JOB, idle=91.0)},
        "its execution lease is free",
        {**_JOB_WELL, "locks": _FREED, "job": replace(_JOB, idle=89.0)},
    ),
    "no leader": Told({**_JOB_WELL, "loops": FREE_LOOP}, "No process holds holdfast:reconciler:default", _JOB_WELL),
    "refused end": Told(
        {**_JOB_WELL, "rates": numbers("duplicate-dispatch", second_ends={"": 0.01})},
        "per second in total",
        {**_JOB_WELL, "rates": numbers("duplicate-dispatch")},
    ),
    "rising": Told(
        {**_JOB_WELL, "policy": policy(duplicates={"step": (3, 2)})},
        "step 3 after 2",
        {**_JOB_WELL, "policy": policy(duplicates={"step": (2, 2)})},
    ),
    "contention": Told(
        {**_JOB_WELL, "rates": numbers("duplicate-dispatch", wait={"scheduler": 1.0})},
        "p99 wait for a job lock is 1 s",
        {**_JOB_WELL, "rates": numbers("duplicate-dispatch", wait={"scheduler": 0.99})},
    ),
}

_RUN_KEY = "holdfast:wf:run:lock:r"
_RUN = RunFact("r", "acme", "flow v1", "running", False, "high", 50, 5.0, None, (), 0, 4)
_RUN_LOOPS = LocksFact(
    (held_lock("holdfast:workflow-engine:reconciler:default"), held_lock("holdfast:wf:delay:poller"))
)
_RUN_WELL: Facts = {
    "run": _RUN,
    "loops": _RUN_LOOPS,
    "lock": LocksFact((held_lock(_RUN_KEY, fence=50, age=29.0, ttl=30.0, waiters=2),)),
}
_CONTENTION = {
    "stuck holder": Told(
        {**_RUN_WELL, "lock": LocksFact((held_lock(_RUN_KEY, fence=50, age=30.0, ttl=30.0),))},
        "stuck in one",
        _RUN_WELL,
    ),
    "stale holder": Told({**_RUN_WELL, "run": replace(_RUN, fence=51)}, "lost a newer grant", _RUN_WELL),
    "no leader": Told(
        {**_RUN_WELL, "loops": LocksFact((LockFact("holdfast:wf:delay:poller", False),))}, "not woken", _RUN_WELL
    ),
    "overdue": Told(
        {**_RUN_WELL, "run": replace(_RUN, overdue=15.5)},
        "was due",
        {**_RUN_WELL, "run": replace(_RUN, overdue=15.0)},
    ),
    "at rest": Told(
        {**_RUN_WELL, "run": replace(_RUN, at_rest=True, idle=32.0)},
        "nothing to wait for",
        {**_RUN_WELL, "run": replace(_RUN, at_rest=True, idle=30.0)},
    ),
    "repeated steps": Told(
        {**_RUN_WELL, "run": replace(_RUN, repeated=("fetch (attempt 1)",))}, "fetch (attempt 1)", _RUN_WELL
    ),
    "crowded": Told(
        {**_RUN_WELL, "lock": LocksFact((held_lock(_RUN_KEY, fence=50, age=1.0, waiters=3),))},
        "3 callers wait",
        _RUN_WELL,
    ),
    "written without the store": Told(
        {**_RUN_WELL, "run": replace(_RUN, unfenced=2)}, "class high failed open", _RUN_WELL
    ),
    "lost": Told(
        {**_RUN_WELL, "ledger": losses(Cause.PAUSE, 1)},
        "was lost 1 time",
        {**_RUN_WELL, "ledger": losses(Cause.PAUSE, 0)},
    ),
    "contention": Told(
        {**_RUN_WELL, "rates": numbers("workflow-contention", busy={"engine": 1.0})},
        "contended everywhere",
        {**_RUN_WELL, "rates": numbers("workflow-contention", busy={"engine": 0.9}, wait={"engine": 0.9})},
    ),
}

_WRITER = "holdfast:scheduler:snapshot:writer"
_LEADS = LocksFact((held_lock(_WRITER, fence=50, ttl=10.0, remaining=8.0),))
_LEAVES = LocksFact((LockFact(_WRITER, False),))
_SNAPSHOT = SnapshotFact(4.0, "plane@web-3:1/a", 50, 3, 3)
_SNAPSHOT_WELL: Facts = {"lock": _LEADS, "snapshot": _SNAPSHOT}
_SNAPSHOTS = {
    "never written": Told({"lock": _LEAVES, "snapshot": SnapshotFact(None)}, "ever written", _SNAPSHOT_WELL),
    "no leader": Told(
        {"lock": _LEAVES, "snapshot": replace(_SNAPSHOT, age=20.5)},
        "No process leads",
        {"lock": _LEAVES, "snapshot": replace(_SNAPSHOT, age=20.0)},
    ),
    "silent leader": Told(
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, age=20.5)},
        "has not written",
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, age=20.0)},
    ),
    "stale leader": Told(
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, fence=51)}, "writes are refused", _SNAPSHOT_WELL
    ),
    "takeover": Told(
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, age=10.5)},
        "another process takes over",
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, age=10.0)},
    ),
    "two leaders": Told(
        {**_SNAPSHOT_WELL, "rates": numbers("snapshot-leader", leaders={"": 2.0})},
        "2 processes report",
        {**_SNAPSHOT_WELL, "rates": numbers("snapshot-leader", leaders={"": 1.0})},
    ),
    "leadership lost": Told(
        {**_SNAPSHOT_WELL, "rates": numbers("snapshot-leader", lost={"": 0.1})},
        "moves between processes",
        {**_SNAPSHOT_WELL, "rates": numbers("snapshot-leader")},
    ),
    "workers have changed": Told(
        {"lock": _LEADS, "snapshot": replace(_SNAPSHOT, alive=4)}, "4 are alive", _SNAPSHOT_WELL
    ),
}

_STORE_WELL: Facts = {"store": WELL, "policy": CLOSED_OPEN}
_FELL = (ClassFact("high", "fail_closed", "start", 0), ClassFact("low", "fail_open", "start", 9))
_OUTAGE = {
    "down": Told(
        {"store": DOWN, "policy": CLOSED_OPEN},
        "Class high is fail_closed: work waits for the store; class low is fail_open",
        _STORE_WELL,
    ),
    "escalate": Told(
        {"store": WELL, "policy": policy(escalate=True, because="0.2 fallbacks a second")},
        "Make the open classes fail closed",
        _STORE_WELL,
    ),
    "cut off": Told(
        {**_STORE_WELL, "rates": numbers("store-outage", fallbacks={"h:1": 0.2})},
        "h:1 does not reach it",
        {**_STORE_WELL, "rates": numbers("store-outage", fallbacks={"h:1": 0.001})},
    ),
    "flaky": Told({**_STORE_WELL, "store": StoreFact("redis", 3, 2, 0.1, "no answer")}, "2 of 3 PINGs", _STORE_WELL),
    "replica": Told(
        {**_STORE_WELL, "store": replace(WELL, about={"role": "slave", "master_link_status": "down"})},
        "The server is slave",
        _STORE_WELL,
    ),
    "evicting": Told(
        {**_STORE_WELL, "store": replace(WELL, about={"role": "master", "maxmemory_policy": "volatile-ttl"})},
        "may evict keys",
        _STORE_WELL,
    ),
    "policy behind": Told(
        {**_STORE_WELL, "rates": numbers("store-outage", policy_revision={"a": 4.0, "b": 5.0})},
        "a follows an older policy",
        {**_STORE_WELL, "rates": numbers("store-outage", policy_revision={"a": 5.0, "b": 5.0})},
    ),
    "recovered": Told(
        {"store": WELL, "policy": policy(classes=_FELL), "rates": numbers("store-outage")},
        "fallbacks have returned to zero",
        _STORE_WELL,
    ),
    "left closed": Told(
        {"store": WELL, "policy": policy(classes=(ClassFact("high", "fail_closed", "escalation", 0),))},
        "never switches back automatically",
        _STORE_WELL,
    ),
}

_PROOFS = ("contention", "owner", "stale release", "expiry", "exclusion", "clean-up")
_PROVED: Facts = {step: ProofFact("locks exclude", True, ()) for step in _PROOFS}
_TTL = {
    f"{step} not proved": Told(
        {**_PROVED, step: ProofFact("locks exclude", False, ("seen",))}, "not true that locks exclude (seen)", _PROVED
    )
    for step in _PROOFS
}

CASES: Mapping[str, Mapping[str, Told]] = {
    "why": WHYS,
    "not-owned": _NOT_OWNED,
    "duplicate-dispatch": _DUPLICATES,
    "workflow-contention": _CONTENTION,
    "snapshot-leader": _SNAPSHOTS,
    "store-outage": _OUTAGE,
    "lock-debt": DEBTS,
    "retry-waves": WAVES,
    "before-ttl-change": _TTL,
}
WELL_CASES: Mapping[str, Facts] = {
    "why": WHY_WELL,
    "not-owned": QUIET,
    "duplicate-dispatch": _JOB_WELL,
    "workflow-contention": _RUN_WELL,
    "snapshot-leader": _SNAPSHOT_WELL,
    "store-outage": _STORE_WELL,
    "lock-debt": DEBT_WELL,
    "retry-waves": CALM,
    "before-ttl-change": _PROVED,
}
ARGUMENTS: Mapping[str, Mapping[str, str]] = {"duplicate-dispatch": {"JOB": "j"}, "workflow-contention": {"RUN": "r"}}
UNREACHED = Unavailable("cannot be reached")
