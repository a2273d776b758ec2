"""The cost of a fan-out grows with the number of its children, not with the square of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Delivery, Message
from holdfast.plane.workflows.core import run_codec
from holdfast.plane.workflows.core.run import CheckRun, JobEnded, RunStatus
from support.fixtures.workflows import FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

WIDE = """
name: wide
steps:
  each: {kind: job, topic: work, for_each: "${ input.items }", input: "${ item }"}
  last: {kind: transform, after: [each], input: "${ len(steps.each.output) }"}
output: "${ steps.last.output }"
"""


async def opened_fan_out(replica: FlowReplica, children: int) -> str:
    run = await replica.start("wide", {"items": list(range(children))}, run_id=f"run-{children}")
    await replica.engine.move(run, CheckRun())
    return run


def ended(run: str, child: int) -> JobEnded:
    return JobEnded(f"{run}:each[{child}]@1", JobState.SUCCEEDED, {"n": child})


async def test_results_that_arrive_one_by_one_encode_and_decode_each_child_a_constant_number_of_times(
    flow_stage: FlowStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(WIDE)
    counts: Counter[str] = Counter()
    for name in ("_plain", "_read_step"):  # called for each step and child that is encoded, or decoded
        real = getattr(run_codec, name)

        def counted(*given: Any, _real: Any = real, **more: Any) -> Any:
            counts["now"] += 1
            return _real(*given, **more)

        monkeypatch.setattr(run_codec, name, counted)
    found = {}
    for children in (20, 80):
        run = await opened_fan_out(replica, children)
        counts.clear()
        for child in range(children):
            await replica.engine.move(run, ended(run, child), risk="low")
        found[children] = counts["now"]
        over = await replica.run(run)
        assert (over.run.status, over.run.output) == (RunStatus.SUCCEEDED, children)
        assert over.run.steps["each"].output == [{"n": child} for child in range(children)]
    assert found[80] <= 5 * found[20], f"steps and children that were encoded or decoded: {found}"


async def test_results_that_arrive_together_are_written_together(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(WIDE)
    run = await opened_fan_out(replica, 60)
    before = (await replica.run(run)).version
    handle = replica.engine.handlers[subjects.RUN_RESULT]
    bodies = [
        {"run": run, "risk": "low", "job": f"{run}:each[{child}]@1", "state": "SUCCEEDED", "result": {"n": child}}
        for child in (*range(59), 7, 59)  # one of them twice
    ]
    messages = [Message(f"m-{at}", subjects.RUN_RESULT, body, run) for at, body in enumerate(bodies)]
    await asyncio.gather(*(handle(Delivery(each, subjects.ENGINE, 1, 0, 0)) for each in messages))
    over = await replica.run(run)
    assert (over.run.status, over.run.output) == (RunStatus.SUCCEEDED, 60)
    assert over.version - before <= 3, "writes of the run"
    tally = replica.engine.tally
    assert tally["JobEnded.applied"] == 60
    assert tally["JobEnded.repeated"] == 1


async def test_results_of_one_run_that_wait_on_the_bus_are_handled_side_by_side(flow_stage: FlowStage) -> None:
    idle = await flow_stage.replica(serve=False)
    await idle.define(WIDE)
    run = await opened_fan_out(idle, 60)
    for child in range(60):
        await idle.end(f"{run}:each[{child}]@1", {"n": child})
    before = (await idle.run(run)).version
    replica = await flow_stage.replica()
    over = await replica.becomes(run, RunStatus.SUCCEEDED)
    assert over.run.output == 60
    assert over.version - before <= 30, "writes of the run"


async def test_a_run_that_another_replica_has_written_meanwhile_is_read_again(flow_stage: FlowStage) -> None:
    one, other = await flow_stage.replica(serve=False), await flow_stage.replica(serve=False)
    await one.define(WIDE)
    run = await opened_fan_out(one, 4)
    for child, replica in enumerate((other, one, one, other)):
        await replica.engine.move(run, ended(run, child), risk="low")
    over = await one.run(run)
    assert (over.run.status, over.run.output) == (RunStatus.SUCCEEDED, 4)
    assert over.version == 5
