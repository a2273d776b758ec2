"""What people and programs ask of runs, where it takes more than one asker, or a database of each kind, to go wrong."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import RowExists
from holdfast.plane.model.caller import Caller, NotAllowed
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.plane.workflows.run_rows import outline_of_run
from support.fixtures.workflows import ASKER, FlowStage

pytestmark = pytest.mark.asyncio

FAN = """
name: fan
inputs: {items: list}
steps:
  each: {kind: transform, for_each: "${ input.items }", input: "${ item }"}
output: "${ steps.each.output }"
"""


async def test_the_same_key_at_the_same_moment_from_everywhere_is_one_run(flow_stage: FlowStage) -> None:
    replicas = [await flow_stage.replica(serve=False) for _ in range(2)]
    await replicas[0].define(FAN)
    asked = [
        replica.components.flows.start(ASKER, "fan", {"items": [1]}, idempotency_key="once")
        for replica in replicas
        for _ in range(6)
    ]
    answers = await asyncio.gather(*asked)
    assert len({stored.run.id for stored, _ in answers}) == 1
    assert sorted(new for _, new in answers) == [False] * 11 + [True]
    with pytest.raises(RowExists, match="used for another run"):
        await replicas[1].components.flows.start(ASKER, "fan", {"items": [2]}, idempotency_key="once")


async def test_two_runs_of_one_id_are_one_and_a_refusal(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(FAN)
    asked = [replica.components.flows.start(ASKER, "fan", {"items": [n]}, run_id="mine") for n in range(4)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, RowExists) for each in answers) == 3


async def test_a_list_tells_how_runs_are_and_carries_nothing_large(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(FAN)
    runs = [await replica.start("fan", {"items": ["x" * 1000] * 20}) for _ in range(25)]
    for run in runs[:2]:
        await replica.engine.move(run, CheckRun())
    page = await replica.components.flows.runs(ASKER, limit=23)
    assert [each.id for each in page.items] == runs[:1:-1]
    assert page.after is not None
    rest = await replica.components.flows.runs(ASKER, limit=23, after=page.after)
    assert [each.id for each in rest.items] == runs[1::-1]
    assert rest.after is None
    assert {str(each.steps["each"]) for each in rest.items} == {"succeeded"}
    for listed in (page, rest):
        for each in listed.items:
            assert each == outline_of_run(await replica.run(each.id))
    assert (await replica.run(runs[0])).run.output == ["x" * 1000] * 20


async def test_nobody_defines_or_starts_in_the_name_of_another_tenant(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    await replica.define(FAN)
    flows, blue = replica.components.flows, Caller("blue", "blue")
    workflow = (await flows.definition(blue, "fan")).workflow
    for scope in ("red", "*"):
        with pytest.raises(NotAllowed):
            await flows.define(blue, workflow, tenant=scope)
    with pytest.raises(NotAllowed):
        await flows.start(blue, "fan", {"items": []}, tenant="red")
    kept, new = await flows.define(blue, workflow)
    assert (kept.scope, kept.workflow.version, new) == ("blue", 1, True)
    assert (await flows.definition(ASKER, "fan")).scope == "*"
