"""The contract of a bus, third part: long handlers, pauses, endings, and answers to bad input."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import BadInput, Closed
from holdfast.plane.model.records import MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX, Delivery, Message
from holdfast.types import MS
from support.fixtures.buses import (
    GROUP,
    SUBJECT,
    Buses,
    Recorder,
    everywhere,
    how,
    message,
    nothing_pending,
)

pytestmark = [pytest.mark.asyncio, everywhere]


async def test_a_handler_may_take_much_longer_than_the_ack_wait(buses: Buses) -> None:
    (bus, database), other = await buses.open(), await buses.bus()
    go_on = asyncio.Event()

    async def handle(_: Delivery) -> None:
        await go_on.wait()

    got = Recorder(handle)
    patient = how(ack_wait_ns=400 * MS)
    async with bus.consume(patient, got), other.consume(patient, got):
        await bus.publish([message("1")])
        await got.until(1)
        await buses.in_progress(database, 400 * MS, 4)
        go_on.set()
        await nothing_pending(bus)

    assert len(got.got) == 1


async def test_a_paused_consumer_takes_nothing_and_a_resumed_one_does(buses: Buses) -> None:
    bus = await buses.bus()
    got, canary = Recorder(), Recorder()

    async with bus.consume(how(), got) as consumer, bus.consume(how(subject="job.cancel"), canary):
        await bus.publish([message("before")])
        await got.until(1)
        await nothing_pending(bus)
        consumer.pause()
        await bus.publish([message("1")])
        for n in range(5):
            await bus.publish([message(f"c{n}", subject="job.cancel")])
            await canary.until(n + 1)
        assert got.ids == ["before"]
        assert await bus.pending(SUBJECT, GROUP) == 1
        consumer.resume()
        await got.until(2)
        await nothing_pending(bus)

    assert got.ids == ["before", "1"]


async def test_a_consumer_that_ends_lets_its_handlers_finish(buses: Buses) -> None:
    bus = await buses.bus()
    ending = asyncio.Event()
    finished = 0

    async def handle(_: Delivery) -> None:
        nonlocal finished
        await ending.wait()
        await asyncio.sleep(0.01)
        finished += 1

    got = Recorder(handle)
    async with bus.consume(how(), got):
        await bus.publish([message("1"), message("2")])
        await got.until(2)
        ending.set()

    assert finished == 2
    await nothing_pending(bus)
    assert len(got.got) == 2


@pytest.mark.parametrize("obedient", [True, False], ids=["cancelled", "swallows"])
async def test_what_is_not_handled_when_a_consumer_ends_is_given_back_at_once(buses: Buses, obedient: bool) -> None:
    """Also if the handler swallows its cancellation and returns: nothing is acknowledged that was not handled."""
    bus, other = await buses.bus(grace_ns=50 * MS), await buses.bus()

    async def handle(_: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if obedient:
                raise

    got, again = Recorder(handle), Recorder()
    async with bus.consume(how(concurrency=2), got):
        await bus.publish([message(str(n), key="same") for n in range(5)])
        await got.until(1)
    async with other.consume(how(), again):
        await again.until(5)

    assert got.ids == ["0"]
    assert sorted(again.ids) == ["0", "1", "2", "3", "4"]
    assert {each.failures for each in again.got} == {0}
    assert buses.letters.found == []


async def test_a_consuming_task_that_is_cancelled_gives_everything_back(buses: Buses) -> None:
    bus, other = await buses.bus(grace_ns=50 * MS), await buses.bus()

    async def handle(_: Delivery) -> None:
        await asyncio.Event().wait()

    got, again = Recorder(handle), Recorder()

    async def consume() -> None:
        async with bus.consume(how(), got):
            await asyncio.Event().wait()

    task = asyncio.create_task(consume())
    await bus.publish([message("1")])
    await got.until(1)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # twice, while it drains
    with pytest.raises(asyncio.CancelledError):
        await task

    async with other.consume(how(), again):
        await again.until(1)
    assert (again.got[0].deliveries, again.got[0].failures) == (2, 0)


# Answers to bad input.


async def nothing(_: Delivery) -> None:
    pass


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"subject": "nowhere"}, "subject"),
        ({"subject": ""}, "subject"),
        ({"group": "nobody"}, "group"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"ack_wait_ns": MS}, "ack_wait_ns"),
        ({"max_failures": 0}, "max_failures"),
        ({"max_age_ns": -1}, "max_age_ns"),
    ],
)
async def test_a_consumption_that_cannot_be_is_refused(buses: Buses, changes: dict[str, Any], field: str) -> None:
    bus = await buses.bus()

    with pytest.raises(BadInput) as refused:
        bus.consume(how(**changes), nothing)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * 501}, "id"),
        ({"id": "a\n"}, "id"),
        ({"subject": "nowhere.else"}, "subject"),
        ({"body": {"x": float("nan")}}, "body"),
        ({"body": {"x": "a" * MESSAGE_BYTES_MAX}}, "body"),
        ({"body": {"x": object()}}, "body"),
        ({"priority": 101}, "priority"),
        ({"not_before_ns": -1}, "not_before_ns"),
    ],
)
async def test_a_message_that_cannot_be_is_refused_and_nothing_of_its_batch_is_sent(
    buses: Buses, changes: dict[str, Any], field: str
) -> None:
    bus, database = await buses.open()
    batch: Sequence[Message] = [message("good"), Message(**{"id": "1", "subject": SUBJECT, "body": {}, **changes})]

    with pytest.raises(BadInput) as refused:
        await bus.publish(batch)
    with pytest.raises(BadInput):
        await database.write(lambda tx: bus.stage(tx, batch))

    assert refused.value.field == field
    assert await bus.pending(SUBJECT, GROUP) == 0


async def test_the_largest_body_is_carried_whole(buses: Buses) -> None:
    """One that holds the longest payload, and what is told along with it."""
    bus, database = await buses.open()
    body = {"x": "a" * (MESSAGE_BYTES_MAX - len('{"x":""}'))}
    got = Recorder()

    assert MESSAGE_BYTES_MAX > PAYLOAD_BYTES_MAX
    async with bus.consume(how(), got):
        await database.write(lambda tx: bus.stage(tx, [message("1", body=body)]))
        await got.until(1)

    assert got.got[0].message.body == body
    assert buses.letters.found == []


async def test_a_closed_bus_says_so(buses: Buses) -> None:
    bus = await buses.bus()
    await bus.close()
    await bus.close()

    with pytest.raises(Closed):
        await bus.publish([message("1")])
    with pytest.raises(Closed):
        bus.consume(how(), nothing)
    with pytest.raises(Closed):
        await bus.pending(SUBJECT, GROUP)


async def test_a_bus_without_a_place_for_dead_letters_does_not_consume(buses: Buses) -> None:
    bus = await buses.bus(dead=None)

    with pytest.raises(BadInput, match="dead"):
        async with bus.consume(how(), nothing):
            pass


async def test_any_number_of_processes_may_prepare_at_once(buses: Buses) -> None:
    unprepared = [await buses.bus(prepared=False) for _ in range(6)]

    await asyncio.gather(*(bus.prepare() for bus in unprepared))
    await asyncio.gather(*(bus.publish([message(str(n))]) for n, bus in enumerate(unprepared)))

    assert await unprepared[0].pending(SUBJECT, GROUP) == 6
