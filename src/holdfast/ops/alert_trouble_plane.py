"""Situations in which the plane is in trouble: each alert about loops, the store, the policy and processes fires."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.alerting import overdue_s
from holdfast.ops import alert_takeovers
from holdfast.ops.alert_calm import START
from holdfast.ops.alert_fleet import FOREVER, Fleet
from holdfast.ops.alert_loops import burn_of
from holdfast.ops.alert_plan import Plan
from holdfast.ops.alert_scenario import Scenario
from holdfast.ops.alert_series import burst, during, rising
from holdfast.plane.locks.registry import WORKER_JOB, WORKFLOW_RUN
from holdfast.types import NS

SLACK = 5  # scrapes, until a rule that is evaluated at every other one has heard of something


def trouble_of_the_plane(plan: Plan) -> Iterator[Scenario]:
    """All of them."""
    yield from _loops(plan)
    yield from _takeovers(plan)
    yield from _store(plan)
    yield from _policy(plan)
    yield from _processes(plan)


def _loops(plan: Plan) -> Iterator[Scenario]:
    if not plan.loops:
        return
    loop, settle = plan.loops[0], plan.pace.settle_s
    bound = overdue_s(loop.interval_s, loop.takeover_s, plan.scrape_s)
    stuck = Fleet(plan).over("a", "loop_last_tick_timestamp_seconds", lambda at: min(at, START), loop=loop.name)
    at = START + bound + settle + SLACK * plan.scrape_s
    yield Scenario("a loop is led and does not tick", stuck, at, {at: ["HoldfastLoopLate"]})
    nobody = Fleet(plan).leads("a", (0.0, START), loops=[loop.name])
    at = START + loop.takeover_s + settle + SLACK * plan.scrape_s
    yield Scenario("nobody leads a loop", nobody, at, {at: ["HoldfastNoLeader"]})
    two = Fleet(plan).leads("b", (START, FOREVER), loops=[loop.name])
    at = START + plan.pace.window_s + SLACK * plan.scrape_s
    yield Scenario("two lead a loop", two, at, {at: ["HoldfastTwoLeaders"]})
    burn = burn_of(plan, bound)
    if burn is None:
        return
    # A tick now and then: each time late, and never for long enough to be an alert of its own.
    every = bound + 0.9 * settle
    flaps = Fleet(plan).over(
        "a",
        "loop_last_tick_timestamp_seconds",
        lambda at: at if at < START else START + (at - START) // every * every,
        loop=loop.name,
    )
    at = START + burn.hold_s + every * 4
    yield Scenario("takeovers take too long too often", flaps, at, {at: ["HoldfastTakeoverBurn"]})


def _takeovers(plan: Plan) -> Iterator[Scenario]:
    """Somebody dies every few minutes, and of three jobs that are left behind one is had too late."""
    burn = alert_takeovers.burn_of(plan)
    often = 1 / plan.pace.window_s
    for each in plan.takeovers:
        fleet = Fleet(plan).takes_over("b", each.part, rising(2 * often, START), rising(often, START))
        at = START + burn.short_s + burn.hold_s + SLACK * plan.scrape_s
        told = {at: ["HoldfastJobTakeoverBurn"]}
        yield Scenario(f"the jobs of dead {each.part}s are had too late too often", fleet, at, told)


def _store(plan: Plan) -> Iterator[Scenario]:
    at = START + plan.pace.settle_s + SLACK * plan.scrape_s
    down = Fleet(plan)
    for process in ("a", "b"):
        down.put(process, "store_breaker_open", burst(1.0, START))
        down.put(process, "lock_store_errors_total", rising(1.0, START), family=WORKER_JOB.name)
    down.leads("a", (0.0, START))  # nobody can lead, and that is no alert of its own
    later = START + 2 * plan.pace.settle_s + max((each.takeover_s for each in plan.loops), default=0.0)
    both = {at: ["HoldfastStoreDown"], later: ["HoldfastStoreDown"]}
    yield Scenario("the store is down", down, later, both)
    forgotten = Fleet(plan).put("a", "store_breaker_open", burst(1.0, START))  # nobody has asked since
    yield Scenario("a breaker that nobody asks is no outage", forgotten, later, {later: []})


def _policy(plan: Plan) -> Iterator[Scenario]:
    rule = plan.settings.escalation.rule
    window = max(rule.window_ns / NS, 4 * plan.scrape_s)
    run = {"family": WORKFLOW_RUN.name, "risk": "low"}
    outage = START + 2.5 * window

    def falling() -> Fleet:
        """The store is down for a while, and more locks fall back than are allowed to."""
        fleet = Fleet(plan).put("a", "lock_fallback_total", rising(3 * max(rule.rate, 0.01), START, outage), **run)
        fleet.put("a", "lock_store_errors_total", rising(1.0, START, outage), family=WORKFLOW_RUN.name)
        return fleet.put("a", "lock_promoted_total", burst(9.0, outage), family=WORKFLOW_RUN.name)

    at = START + 2 * window + SLACK * plan.scrape_s
    over = outage + 4 * plan.pace.hold_s + window
    yield Scenario("locks fall back", falling(), over, {at: ["HoldfastFallback"], over: []})
    harmful = falling().put("a", "duplicates_total", rising(0.02, START + window), kind="step")
    told = ["HoldfastFallback", "HoldfastFallbackHarmful"]
    yield Scenario("locks fall back and duplicates rise", harmful, at, {at: told})
    steady = falling().put("a", "duplicates_total", rising(0.02), kind="publish")
    later = outage - plan.scrape_s
    yield Scenario("duplicates that do not rise are no harm", steady, later, {later: ["HoldfastFallback"]})
    soon = START + plan.pace.hold_s + 2 * plan.pace.window_s
    remains = Fleet(plan).put("b", "lock_fallback_total", rising(min(0.5 * rule.rate, 0.02) or 0.01, START), **run)
    if rule.rate > 0:
        yield Scenario("locks still fall back", remains, soon, {soon: ["HoldfastFallbackRemains"]})
    degraded = Fleet(plan).put("b", "locks_degraded", burst(2.0, START), family=WORKFLOW_RUN.name)
    yield Scenario("leases stay degraded", degraded, soon, {soon: ["HoldfastDegradedRemains"]})
    seen = START + plan.pace.seen_s
    switched = Fleet(plan).put("a", "policy_escalations_total", burst(1.0, START))
    yield Scenario("the plane has escalated", switched, seen, {seen: ["HoldfastPolicyEscalated"]})
    behind = Fleet(plan).put("b", "policy_revision", during(START, FOREVER, 6.0, 7.0))
    at = START + plan.pace.window_s + SLACK * plan.scrape_s
    yield Scenario("a process follows an old policy", behind, at, {at: ["HoldfastPolicyDiverged"]})


def _processes(plan: Plan) -> Iterator[Scenario]:
    grace, settle = plan.settings.grace, plan.pace.settle_s
    at = START + grace + settle + plan.pace.window_s + SLACK * plan.scrape_s
    gone = Fleet(plan, {"a": [(0.0, START)], "b": [(0.0, START)]})
    yield Scenario("the whole plane is gone", gone, at, {at: ["HoldfastProcessDown", "HoldfastSilent"]})
    one = Fleet(plan, {"a": [(0.0, FOREVER)], "b": [(0.0, START)]})
    yield Scenario("a process does not come back", one, at, {at: ["HoldfastProcessDown"]})
    part = next(iter(plan.parts))
    missing = Fleet(plan)
    for process in ("a", "b"):
        missing.put(process, "part_running", during(START, FOREVER, 0.0, 1.0), part=part)
        missing.put(process, "draining", burst(1.0, START))
    yield Scenario("nobody runs a part", missing, at, {at: ["HoldfastPartMissing"]})
    failed = Fleet(plan).put("b", "part_running", during(START, FOREVER, 0.0, 1.0), part=part)
    yield Scenario("a part has failed", failed, at, {at: ["HoldfastPartFailed"]})
    dropped = Fleet(plan).put("b", "audit_dropped_total", burst(5.0, START))
    seen = START + plan.pace.seen_s
    yield Scenario("the audit ledger has gaps", dropped, seen, {seen: ["HoldfastAuditIncomplete"]})
