"""Situations with lock problems: each alert about ownership, waiting and renewal fires as expected.

Situations with plane problems: each alert about loops, the store, the policy and processes fires.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.core.histogram import LADDER_NS
from holdfast.core.lease.timing import guard_ns
from holdfast.core.tuning.fleet_burstiness import GROUPS
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.rules import takeovers
from holdfast.ops.alerts.rules.loops import burn_of
from holdfast.ops.alerts.scenarios.fleet import BUSY, FOREVER, Fleet
from holdfast.ops.alerts.scenarios.quiet import START
from holdfast.ops.alerts.scenarios.scenario import Scenario
from holdfast.ops.alerts.scenarios.series import Curve, burst, doubling, during, flat, rising
from holdfast.ops.alerts.thresholds import WAVE, overdue_s, slow_renewal_ns, thin_ns, wave_fano
from holdfast.plane.locks.registry import APPROVAL, SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN
from holdfast.types import NS


def trouble(plan: AlertPlan) -> Iterator[Scenario]:
    """All of them."""
    yield from _ratios(plan)
    yield from _one_is_enough(plan)
    yield from _waits(plan)
    yield from _accelerations(plan)
    yield from _renewals(plan)


def _ratios(plan: AlertPlan) -> Iterator[Scenario]:
    fast, slow = plan.windows.fast, plan.windows.slow
    soon = (
        START + 0.3 * fast.long_s + fast.hold_s + plan.windows.window_s
    )  # until the long window shows it, and it holds
    late = START + slow.hold_s + slow.short_s

    def refused(share: float) -> Fleet:
        return Fleet(plan).everywhere("lock_not_owned_total", rising(BUSY * share, START), family=APPROVAL.name)

    def lost(share: float) -> Fleet:
        labels = {"family": WORKER_JOB.name, "reason": "expired"}
        return Fleet(plan).everywhere("lock_lost_total", rising(BUSY * share, START), **labels)

    yield Scenario("a third of all releases is refused", refused(0.5), soon, {soon: ["HoldfastNotOwnedFast"]})
    yield Scenario("a few releases are refused for hours", refused(0.04), late, {late: ["HoldfastNotOwnedSlow"]})
    yield Scenario("half of all leases expire", lost(0.5), soon, {soon: ["HoldfastLeasesLostFast"]})
    yield Scenario("a few leases expire for hours", lost(0.04), late, {late: ["HoldfastLeasesLostSlow"]})
    stale = Fleet(plan).everywhere("guard_steps_total", rising(0.5, START), outcome="refused")
    yield Scenario("stale owners keep writing", stale, late, {late: ["HoldfastStaleWrites"]})


def _one_is_enough(plan: AlertPlan) -> Iterator[Scenario]:
    soon, over = START + plan.windows.seen_s, START + plan.windows.hard_s + plan.windows.seen_s
    once = burst(1.0, START)
    job = Fleet(plan).put("a", "job_lock_abandoned_total", once, part="scheduler")
    yield Scenario("one job lock is abandoned", job, over, {soon: ["HoldfastJobLockAbandoned"], over: []})
    run = Fleet(plan).put("a", "run_lock_abandoned_total", once, part="engine")
    yield Scenario("one run lock is abandoned", run, over, {soon: ["HoldfastRunLockAbandoned"], over: []})
    lease = Fleet(plan).put("b", "lock_abandoned_total", once, family=WORKER_JOB.name)
    yield Scenario("one lease is abandoned", lease, over, {soon: ["HoldfastLeaseAbandoned"], over: []})
    end = Fleet(plan).put("a", "plane_duplicate_ends_total", once)
    yield Scenario("one job ends twice", end, over, {soon: ["HoldfastDuplicateEnd"], over: []})
    new = Fleet(plan, {"a": [(0.0, FOREVER)], "b": [(0.0, FOREVER)], "c": [(START, FOREVER)]})
    new.put("c", "plane_duplicate_ends_total", flat(1.0))  # before its first scrape
    yield Scenario("a job ends twice in a new process", new, over, {soon: ["HoldfastDuplicateEnd"], over: []})


def _waits(plan: AlertPlan) -> Iterator[Scenario]:
    soon = START + plan.windows.hold_s + 2 * plan.windows.window_s

    def slow(envelope: float) -> dict[float, Curve]:
        """One wait in fifty takes the maximum time, after the beginning."""
        return {0.005: rising(BUSY), _notified(envelope): rising(BUSY / 50, START)}

    for family, metric, part, name in (
        ("scheduler.job", "job_lock_wait", "scheduler", "HoldfastJobLockWait"),
        ("workflow.run", "run_lock_wait", "engine", "HoldfastRunLockWait"),
    ):
        fleet = Fleet(plan).measured("a", metric, slow(plan.envelopes[family]), part=part, outcome="granted")
        yield Scenario(f"waits of the {part} are long", fleet, soon, {soon: [name]})
    rates = slow(plan.envelopes[APPROVAL.name])
    fleet = Fleet(plan).measured("a", "lock_wait_seconds", rates, family=APPROVAL.name, outcome="granted")
    yield Scenario("waits for approvals are long", fleet, soon, {soon: ["HoldfastLockWait"]})
    debt = Fleet(plan)
    queue = 3 * 2 * BUSY * plan.envelopes[SCHEDULER_JOB.name]  # two processes grant, and three times too many wait
    debt.put("a", "locks_waiting", burst(queue, START), family=SCHEDULER_JOB.name)
    yield Scenario("more wait than will be served in time", debt, soon, {soon: ["HoldfastLockDebt"]})
    yield from _waves(plan, soon)


def _waves(plan: AlertPlan, soon: float) -> Iterator[Scenario]:
    delay = plan.settings.scheduler.busy_delay
    fano = wave_fano(delay, 0.05)
    if fano is not None:
        waves = Fleet(plan).put("b", "lock_busy_fano", burst(2 * fano, START), bucket="50ms")
        waves.put("b", "lock_busy_total", rising(2 * WAVE / delay, START), family=SCHEDULER_JOB.name)
        yield Scenario("retries come in waves", waves, soon, {soon: ["HoldfastRetryWaves"]})
        thin = Fleet(plan).put("b", "lock_busy_fano", burst(2 * fano, START), bucket="50ms")
        yield Scenario("waves of very few retries are none", thin, soon, {soon: []})
        yield from _waves_of_fleet(plan, soon, fano)


def _waves_of_fleet(plan: AlertPlan, soon: float, fano: float) -> Iterator[Scenario]:
    """Half of the groups have more retries than the others, and all processes agree in which."""
    rate = 2 * WAVE / plan.settings.scheduler.busy_delay
    for name, times, told in (
        ("retries of many processes come in waves", 2.0, ["HoldfastRetryWavesOfFleet"]),
        ("retries of many processes come nearly evenly", 0.5, []),
    ):
        fleet = Fleet(plan)
        mean = len(fleet.lives) * rate * plan.windows.window_s / GROUPS
        differs = math.sqrt(times * fano / mean)
        for process in fleet.lives:
            for group in range(GROUPS):
                share = 1 + differs if group % 2 else 1 - differs
                curve = rising(share * rate / GROUPS, START)
                fleet.put(process, "lock_busy_groups_total", curve, group=f"{group:02}")
            fleet.put(process, "lock_busy_total", rising(rate, START), family=SCHEDULER_JOB.name)
        yield Scenario(name, fleet, soon, {soon: told})


def _accelerations(plan: AlertPlan) -> Iterator[Scenario]:
    """Twice as much with every window, for five windows."""
    span = plan.windows.hold_s
    lasts, debt = 6 * span, plan.debt
    envelope = plan.envelopes[SCHEDULER_JOB.name]
    last = 2.0**6
    waits = Fleet(plan)
    mean = doubling(0.9 * envelope / last, span)  # it ends just below the envelope
    waits.put("a", "job_lock_wait_count", rising(1.0), part="scheduler", outcome="granted")
    waits.put("a", "job_lock_wait_sum", _integrated(mean, plan.scrape_s), part="scheduler", outcome="granted")
    yield Scenario("waits double every window", waits, lasts, {lasts: ["HoldfastJobLockWaitAccelerating"]})
    stale = Fleet(plan).put("a", "stale_jobs", doubling(debt * 40 / last, span), state="RUNNING")
    told = ["HoldfastRecoveryDebt", "HoldfastStaleJobsAccelerating"]
    yield Scenario("overdue jobs double every window", stale, lasts, {lasts: told})
    level = Fleet(plan).put("a", "stale_jobs", burst(20.0 * debt, START), state="RUNNING")
    ticks = max(span, 5 * plan.settings.reconciler.interval)
    soon = START + 3 * ticks
    yield Scenario("overdue jobs stay", level, soon, {soon: ["HoldfastRecoveryDebt"]})
    orphans = _integrated(doubling(debt * 8 / span / last, span), plan.scrape_s)
    fleet = Fleet(plan).put("a", "orphan_replayed_total", orphans, topic="agent.plan")
    yield Scenario("orphans double every window", fleet, lasts, {lasts: ["HoldfastOrphansAccelerating"]})


def _renewals(plan: AlertPlan) -> Iterator[Scenario]:
    slow = plan.windows.slow
    late, soon = START + slow.hold_s + slow.short_s, START + plan.windows.hold_s + 2 * plan.windows.window_s
    family, timing = plan.shortest
    bound = thin_ns(timing) / NS
    wide = next(each / NS for each in LADDER_NS if each / NS > bound)
    renewed = {bound: rising(0.1, START), wide: rising(1.0)}
    thin = Fleet(plan).measured("a", "lock_renew_remaining_seconds", renewed, family=family)
    yield Scenario("leases are renewed at the last moment", thin, late, {late: ["HoldfastRenewalMarginThin"]})
    slowly = _notified(4 * slow_renewal_ns(timing.ttl_ns) / NS)
    answers = Fleet(plan).measured(
        "a", "lock_renew_seconds", {0.005: rising(1.0), slowly: rising(0.1, START)}, outcome="answered"
    )
    yield Scenario("renewals are answered slowly", answers, soon, {soon: ["HoldfastRenewalSlow"]})
    keeper = Fleet(plan).put("b", "keeper_heartbeat_age_seconds", burst(2 * timing.renew_every_ns / NS, START))
    at = START + plan.windows.seen_s + plan.scrape_s
    yield Scenario("a keeper has stopped", keeper, at, {at: ["HoldfastKeeperLate"]})
    blocked = Fleet(plan).put("b", "event_loop_lag_seconds", burst(2 * guard_ns(timing.ttl_ns) / NS, START))
    yield Scenario("an event loop is blocked", blocked, soon, {soon: ["HoldfastEventLoopLate"]})


def _notified(seconds: float) -> float:
    """The first bucket bound that is at least this long."""
    return next((bound / NS for bound in LADDER_NS if bound / NS >= seconds), LADDER_NS[-1] / NS)


def _integrated(rate: Curve, step_s: float) -> Curve:
    """The count that rises at a rate."""
    return lambda at: sum((rate(place * step_s) or 0.0) * step_s for place in range(round(at / step_s)))


SLACK = 5  # scrapes, until a rule that is evaluated at every other scrape has seen a change


def trouble_of_the_plane(plan: AlertPlan) -> Iterator[Scenario]:
    """All of them."""
    yield from _loops(plan)
    yield from _takeovers(plan)
    yield from _store(plan)
    yield from _policy(plan)
    yield from _processes(plan)


def _loops(plan: AlertPlan) -> Iterator[Scenario]:
    if not plan.loops:
        return
    loop, settle = plan.loops[0], plan.windows.settle_s
    bound = overdue_s(loop.interval_s, loop.takeover_s, plan.scrape_s)
    stuck = Fleet(plan).over("a", "loop_last_tick_timestamp_seconds", lambda at: min(at, START), loop=loop.name)
    at = START + bound + settle + SLACK * plan.scrape_s
    yield Scenario("a loop is led and does not tick", stuck, at, {at: ["HoldfastLoopLate"]})
    unled = Fleet(plan).leads("a", (0.0, START), loops=[loop.name])
    at = START + loop.takeover_s + settle + SLACK * plan.scrape_s
    yield Scenario("no process leads a loop", unled, at, {at: ["HoldfastNoLeader"]})
    two = Fleet(plan).leads("b", (START, FOREVER), loops=[loop.name])
    at = START + plan.windows.window_s + SLACK * plan.scrape_s
    yield Scenario("two lead a loop", two, at, {at: ["HoldfastTwoLeaders"]})
    burn = burn_of(plan, bound)
    if burn is None:
        return
    # An occasional tick: each one late, and never late enough for an alert of its own.
    every = bound + 0.9 * settle
    flaps = Fleet(plan).over(
        "a",
        "loop_last_tick_timestamp_seconds",
        lambda at: at if at < START else START + (at - START) // every * every,
        loop=loop.name,
    )
    at = START + burn.hold_s + every * 4
    yield Scenario("takeovers take too long too often", flaps, at, {at: ["HoldfastTakeoverBurn"]})


def _takeovers(plan: AlertPlan) -> Iterator[Scenario]:
    """A process crashes every few minutes, and one of its three jobs is taken over too late."""
    burn = takeovers.burn_of(plan)
    often = 1 / plan.windows.window_s
    for each in plan.takeovers:
        fleet = Fleet(plan).takes_over("b", each.part, rising(2 * often, START), rising(often, START))
        at = START + burn.short_s + burn.hold_s + SLACK * plan.scrape_s
        told = {at: ["HoldfastJobTakeoverBurn"]}
        yield Scenario(f"the jobs of crashed {each.part}s are taken over too late too often", fleet, at, told)


def _store(plan: AlertPlan) -> Iterator[Scenario]:
    at = START + plan.windows.settle_s + SLACK * plan.scrape_s
    down = Fleet(plan)
    for process in ("a", "b"):
        down.put(process, "store_breaker_open", burst(1.0, START))
        down.put(process, "lock_store_errors_total", rising(1.0, START), family=WORKER_JOB.name)
    down.leads("a", (0.0, START))  # no process can lead, and that is no alert of its own
    later = START + 2 * plan.windows.settle_s + max((each.takeover_s for each in plan.loops), default=0.0)
    both = {at: ["HoldfastStoreDown"], later: ["HoldfastStoreDown"]}
    yield Scenario("the store is down", down, later, both)
    forgotten = Fleet(plan).put("a", "store_breaker_open", burst(1.0, START))  # no caller has used it since
    yield Scenario("an unused open breaker is no outage", forgotten, later, {later: []})


def _policy(plan: AlertPlan) -> Iterator[Scenario]:
    rule = plan.settings.escalation.rule
    window = max(rule.window_ns / NS, 4 * plan.scrape_s)
    run = {"family": WORKFLOW_RUN.name, "risk": "low"}
    outage = START + 2.5 * window

    def falling() -> Fleet:
        """The store is down for a while, and more locks fall back than the limit."""
        fleet = Fleet(plan).put("a", "lock_fallback_total", rising(3 * max(rule.rate, 0.01), START, outage), **run)
        fleet.put("a", "lock_store_errors_total", rising(1.0, START, outage), family=WORKFLOW_RUN.name)
        return fleet.put("a", "lock_promoted_total", burst(9.0, outage), family=WORKFLOW_RUN.name)

    at = START + 2 * window + SLACK * plan.scrape_s
    over = outage + 4 * plan.windows.hold_s + window
    yield Scenario("locks fall back", falling(), over, {at: ["HoldfastFallback"], over: []})
    harmful = falling().put("a", "duplicates_total", rising(0.02, START + window), kind="step")
    told = ["HoldfastFallback", "HoldfastFallbackHarmful"]
    yield Scenario("locks fall back and duplicates rise", harmful, at, {at: told})
    steady = falling().put("a", "duplicates_total", rising(0.02), kind="publish")
    later = outage - plan.scrape_s
    yield Scenario("duplicates that do not rise are no harm", steady, later, {later: ["HoldfastFallback"]})
    soon = START + plan.windows.hold_s + 2 * plan.windows.window_s
    remains = Fleet(plan).put("b", "lock_fallback_total", rising(min(0.5 * rule.rate, 0.02) or 0.01, START), **run)
    if rule.rate > 0:
        yield Scenario("locks still fall back", remains, soon, {soon: ["HoldfastFallbackRemains"]})
    degraded = Fleet(plan).put("b", "locks_degraded", burst(2.0, START), family=WORKFLOW_RUN.name)
    yield Scenario("leases stay degraded", degraded, soon, {soon: ["HoldfastDegradedRemains"]})
    seen = START + plan.windows.seen_s
    switched = Fleet(plan).put("a", "policy_escalations_total", burst(1.0, START))
    yield Scenario("the plane has escalated", switched, seen, {seen: ["HoldfastPolicyEscalated"]})
    behind = Fleet(plan).put("b", "policy_revision", during(START, FOREVER, 6.0, 7.0))
    at = START + plan.windows.window_s + SLACK * plan.scrape_s
    yield Scenario("a process follows an old policy", behind, at, {at: ["HoldfastPolicyDiverged"]})


def _processes(plan: AlertPlan) -> Iterator[Scenario]:
    grace, settle = plan.settings.grace, plan.windows.settle_s
    at = START + grace + settle + plan.windows.window_s + SLACK * plan.scrape_s
    gone = Fleet(plan, {"a": [(0.0, START)], "b": [(0.0, START)]})
    yield Scenario("the whole plane is gone", gone, at, {at: ["HoldfastProcessDown", "HoldfastSilent"]})
    one = Fleet(plan, {"a": [(0.0, FOREVER)], "b": [(0.0, START)]})
    yield Scenario("a process does not come back", one, at, {at: ["HoldfastProcessDown"]})
    part = next(iter(plan.parts))
    missing = Fleet(plan)
    for process in ("a", "b"):
        missing.put(process, "part_running", during(START, FOREVER, 0.0, 1.0), part=part)
        missing.put(process, "draining", burst(1.0, START))
    yield Scenario("no process runs a component", missing, at, {at: ["HoldfastPartMissing"]})
    failed = Fleet(plan).put("b", "part_running", during(START, FOREVER, 0.0, 1.0), part=part)
    yield Scenario("a component has failed", failed, at, {at: ["HoldfastPartFailed"]})
    dropped = Fleet(plan).put("b", "audit_dropped_total", burst(5.0, START))
    seen = START + plan.windows.seen_s
    yield Scenario("the audit ledger has gaps", dropped, seen, {seen: ["HoldfastAuditIncomplete"]})
