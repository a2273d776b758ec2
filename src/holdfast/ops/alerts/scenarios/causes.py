"""Situations with a cause outside of the locks: each alert about servers, hosts, work and people fires."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.rules.causes import APPROVAL_S, LETTERS
from holdfast.ops.alerts.scenarios.fleet import FOREVER, Fleet
from holdfast.ops.alerts.scenarios.quiet import START
from holdfast.ops.alerts.scenarios.scenario import Scenario
from holdfast.ops.alerts.scenarios.series import burst, during
from holdfast.ops.alerts.thresholds import BLIP_S
from holdfast.plane.locks.registry import WORKER_JOB

SLACK = 5  # scrapes, until a rule that is evaluated at every other scrape has seen a change


def causes_of_trouble(plan: AlertPlan) -> Iterator[Scenario]:
    """All of them."""
    windows, slack = plan.windows, SLACK * plan.scrape_s
    long_s = START + windows.window_s + slack
    soon = START + windows.seen_s + slack
    for name, alert in (("database", "HoldfastDatabaseDown"), ("bus", "HoldfastBusDown")):
        at = START + BLIP_S + windows.seen_s + slack
        down = Fleet(plan).everywhere("dependency_up", during(START, FOREVER, 0.0, 1.0), dependency=name)
        yield Scenario(f"the {name} answers no process", down, at, {at: [alert]})
    at = START + windows.settle_s + slack
    cut = Fleet(plan).put("b", "dependency_up", during(START, FOREVER, 0.0, 1.0), dependency="database")
    yield Scenario("one process is cut off", cut, at, {at: ["HoldfastNotReady"]})
    slow = Fleet(plan).everywhere("dependency_seconds", during(START, FOREVER, 0.9, 0.002), dependency="leases")
    yield Scenario("the lease store is slow", slow, long_s, {long_s: ["HoldfastDependencySlow"]})
    lost = Fleet(plan).everywhere("lock_lost_total", burst(8.0, START), family=WORKER_JOB.name, reason="stolen")
    seen = START + windows.seen_s
    yield Scenario("the lease store forgets its leases", lost, seen, {seen: ["HoldfastLeasesForgotten"]})
    clock = Fleet(plan).put("b", "clock_ahead_seconds", burst(-60.0, START))
    yield Scenario("a clock is behind", clock, long_s, {long_s: ["HoldfastClockOff"]})
    for free, alert in ((10**6, "HoldfastDiskFull"), (5 * 10**8, "HoldfastDiskLow")):
        disk = Fleet(plan).put("b", "disk_free_bytes", during(START, FOREVER, free, 10**11), what="database")
        yield Scenario(f"a disk has {free} bytes left", disk, soon, {soon: [alert]})
    yield from _work(plan, soon, long_s)


def _work(plan: AlertPlan, soon: float, long_s: float) -> Iterator[Scenario]:
    hung = Fleet(plan).put("a", "plane_hung_attempts", burst(8.0, START), topic="invoice.send")
    yield Scenario("attempts hang", hung, soon, {soon: ["HoldfastAttemptsHang"]})
    at = START + plan.settings.grace + plan.windows.settle_s + SLACK * plan.scrape_s
    unserved = Fleet(plan).put("a", "plane_unserved_jobs", burst(3.0, START), topic="invoice.print")
    yield Scenario("no worker serves a topic", unserved, at, {at: ["HoldfastTopicUnserved"]})
    waits = Fleet(plan).put("a", "plane_oldest_waiting_seconds", lambda at: max(0.0, at - START), pool="default")
    waits.put("a", "plane_pool_full", burst(1.0, START), pool="default")
    at = long_s + plan.settings.limits.dispatched
    yield Scenario("a pool is full for long", waits, at, {at: ["HoldfastJobsWait", "HoldfastPoolFull"]})
    poison = Fleet(plan).put("a", "plane_recent_dead_letters", burst(1.0, START), code="lost")
    seen = START + plan.windows.seen_s
    yield Scenario("a job kills its workers", poison, seen, {seen: ["HoldfastPoisonJob"]})
    dead = Fleet(plan).put("a", "plane_recent_dead_letters", burst(float(LETTERS), START), code="fatal")
    yield Scenario("many jobs die", dead, soon, {soon: ["HoldfastDeadLetters"]})
    ahead = Fleet(plan).put("a", "plane_worker_clock_ahead_seconds", burst(3600.0, START))
    yield Scenario("the clock of a worker is ahead", ahead, long_s, {long_s: ["HoldfastWorkerClockAhead"]})
    late = Fleet(plan).put("a", "plane_late_schedule_seconds", burst(300.0, START))
    yield Scenario("a schedule is late", late, soon, {soon: ["HoldfastScheduleLate"]})
    asked = Fleet(plan).put("a", "plane_oldest_approval_seconds", burst(2 * APPROVAL_S, START))
    yield Scenario("an approval waits", asked, soon, {soon: ["HoldfastApprovalWaits"]})
