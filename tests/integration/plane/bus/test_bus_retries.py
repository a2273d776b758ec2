"""The contract of a bus, second part: nacks, their delays and number, and dead letters."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import LockBusy, RetryLater, Unavailable
from holdfast.plane.model.records import Delivery
from holdfast.types import MS
from support.fixtures.buses import (
    GROUP,
    HOUR_NS,
    SUBJECT,
    Buses,
    Recorder,
    eventually,
    everywhere,
    how,
    message,
    nothing_pending,
    until,
)

pytestmark = [pytest.mark.asyncio, everywhere]


@pytest.mark.requires("R148")
async def test_delay_zero_comes_again_at_once_and_other_delays_later(buses: Buses) -> None:
    """In the order of their delays, not in the order of their nacks."""
    bus = await buses.bus()
    delays = {"long": 1.5, "short": 0.3, "none": 0.0}
    all_first = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.deliveries == 1:
            if len(got.got) == len(delays):
                all_first.set()
            await all_first.wait()
            raise RetryLater(delays[delivery.message.id], LockBusy("busy"))

    got = Recorder(handle)
    async with bus.consume(how(), got):
        await bus.publish([message(each) for each in delays])
        await got.until(6)

    assert got.ids[3:] == ["none", "short", "long"]
    assert [each.failures for each in got.got] == [0] * 6


async def test_busy_and_store_trouble_never_end_in_a_dead_letter(buses: Buses) -> None:
    bus = await buses.bus()
    causes = [LockBusy("busy"), Unavailable("down")]

    async def handle(delivery: Delivery) -> None:
        if delivery.deliveries <= 200:
            raise RetryLater(0, causes[delivery.deliveries % 2])

    got = Recorder(handle)
    async with bus.consume(how(max_failures=2), got):
        await bus.publish([message("1")])
        await got.until(201)
        await nothing_pending(bus)

    assert [each.deliveries for each in got.got] == list(range(1, 202))
    assert {each.failures for each in got.got} == {0}
    assert buses.letters.found == []


@pytest.mark.parametrize("error", [ValueError("broken"), RetryLater(0, "not yet")], ids=["error", "retry"])
async def test_errors_count_and_end_in_a_dead_letter(buses: Buses, error: Exception) -> None:
    bus = await buses.bus()

    async def handle(_: Delivery) -> None:
        raise error

    got = Recorder(handle)
    async with bus.consume(how(max_failures=4), got):
        await bus.publish([message("1")])
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await nothing_pending(bus)

    assert [each.failures for each in got.got] == [0, 1, 2, 3]
    [(delivery, reason, code)] = buses.letters.found
    assert (delivery.message, code) == (message("1"), "max_failures")
    assert str(error) in reason


async def test_a_failure_survives_its_consumer(buses: Buses) -> None:
    """The budget belongs to the message: another consumer continues counting where the first one ended."""
    first, second = await buses.bus(), await buses.bus()

    async def handle(_: Delivery) -> None:
        raise RetryLater(0.2, "not yet")

    one, two = Recorder(handle), Recorder(handle)
    async with first.consume(how(max_failures=3), one):
        await first.publish([message("1")])
        await one.until(1)
    async with second.consume(how(max_failures=3), two):
        await until(lambda: bool(buses.letters.found), buses.letters.changed)

    assert [each.failures for each in (*one.got, *two.got)] == [0, 1, 2]


async def test_what_is_too_old_ends_in_a_dead_letter(buses: Buses) -> None:
    bus = await buses.bus()

    async def handle(_: Delivery) -> None:
        raise RetryLater(0.02, LockBusy("busy"))

    async with bus.consume(how(max_age_ns=200 * MS), Recorder(handle)):
        await bus.publish([message("1")])
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await nothing_pending(bus)

    assert buses.letters.codes == ["too_old"]


async def test_a_message_that_cannot_be_read_ends_in_a_dead_letter_and_is_in_nobodys_way(buses: Buses) -> None:
    bus = await buses.bus()
    got = Recorder()
    await buses.spoil("poison")

    async with bus.consume(how(concurrency=1), got):
        await bus.publish([message("good")])
        await got.until(1)
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await nothing_pending(bus)

    [(delivery, _, code)] = buses.letters.found
    assert (delivery.message.id, code, delivery.deliveries) == ("poison", "unreadable", 3)
    assert "{" in delivery.message.body["raw"]
    assert got.ids == ["good"]


async def test_a_dead_letter_that_cannot_be_written_keeps_its_message(buses: Buses) -> None:
    bus = await buses.bus()
    buses.letters.failing = 1
    tried = asyncio.Event()

    async def handle(_: Delivery) -> None:
        tried.set()
        raise ValueError("broken")

    async with bus.consume(how(max_failures=1), Recorder(handle)):
        await bus.publish([message("1")])
        await tried.wait()

        async def failed() -> bool:
            return bus.statistics().get("burials_failed") == 1

        await eventually(failed)

    assert await bus.pending(SUBJECT, GROUP) == 1
    assert buses.letters.found == []


async def test_a_handler_whose_own_task_was_cancelled_has_failed(buses: Buses) -> None:
    bus = await buses.bus()

    async def handle(_: Delivery) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    async with bus.consume(how(max_failures=1), Recorder(handle)):
        await bus.publish([message("1")])
        await until(lambda: bool(buses.letters.found), buses.letters.changed)

    assert buses.letters.codes == ["max_failures"]


@pytest.mark.requires("R148", "R156", "R165", "R166")
async def test_a_retry_of_either_class_is_not_a_failure_with_jitter_or_without(buses: Buses) -> None:
    bus = await buses.bus()
    delays = RetryDelays()
    errors = [
        delays.later(LockBusy("b"), lambda n: 0),
        delays.with_jitter().later(LockBusy("b"), lambda n: n - 1),
        delays.later(Unavailable("u"), lambda n: 0),
    ]

    async def handle(delivery: Delivery) -> None:
        if delivery.deliveries == 1:
            raise errors[int(delivery.message.id)]

    got = Recorder(handle)
    async with bus.consume(how(max_failures=1), got):
        await bus.publish([message(str(n)) for n in range(3)])
        await got.until(6)

    assert got.ids[3:] == ["0", "1", "2"]  # 500 ms, 699.999999 ms, 1 s
    assert buses.letters.found == []


async def test_what_one_gives_back_for_a_moment_is_had_by_others(buses: Buses) -> None:
    """Two buses that share nothing but their servers; both would look again after an hour, and one takes nothing."""
    here, there = await buses.bus(poll_ns=HOUR_NS), await buses.bus(poll_ns=HOUR_NS)
    got = Recorder()

    async def not_here(delivery: Delivery) -> None:
        raise RetryLater(0.02, LockBusy("no place for it"))

    async with here.consume(how(), not_here), there.consume(how(), got):
        for n in range(12):
            await here.publish([message(str(n))])
            await got.until(n + 1)
        await nothing_pending(there)

    assert got.ids == [str(n) for n in range(12)]
