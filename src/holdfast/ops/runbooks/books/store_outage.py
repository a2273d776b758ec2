"""`holdfast runbook store-outage`: the lease store is down or slow; what runs without it, and what to switch."""

from __future__ import annotations

from typing import Final

from holdfast.core.history.events import EventKind
from holdfast.core.lease.error_policy import OnError
from holdfast.ops.runbooks.collectors.locks import POLICY_STEP, ledger_step, metrics_step
from holdfast.ops.runbooks.collectors.servers import STORE_STEP
from holdfast.ops.runbooks.evidence.ledger import LedgerFact
from holdfast.ops.runbooks.evidence.locks import PolicyFact, StoreFact, number, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep, Runbook
from holdfast.plane.policy.model import PolicySource as Word
from holdfast.plane.service.policy import NEAR_ZERO

LOG_TEXT: Final = "distributed lock failed — using local-only lock; a cross-replica race is possible"


def _meaning(policy: PolicyFact | None) -> str:
    if policy is None:
        return (
            "The modes of the risk classes are unknown, because the database was not read; the default is fail_closed."
        )
    told = []
    if closed := policy.named(OnError.FAIL_CLOSED):
        told.append(f"{_classes(closed)} fail_closed: work waits for the store")
    if opened := policy.named(OnError.FAIL_OPEN):
        told.append(f"{_classes(opened)} fail_open: work runs under local locks, and another replica may run it too")
    if waits := policy.named(OnError.WAIT):
        told.append(f"{_classes(waits)} configured to wait for the store")
    return "; ".join(told)[:1].upper() + "; ".join(told)[1:] + "."


def _classes(names: tuple[str, ...]) -> str:
    return f"class {names[0]} is" if len(names) == 1 else f"classes {', '.join(names)} are"


def _close(policy: PolicyFact | None) -> tuple[NextStep, ...]:
    names = () if policy is None else policy.named(OnError.FAIL_OPEN)
    return tuple(
        NextStep(
            f'holdfast policy set {risk} fail_closed --reason "the lease store is down"',
            f"only if work of class {risk} must not run twice",
        )
        for risk in names
    )


def _down(case: Case) -> Conclusion | None:
    found, policy = case.fact("store", StoreFact), case.fact("policy", PolicyFact)
    if found is None or not found.down:
        return None
    sentence = f"The lease store does not answer ({found.error}). {_meaning(policy)}"
    look = "redis-cli PING" if found.engine == "redis" else "holdfast locks"
    steps = (
        NextStep(look, "repair the store: everything waits for it"),
        NextStep("holdfast policy show", "how often locks fall back, and whether duplicates rise"),
        *_close(policy),
        NextStep("holdfast runbook store-outage", "again when it is back: fallbacks must return to zero"),
    )
    return Conclusion(sentence, ("store", "policy"), steps)


def _escalate(case: Case) -> Conclusion | None:
    policy = case.fact("policy", PolicyFact)
    if policy is None or not policy.escalate:
        return None
    sentence = f"Running without locks does harm: {policy.because}. Make the open classes fail closed."
    steps = tuple(
        NextStep(f'holdfast policy set {risk} fail_closed --reason "{policy.because}"', "applies to all processes")
        for risk in policy.named(OnError.FAIL_OPEN)
    )
    return Conclusion(sentence, ("policy",), steps)


def _cut_off(case: Case) -> Conclusion | None:
    """The store answers here, but another process cannot reach it."""
    found, rates = case.fact("store", StoreFact), case.fact("rates", MetricsFact)
    if found is None or found.down or rates is None:
        return None
    falling = rates.worst("fallbacks")
    refusing = rates.worst("breaker")
    if falling[1] <= NEAR_ZERO and refusing[1] < 1:
        return None
    who = falling[0] if falling[1] > NEAR_ZERO else refusing[0]
    sentence = (
        f"The store answers here, and {who or 'a process'} does not reach it ({falling[1]:.3g} fallbacks per second): "
        f"check its network, its credentials and its address."
    )
    step = NextStep(f"curl -s http://{who}/readyz", "the process's own view of the store")
    return Conclusion(sentence, ("store", "rates"), (step,) if who else ())


