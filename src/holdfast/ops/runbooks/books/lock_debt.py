"""`holdfast runbook lock-debt`: work waits; the runbook finds the cause: a tenant, a pool, a holder or a loop."""

from __future__ import annotations

from typing import Final

from holdfast.ops.runbooks.books import causes_work
from holdfast.ops.runbooks.collectors.locks import HELD_STEP, lock_step, metrics_step
from holdfast.ops.runbooks.collectors.plane import DEBT_STEP
from holdfast.ops.runbooks.collectors.work import FLEET_STEP, WORK_STEP
from holdfast.ops.runbooks.evidence.locks import HeldFact, LockFact, LocksFact, number, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.evidence.plane import DebtFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep, Runbook, typed
from holdfast.plane.locks.registry import FAMILIES, RECONCILER, REPLAYER, Scope

WAITING: Final = 20
SHARE: Final = 0.5
WAIT_S: Final = 1.0
AGE_TTLS: Final = 2.0
CAUSES: Final = ("worker silent", "topic without workers", "handler hangs", "jobs wait")
"""Causes of waiting work that are no matter of locks; the same rules as in `why`."""


def _debt(case: Case) -> DebtFact | None:
    return case.fact("debt", DebtFact)


def _limit(tenant: str) -> NextStep:
    return NextStep(
        f"curl -X PUT $ADDRESS/api/v1/tenants/{tenant}/limits --json '{{\"slots\": N}}'",
        f"how many jobs of {tenant} may run concurrently; takes effect immediately",
    )


def _held_back(case: Case) -> Conclusion | None:
    debt = _debt(case)
    full = [each for each in debt.tenants if each.full and each.waiting >= WAITING] if debt is not None else []
    if not full:
        return None
    worst = full[0]
    others = f", and {number(len(full) - 1, 'other tenant', 'other tenants')} too" if len(full) > 1 else ""
    sentence = (
        f"Tenant {worst.name} has {worst.waiting} queued jobs and all of its {worst.slots} slots in use (the oldest "
        f"has waited {span(worst.oldest)}): its own limit delays it{others}. The plane works as configured."
    )
    return Conclusion(
        sentence, ("debt",), (_limit(worst.name), NextStep("holdfast jobs stats", "whether there is free capacity"))
    )


def _noisy(case: Case) -> Conclusion | None:
    debt = _debt(case)
    if debt is None or not debt.running or debt.waiting < WAITING:
        return None
    top = max(debt.tenants, key=lambda each: each.running)
    others = [each for each in debt.tenants if each is not top and each.waiting and not each.full]
    if top.running <= SHARE * debt.running or not others or len(debt.tenants) < 2:
        return None
    sentence = (
        f"Tenant {top.name} has {top.running} of the {debt.running} dispatched jobs, while "
        f"{number(len(others), 'other tenant waits', 'other tenants wait')} ({others[0].name} for "
        f"{span(others[0].oldest)}): one tenant uses most of the shared capacity."
    )
    return Conclusion(
        sentence, ("debt",), (_limit(top.name),), "likely: dispatch is fair by tenant, so it may already change"
    )


def _no_workers(case: Case) -> Conclusion | None:
    debt = _debt(case)
    empty = [each for each in debt.pools if each.waiting and not each.workers] if debt is not None else []
    if not empty:
        return None
    sentence = f"Pool {empty[0].name} has {empty[0].waiting} queued jobs and no live worker: locks are not the cause."
    return Conclusion(sentence, ("debt",), (NextStep("holdfast worker MODULE:APP", "a worker for that pool (--pool)"),))


def _saturated(case: Case) -> Conclusion | None:
    debt = _debt(case)
    full = (
        [each for each in debt.pools if each.workers and each.running >= each.capacity and each.waiting >= WAITING]
        if debt is not None
        else []
    )
    if not full:
        return None
    if causes_work.hangs(case):
        return None
    pool = full[0]
    sentence = (
        f"Pool {pool.name} is full: {pool.running} jobs on {pool.workers} workers with {pool.capacity} slots, and "
        f"{pool.waiting} queued. More workers help; changes to locks do not."
    )
    return Conclusion(sentence, ("debt",), (NextStep("holdfast worker MODULE:APP --concurrency N", "more capacity"),))


def _old_holders(case: Case) -> Conclusion | None:
    found = case.fact("held", HeldFact)
    old: list[LockFact] = []
    for family in found.families if found is not None else ():
        known = FAMILIES.get(family.family)
        lock = family.oldest
        item = known is None or (known.scope is Scope.ITEM and family.family != "worker.job")
        if item and family.waiters and lock.age is not None and lock.ttl and lock.age > AGE_TTLS * lock.ttl:
            old.append(lock)
    if not old:
        return None
    worst = max(old, key=lambda each: each.age or 0.0)
    sentence = (
        f"{worst.owner} has held {worst.key} for {span(worst.age)}, more than {AGE_TTLS:g} TTLs, while others wait: "
        f"one holder causes the backlog."
    )
    steps = (
        NextStep(typed("holdfast", "inspect", worst.key), "whether it still is"),
        NextStep(typed("holdfast", "release", worst.key, "--reason", "held for too long"), "fences its holder out"),
    )
    return Conclusion(sentence, ("held",), steps)


