"""A tenant, and one run with all that it starts, have a bounded number of runs. On SQLite and Postgres."""

from __future__ import annotations

import pytest

from holdfast.cli.exit_codes import Exit, exit_for
from holdfast.plane.settings.sections import RunSettings
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.run import RunStatus, root_of
from holdfast.plane.workflows.run_quotas import RunQuotas, TooManyRuns
from holdfast.web.problems import problem_of
from support.fixtures.workflows import ASKER, FlowStage, holds

pytestmark = [pytest.mark.asyncio, pytest.mark.threat("X22")]

BREEDING = """
name: breeding
steps:
  more: {kind: workflow, workflow: breeding, for_each: "${ range(5) }"}
"""
WAITING = """
name: waiting
steps:
  ask: {kind: approval, message: "Go?"}
"""
OUTER = """
name: outer
timeout: 1h
steps:
  inner: {kind: workflow, workflow: waiting}
"""


async def test_a_workflow_that_starts_itself_ends_with_a_bounded_number_of_runs(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(runs=RunSettings(per_tree=20))
    await replica.define(BREEDING)
    run = await replica.start("breeding")
    over = await replica.becomes(run, RunStatus.FAILED)
    assert over.run.error is not None

    async def all_over() -> bool:
        live = await replica.query("SELECT id FROM plane_run WHERE status IN ('pending', 'running', 'waiting')")
        return not live

    await holds(all_over, "all runs of the tree are over")
    runs = await replica.query("SELECT id, root, document FROM plane_run")
    assert len(runs) <= 20
    assert {row["root"] for row in runs} == {None, run}
    assert any("which is the most" in row["document"] and "runs.per_tree" in row["document"] for row in runs)


async def test_a_tenant_has_a_bounded_number_of_unfinished_runs(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(runs=RunSettings(live_per_tenant=2))
    await replica.define(WAITING)
    first = await replica.start("waiting", tenant="busy", idempotency_key="first")
    await replica.start("waiting", tenant="busy")
    with pytest.raises(TooManyRuns, match="tenant busy has 2 unfinished runs"):
        await replica.start("waiting", tenant="busy")
    assert await replica.start("waiting", tenant="busy", idempotency_key="first") == first, (
        "a repeated request is answered"
    )
    await replica.start("waiting", tenant="other")
    await replica.components.flows.cancel(ASKER, first)
    await replica.becomes(first, RunStatus.CANCELLED)
    await replica.start("waiting", tenant="busy")


async def test_a_step_that_may_start_no_run_fails_with_the_reason(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(runs=RunSettings(live_per_tenant=1))
    await replica.define(WAITING)
    await replica.define(OUTER)
    over = await replica.becomes(await replica.start("outer"), RunStatus.FAILED)
    assert "tenant default has 1 unfinished runs" in (over.run.steps["inner"].error or "")


async def test_the_deadline_of_a_run_bounds_all_that_it_starts(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica()
    await replica.define(WAITING)
    await replica.define(OUTER)
    run = await replica.start("outer")
    await replica.appears(f"{run}:inner@1:ask@1")
    inner = (await replica.run(f"{run}:inner@1")).run
    assert inner.deadline_ns == (await replica.run(run)).run.deadline_ns
    assert (await replica.appears(f"{run}:inner@1:ask@1")).deadline_ns == inner.deadline_ns


@pytest.mark.parametrize("run", ["x", "a:b", "a:b:c@1", "x:y[3]@1:z@2"])
async def test_the_root_of_a_tree_is_read_from_the_id(run: str) -> None:
    assert root_of(run) == {"a:b:c@1": "a:b", "x:y[3]@1:z@2": "x"}.get(run, run)


async def test_the_quotas_of_a_store_without_settings_are_the_defaults() -> None:
    settings = Settings().runs
    assert RunQuotas() == RunQuotas(settings.live_per_tenant, settings.per_tree)


async def test_callers_are_told_when_to_ask_again() -> None:
    problem = problem_of(TooManyRuns("the tenant has too many"))
    assert (problem.status, problem.code, problem.headers["retry-after"]) == (429, "too-many-runs", "10")
    assert exit_for(TooManyRuns("the tenant has too many")) is Exit.NO