def _flaky(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    if found is None or found.down or not found.error:
        return None
    sentence = f"The store answered {found.answered} of {found.asked} PINGs: {found.error}."
    return Conclusion(
        sentence, ("store",), (NextStep("holdfast runbook store-outage", "run it again: the fault is intermittent"),)
    )


def _replica(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = found.about if found is not None else None
    if about is None or (about.get("role") in {None, "master"} and about.get("loading", "0") == "0"):
        return None
    sentence = (
        f"The server is {about.get('role', '?')} (link to its primary: {about.get('master_link_status', '?')}, last "
        f"contact {about.get('master_last_io_seconds_ago', '?')} s ago): leases need a writable server, and a replica "
        f"may lack the newest ones."
    )
    step = NextStep("redis-cli INFO replication", "which server is the primary; configure the plane to use it")
    return Conclusion(sentence, ("store",), (step,))


def _evicting(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    about = found.about if found is not None else None
    if about is None or about.get("maxmemory_policy", "noeviction") == "noeviction":
        return None
    sentence = (
        f"The server may evict keys when its memory is full (maxmemory_policy {about['maxmemory_policy']}, "
        f"{about.get('evicted_keys', '?')} so far): a lock can vanish while it is held."
    )
    step = NextStep("redis-cli CONFIG SET maxmemory-policy noeviction", "locks must not be evicted")
    return Conclusion(sentence, ("store",), (step,))


def _recovered(case: Case) -> Conclusion | None:
    found, policy = case.fact("store", StoreFact), case.fact("policy", PolicyFact)
    rates, ledger = case.fact("rates", MetricsFact), case.fact("ledger", LedgerFact)
    fell = 0 if policy is None else sum(each.fallbacks for each in policy.classes)
    told = 0 if ledger is None else ledger.count(EventKind.FELL_BACK)
    if found is None or found.down or not (fell or told):
        return None
    if rates is None:
        again = "whether fallbacks continue is not known yet"
        sure = "likely: --metrics URL of each process shows whether fallbacks have ended"
    elif rates.worst("fallbacks")[1] <= NEAR_ZERO:
        again, sure = f"fallbacks have returned to zero ({rates.over})", "sure"
    else:
        return None  # another rule covers it
    sentence = (
        f"The store answers, after {number(max(fell, told), 'lock fell', 'locks fell')} back in the last "
        f"{span(policy.window_s if policy is not None else _window(ledger))}; {again}."
    )
    because = ("store", "policy", "rates", "ledger")
    step = NextStep("holdfast check LEDGER --since 1h", "whether any work ran twice meanwhile")
    return Conclusion(sentence, because, (step,), sure)


def _window(ledger: LedgerFact | None) -> float:
    return 0.0 if ledger is None else ledger.window_s


def _left_closed(case: Case) -> Conclusion | None:
    found, policy = case.fact("store", StoreFact), case.fact("policy", PolicyFact)
    if found is None or found.down or policy is None:
        return None
    left = [each.risk for each in policy.classes if each.by == str(Word.ESCALATION)]
    if not left:
        return None
    sentence = f"The escalation has switched {', '.join(left)} to fail_closed, and never switches back automatically."
    steps = tuple(
        NextStep(
            f'holdfast policy set {risk} fail_open --reason "the store is healthy"', "once duplicates are understood"
        )
        for risk in left
    )
    return Conclusion(sentence, ("store", "policy"), steps)


def _behind(case: Case) -> Conclusion | None:
    rates = case.fact("rates", MetricsFact)
    revisions = {} if rates is None else rates.numbers.get("policy revision", {})
    if len(set(revisions.values())) < 2:
        return None
    late = min(revisions, key=lambda each: revisions[each])
    sentence = (
        f"{late} follows an older policy than others: it cannot reach the database, so a switch does not reach it."
    )
    return Conclusion(
        sentence, ("rates",), (NextStep(f"curl -s http://{late}/readyz", "whether it reaches the database"),)
    )


RUNBOOK: Final = Runbook(
    name="store-outage",
    title="The lease store is down or slow: what runs without it, and what to switch",
    when="fallbacks above 0.1 per second for five minutes; `PolicyDenied` or `Unavailable` in logs; readiness fails by "
    "leases; after an outage, to check that it is over",
    needs="the lease store; the database, which has the policy and the counters of all processes; metrics by process",
    over="the store answers, no lock falls back, and the report says that fallbacks have returned to zero; it exits 0",
    steps=(
        STORE_STEP,
        POLICY_STEP,
        metrics_step(
            "rates",
            "fallbacks by process, whether a process considers the store down, and duplicates",
            MetricQuery("fallbacks", "holdfast_lock_fallback_total", by=("instance",)),
            MetricQuery("run lock fallbacks", "holdfast_workflow_lock_fallback_total", by=("instance",)),
            MetricQuery("fail-open of scheduler input", "holdfast_scheduler_input_fail_open_total", by=("instance",)),
            MetricQuery("denied", "holdfast_lock_denied_total", by=("risk",)),
            MetricQuery("breaker", "holdfast_store_breaker_open", Aggregation.NOW, ("instance",), worst=True),
            MetricQuery("degraded leases", "holdfast_locks_degraded", Aggregation.NOW, ("family",)),
            MetricQuery("duplicates", "holdfast_duplicates_total", by=("kind",)),
            MetricQuery("policy revision", "holdfast_policy_revision", Aggregation.NOW, ("instance",), worst=True),
        ),
        ledger_step("ledger", "which locks fell back, were promoted or denied", hint=f"grep '{LOG_TEXT}' LOG"),
    ),
    rules=(
        FindingRule("down", FindingSeverity.ACT, "the lease store answers no PING", _down),
        FindingRule(
            "escalate",
            FindingSeverity.ACT,
            "locks fall back more often than `escalation.rate` (0.1 per second) over `escalation.window` (5 min), and "
            "duplicates are more frequent than in the window before",
            _escalate,
        ),
        FindingRule(
            "cut off",
            FindingSeverity.ACT,
            f"the store answers here, but a process considers it down or falls back more than {NEAR_ZERO:g} times per "
            "second",
            _cut_off,
        ),
        FindingRule("flaky", FindingSeverity.ACT, "the store answers some PINGs and not others", _flaky),
        FindingRule("replica", FindingSeverity.ACT, "the server is not a primary, or still loads its data", _replica),
        FindingRule("evicting", FindingSeverity.ACT, "the server may evict keys", _evicting),
        FindingRule(
            "policy behind", FindingSeverity.ACT, "processes follow different revisions of the policy", _behind
        ),
        FindingRule(
            "recovered", FindingSeverity.WATCH, "the store answers, and locks fell back in the window", _recovered
        ),
        FindingRule(
            "left closed", FindingSeverity.WATCH, "the escalation closed a class and the store answers", _left_closed
        ),
    ),
    fine="The lease store answers, and no lock falls back.",
    essential=("store", "policy"),
)