def _stale(case: Case) -> Conclusion | None:
    debt, loops = _debt(case), case.fact("loops", LocksFact)
    overdue = {state: count for state, count in debt.overdue.items() if count} if debt is not None else {}
    if not overdue:
        return None
    shown = ", ".join(f"{count} {state}" for state, count in overdue.items())
    free = [each.key for each in loops.locks if not each.held] if loops is not None else []
    why = f" No process holds {' and '.join(free)}, which would end or recover such jobs." if free else ""
    sentence = f"Jobs are past the time limits of their states: {shown}.{why}"
    steps = (NextStep("holdfast up --only reconciler,replayer", "loops for overdue jobs"),) if free else ()
    again = NextStep("holdfast runbook lock-debt", "again after two intervals: the number must fall")
    return Conclusion(
        sentence, ("debt", "loops"), (*steps, again), "sure" if free else "sure; run it again to see growth"
    )


def _contended(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (worst := found.worst("wait"))[1] < WAIT_S:
        return None
    sentence = f"The p99 wait for job locks is {span(worst[1])} ({worst[0] or 'all parts'}), of 2 s at most."
    steps = (
        NextStep("holdfast tune --family scheduler.job", "the TTL that the holds require"),
        NextStep("holdfast runbook retry-waves", "whether retries come in waves"),
    )
    return Conclusion(sentence, ("rates",), steps)


def _open(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (rate := found.total("fail-open") or 0.0) <= 0:
        return None
    sentence = f"Runs without the store submit {rate:.3g} jobs per second: another replica may submit duplicates."
    return Conclusion(sentence, ("rates",), (NextStep("holdfast runbook store-outage", "whether the store is down"),))


def _orphans(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (rate := found.total("orphans replayed") or 0.0) <= 0:
        return None
    sentence = f"{rate:.3g} orphaned jobs resume per second: messages or schedulers were lost, and are recovered."
    return Conclusion(
        sentence, ("rates",), (NextStep("holdfast jobs dead-letters", "whether any messages were dead-lettered"),)
    )


RUNBOOK: Final = Runbook(
    name="lock-debt",
    title="Work waits: find the cause of the backlog",
    when="jobs wait for too long; p99 of `holdfast_job_lock_wait` rises; one tenant complains, or all do",
    needs="the database and the lease store; metrics for waits and rates",
    over="no job is past the time limit of its state, and the oldest waiting job gets younger: run it "
    "again, or `holdfast jobs stats`",
    steps=(
        DEBT_STEP,
        WORK_STEP,
        FLEET_STEP,
        HELD_STEP,
        lock_step("loops", "which processes end overdue jobs and recover orphaned ones", RECONCILER, REPLAYER),
        metrics_step(
            "rates",
            "waits for job locks, current waiters, recovery debt, and fail-open pressure",
            MetricQuery("wait", "holdfast_job_lock_wait", Aggregation.P99, ("part",), unit=" s"),
            MetricQuery("hold", "holdfast_lock_hold_seconds", Aggregation.P99, ("family",), unit=" s"),
            MetricQuery("waiting", "holdfast_locks_waiting", Aggregation.NOW, ("family",)),
            MetricQuery("stale jobs", "holdfast_stale_jobs", Aggregation.NOW, ("state",), worst=True),
            MetricQuery("orphans replayed", "holdfast_orphan_replayed_total"),
            MetricQuery("fail-open", "holdfast_scheduler_input_fail_open_total"),
        ),
    ),
    rules=(
        *(each for each in causes_work.rules() if each.name in CAUSES),
        FindingRule(
            "tenant at its limit",
            FindingSeverity.ACT,
            f"a tenant uses all of its slots and has {WAITING} or more queued jobs",
            _held_back,
        ),
        FindingRule(
            "noisy tenant",
            FindingSeverity.ACT,
            f"one tenant has more than {SHARE:.0%} of the dispatched jobs, {WAITING} or more jobs are queued, and some "
            "of them belong to tenants below their limit",
            _noisy,
        ),
        FindingRule("no workers", FindingSeverity.ACT, "jobs are queued in a pool without a live worker", _no_workers),
        FindingRule(
            "old holder",
            FindingSeverity.ACT,
            f"a lock of one item is held for {AGE_TTLS:g} TTLs while others wait",
            _old_holders,
        ),
        FindingRule("stale jobs", FindingSeverity.ACT, "jobs are past the time limits of their states", _stale),
        FindingRule(
            "pool is full",
            FindingSeverity.WATCH,
            f"all slots of a pool's workers are in use, and {WAITING} jobs are queued",
            _saturated,
        ),
        FindingRule(
            "contention", FindingSeverity.WATCH, f"the p99 wait for job locks is {WAIT_S:g} s or more", _contended
        ),
        FindingRule("fail-open", FindingSeverity.WATCH, "jobs reach the scheduler from runs without the store", _open),
        FindingRule("orphans", FindingSeverity.WATCH, "orphaned jobs resume", _orphans),
    ),
    fine="Nothing waits for a tenant limit, a worker, a stuck holder, or a loop without a leader.",
    essential=("debt", "work", "workers", "held", "loops"),
)
