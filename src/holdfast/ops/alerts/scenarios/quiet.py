"""Situations that page no one: normal events, short outages that recover without help, and too few events."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ops.alerts.model import AlertSeverity
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.scenarios.fleet import FOREVER, Fleet
from holdfast.ops.alerts.scenarios.scenario import Scenario
from holdfast.ops.alerts.scenarios.series import added, burst, during, flat, rising
from holdfast.ops.alerts.thresholds import BLIP_S, COOL_S
from holdfast.plane.locks.registry import APPROVAL, FAMILIES, SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN

START = 600.0  # when events begin: rates have enough history by then


def calm(plan: AlertPlan) -> Iterator[Scenario]:
    """All of them."""
    hour = START + 4 * plan.windows.hold_s
    yield Scenario("a healthy fleet fires no alert", Fleet(plan), hour, quiet=AlertSeverity.TICKET)
    yield _leader_dies(plan)
    yield _rolling_restart(plan)
    yield _outage(plan, "seen by a scrape", START)
    yield _outage(plan, "between two scrapes", START + min(5.0, plan.scrape_s / 2))
    yield from _single_events(plan, hour)
    yield from _trends(plan, hour)
    exercised = Fleet(plan).everywhere("lock_exercised_total", rising(1.0), family=WORKFLOW_RUN.name, risk="low")
    yield Scenario("an exercise of the error policy fires no alert", exercised, hour, quiet=AlertSeverity.TICKET)
    yield _counts_begin_anew(plan)
    yield from _takeovers(plan)


def _leader_dies(plan: AlertPlan) -> Scenario:
    """Killed without warning, and started again two minutes later; another process leads by then."""
    fleet = Fleet(plan, {"a": [(0.0, START), (START + 120.0, FOREVER)], "b": [(0.0, FOREVER)]}).leads("a", (0.0, START))
    for loop in plan.loops:
        fleet.leads("b", (START + loop.takeover_s, FOREVER), loops=[loop.name])
    for each in plan.takeovers:
        fleet.takes_over("b", each.part, burst(8.0, START + each.bound_s))
    slowest = max((loop.takeover_s for loop in plan.loops), default=0.0)
    lasts = START + 2 * slowest + 1200.0
    return Scenario("the leader of every loop is killed and no alert fires", fleet, lasts, quiet=AlertSeverity.TICKET)


def _rolling_restart(plan: AlertPlan) -> Scenario:
    """Each process restarts in turn, each for a minute, each time the leader. Every counter restarts."""
    names, gap = ("a", "b", "c"), 180.0
    ends = {name: START + place * gap for place, name in enumerate(names)}
    fleet = Fleet(plan, {name: [(0.0, at), (at + 60.0, FOREVER)] for name, at in ends.items()})
    fleet.leads("a", (0.0, ends["a"]), (ends["c"], FOREVER))
    fleet.leads("b", (ends["a"], ends["b"])).leads("c", (ends["b"], ends["c"]))
    for process, at in ends.items():
        fleet.over(process, "draining", during(at - 15.0, at))
        for part in plan.parts:
            fleet.over(process, "part_running", during(at - 15.0, at, 0.0, 1.0), part=part)
        for each in plan.takeovers:  # released jobs are no takeovers
            fleet.takes_over(process, each.part, flat(0.0))
    return Scenario("a rolling restart pages no one", fleet, START + 2400.0, quiet=AlertSeverity.TICKET)


def _outage(plan: AlertPlan, when: str, begin: float) -> Scenario:
    """The store is down for half a minute; classes fail closed, leaders and workers lose short leases."""
    end, closed = begin + BLIP_S, begin + BLIP_S + COOL_S
    fleet = Fleet(plan).leads("a", (0.0, begin + 20.0)).leads("b", (closed + plan.scrape_s, FOREVER))
    for process in ("a", "b"):
        fleet.put(process, "store_breaker_open", during(begin + 3.0, closed))
        for family in FAMILIES:
            fleet.put(process, "lock_store_errors_total", burst(20.0, end), family=family)
            fleet.put(process, "lock_unconfirmed_total", burst(9.0, end), family=family)
            fleet.put(process, "lock_denied_total", burst(12.0, end), family=family, risk="high")
        fleet.put(process, "lock_abandoned_total", burst(8.0, end - 2.0), family=WORKER_JOB.name)
        fleet.put(process, "lock_lost_total", burst(8.0, end - 2.0), family=WORKER_JOB.name, reason="unconfirmed")
    told = {begin + 2 * plan.windows.window_s: ["HoldfastLeaseAbandonedInOutage"]}
    lasts = START + 4 * plan.windows.hold_s
    return Scenario(f"an outage of half a minute, {when}, pages no one", fleet, lasts, told, quiet=AlertSeverity.PAGE)


def _single_events(plan: AlertPlan, lasts: float) -> Iterator[Scenario]:
    one = Fleet(plan)
    for process in ("a", "b"):  # a release every minute, and one of them is refused
        one.put(process, "lock_released_total", rising(1 / 60), family=APPROVAL.name)
    one.put("a", "lock_not_owned_total", burst(1.0, START), family=APPROVAL.name)
    yield Scenario("one refused release is no alert", one, lasts, quiet=AlertSeverity.TICKET)
    little = Fleet(plan)
    for process in ("a", "b"):  # five releases an hour, and one of three is refused, all day
        little.put(process, "lock_released_total", rising(5 / 3600), family=APPROVAL.name)
        little.put(process, "lock_not_owned_total", rising(2.5 / 3600), family=APPROVAL.name)
    yield Scenario("a ratio of very few events fires no alert", little, 2 * 3600.0, quiet=AlertSeverity.TICKET)
    paused = Fleet(plan)
    at_once = float(plan.settings.scheduler.concurrency)
    for process in ("a", "b"):
        paused.put(process, "lock_released_total", rising(0.05), family=SCHEDULER_JOB.name)
        paused.put(process, "lock_hold_seconds_count", rising(0.05), family=SCHEDULER_JOB.name, outcome="released")
    paused.put("a", "lock_not_owned_total", burst(at_once, START), family=SCHEDULER_JOB.name)
    paused.put("a", "lock_lost_total", burst(at_once, START), family=SCHEDULER_JOB.name, reason="expired")
    yield Scenario("one pause that loses all locks is no alert", paused, lasts + 1200.0, quiet=AlertSeverity.TICKET)


def _trends(plan: AlertPlan, lasts: float) -> Iterator[Scenario]:
    """A step and a steady rise are not accelerations, however large."""
    ticks = max(plan.windows.hold_s, 5 * plan.settings.reconciler.interval)
    step = Fleet(plan).put("a", "stale_jobs", during(START, START + 0.8 * ticks, 1000.0), state="RUNNING")
    yield Scenario("a step of overdue jobs is no acceleration", step, lasts, quiet=AlertSeverity.TICKET)
    steady = Fleet(plan).put("a", "orphan_replayed_total", lambda at: 0.0005 * max(0.0, at - START) ** 2, topic="t")
    yield Scenario("a steady rise of orphans is no acceleration", steady, lasts + 1800.0, quiet=AlertSeverity.TICKET)


def _takeovers(plan: AlertPlan) -> Iterator[Scenario]:
    """One crash is no alert, however many jobs it leaves behind and however late they are taken over."""
    for each in plan.takeovers:
        fleet = Fleet(plan).takes_over("b", each.part, burst(2.0, START), burst(30.0, START + each.bound_s))
        lasts = START + each.bound_s + plan.windows.slow.hold_s + plan.windows.slow.short_s
        yield Scenario(
            f"the jobs of one crashed {each.part} are taken over late", fleet, lasts, quiet=AlertSeverity.TICKET
        )


def _counts_begin_anew(plan: AlertPlan) -> Scenario:
    """An abandonment pages; the restart of its process long afterwards does not page again."""
    again = START + 2 * plan.windows.hard_s
    fleet = Fleet(plan, {"a": [(0.0, again), (again + plan.scrape_s, FOREVER)], "b": [(0.0, FOREVER)]})
    fleet.leads("a", (0.0, again)).leads("b", (again, FOREVER))
    count = added(burst(3.0, START), during(again, FOREVER, -3.0))
    fleet.over("a", "lock_abandoned_total", count, family=SCHEDULER_JOB.name)
    fleet.put("b", "lock_abandoned_total", flat(0.0), family=SCHEDULER_JOB.name)
    told: dict[float, list[str]] = {START + plan.windows.seen_s: ["HoldfastLeaseAbandoned"]}
    told |= {again + minutes * 60.0: [] for minutes in (3, 8, 16)}
    return Scenario("a counter restart is no event", fleet, again + 1200.0, told)
