"""Workflows on replicas of the engine that share one SQLite file: state, messages and leases, as `holdfast up` has it.

The tests share one plane, two replicas of the engine, which none of them breaks; the checker looks at all that ever
happened there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fleet.fleet import until
from support.fleet.flow_faults import kill_engines, replace_engines
from support.fleet.flow_fleet import FlowFleet, embedded
from support.fleet.flow_runs import Orders, check, furnish

pytestmark = pytest.mark.timeout(300)  # many processes, on machines that are busy


@pytest.fixture(scope="module")
def in_one_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowFleet]:
    """The plane."""
    with embedded(tmp_path_factory.mktemp("flows")) as made:
        furnish(made)
        yield made


@pytest.mark.requires("R46", "R47")
def test_engines_killed_in_the_middle_of_runs_are_followed_and_nothing_is_done_twice(in_one_file: FlowFleet) -> None:
    kill_engines(in_one_file, 3, 7)


@pytest.mark.requires("R131")
def test_engines_replaced_one_after_the_other_drain_and_waste_nothing(in_one_file: FlowFleet) -> None:
    replace_engines(in_one_file, 2, 6)


@pytest.mark.requires("R90", "R103", "R105")
def test_forced_errors_of_the_run_lock_are_counted_and_runs_go_on_with_nothing_done_twice(
    in_one_file: FlowFleet,
) -> None:
    it = in_one_file
    exercised = 'holdfast_lock_exercised_total{family="workflow.run",risk="low"}'
    it.command("policy", "exercise", "workflow.run", "0.5", "--for", "60s", "--reason", "the test wants it")
    until(lambda: all(it.metric(each, "holdfast_lock_exercise_share") > 0 for each in it.engines), "all to take part")
    before = it.metrics(exercised)
    with Orders(it, 7) as orders:
        pass
    check(it, orders.wanted)
    assert it.metrics(exercised) > before
    assert it.metrics("holdfast_workflow_lock_fallback_total") == 0, "on purpose is not by accident"
    it.command("policy", "exercise", "workflow.run", "0")
