"""`holdfast runbook retry-waves`: retries of busy locks come at the same time, and collide again.

A wave shows at one process, or only in the sum: many processes retry once for each delay, and in phase.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.tuning.fleet_burstiness import fleet_fano
from holdfast.ops.runbooks.collectors.locks import metrics_step
from holdfast.ops.runbooks.collectors.plane import PENDING_STEP, RETRY_STEP
from holdfast.ops.runbooks.evidence.locks import span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.evidence.plane import PendingFact, RetryFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep, Runbook
from holdfast.runtime.statistics import BUCKETS

FANO: Final = 4.0
"""Variance over mean of retries per bucket: 1 for random retries, this value or more in waves."""
PEAK: Final = 5.0
BUSY_RATE: Final = 1.0
GROWTH: Final = 20

_GROUPS: Final = "busy by group"
_BUCKET: Final = next(iter(BUCKETS))  # the finest: wider buckets hide waves that are one delay apart

_TRY: Final = NextStep(
    "holdfast tune --history LEDGER --retry-jitter 200ms", "fixed delay against jitter, on your own contention"
)


def _jitter(retry: RetryFact) -> NextStep:
    spread = round(0.4 * retry.delay, 3)
    return NextStep(
        f"holdfast policy set busy_jitter {spread:g} --reason …",
        f"in staging first, under the same load: {span(retry.delay)} ± {span(spread)}; 0 reverts it",
    )


def _of_fleet(found: MetricsFact) -> float | None:
    """The Fano factor over all processes. None: too few retries, or processes that do not count them by group."""
    counts = [rate * found.window_s for rate in found.numbers.get(_GROUPS, {}).values()]
    return fleet_fano(counts, found.window_s)


def _waves(case: Case) -> Conclusion | None:
    found, retry = case.fact("rates", MetricsFact), case.fact("retrying", RetryFact)
    if found is None:
        return None
    fano, peak = found.get("fano", _BUCKET) or 0.0, found.get("peak", _BUCKET) or 0.0
    busy, fleet = found.total("busy") or 0.0, _of_fleet(found) or 0.0
    alone = fano >= FANO and peak >= PEAK
    if not (alone or fleet >= FANO) or busy < BUSY_RATE:
        return None
    how = "" if retry is None else f", and each is retried after {span(retry.delay)}"
    how += "" if retry is None or retry.jitter else " exactly"
    seen = (
        f"in buckets of {_BUCKET} the worst has {peak:.3g} times the mean, and the variance is {fano:.3g} times the "
        "mean"
        if alone
        else f"over all processes together the variance in intervals of {_BUCKET} is {fleet:.3g} times the mean. At "
        f"each process it is {fano:.3g} at most: they retry in phase"
    )
    sentence = f"Retries come in waves: {seen} (1 would be random), with {busy:.3g} busy attempts per second{how}."
    steps = (_TRY, *((_jitter(retry),) if retry is not None and not retry.jitter else ()))
    return Conclusion(sentence, ("rates", "retrying"), steps)


def _collision(case: Case) -> Conclusion | None:
    found, retry = case.fact("rates", MetricsFact), case.fact("retrying", RetryFact)
    if found is None or retry is None:
        return None
    long = {
        family: value
        for family, value in found.numbers.get("hold", {}).items()
        if family in retry.ttls and family != "worker.job" and value >= retry.delay - retry.jitter
    }
    if not long:
        return None
    family = max(long, key=lambda each: long[each])
    sentence = (
        f"Half of the holds of {family} take {span(long[family])} or longer, and a retry comes after "
        f"{span(retry.delay - retry.jitter)}: it finds the same holder again."
    )
    step = NextStep(
        f"HOLDFAST_SCHEDULER_BUSY_DELAY={2 * long[family]:.3g} holdfast up --check", "a delay above the median hold"
    )
    return Conclusion(
        sentence, ("rates", "retrying"), (step, NextStep(f"holdfast tune --family {family}", "why holds are long"))
    )


def _budget(case: Case) -> Conclusion | None:
    retry = case.fact("retrying", RetryFact)
    if retry is None:
        return None
    tight = {family: budget for family, budget in retry.budgets.items() if 2 * retry.jitter > budget}
    if not tight:
        return None
    family = min(tight, key=lambda each: tight[each])
    sentence = (
        f"Delays vary by {span(2 * retry.jitter)}, and {family} allows {span(tight[family])} (a third of its TTL): a "
        f"retry may miss a whole free period."
    )
    return Conclusion(sentence, ("retrying",), (NextStep("holdfast up --check", "the range that the settings allow"),))


def _early(case: Case) -> Conclusion | None:
    retry = case.fact("retrying", RetryFact)
    if retry is None or not retry.carried.startswith("WRONG"):
        return None
    return Conclusion(f"The bus does not keep delays: {retry.carried}.", ("retrying",))


def _growing(case: Case) -> Conclusion | None:
    found, pending = case.fact("rates", MetricsFact), case.fact("pending", PendingFact)
    if pending is None or pending.growth < GROWTH:
        return None
    busy = 0.0 if found is None else found.total("busy") or 0.0
    with_it = f" while {busy:.3g} attempts per second find their lock busy" if busy else ""
    sentence = f"Messages pile up: {pending.growth:+d} in {span(pending.spacing_s)}{with_it}."
    step = NextStep("holdfast runbook lock-debt", "whether they wait for a lock, a worker or a limit")
    return Conclusion(sentence, ("pending", "rates"), (step,))


def _busy(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or (found.total("busy") or 0.0) < BUSY_RATE or _waves(case) is not None:
        return None
    fano, fleet = found.get("fano", _BUCKET) or 0.0, _of_fleet(found)
    attempts = f"{found.total('busy') or 0.0:.3g} attempts per second find their lock busy"
    sentence = (
        f"{attempts}, and at each process they are spread evenly (Fano factor {fano:.3g} at most). Over all processes "
        "too few were counted to exclude a wave: give all processes, and a longer --interval."
        if fleet is None
        else f"{attempts}, and they are spread evenly (Fano factor {fano:.3g} at most at a process, {fleet:.3g} over "
        "all): jitter would change nothing, fewer contenders or shorter holds would."
    )
    return Conclusion(
        sentence, ("rates",), (NextStep("holdfast runbook lock-debt", "which locks are held for how long"), _TRY)
    )


RUNBOOK: Final = Runbook(
    name="retry-waves",
    title="Retries of busy locks come in waves",
    when="lock-busy retries spike at multiples of the delay; before and after the delay or its jitter is changed",
    needs="metrics of the contending processes; the database for queued messages; the settings",
    over="the burstiness is near 1, and retries no longer come together at multiples of the delay: run it "
    "again after five minutes",
    steps=(
        metrics_step(
            "rates",
            "how bunched busy retries are, how often locks are busy, and how long callers wait for them and hold them",
            MetricQuery("fano", "holdfast_lock_busy_fano", Aggregation.NOW, ("bucket",), worst=True),
            MetricQuery("peak", "holdfast_lock_busy_peak_to_mean", Aggregation.NOW, ("bucket",), worst=True),
            MetricQuery("busy", "holdfast_lock_busy_total", by=("family",)),
            MetricQuery(_GROUPS, "holdfast_lock_busy_groups_total", by=("group",)),
            MetricQuery("run lock busy", "holdfast_run_lock_busy_total"),
            MetricQuery("wait", "holdfast_lock_wait_seconds", Aggregation.P95, ("family",), unit=" s"),
            MetricQuery("hold", "holdfast_lock_hold_seconds", Aggregation.P50, ("family",), unit=" s"),
        ),
        PENDING_STEP,
        RETRY_STEP,
    ),
    rules=(
        FindingRule(
            "waves",
            FindingSeverity.ACT,
            f"in buckets of {_BUCKET} the Fano factor is {FANO:g} or more and the worst bucket {PEAK:g} times the mean "
            f"or more, or over all processes together the Fano factor is {FANO:g} or more; with {BUSY_RATE:g} busy "
            "attempts per second or more",
            _waves,
        ),
        FindingRule(
            "re-collision",
            FindingSeverity.ACT,
            "the retry delay (less its jitter) is not above the median hold of a family that retries",
            _collision,
        ),
        FindingRule("jitter too wide", FindingSeverity.ACT, "delays vary by more than a third of a TTL", _budget),
        FindingRule("delay not kept", FindingSeverity.ACT, "a message is redelivered before its delay is over", _early),
        FindingRule(
            "messages pile up",
            FindingSeverity.WATCH,
            f"{GROWTH} more messages are queued at the second reading",
            _growing,
        ),
        FindingRule(
            "busy, evenly",
            FindingSeverity.WATCH,
            f"{BUSY_RATE:g} busy attempts per second or more, and not in waves",
            _busy,
        ),
    ),
    fine="Retries do not come in waves, and the delay is longer than the holds.",
    essential=("rates", "retrying"),
)
