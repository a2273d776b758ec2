"""Alerts about lease renewal: thin margins, slow renewals, and processes that renew too late."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.lease.timing import guard_ns
from holdfast.ops.alerts.model import (
    FAMILY,
    INSTANCE,
    NUMBER,
    SHARE,
    Alert,
    AlertSeverity,
    RuleGroup,
    RunbookName,
    lasting,
    number,
)
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import PROCESS
from holdfast.ops.alerts.thresholds import BUDGET, QUANTILE, slow_renewal_ns, thin_ns
from holdfast.types import NS


def renewal(plan: AlertPlan) -> RuleGroup:
    """The rule group."""
    return RuleGroup("holdfast-renewal", [*_thin(plan), _slow(plan), _keeper(plan), _event_loop(plan)])


def _thin(plan: AlertPlan) -> Iterator[Alert]:
    """Over a long window, because the leader of a slow loop renews rarely."""
    burn = plan.windows.slow
    for family, timing in plan.renewed.items():
        bound_ns = thin_ns(timing)
        ttl, left = number(timing.ttl_ns / NS), number(bound_ns / NS)
        share = plan.queries.share_within(
            bound_ns, "lock_renew_remaining_seconds", burn.short_s, f'family="{family}"', by=["family"]
        )
        yield Alert(
            "HoldfastRenewalMarginThin",
            AlertSeverity.TICKET,
            f"{share} > {number(BUDGET)}",
            f"Leases of {FAMILY} are renewed at the last moment",
            f"{SHARE} of the renewals of {FAMILY} left at most {left} s of "
            f"{ttl} s, over {lasting(burn.short_s)}. The next pause loses leases. Check renewal latency, pauses and "
            "event-loop lag before you change the TTL.",
            f"{left} s of {ttl} s remain when holders are warned, half-way between a missed renewal and the "
            f"loss; {number(100 * BUDGET)} % of the renewals, so the first percentile.",
            RunbookName.TTL,
            burn.hold_s,
            {"family": family},
        )


def _slow(plan: AlertPlan) -> Alert:
    family, timing = plan.shortest
    limit, window = slow_renewal_ns(timing.ttl_ns) / NS, plan.windows.window_s
    return Alert(
        "HoldfastRenewalSlow",
        AlertSeverity.TICKET,
        f"{plan.queries.quantile(QUANTILE, 'lock_renew_seconds', window)} > {number(limit)}",
        "The store answers renewals slowly",
        f"The 99th percentile of a renewal is {NUMBER} s over {lasting(window)}. Holders stop "
        "earlier to compensate, so leases get shorter.",
        f"half the safety margin of the shortest lease ({family}, {number(timing.ttl_ns / NS)} s); above that the "
        "margin grows with the latency, and shortens the lease.",
        RunbookName.WHY,
        plan.windows.hold_s,
    )


def _keeper(plan: AlertPlan) -> Alert:
    family, timing = plan.shortest
    limit = timing.renew_every_ns / NS
    return Alert(
        "HoldfastKeeperLate",
        AlertSeverity.PAGE,
        f"{plan.queries.series('keeper_heartbeat_age_seconds')} > {number(limit)}",
        f"{INSTANCE} holds leases and does not renew them",
        f"The renewer of {INSTANCE} is {NUMBER} s late. Its leases expire "
        "and other processes take over. Its liveness probe should have restarted it.",
        f"a whole renewal interval of the shortest lease ({family}: {number(limit)} s), which is also when /healthz "
        "fails.",
        RunbookName.NOT_OWNED,
        plan.windows.seen_s,
    )


def _event_loop(plan: AlertPlan) -> Alert:
    family, timing = plan.shortest
    limit = guard_ns(timing.ttl_ns) / NS
    lag = plan.queries.series("event_loop_lag_seconds")
    return Alert(
        "HoldfastEventLoopLate",
        AlertSeverity.TICKET,
        f"max by ({', '.join(PROCESS)}) ({lag}) > {number(limit)}",
        f"The event loop of {INSTANCE} is blocked",
        f"The event loop of {INSTANCE} was {NUMBER} s late. Work that has lost its lease is "
        "stopped through the event loop: while it is blocked, stale work continues until storage refuses its fence.",
        f"the safety margin of the shortest lease ({family}: {number(limit)} s): the time that work has to stop.",
        RunbookName.NOT_OWNED,
        plan.windows.hold_s,
    )
