"""Alerts about keeping leases: margins that get thin, slow renewals, and processes that are too late to renew."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.lease.timing import guard_ns
from holdfast.ops.alerts.model import FAMILY, INSTANCE, NUMBER, SHARE, Alert, Group, Runbook, Severity, lasting, number
from holdfast.ops.alerts.plan import Plan
from holdfast.ops.alerts.promql import PROCESS
from holdfast.ops.alerts.thresholds import BUDGET, QUANTILE, slow_renewal_ns, thin_ns
from holdfast.types import NS


def renewal(plan: Plan) -> Group:
    """The group."""
    return Group("holdfast-renewal", [*_thin(plan), _slow(plan), _keeper(plan), _event_loop(plan)])


def _thin(plan: Plan) -> Iterator[Alert]:
    """Over a long window, because the leader of a slow loop renews seldom."""
    burn = plan.pace.slow
    for family, timing in plan.renewed.items():
        bound_ns = thin_ns(timing)
        ttl, left = number(timing.ttl_ns / NS), number(bound_ns / NS)
        share = plan.queries.share_within(
            bound_ns, "lock_renew_remaining_seconds", burn.short_s, f'family="{family}"', by=["family"]
        )
        yield Alert(
            "HoldfastRenewalMarginThin",
            Severity.TICKET,
            f"{share} > {number(BUDGET)}",
            f"Leases of {FAMILY} are renewed at the last moment",
            f"{SHARE} of the renewals of {FAMILY} left at most {left} s of "
            f"{ttl} s, over {lasting(burn.short_s)}. The next hiccup loses leases. Look at renewal latency, pauses and "
            "event-loop lag before you change the TTL.",
            f"{left} s is what is left of {ttl} s when holders are warned, half-way between a missed renewal and the "
            f"loss; {number(100 * BUDGET)} % of the renewals, so the first percentile.",
            Runbook.TTL,
            burn.hold_s,
            {"family": family},
        )


def _slow(plan: Plan) -> Alert:
    family, timing = plan.shortest
    limit, window = slow_renewal_ns(timing.ttl_ns) / NS, plan.pace.window_s
    return Alert(
        "HoldfastRenewalSlow",
        Severity.TICKET,
        f"{plan.queries.quantile(QUANTILE, 'lock_renew_seconds', window)} > {number(limit)}",
        "The store answers renewals slowly",
        f"The 99th percentile of a renewal is {NUMBER} s over {lasting(window)}. Holders let "
        "go earlier to make up for it, so leases get shorter.",
        f"half the guard of the shortest lease ({family}, {number(timing.ttl_ns / NS)} s); above that the guard grows "
        "with the latency, and is taken from the lease.",
        Runbook.TTL,
        plan.pace.hold_s,
    )


def _keeper(plan: Plan) -> Alert:
    family, timing = plan.shortest
    limit = timing.renew_every_ns / NS
    return Alert(
        "HoldfastKeeperLate",
        Severity.PAGE,
        f"{plan.queries.series('keeper_heartbeat_age_seconds')} > {number(limit)}",
        f"{INSTANCE} holds leases and does not renew them",
        f"What the keeper of {INSTANCE} has to do waits for {NUMBER} s. Its leases run "
        "out and others take over; it should have been restarted by its liveness probe.",
        f"a whole renewal interval of the shortest lease ({family}: {number(limit)} s), which is also when /healthz "
        "fails.",
        Runbook.NOT_OWNED,
        plan.pace.seen_s,
    )


def _event_loop(plan: Plan) -> Alert:
    family, timing = plan.shortest
    limit = guard_ns(timing.ttl_ns) / NS
    lag = plan.queries.series("event_loop_lag_seconds")
    return Alert(
        "HoldfastEventLoopLate",
        Severity.TICKET,
        f"max by ({', '.join(PROCESS)}) ({lag}) > {number(limit)}",
        f"The event loop of {INSTANCE} is held up",
        f"The event loop of {INSTANCE} was {NUMBER} s late. Work that has lost its "
        "lease is told so by the loop: what blocks it lets stale work run on, up to its fence.",
        f"the guard of the shortest lease ({family}: {number(limit)} s), which is the time that work has to stop.",
        Runbook.NOT_OWNED,
        plan.pace.hold_s,
    )
