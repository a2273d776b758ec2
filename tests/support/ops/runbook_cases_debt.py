"""The cases of the runbooks about work that waits: lock debt, and retries in waves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.core.tuning.fleet_burstiness import GROUPS
from holdfast.ops.runbooks.books.lock_debt import CAUSES
from holdfast.ops.runbooks.evidence.locks import FamilyHeld, HeldFact
from holdfast.ops.runbooks.evidence.plane import DebtFact, PendingFact, PoolDebt, RetryFact, TenantDebt
from holdfast.ops.runbooks.examples import everything, held_lock
from support.ops.runbook_cases_why import WHYS
from support.ops.runbook_facts import FREE_LOOP, LOOPS, Facts, Told, numbers

_OWES = TenantDebt("acme", 4, 4, 20, 9.0)
_POOL = PoolDebt("default", 4, 2, 16, 20)
_DEBT = DebtFact((TenantDebt("acme", 4, 8, 0),), (PoolDebt("default", 4, 2, 16, 0),), {"RUNNING": 0})
_OLD = FamilyHeld("scheduler.job", 2, 1, held_lock("k", age=121.0), ())
_WORK = {key: everything()[key] for key in ("work", "workers")}
DEBT_WELL: Facts = {"debt": _DEBT, "held": HeldFact(()), "loops": LOOPS, **_WORK}


def _as_in_why(rule: str) -> Told:
    """The same evidence as for the runbook of causes."""
    told = WHYS[rule]
    work = {key: told.enough[key] for key in ("work", "workers")}
    return Told({**DEBT_WELL, **work}, told.words, DEBT_WELL)


def _owing(**more: Any) -> Facts:
    return {**DEBT_WELL, "debt": replace(_DEBT, **more)}


DEBTS = {
    **{rule: _as_in_why(rule) for rule in CAUSES},
    "tenant at its limit": Told(
        _owing(tenants=(_OWES,), pools=(_POOL,)),
        "Tenant acme has 20 queued jobs and all of its 4 slots",
        _owing(tenants=(replace(_OWES, waiting=19),)),
    ),
    "noisy tenant": Told(
        _owing(tenants=(TenantDebt("acme", 9, None, 10), TenantDebt("globex", 1, None, 10, 30.0))),
        "Tenant acme has 9 of the 10",
        _owing(tenants=(TenantDebt("acme", 5, None, 10), TenantDebt("globex", 5, None, 10, 30.0))),
    ),
    "no workers": Told(
        _owing(pools=(replace(_POOL, workers=0, capacity=0, waiting=1),)),
        "no live worker",
        _owing(pools=(_POOL,)),
    ),
    "old holder": Told(
        {**DEBT_WELL, "held": HeldFact((_OLD,))},
        "one holder causes the backlog",
        {**DEBT_WELL, "held": HeldFact((replace(_OLD, oldest=held_lock("k", age=119.0)),))},
    ),
    "stale jobs": Told(
        {**_owing(overdue={"RUNNING": 3}), "loops": FREE_LOOP}, "3 RUNNING. No process holds", DEBT_WELL
    ),
    "pool is full": Told(
        _owing(pools=(replace(_POOL, running=16),)), "Pool default is full", _owing(pools=(replace(_POOL, running=15),))
    ),
    "contention": Told(
        {**DEBT_WELL, "rates": numbers("lock-debt", wait={"scheduler": 1.0})},
        "of 2 s at most",
        {**DEBT_WELL, "rates": numbers("lock-debt", wait={"scheduler": 0.99})},
    ),
    "fail-open": Told(
        {**DEBT_WELL, "rates": numbers("lock-debt", **{"fail-open": {"": 0.1}})},
        "without the store",
        {**DEBT_WELL, "rates": numbers("lock-debt")},
    ),
    "orphans": Told(
        {**DEBT_WELL, "rates": numbers("lock-debt", orphans_replayed={"": 0.1})},
        "orphaned jobs",
        {**DEBT_WELL, "rates": numbers("lock-debt")},
    ),
}

_TTLS = {"scheduler.job": 60.0, "worker.job": 30.0, "workflow.run": 30.0}
_RETRY = RetryFact(0.5, 0.0, _TTLS, {name: ttl / 3 for name, ttl in _TTLS.items()}, "the bus kept the delay")
_BUSY = {"workflow.run": 2.0}


def _wave(fano: float, peak: float, **more: Mapping[str, float]) -> Facts:
    found = numbers("retry-waves", fano={"50ms": fano}, peak={"50ms": peak}, **{"busy": _BUSY, **more})
    return {"rates": found, "retrying": _RETRY}


CALM: Facts = {"rates": numbers("retry-waves"), "retrying": _RETRY}
WAVES = {
    "waves": Told(_wave(4.0, 5.0), "Retries come in waves", _wave(3.9, 5.0)),
    "re-collision": Told(
        {**CALM, "rates": numbers("retry-waves", hold={"workflow.run": 0.5})},
        "finds the same holder again",
        {**CALM, "rates": numbers("retry-waves", hold={"workflow.run": 0.49, "worker.job": 9.0})},
    ),
    "jitter too wide": Told(
        {**CALM, "retrying": replace(_RETRY, jitter=5.1)},
        "miss a whole free period",
        {**CALM, "retrying": replace(_RETRY, jitter=5.0, delay=9.0)},
    ),
    "delay not kept": Told({**CALM, "retrying": replace(_RETRY, carried="WRONG: too early")}, "too early", CALM),
    "messages pile up": Told(
        {**CALM, "pending": PendingFact({"run.result": 0}, {"run.result": 20}, 3.0)},
        "pile up: +20",
        {**CALM, "pending": PendingFact({"run.result": 0}, {"run.result": 19}, 3.0)},
    ),
    "busy, evenly": Told(
        _wave(1.0, 1.5, busy_by_group={f"{group:02}": 1.0 for group in range(GROUPS)}),
        "they are spread evenly (Fano factor 1 at most at a process, 0 over all): jitter would change nothing",
        _wave(1.0, 1.5, busy={"workflow.run": 0.9}),
    ),
}
