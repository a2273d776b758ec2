"""Alerts about the lease store and the error policy: the store is down, locks fall back, and duplicate work results.

The alert for fallbacks with rising duplicates uses the same rule and numbers as the automatic escalation of an armed
plane (`plane.policy.escalation_rules`): alert and escalation can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.core.lease.error_policy import OnError
from holdfast.ops.alerts.model import (
    COUNT,
    FAMILY,
    NUMBER,
    RISK,
    Alert,
    AlertSeverity,
    Recording,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import PROCESS, or_none, total
from holdfast.ops.alerts.thresholds import BLIP_S
from holdfast.types import NS

DOWN: Final = "holdfast_store_down:processes"


def store(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    return RuleGroup(
        "holdfast-store",
        [*_down(plan), *_fallbacks(plan), *_after(plan), _escalated(plan), _diverged(plan)],
    )


def _down(plan: AlertPlan) -> Iterator[Alert | Recording]:
    """A breaker stays open while no caller uses it, so the rule also requires a recent failure."""
    queries, windows = plan.queries, plan.windows
    failing = " + ".join(
        queries.rate(name, windows.window_s, by=PROCESS)
        for name in ("lock_store_errors_total", "lock_unconfirmed_total")
    )
    opened = f"{queries.series('store_breaker_open')} == 1 and on ({', '.join(PROCESS)}) {failing} > 0"
    yield Recording(DOWN, f"count({opened})")
    yield Alert(
        "HoldfastStoreDown",
        AlertSeverity.PAGE,
        f"{queries.recorded(DOWN)} > 0",
        "The lease store does not answer",
        f"{COUNT} processes consider the lease store down. Work of fail-closed risk classes stops; fail-open "
        "classes run without exclusion between replicas.",
        f"an outage of {number(BLIP_S)} s recovers without help; then up to "
        f"{number(windows.settle_s - windows.seen_s - BLIP_S)} s until the breaker has tried again, and two scrapes.",
        RunbookName.STORE,
        windows.settle_s,
    )


def _fallbacks(plan: AlertPlan) -> Iterator[Alert]:
    queries, rule = plan.queries, plan.settings.escalation.rule
    window_s = max(rule.window_ns / NS, 4 * plan.scrape_s)
    window = lasting(window_s)
    rate = queries.rate("lock_fallback_total", window_s)
    counted = f"increase({queries.series('duplicates_total')}[{window}]"
    lately, before = or_none(total(f"{counted})")), or_none(total(f"{counted} offset {window})"))
    closing = " && ".join(f"holdfast policy set {each} fail_closed --reason '…'" for each in rule.classes)
    armed = (
        "The plane is armed to do so." if plan.settings.escalation.armed else "The plane does not do so automatically."
    )
    yield Alert(
        "HoldfastFallbackHarmful",
        AlertSeverity.PAGE,
        f"{rate} > {number(rule.rate)} and {lately} > 0 and {lately} > {before}",
        "Locks are granted without the store, and work is done twice",
        f"{NUMBER} locks per second fall back to the local lock, and duplicates rise. Make the classes fail closed "
        f"that can be harmed: {closing}. {armed}",
        f"more than {number(rule.rate)} per second over {window} and more duplicates than in the {window} before: "
        "[escalation] rate and window.",
        RunbookName.STORE,
    )
    open_classes = [risk for risk, mode in plan.settings.risk if mode is OnError.FAIL_OPEN]
    named = f" Fail open by the settings: {', '.join(open_classes)}." if open_classes else ""
    yield Alert(
        "HoldfastFallback",
        AlertSeverity.TICKET,
        f"{queries.rate('lock_fallback_total', window_s, by=['family', 'risk'])} > {number(rule.rate)}",
        f"Locks of {FAMILY} are granted without the store",
        f"{NUMBER} locks per second of {FAMILY}, risk class {RISK}, run under "
        f"the local lock alone: replicas do not exclude each other.{named}",
        f"more than {number(rule.rate)} per second over {window} ([escalation] rate and window), for as long again.",
        RunbookName.STORE,
        window_s,
    )


def _after(plan: AlertPlan) -> Iterator[Alert]:
    """Conditions that must end when the store is back. Both windows are the same, so an outage leaves them together."""
    queries, windows = plan.queries, plan.windows
    window = lasting(windows.window_s)
    down = plan.store_was_down(windows.window_s)
    yield Alert(
        "HoldfastFallbackRemains",
        AlertSeverity.TICKET,
        f"{queries.increase('lock_fallback_total', windows.window_s, by=['family', 'risk'])} > 0 unless on () ({down})",
        f"Locks of {FAMILY} still fall back although the store answers",
        f"{COUNT} locks of {FAMILY}, risk class {RISK}, were granted without "
        f"the store in {window}, in which no process considered it down. Unnoticed fail-open risks duplicate work.",
        "after an outage the rate returns to zero; twice the window, so that no single fallback triggers it.",
        RunbookName.STORE,
        windows.hold_s,
    )
    degraded = total(queries.series("locks_degraded"), ["family"])
    yield Alert(
        "HoldfastDegradedRemains",
        AlertSeverity.TICKET,
        f"{degraded} > 0 unless on () ({down})",
        f"Degraded leases of {FAMILY} are not promoted although the store answers",
        f"{COUNT} leases of {FAMILY} are still held without the store: another replica may hold the same locks.",
        "a degraded lease is promoted within seconds of the store's return, unless another owner holds it.",
        RunbookName.STORE,
        windows.hold_s,
    )


def _escalated(plan: AlertPlan) -> Alert:
    hard_s = plan.windows.hard_s
    return Alert(
        "HoldfastPolicyEscalated",
        AlertSeverity.TICKET,
        plan.queries.happened("policy_escalations_total", hard_s),
        "The plane has made risk classes fail closed automatically",
        "It never switches back: when the store is healthy and the duplicates are understood, an operator does "
        "(`holdfast policy show` prints the classes and the reasons).",
        "one is enough: the person on call should know about the switch.",
        RunbookName.STORE,
    )


def _diverged(plan: AlertPlan) -> Alert:
    revision = plan.queries.series("policy_revision")
    return Alert(
        "HoldfastPolicyDiverged",
        AlertSeverity.TICKET,
        f"max({revision}) - min({revision}) > 0",
        "Processes follow different error policies",
        f"A process is {COUNT} revisions behind: it cannot reach the database, and in the next outage it follows "
        "the old policy.",
        "a switch reaches every process within seconds; this one has not for a whole window.",
        RunbookName.STORE,
        plan.windows.window_s,
    )
