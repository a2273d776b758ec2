"""`holdfast runbook workflow-contention [RUN]`: a run makes no progress, or its lock is busy; and which run."""

from __future__ import annotations

from typing import Final

from holdfast.ops.runbooks.collectors.locks import history_step, lock_step, metrics_step
from holdfast.ops.runbooks.collectors.plane import PENDING_STEP, RUN_STEP
from holdfast.ops.runbooks.collectors.searches import (
    HELD_S,
    RUNS_IN_DATABASE,
    RUNS_IN_LEASES,
    RUNS_IN_LEDGER,
    run_bound,
)
from holdfast.ops.runbooks.evidence.ledger import LedgerFact
from holdfast.ops.runbooks.evidence.locks import LockFact, LocksFact, number, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.evidence.plane import PendingFact, RunFact
from holdfast.ops.runbooks.model import (
    Argument,
    Case,
    Conclusion,
    FindingRule,
    FindingSeverity,
    NextStep,
    Runbook,
    typed,
)
from holdfast.plane.locks.registry import WORKFLOW_DELAYS, WORKFLOW_RECONCILER, WORKFLOW_RUN
from holdfast.plane.settings.consistency import takeovers

WAITERS: Final = 3
WAIT_S: Final = HELD_S
BUSY_RATE: Final = 1.0


def _lock(case: Case) -> LockFact | None:
    found = case.fact("lock", LocksFact)
    return None if found is None else found.get(case.key(WORKFLOW_RUN, run=case.arguments["RUN"]))


def _loop_bound(case: Case) -> float:
    """How late the loops that wake runs may be after a crash."""
    return max(each.seconds for each in takeovers(case.settings) if each.key in {"runs.interval", "delays.interval"})


def _break(lock: LockFact, why: str) -> NextStep:
    return NextStep(
        typed("holdfast", "release", lock.key, "--reason", why), "fences its holder out; another process continues"
    )


def _held_long(case: Case) -> Conclusion | None:
    lock = _lock(case)
    if lock is None or not lock.held or lock.age is None or lock.ttl is None or lock.age < lock.ttl:
        return None
    waiting = f", and {number(lock.waiters, 'waits', 'wait')}" if lock.waiters else ""
    sentence = (
        f"{lock.owner} has held the lock of run {case.arguments['RUN']} for {span(lock.age)}{waiting}: a transition "
        f"takes milliseconds, so the holder is stuck in one, and still renews."
    )
    steps = (
        NextStep(typed("holdfast", "inspect", lock.key), "whether it is still the same holder and fence"),
        _break(lock, "stuck in a transition"),
    )
    return Conclusion(sentence, ("lock",), steps)


def _crowded(case: Case) -> Conclusion | None:
    lock = _lock(case)
    if lock is None or not lock.held or lock.waiters < WAITERS:
        return None
    sentence = (
        f"{number(lock.waiters, 'caller waits', 'callers wait')} for the lock of run {case.arguments['RUN']}, which "
        f"{lock.owner} has held for {span(lock.age)}: many results of one run arrive together, and each needs the "
        f"lock."
    )
    step = NextStep("holdfast runbook retry-waves", "whether retries come in waves")
    return Conclusion(sentence, ("lock",), (step,), "sure for this moment; run it again")


def _stale_holder(case: Case) -> Conclusion | None:
    run, lock = case.fact("run", RunFact), _lock(case)
    if run is None or lock is None or lock.fence is None or run.fence is None or lock.fence >= run.fence:
        return None
    sentence = (
        f"{lock.owner} holds the lock of run {run.id} with fence {lock.fence}, and the run was written under fence "
        f"{run.fence}: the store has lost a newer grant. Storage refuses the writes of this holder."
    )
    return Conclusion(sentence, ("lock", "run"), (_break(lock, "older than the run's fence"),))


def _no_leader(case: Case) -> Conclusion | None:
    found = case.fact("loops", LocksFact)
    free = [each.key for each in found.locks if not each.held] if found is not None else []
    if not free:
        return None
    sentence = f"No process holds {' and '.join(free)}: runs with a missed message or a due timer are not woken."
    step = NextStep("holdfast up --only runs,delays", "on any host that reaches the same stores")
    return Conclusion(
        sentence, ("loops",), (step,), "sure, unless a tick has just ended in rotating mode; run it again"
    )


def _overdue(case: Case) -> Conclusion | None:
    run, bound = case.fact("run", RunFact), _loop_bound(case)
    if run is None or run.over or run.overdue is None or run.overdue <= bound:
        return None
    sentence = (
        f"Run {run.id} was due {span(run.overdue)} ago, and no process has advanced it: longer than the loops may "
        f"take after a crash ({span(bound)})."
    )
    steps = (
        NextStep("holdfast up --only engine,runs,delays", "an engine and its loops, if none is alive"),
        NextStep(typed("holdfast", "runs", "timeline", run.id), "its last event"),
    )
    return Conclusion(sentence, ("run", "loops"), steps)


def _at_rest(case: Case) -> Conclusion | None:
    run, bound = case.fact("run", RunFact), run_bound(case.settings)
    if run is None or not run.at_rest or run.overdue or run.idle <= bound:
        return None
    sentence = (
        f"Run {run.id} has nothing to wait for, but has not advanced for {span(run.idle)}: longer than it takes "
        f"until another engine or a loop takes it over ({span(bound)})."
    )
    steps = (
        NextStep("holdfast up --only engine,runs,delays", "an engine and its loops, if none is alive"),
        NextStep(typed("holdfast", "runs", "timeline", run.id), "its last event"),
    )
    return Conclusion(sentence, ("run",), steps)


