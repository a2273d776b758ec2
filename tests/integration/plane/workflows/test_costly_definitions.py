"""Definitions that are costly to read or keep: their number of values, and what a process remembers, are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.core.run import CheckRun, RunStatus
from holdfast.plane.workflows.core.validation import VALUES_MAX, accept_document
from holdfast.plane.workflows.definitions import REMEMBERED_CHARS_MAX
from support.fixtures.workflows import ASKER, FlowStage

pytestmark = pytest.mark.threat("X20")

LONG = 400_000


def definition(value: Any) -> dict[str, Any]:
    return {"name": "large", "steps": {"s": {"kind": "transform", "input": value}}}


@pytest.mark.parametrize("value", [[[]] * (VALUES_MAX // 2), [{}] * (VALUES_MAX // 2), [0] * VALUES_MAX])
def test_a_definition_with_too_many_values_is_refused(value: Any) -> None:
    with pytest.raises(BadWorkflow) as refused:
        accept_document(definition(value))
    (problem,) = refused.value.problems
    assert problem.problem == "the definition has too many values"
    assert accept_document(definition(value[: len(value) // 2])).name == "large"


@pytest.mark.asyncio
async def test_what_a_process_remembers_of_definitions_is_bounded_and_the_others_are_read_again(
    flow_stage: FlowStage,
) -> None:
    replica = await flow_stage.replica(serve=False)
    definitions = replica.components.runs.definitions
    for number in range(3 * REMEMBERED_CHARS_MAX // LONG):
        document = definition("x" * LONG) | {"name": f"large-{number}"}
        await replica.components.flows.define(ASKER, from_document(document))
        assert definitions.remembered_chars <= REMEMBERED_CHARS_MAX
    assert definitions.remembered_chars > REMEMBERED_CHARS_MAX - 2 * LONG
    run = await replica.start("large-0")
    await replica.engine.move(run, CheckRun())
    assert (await replica.run(run)).run.status is RunStatus.SUCCEEDED
