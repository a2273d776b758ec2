"""Alerts about ownership: refused releases, lost leases, duplicate work.

Most of them are ratios with a budget. Two are not, because one event is too many: a lock that was abandoned while its
work ran, and a job that ended twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from holdfast.ops.alerts.model import (
    COUNT,
    FAMILY,
    PART,
    REASON,
    SHARE,
    Alert,
    AlertSeverity,
    Recording,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import any_of
from holdfast.ops.alerts.thresholds import BUDGET, VOLUME, Burn
from holdfast.types import LossReason

ON_PURPOSE: Final = (LossReason.MAX_HOLD, LossReason.REVOKED, LossReason.FORKED)
"""Losses that the holder caused itself, or the end of its process."""


def ownership(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    ratios = (_not_owned, _lost, _stale_writes)
    rules: list[Alert | Recording] = []
    for ratio in ratios:
        rules.extend(ratio(plan))
    return RuleGroup("holdfast-ownership", [*rules, *_abandoned(plan), _ended_twice(plan)])


# Ratios.


def _not_owned(plan: AlertPlan) -> Iterator[Alert | Recording]:
    queries, items = plan.queries, f'family!~"{any_of(plan.loop_families)}"'

    def refused(window_s: float) -> str:
        return queries.rate("lock_not_owned_total", window_s, items, by=["family"])

    def all_of(window_s: float) -> str:
        return f"({refused(window_s)} + {queries.rate('lock_released_total', window_s, items, by=['family'])})"

    named = "family:holdfast_lock_not_owned"
    yield from _recorded(named, refused, all_of, (plan.windows.fast, plan.windows.slow))
    for burn, severity, name in (
        (plan.windows.fast, AlertSeverity.PAGE, "HoldfastNotOwnedFast"),
        (plan.windows.slow, AlertSeverity.TICKET, "HoldfastNotOwnedSlow"),
    ):
        yield Alert(
            name,
            severity,
            _burning(plan, named, burn, ["family"]),
            f"Releases of {FAMILY} locks are refused: another owner held them by then",
            f"{SHARE} of the releases of {FAMILY} found the lock not owned, over "
            f"{lasting(burn.long_s)} and still. Their holders outlived their leases: pauses, network delay above the "
            "TTL, or handlers that outlive the TTL without renewal.",
            _because(burn),
            RunbookName.NOT_OWNED,
            burn.hold_s,
        )


def _lost(plan: AlertPlan) -> Iterator[Alert | Recording]:
    queries, items = plan.queries, f'family!~"{any_of(plan.loop_families)}"'
    reasons = f'reason!~"{any_of(ON_PURPOSE)}"'

    def lost(window_s: float) -> str:
        return queries.rate("lock_lost_total", window_s, items, reasons, by=["family", "reason"])

    def all_of(window_s: float) -> str:
        ended = queries.rate("lock_hold_seconds", window_s, items, by=["family"], suffix="_count")
        return f"on (family) group_left () {ended}"

    named = "family_reason:holdfast_lock_lost"
    yield from _recorded(named, lost, all_of, (plan.windows.fast, plan.windows.slow))
    for burn, severity, name in (
        (plan.windows.fast, AlertSeverity.PAGE, "HoldfastLeasesLostFast"),
        (plan.windows.slow, AlertSeverity.TICKET, "HoldfastLeasesLostSlow"),
    ):
        yield Alert(
            name,
            severity,
            _burning(plan, named, burn, ["family"]),
            f"Leases of {FAMILY} are lost while they are held: {REASON}",
            f"{SHARE} of the holds of {FAMILY} ended with the lease lost "
            f"({REASON}), over {lasting(burn.long_s)} and still. expired: the process was paused; "
            "stolen: the store granted it to another owner; unconfirmed: renewals got no answer; stalled: the work "
            "stopped reporting progress.",
            _because(burn),
            RunbookName.NOT_OWNED,
            burn.hold_s,
        )


def _stale_writes(plan: AlertPlan) -> Iterator[Alert | Recording]:
    queries, burn = plan.queries, plan.windows.slow

    def refused(window_s: float) -> str:
        return queries.rate("guard_steps_total", window_s, 'outcome="refused"')

    def all_of(window_s: float) -> str:
        return queries.rate("guard_steps_total", window_s)

    named = "holdfast_guard_refused"
    yield from _recorded(named, refused, all_of, (burn,))
    yield Alert(
        "HoldfastStaleWrites",
        AlertSeverity.TICKET,
        _burning(plan, named, burn, []),
        "Storage refuses writes to jobs because a newer owner has written",
        f"{SHARE} of the writes to jobs came from an owner that had been replaced, over "
        f"{lasting(burn.long_s)} and still. They were refused, so nothing is damaged; but owners keep working "
        "after they have lost their locks.",
        _because(burn),
        RunbookName.DUPLICATES,
        burn.hold_s,
    )


def _recorded(
    name: str,
    bad: Callable[[float], str],
    all_of: Callable[[float], str],
    burns: Sequence[Burn],
) -> Iterator[Recording]:
    """The ratio over each window, and the number of events in the long windows."""
    for burn in burns:
        for window_s in (burn.short_s, burn.long_s):
            yield Recording(f"{name}:ratio{lasting(window_s)}", f"{bad(window_s)} / {all_of(window_s)}")
        counted = all_of(burn.long_s).removeprefix("on (family) group_left () ")
        yield Recording(f"{name}:volume{lasting(burn.long_s)}", f"{counted} * {number(burn.long_s)}")


def _burning(plan: AlertPlan, name: str, burn: Burn, on: Sequence[str]) -> str:
    limit = number(burn.limit())
    short, long = (
        plan.queries.recorded(f"{name}:ratio{lasting(window_s)}") for window_s in (burn.short_s, burn.long_s)
    )
    volume = plan.queries.recorded(f"{name}:volume{lasting(burn.long_s)}")
    return f"{long} > {limit} and {short} > {limit} and on ({', '.join(on)}) {volume} >= {VOLUME}"


def _because(burn: Burn) -> str:
    return (
        f"{number(100 * burn.limit())} % is {number(burn.times)} times the {number(100 * BUDGET)} % that TTLs from the "
        f"99th percentile allow for; over {lasting(burn.long_s)} and over {lasting(burn.short_s)}, with at least "
        f"{VOLUME} events, because with fewer one single event would exceed the budget."
    )


# One is too many.


def _abandoned(plan: AlertPlan) -> Iterator[Alert]:
    queries, hard_s = plan.queries, plan.windows.hard_s
    within = lasting(hard_s)
    one = "one is enough: abandoning a lock while its work runs is never part of normal operation."
    for what, metric, runbook in (
        ("Job", "job_lock_abandoned_total", RunbookName.DUPLICATES),
        ("Run", "run_lock_abandoned_total", RunbookName.WORKFLOWS),
    ):
        yield Alert(
            f"Holdfast{what}LockAbandoned",
            AlertSeverity.PAGE,
            queries.happened(metric, hard_s, by=["part"]),
            f"The {PART} lost the lock of a {what.lower()} while it worked on it",
            f"{COUNT} {what.lower()} locks were abandoned within {within}: renewal failed "
            "until the deadline, or storage has seen a newer owner. The work was stopped and will be repeated; check "
            "which effects it already had.",
            one,
            runbook,
        )
    down = plan.store_was_down(hard_s)
    happened = queries.happened("lock_abandoned_total", hard_s, by=["family"])
    yield Alert(
        "HoldfastLeaseAbandoned",
        AlertSeverity.PAGE,
        f"({happened}) unless on () ({down})",
        f"Leases of {FAMILY} were abandoned although the store was not down",
        f"{COUNT} leases of {FAMILY} could not be renewed before their "
        f"deadline within {within}, and no metric shows that the store was down: slow answers, a paused process, or "
        "a network that loses packets.",
        f"{one} While the store is down, the alert about the store fires instead.",
        RunbookName.NOT_OWNED,
    )
    yield Alert(
        "HoldfastLeaseAbandonedInOutage",
        AlertSeverity.TICKET,
        f"({happened}) and on () ({down})",
        f"Leases of {FAMILY} did not outlive an outage of the store",
        f"{COUNT} leases of {FAMILY} were abandoned within {within}, in which "
        "the store was down. Their work was stopped and starts again elsewhere: check that it did.",
        "one is enough for a ticket; a long outage pages through its own alert.",
        RunbookName.STORE,
    )


def _ended_twice(plan: AlertPlan) -> Alert:
    hard_s = plan.windows.hard_s
    return Alert(
        "HoldfastDuplicateEnd",
        AlertSeverity.PAGE,
        plan.queries.happened("plane_duplicate_ends_total", hard_s),
        "A finished job was ended a second time",
        f"{COUNT} duplicate ends of jobs were refused within {lasting(hard_s)}. The first one "
        "stands; but the work was done twice, and its effects outside Holdfast are not undone.",
        "one is enough: terminal states are final, and exactly one owner writes them.",
        RunbookName.DUPLICATES,
    )
