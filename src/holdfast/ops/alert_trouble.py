"""Situations in which locks are in trouble: each alert about ownership, waiting and renewal fires where it should."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.alerting import WAVE, slow_renewal_ns, thin_ns, wave_fano
from holdfast.core.histogram import LADDER_NS
from holdfast.core.lease.timing import guard_ns
from holdfast.ops.alert_calm import START
from holdfast.ops.alert_fleet import BUSY, FOREVER, Fleet
from holdfast.ops.alert_plan import Plan
from holdfast.ops.alert_scenario import Scenario
from holdfast.ops.alert_series import Course, burst, doubling, flat, rising
from holdfast.plane.locks.registry import APPROVAL, SCHEDULER_JOB, WORKER_JOB
from holdfast.types import NS


def trouble(plan: Plan) -> Iterator[Scenario]:
    """All of them."""
    yield from _ratios(plan)
    yield from _one_is_enough(plan)
    yield from _waits(plan)
    yield from _accelerations(plan)
    yield from _renewals(plan)


def _ratios(plan: Plan) -> Iterator[Scenario]:
    fast, slow = plan.pace.fast, plan.pace.slow
    soon = START + 0.3 * fast.long_s + fast.hold_s + plan.pace.window_s  # until the long window shows it, and it holds
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


def _one_is_enough(plan: Plan) -> Iterator[Scenario]:
    soon, over = START + plan.pace.seen_s, START + plan.pace.hard_s + plan.pace.seen_s
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


def _waits(plan: Plan) -> Iterator[Scenario]:
    soon = START + plan.pace.hold_s + 2 * plan.pace.window_s

    def slow(envelope: float) -> dict[float, Course]:
        """One wait in fifty takes as long as anybody waits, once it begins."""
        return {0.005: rising(BUSY), _rung(envelope): rising(BUSY / 50, START)}

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


def _waves(plan: Plan, soon: float) -> Iterator[Scenario]:
    delay = plan.settings.scheduler.busy_delay
    fano = wave_fano(delay, 0.05)
    if fano is not None:
        waves = Fleet(plan).put("b", "lock_busy_fano", burst(2 * fano, START), bucket="50ms")
        waves.put("b", "lock_busy_total", rising(2 * WAVE / delay, START), family=SCHEDULER_JOB.name)
        yield Scenario("retries come in waves", waves, soon, {soon: ["HoldfastRetryWaves"]})
        thin = Fleet(plan).put("b", "lock_busy_fano", burst(2 * fano, START), bucket="50ms")
        yield Scenario("waves of very few retries are none", thin, soon, {soon: []})


def _accelerations(plan: Plan) -> Iterator[Scenario]:
    """Twice as much with every window, for five windows."""
    span = plan.pace.hold_s
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


def _renewals(plan: Plan) -> Iterator[Scenario]:
    slow = plan.pace.slow
    late, soon = START + slow.hold_s + slow.short_s, START + plan.pace.hold_s + 2 * plan.pace.window_s
    family, timing = plan.shortest
    bound = thin_ns(timing) / NS
    wide = next(each / NS for each in LADDER_NS if each / NS > bound)
    renewed = {bound: rising(0.1, START), wide: rising(1.0)}
    thin = Fleet(plan).measured("a", "lock_renew_remaining_seconds", renewed, family=family)
    yield Scenario("leases are renewed at the last moment", thin, late, {late: ["HoldfastRenewalMarginThin"]})
    slowly = _rung(4 * slow_renewal_ns(timing.ttl_ns) / NS)
    answers = Fleet(plan).measured(
        "a", "lock_renew_seconds", {0.005: rising(1.0), slowly: rising(0.1, START)}, outcome="answered"
    )
    yield Scenario("renewals are answered slowly", answers, soon, {soon: ["HoldfastRenewalSlow"]})
    keeper = Fleet(plan).put("b", "keeper_heartbeat_age_seconds", burst(2 * timing.renew_every_ns / NS, START))
    at = START + plan.pace.seen_s + plan.scrape_s
    yield Scenario("a keeper has stopped", keeper, at, {at: ["HoldfastKeeperLate"]})
    blocked = Fleet(plan).put("b", "event_loop_lag_seconds", burst(2 * guard_ns(timing.ttl_ns) / NS, START))
    yield Scenario("an event loop is blocked", blocked, soon, {soon: ["HoldfastEventLoopLate"]})


def _rung(seconds: float) -> float:
    """The first bound of the ladder that is at least so long."""
    return next((bound / NS for bound in LADDER_NS if bound / NS >= seconds), LADDER_NS[-1] / NS)


def _integrated(rate: Course, step_s: float) -> Course:
    """The count that rises at a rate."""
    return lambda at: sum((rate(place * step_s) or 0.0) * step_s for place in range(round(at / step_s)))
