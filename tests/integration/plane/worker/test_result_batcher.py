"""Results that are ready at the same time: one message for the bus, and each of them handled as if it were alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BackendError, BadInput, LockBusy, RetryLater, Unavailable
from holdfast.plane.db.ports import Bus
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job, Message
from holdfast.plane.worker.result_batcher import BATCH_CHARS, BATCH_MAX, ResultBatcher, joined, split
from holdfast.runtime.system import SystemEntropy
from support.fixtures.scheduling import POOL, Replica, delivered, finished, run_of, submitted


def result(job: str, value: Any = None, attempt: int = 1, fence: int = 7) -> Message:
    told = {"status": "succeeded", "result": value, "took_ns": 1000}
    return subjects.finished(job, attempt, "w1", run_of(job, fence), told)


def sent(message: Message) -> Message:
    """As it comes out of a bus."""
    return replace(message, body=json.loads(json.dumps(message.body)))


# The messages.

_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))


@given(st.lists(st.tuples(st.integers(0, 9), _VALUES, st.integers(0, 99), st.integers(1, 2**53)), min_size=1))
def test_taken_apart_they_are_the_messages_that_they_would_have_been(said: list[tuple[int, Any, int, int]]) -> None:
    messages = [result(f"job-{number}", value, attempt, fence) for number, value, attempt, fence in said]
    one = joined(messages, "token")
    assert split(sent(one)) == messages
    assert one.id not in {each.id for each in messages} or len(messages) == 1


def test_a_single_one_is_as_it_is_and_two_bundles_are_never_one_message() -> None:
    assert joined([result("a")], "token") == result("a")
    assert joined([result("a"), result("b")], "x").id != joined([result("a"), result("b")], "y").id


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
        split(Message("m", subjects.RESULT, {"results": said}))


# The desk of a worker.


class SlowBus:
    """Publishes when it is let."""

    def __init__(self, refuses: Callable[[Sequence[Message]], Exception | None] = lambda _: None) -> None:
        self.published: list[Message] = []
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self._refuses = refuses

    async def publish(self, messages: Sequence[Message]) -> None:
        self.asked.set()
        await self.open.wait()
        if (error := self._refuses(messages)) is not None:
            raise error
        self.published += messages


def desk_on(bus: SlowBus) -> ResultBatcher:
    return ResultBatcher(cast("Bus", bus), SystemEntropy())


async def tell_all(bus: SlowBus, messages: Sequence[tuple[Message, int]]) -> list[BaseException | None]:
    """The first alone, and the others while that is under way."""
    desk = desk_on(bus)
    first = asyncio.create_task(desk.publish(*messages[0]))
    await bus.asked.wait()
    rest = [asyncio.create_task(desk.publish(*each)) for each in messages[1:]]
    await asyncio.sleep(0)
    bus.open.set()
    return await asyncio.gather(first, *rest, return_exceptions=True)


@pytest.mark.asyncio
async def test_what_is_ready_while_others_are_said_is_said_in_one_message() -> None:
    bus = SlowBus()
    messages = [result(f"job-{number}") for number in range(20)]
    assert await tell_all(bus, [(each, 4) for each in messages]) == [None] * 20
    assert len(bus.published) == 2
    assert [each for message in bus.published for each in split(message)] == messages


@pytest.mark.asyncio
async def test_each_result_is_a_message_if_batching_is_switched_off() -> None:
    bus = SlowBus()
    bus.open.set()
    batcher = ResultBatcher(cast("Bus", bus), SystemEntropy(), enabled=False)
    messages = [result(f"job-{number}") for number in range(20)]
    await asyncio.gather(*(batcher.publish(each, 4) for each in messages))
    assert bus.published == messages


@pytest.mark.asyncio
async def test_a_message_is_no_longer_than_it_should_be() -> None:
    bus = SlowBus()
    many = [(result(f"job-{number}"), 4) for number in range(1 + BATCH_MAX + 5)]
    long = [(result(f"long-{number}"), BATCH_CHARS // 2 + 1) for number in range(3)]
    await tell_all(bus, many + long)
    assert [len(split(message)) for message in bus.published] == [1, BATCH_MAX, 6, 1, 1]


@pytest.mark.asyncio
async def test_trouble_with_the_bus_is_told_to_each_who_was_on_it() -> None:
    bus = SlowBus(lambda _: Unavailable("away"))
    ends = await tell_all(bus, [(result(f"job-{number}"), 4) for number in range(4)])
    assert [type(each) for each in ends] == [Unavailable] * 4
    assert isinstance(ends[0], BackendError)
    assert len({id(each) for each in ends}) == 4


@pytest.mark.asyncio
async def test_what_cannot_be_said_with_the_others_is_said_by_itself_and_an_error_is_one_s_own() -> None:
    def refuses(messages: Sequence[Message]) -> Exception | None:
        poison = any("job-2" in json.dumps(each.body) for each in messages)
        return BadInput("body", "is nested too deeply", "nest it less") if poison else None

    bus = SlowBus(refuses)
    messages = [result(f"job-{number}") for number in range(5)]
    ends = await tell_all(bus, [(each, 4) for each in messages])
    assert [type(each) for each in ends] == [type(None), type(None), BadInput, type(None), type(None)]
    assert bus.published == [messages[number] for number in (0, 1, 3, 4)]


# The scheduler.


async def dispatched(plane: Replica, number: int) -> list[Job]:
    await plane.beat(capacity=100)
    jobs = [await plane.submit() for _ in range(number)]
    for job in jobs:
        await plane.scheduler.on_submit(submitted(job))
    return [await plane.job(job) for job in jobs]


def bundle(jobs: Sequence[Job]) -> Message:
    return sent(joined([finished(job, 1, run_of(job, 7)).message for job in jobs], "token"))


@pytest.mark.asyncio
async def test_many_results_in_one_message_end_each_job_once_also_when_it_comes_again(plane: Replica) -> None:
    jobs = await dispatched(plane, 5)
    await plane.scheduler.on_result(finished(jobs[0], 1, run_of(jobs[0], 7)))  # handled before, alone
    for deliveries in (1, 2):
        await plane.scheduler.handlers[subjects.RESULT](delivered(bundle(jobs), deliveries))
    assert [(await plane.job(job)).state for job in jobs] == [JobState.SUCCEEDED] * 5
    counts = plane.scheduler.statistics()
    assert (counts["job.result.current"], counts["job.result.over"], counts["duplicate_ends"]) == (5, 6, 0)
    assert await plane.running() == ({"default": 0}, {POOL: 0})


@pytest.mark.asyncio
async def test_one_that_cannot_be_handled_now_goes_on_by_itself_and_keeps_nobody(plane: Replica) -> None:
    jobs = await dispatched(plane, 4)
    held, placement = jobs[2], plane.scheduler.placement
    async with job_lock(placement.locks, held.id, placement.delays, statistics=placement.lock_statistics):
        await plane.scheduler.handlers[subjects.RESULT](delivered(bundle(jobs)))
        states = [(await plane.job(job)).state for job in jobs]
        assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.DISPATCHED, JobState.SUCCEEDED]
        [alone] = await plane.staged(subjects.RESULT)
    assert (alone["id"], alone["fence"]) == (f"job.result:{held.id}:1:7", 7)
    assert plane.scheduler.statistics()["job.result.alone"] == 1
    async with plane.scheduler.serving():
        await plane.in_state(held, JobState.SUCCEEDED)


@pytest.mark.asyncio
async def test_when_none_can_be_handled_now_they_come_again_together(plane: Replica) -> None:
    jobs = await dispatched(plane, 2)
    placement = plane.scheduler.placement
    async with AsyncExitStack() as stack:
        for job in jobs:
            lock = job_lock(placement.locks, job.id, placement.delays, statistics=placement.lock_statistics)
            await stack.enter_async_context(lock)
        with pytest.raises(RetryLater) as later:
            await plane.scheduler.handlers[subjects.RESULT](delivered(bundle(jobs)))
        assert isinstance(later.value.__cause__, LockBusy)
        assert await plane.staged(subjects.RESULT) == []
    await plane.scheduler.handlers[subjects.RESULT](delivered(bundle(jobs), 2))
    assert [(await plane.job(job)).state for job in jobs] == [JobState.SUCCEEDED] * 2


@pytest.mark.asyncio
async def test_a_message_with_one_result_that_makes_no_sense_is_refused_as_a_whole(plane: Replica) -> None:
    jobs = await dispatched(plane, 2)
    message = bundle(jobs)
    message.body["results"][1]["status"] = "fine"
    with pytest.raises(BadInput, match="fine"):
        await plane.scheduler.handlers[subjects.RESULT](delivered(message))
    assert [(await plane.job(job)).state for job in jobs] == [JobState.DISPATCHED] * 2
