"""Older workers put several results into one message. A scheduler publishes each of them again, on its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.plane.scheduler.scheduler import results_in
from support.fixtures.scheduling import POOL, Replica, delivered, finished, run_of, submitted


def result(job: str, value: Any = None, attempt: int = 1, fence: int = 7) -> Message:
    told = {"status": "succeeded", "result": value, "took_ns": 1000}
    return subjects.finished(job, attempt, "w1", run_of(job, fence), told)


def joined(results: Sequence[Message]) -> Message:
    """One message with several results, as an older worker publishes it and a bus delivers it."""
    bodies = [{**each.body, "fence": None if each.fence is None else each.fence.fence} for each in results]
    body = json.loads(json.dumps({"results": bodies}))
    return Message(f"{subjects.RESULT}:together:token", subjects.RESULT, body)


_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.lists(st.tuples(st.integers(0, 9), _VALUES, st.integers(0, 99), st.integers(1, 2**53)), min_size=1))
def test_each_result_is_the_message_that_it_would_have_been_alone(said: list[tuple[int, Any, int, int]]) -> None:
    messages = [result(f"job-{number}", value, attempt, fence) for number, value, attempt, fence in said]
    assert results_in(joined(messages)) == messages


def test_a_single_result_is_none_of_these_messages() -> None:
    assert results_in(result("a")) is None


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        "all",
        [1],
        [{}],
        [{"job": "a b", "attempt": 1, "fence": 1}],
        [{"job": "a", "attempt": -1, "fence": 1}],
        [{"job": "a", "attempt": 1}],
        [{"job": "a", "attempt": 1, "fence": None}],
        [{"job": "a", "attempt": 1, "fence": True}],
        [{"job": "a", "attempt": 1, "fence": 0}],
        [{"job": "a", "attempt": 1, "fence": 2**63}],
    ],
)
def test_what_is_no_list_of_results_is_refused(said: Any) -> None:
    with pytest.raises(BadInput):
        results_in(Message("m", subjects.RESULT, {"results": said}))


async def dispatched(plane: Replica, number: int) -> list[Job]:
    await plane.beat(capacity=100)
    jobs = [await plane.submit() for _ in range(number)]
    for job in jobs:
        await plane.scheduler.on_submit(submitted(job))
    return [await plane.job(job) for job in jobs]


def results_of(jobs: Sequence[Job]) -> Message:
    return joined([finished(job, 1, run_of(job, 7)).message for job in jobs])


@pytest.mark.asyncio
async def test_each_job_ends_once_also_when_the_message_comes_again(plane: Replica) -> None:
    jobs = await dispatched(plane, 5)
    await plane.scheduler.on_result(finished(jobs[0], 1, run_of(jobs[0], 7)))  # handled before, alone
    for deliveries in (1, 2):
        await plane.scheduler.handlers[subjects.RESULT](delivered(results_of(jobs), deliveries))
    assert plane.scheduler.statistics()["job.result.several"] == 2
    async with plane.scheduler.serving():
        for job in jobs:
            await plane.in_state(job, JobState.SUCCEEDED)
    assert plane.scheduler.statistics()["duplicate_ends"] == 0
    assert await plane.running() == ({"default": 0}, {POOL: 0})


@pytest.mark.asyncio
async def test_a_result_that_makes_no_sense_harms_no_other(plane: Replica) -> None:
    jobs = await dispatched(plane, 2)
    message = results_of(jobs)
    message.body["results"][1]["status"] = "fine"
    [right, wrong] = results_in(message) or []
    await plane.scheduler.handlers[subjects.RESULT](delivered(right))
    with pytest.raises(BadInput, match="fine"):
        await plane.scheduler.handlers[subjects.RESULT](delivered(wrong))
    assert [(await plane.job(job)).state for job in jobs] == [JobState.SUCCEEDED, JobState.DISPATCHED]