def _repeated(case: Case) -> Conclusion | None:
    run = case.fact("run", RunFact)
    if run is None or not run.repeated:
        return None
    sentence = f"Steps of run {run.id} completed more than once: {', '.join(run.repeated)}."
    steps = (
        NextStep(typed("holdfast", "runs", "timeline", run.id), "by whom, and with which fences"),
        NextStep("holdfast runbook store-outage", "whether locks fell back"),
    )
    return Conclusion(sentence, ("run",), steps)


def _unfenced(case: Case) -> Conclusion | None:
    run = case.fact("run", RunFact)
    if run is None or not run.unfenced:
        return None
    sentence = (
        f"{number(run.unfenced, 'event', 'events')} in the timeline of {run.id} were written without the lease store: "
        f"class {run.risk} failed open meanwhile."
    )
    return Conclusion(sentence, ("run",), (NextStep("holdfast policy history", "who allowed it, and since when"),))


def _busy(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None:
        return None
    wait, busy = found.worst("wait")[1], found.total("busy") or 0.0
    if wait < WAIT_S and busy < BUSY_RATE:
        return None
    pending = case.fact("pending", PendingFact)
    growing = f", and {pending.growth:+d} messages are queued" if pending is not None and pending.growth > 0 else ""
    sentence = (
        f"Run locks are contended everywhere: p99 wait {span(wait)}, {busy:.3g} busy attempts per second{growing}."
    )
    step = NextStep("holdfast tune --family workflow.run", "the TTL that the holds require")
    return Conclusion(
        sentence, ("rates", "pending"), (step, NextStep("holdfast runbook retry-waves", "whether in waves"))
    )


def _lost(case: Case) -> Conclusion | None:
    ledger = case.fact("ledger", LedgerFact)
    if ledger is None or not ledger.losses:
        return None
    newest = ledger.losses[0]
    times = number(len(ledger.losses), "time", "times")
    sentence = f"The lock of run {case.arguments['RUN']} was lost {times}, last: {newest.why}."
    return Conclusion(
        sentence,
        ("ledger",),
        (NextStep("holdfast runbook not-owned --ledger LEDGER", "whether other leases are lost too"),),
    )


RUNBOOK: Final = Runbook(
    name="workflow-contention",
    title="A run makes no progress, or its lock is busy",
    when="`run lock busy` again and again for one run; a run whose steps are finished but that does not continue",
    needs="the lease store and the database; the run id, if it is known; --ledger and metrics for the past",
    over="the run continues: `holdfast runs show RUN` prints a newer event, and the wait for its lock is "
    "milliseconds again",
    argument=Argument(
        "RUN",
        "run",
        "the id of the run",
        "`holdfast locks holdfast:wf:run:lock:` lists the holders and waiters",
        "The lock of run {id} is free or has only just been taken, and it is not overdue.",
        (RUNS_IN_LEASES, RUNS_IN_LEDGER, RUNS_IN_DATABASE),
    ),
    steps=(
        lock_step(
            "lock", "which process advances the run, since when, and how many wait", WORKFLOW_RUN, argument="RUN"
        ),
        lock_step("loops", "which processes wake runs that missed a message", WORKFLOW_RECONCILER, WORKFLOW_DELAYS),
        RUN_STEP,
        history_step("ledger", "the history of the lock of the run", "RUN", WORKFLOW_RUN),
        PENDING_STEP,
        metrics_step(
            "rates",
            "waits for run locks, how long they are held, and how often they are busy",
            MetricQuery("wait", "holdfast_run_lock_wait", Aggregation.P99, ("part",), unit=" s"),
            MetricQuery("hold", "holdfast_run_lock_hold", Aggregation.P50, ("part",), unit=" s"),
            MetricQuery("busy", "holdfast_run_lock_busy_total", by=("part",)),
            MetricQuery("store errors", "holdfast_run_lock_backend_errors_total", by=("part",)),
            MetricQuery("abandoned", "holdfast_run_lock_abandoned_total", by=("part",)),
        ),
    ),
    rules=(
        FindingRule(
            "stuck holder",
            FindingSeverity.ACT,
            "the lock has been held for longer than its TTL, so it is renewed",
            _held_long,
        ),
        FindingRule(
            "stale holder", FindingSeverity.ACT, "the holder's fence is older than the fence on the run", _stale_holder
        ),
        FindingRule(
            "no leader",
            FindingSeverity.ACT,
            "no process holds the lock of the run reconciler or of the delay poller",
            _no_leader,
        ),
        FindingRule(
            "overdue",
            FindingSeverity.ACT,
            "it was due longer ago than the loops may take after a crash (their TTL and one interval)",
            _overdue,
        ),
        FindingRule(
            "at rest",
            FindingSeverity.ACT,
            "none of its steps runs or waits, and it has not advanced for longer than a takeover may take",
            _at_rest,
        ),
        FindingRule("repeated steps", FindingSeverity.ACT, "a step completed twice in one attempt", _repeated),
        FindingRule("crowded", FindingSeverity.WATCH, f"{WAITERS} or more callers wait for it now", _crowded),
        FindingRule(
            "written without the store", FindingSeverity.WATCH, "events of its timeline have no fence", _unfenced
        ),
        FindingRule("lost", FindingSeverity.WATCH, "the ledger has losses of its lock", _lost),
        FindingRule(
            "contention",
            FindingSeverity.WATCH,
            f"the p99 wait for run locks is {WAIT_S:g} s or more, or {BUSY_RATE:g} attempts per second are busy",
            _busy,
        ),
    ),
    fine="The lock of the run is free or has only just been taken, its loops have leaders, and it is not overdue.",
    essential=("lock", "loops", "run"),
)
