"""Outlines as the databases make them: the same that is made of the whole thing, and small whatever that is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane.approvals.rows import ApprovalOutline, outline_of_approval
from holdfast.plane.model.records import TEXT_CHARS_MAX
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.plane.workflows.core.run import CheckRun
from holdfast.plane.workflows.definitions import WorkflowOutline
from holdfast.plane.workflows.run_rows import outline_of_run
from support.fixtures.workflows import ASKER, FlowReplica, FlowStage

pytestmark = pytest.mark.asyncio

ASK = {"name": "ask", "steps": {"ok": {"message": "${ input }"}}}

TEXTS = (
    *("Go?", 'say "no" \\ or \\\\ not\n\t\x7f', "größer als 5 €", "🎈" * 3, "[1, 2]", "null", ""),
    *("x" * TEXT_CHARS_MAX, "x" * (TEXT_CHARS_MAX + 1)),
)
LONG = (
    *("x" * 100_000, '"' * 100_000, "\\" * 100_000, "é" * 100_000, "🎈" * 100_000, "\n" * 100_000),
    *("x" + "🎈" * 100_000, "xx" + "é" * 100_000, '"\\u' * 40_000, "x" + "\\" * 100_000),
)
VALUES = ({"amount": 12, "why": "ärger"}, [1, 2.5, None, True], 7, None, False)


async def outlined(replica: FlowReplica, messages: tuple[Any, ...]) -> list[ApprovalOutline]:
    await replica.components.flows.define(ASKER, from_document(ASK))
    for message in messages:
        run = await replica.start("ask", message)
        await replica.engine.move(run, CheckRun())
    return list((await replica.components.flows.approvals(ASKER)).items)


async def test_the_outline_of_an_approval_is_that_of_the_whole_one(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    flows, messages = replica.components.flows, (*TEXTS, *LONG, *VALUES)
    found = await outlined(replica, messages)
    assert [(await flows.approval(ASKER, each.job)).message for each in found] == list(messages)
    assert found == [outline_of_approval(await flows.approval(ASKER, each.job)) for each in found]
    assert {each.about for each in found[: len(TEXTS) - 1]} == {*TEXTS[:-1]}
    for each, message in zip(found[len(TEXTS) :], LONG, strict=False):
        assert each.about == f"{message[: TEXT_CHARS_MAX - 1]}…"
    for tenant in (None, "default"):
        everything = (await flows.approvals(ASKER, status=None, tenant=tenant)).items
        assert list(everything) == found[::-1]


async def test_a_long_message_that_is_no_text_shows_how_it_begins(flow_stage: FlowStage) -> None:
    (found,) = await outlined(await flow_stage.replica(serve=False), ([{"amount": 12}] * 10_000,))
    assert found.about.startswith('[{"amount": 12}, {"amount"')
    assert len(found.about) == TEXT_CHARS_MAX


async def test_the_outline_of_a_workflow_is_that_of_the_whole_one(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    flows = replica.components.flows
    steps = {f"s{number}": {"kind": "transform", "input": number} for number in range(20)}
    documents = [
        {"name": f"flow-{number:02}", "description": text, "steps": dict(list(steps.items())[: number + 1])}
        for number, text in enumerate((*TEXTS, "z" * 4_000, "🎈" * 4_000))
    ]
    documents.append({"name": "quick", "risk": "high", "steps": steps, "labels": {"steps": "many"}})
    kept = [(await flows.define(ASKER, from_document(document)))[0] for document in documents]
    again, _ = await flows.define(ASKER, from_document({**documents[0], "risk": "high"}))
    kept[0] = again
    found, following = await flows.definitions(ASKER)
    assert (found, following) == ([each.outline for each in kept], None)
    assert (found[0].version, found[0].risk, found[0].steps, found[-1].steps) == (2, "high", 1, 20)
    assert max(len(each.description) for each in found) == TEXT_CHARS_MAX
    assert isinstance(found[0], WorkflowOutline)


async def test_the_outline_of_a_run_is_that_of_the_whole_one_however_it_goes(flow_stage: FlowStage) -> None:
    replica = await flow_stage.replica(serve=False)
    flows = replica.components.flows
    large = {"kind": "transform", "for_each": "${ input }", "input": "${ item }"}
    inner = {"name": "inner", "steps": {"z": large, "a": {"topic": "t", "after": ["z"]}}}
    outer = {
        "name": "outer",
        "risk": "high",
        "timeout": "1h",
        "steps": {
            "sub": {"workflow": "inner", "input": "${ input }"},
            "bad": {"kind": "transform", "input": "${ input.nothing }", "on_error": "mend"},
            "mend": {"kind": "transform", "input": 'größer "als" 5 🎈'},
        },
    }
    for document in (inner, outer, {"name": "fails", "steps": {"bad": {"kind": "transform", "input": "${ 1 / 0 }"}}}):
        await flows.define(ASKER, from_document(document))
    items = ["x" * 10_000] * 30
    for name in ("inner", "outer", "fails"):
        run = await replica.start(name, items)
        await replica.engine.move(run, CheckRun())
    (sub,) = [each.id for each in (await flows.runs(ASKER)).items if "@" in each.id]
    await replica.engine.move(sub, CheckRun())
    waits, _ = await flows.start(
        ASKER,
        "inner",
        [1],
        idempotency_key="k",
        trace="t",
        labels={"é": "ü"},
        deadline_ns=flow_stage.clock.now().wall * 2,
    )
    assert waits.run.deadline_ns is not None
    found = (await flows.runs(ASKER)).items
    assert len(found) == 5
    for each in found:
        whole = outline_of_run(await flows.run(ASKER, each.id))
        assert each == whole
        assert list(each.steps) == list(whole.steps)
    told = {each.workflow: each for each in found if each.parent is None and each.about.idempotency_key is None}
    assert (told["fails"].status, bool(told["fails"].error), told["fails"].ended_ns is None) == ("failed", True, False)
    assert [each.parent for each in found if each.id == sub] == [told["outer"].id]
