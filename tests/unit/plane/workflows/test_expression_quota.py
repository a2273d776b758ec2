"""The quota of a tenant for costly decisions: one at a time, then a pause, and no message waits in a slot meanwhile."""

from __future__ import annotations

import pytest

from holdfast.errors import RetryLater
from holdfast.plane.bus.delivery_rules import Kind, end_of
from holdfast.plane.workflows.core.advance import begin
from holdfast.plane.workflows.core.run import Run
from holdfast.plane.workflows.expression_quota import DELAY_MAX_S, RUNS_MAX, TENANTS_MAX, UNITS_PER_S, ExpressionQuota
from holdfast.plane.workflows.expressions.builtins import Budget
from holdfast.types import NS
from support.harness.runs import transform, workflow
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.threat("X20")


def run(identity: str, tenant: str = "acme") -> Run:
    return begin(identity, tenant, workflow(transform("s", input=1)), None, now_ns=0)


def quota(clock: VirtualClock) -> ExpressionQuota:
    return ExpressionQuota(clock, lambda below: below - 1)


def decided(found: ExpressionQuota, which: Run, units: int) -> None:
    budget = Budget()
    with found.decision(which, budget):
        budget.charge(units)


def test_a_tenant_pauses_as_long_as_its_decision_cost_and_others_do_not() -> None:
    clock = VirtualClock()
    found = quota(clock)
    decided(found, run("r1"), 2 * UNITS_PER_S)
    decided(found, run("r2", "globex"), 1)
    with pytest.raises(RetryLater) as later:
        decided(found, run("r1"), 1)
    assert 2 < later.value.delay <= DELAY_MAX_S
    assert end_of(later.value).kind is Kind.BUSY, "no failure of the message"
    clock.advance(2 * NS)
    decided(found, run("r1"), 1)


def test_two_decisions_of_one_tenant_are_not_made_at_once() -> None:
    found = quota(VirtualClock())
    with found.decision(run("r1"), Budget()):
        with pytest.raises(RetryLater), found.decision(run("r2"), Budget()):
            pytest.fail("a second decision was made")
        with found.decision(run("r3", "globex"), Budget()):
            pass
    with found.decision(run("r2"), Budget()):
        pass


def test_a_run_that_had_to_wait_is_known_without_being_read() -> None:
    clock = VirtualClock()
    found = quota(clock)
    decided(found, run("r1"), UNITS_PER_S)
    found.check("r2")  # unknown so far
    with pytest.raises(RetryLater):
        decided(found, run("r2"), 1)
    with pytest.raises(RetryLater):
        found.check("r2")
    clock.advance(NS)
    found.check("r2")


def test_the_more_messages_go_back_the_longer_they_stay_away_and_never_too_long() -> None:
    found = quota(VirtualClock())
    decided(found, run("r1"), UNITS_PER_S)
    delays: list[float] = []
    for number in range(500):
        with pytest.raises(RetryLater) as later:
            decided(found, run(f"r{number}"), 1)
        delays.append(later.value.delay)
    assert delays == sorted(delays)
    assert delays[0] < 3
    assert delays[-1] == DELAY_MAX_S


def test_what_is_remembered_is_bounded() -> None:
    clock = VirtualClock()
    found = quota(clock)
    for number in range(3 * TENANTS_MAX):
        decided(found, run(f"r{number}", f"t{number}"), 1)
        clock.advance(NS)
    assert len(found._tenants) <= TENANTS_MAX + 1
    decided(found, run("r"), UNITS_PER_S)
    for number in range(RUNS_MAX + 10):
        with pytest.raises(RetryLater):
            found._check(f"run-{number}", "acme")
    assert len(found._runs) == RUNS_MAX
