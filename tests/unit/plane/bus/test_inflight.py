"""Messages in flight: kept apart by key, never settled twice, and let go in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.core.backoff import Fixed
from holdfast.errors import RetryLater
from holdfast.plane.bus.delivery_rules import Ack, Nack
from holdfast.plane.bus.inflight import InFlight, InFlightMessage
from holdfast.plane.db.ports import Consumption
from holdfast.plane.model.records import Delivery, Message
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import MS, NS

pytestmark = pytest.mark.asyncio


async def dead(delivery: Delivery, reason: str, code: str) -> None:
    raise AssertionError(f"{delivery.message.id}: {reason} ({code})")


def taken(number: int, key: str) -> InFlightMessage:
    first_ns = SystemClock().now().wall
    return InFlightMessage(
        Delivery(Message(str(number), "job.submit", {}, key), "scheduler", 1, 0, first_ns), None, 0.0
    )


@pytest.mark.parametrize("seed", range(20))
async def test_each_message_is_settled_once_whenever_the_consumer_ends(seed: int) -> None:
    """Keys, errors, slow handlers and a drain at any moment, with settling that takes a while."""
    chance = random.Random(seed)
    settled: list[tuple[str, Ack | Nack]] = []
    handled: list[str] = []

    async def handle(delivery: Delivery) -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if chance.random() < 0.2:
            raise RetryLater(0, "not yet")
        if chance.random() < 0.1:
            await asyncio.Event().wait()
        handled.append(delivery.message.id)

    async def settle(each: InFlightMessage, verdict: Ack | Nack) -> None:
        await asyncio.sleep(0)
        settled.append((each.delivery.message.id, verdict))

    in_flight = InFlight(
        Consumption("job.submit", "scheduler", concurrency=4),
        handle,
        dead,
        settle,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        backoff=Fixed(0),
        freed=lambda: None,
    )
    for start in range(0, 60, 10):
        await in_flight.take([taken(n, chance.choice(["", "a", "b"])) for n in range(start, start + 10)])
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        assert in_flight.handling <= 4
    draining = asyncio.create_task(in_flight.drain(5 * MS))
    await asyncio.sleep(0)
    await in_flight.take([taken(99, "a")])
    await draining

    assert sorted(int(identity) for identity, _ in settled) == [*range(60), 99]
    assert {identity for identity, verdict in settled if isinstance(verdict, Ack)} == set(handled)
    assert (in_flight.held, in_flight.handling, in_flight.free) == (0, 0, 0)


async def test_what_the_bus_was_not_told_of_for_long_is_named_once() -> None:
    async def settle(each: InFlightMessage, verdict: Ack | Nack) -> None:
        pass

    async def handle(_: Delivery) -> None:
        await asyncio.Event().wait()

    in_flight = InFlight(
        Consumption("job.submit", "scheduler", concurrency=1),
        handle,
        dead,
        settle,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        backoff=Fixed(NS),
        freed=lambda: None,
    )
    await in_flight.take([taken(1, "k"), taken(2, "k"), taken(3, "")])
    now_s = asyncio.get_running_loop().time()

    assert sorted(each.delivery.message.id for each in in_flight.silent_since(now_s)) == ["1", "2", "3"]
    assert in_flight.silent_since(now_s - 1) == []
    await in_flight.drain(0)
