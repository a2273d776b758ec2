"""What holds for the bus in the database alone: exact times on a scripted clock, priorities, rows, and forgetting."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import LockBusy, RetryLater, Unavailable
from holdfast.plane.bus.delivery_rules import LOST_MAX
from holdfast.plane.bus.embedded.bus import KEEP_NS, STOP_KEPT_NS, EmbeddedBus
from holdfast.plane.bus.embedded.consumer import channel_of
from holdfast.plane.db.ports import Database, Row, Tx, Work
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Delivery, Message
from holdfast.types import MS, NS
from support.fixtures.buses import (
    GROUP,
    HOUR_NS,
    SUBJECT,
    Buses,
    Recorder,
    ScriptedClock,
    embedded,
    eventually,
    how,
    message,
    until,
)

pytestmark = [pytest.mark.asyncio, embedded]


async def opened(buses: Buses, clock: ScriptedClock, **options: Any) -> tuple[EmbeddedBus, Database]:
    bus, database = await buses.open(clock=clock, poll_ns=HOUR_NS, **options)
    assert isinstance(bus, EmbeddedBus)
    return bus, database


async def rows(database: Database) -> list[Row]:
    return await database.read(lambda tx: tx.query("SELECT * FROM plane_message ORDER BY place"))


async def settled(database: Database, number: int, state: int) -> list[Row]:
    """The rows, once so many are in a state."""

    async def so_many() -> bool:
        return bool(number == sum(row["state"] == state for row in await rows(database)))

    await eventually(so_many)
    return await rows(database)


async def given_back(database: Database) -> Row:
    """The only row, after its nack."""

    async def is_back() -> bool:
        [row] = await rows(database)
        return bool(row["failures"] + row["excused"] == 1)

    await eventually(is_back)
    return (await rows(database))[0]


async def notify(database: Database) -> None:
    async def work(tx: Tx) -> None:
        tx.notify(channel_of(SUBJECT, GROUP))

    await database.write(work)


@pytest.mark.requires("R148", "R149", "R156", "R165", "R166")
@pytest.mark.parametrize(
    ("error", "delay_ns"),
    [
        (RetryDelays().later(LockBusy("b"), lambda n: n - 1), 500 * MS),
        (RetryDelays().later(Unavailable("u"), lambda n: n - 1), NS),
        (RetryDelays().with_jitter().later(LockBusy("b"), lambda n: 0), 300 * MS),
        (RetryDelays().with_jitter().later(LockBusy("b"), lambda n: n - 1), 700 * MS - 1),
        (RetryLater(0.123456789, "not yet"), 123_456_789),
        (RetryLater(86_399.987654321, LockBusy("b")), 86_399_987_654_321),
    ],
)
async def test_a_delay_is_kept_to_the_nanosecond(buses: Buses, error: RetryLater, delay_ns: int) -> None:
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    begun_ns = clock.at_ns

    async def handle(delivery: Delivery) -> None:
        if delivery.message.id == "1" and delivery.deliveries == 1:
            raise error

    got = Recorder(handle)
    async with bus.consume(how(), got):
        await bus.publish([message("1")])
        await got.until(1)
        row = await given_back(database)
        assert row["due_ns"] == begun_ns + delay_ns

        clock.at_ns = begun_ns + delay_ns - 1
        await bus.publish([message("canary")])
        await got.until(2)
        await settled(database, 1, 2)
        assert got.ids == ["1", "canary"]

        clock.at_ns += 1
        await notify(database)
        await got.until(3)

    assert got.ids == ["1", "canary", "1"]


async def test_a_delay_counts_from_when_it_was_asked_for(buses: Buses) -> None:
    """A database that was away for a while does not make it longer."""
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    begun_ns = clock.at_ns
    go_on = asyncio.Event()

    class Away:
        """The database, which answers no request until it is told to."""

        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        async def write(self, work: Work[Any], *, checked: bool = False, lasting: bool = True) -> Any:
            if not go_on.is_set() and got.got:
                clock.at_ns += 100 * MS
                raise Unavailable("away")
            return await database.write(work)

    async def handle(delivery: Delivery) -> None:
        if delivery.deliveries == 1:
            asyncio.get_running_loop().call_later(0.3, go_on.set)
            raise RetryLater(5, LockBusy("busy"))

    got = Recorder(handle)
    bus._database = Away()
    async with bus.consume(how(), got):
        await database.write(partial(bus.stage, messages=[message("1")]))
        await got.until(1)
        await go_on.wait()
        row = await given_back(database)

    assert clock.at_ns > begun_ns
    assert row["due_ns"] == begun_ns + 5 * NS


async def test_a_message_for_later_comes_at_its_time_and_its_age_counts_from_then(buses: Buses) -> None:
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    at_ns = clock.at_ns + 48 * HOUR_NS

    async def handle(delivery: Delivery) -> None:
        if delivery.message.id == "later" and delivery.deliveries == 1:
            raise RetryLater(0, LockBusy("busy"))

    got = Recorder(handle)
    async with bus.consume(how(max_age_ns=HOUR_NS), got):
        await bus.publish([message("later", not_before_ns=at_ns), message("now")])
        await got.until(1)
        await settled(database, 1, 2)
        clock.at_ns = at_ns - 1
        await bus.publish([message("canary")])
        await got.until(2)
        await settled(database, 2, 2)
        clock.at_ns = at_ns
        await notify(database)
        await got.until(4)
        await settled(database, 3, 2)

    assert got.ids == ["now", "canary", "later", "later"]
    assert buses.letters.found == []


async def test_the_highest_priority_goes_first_then_the_oldest(buses: Buses) -> None:
    bus, _ = await buses.open()
    order = [("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0), ("f", 100)]
    await bus.publish([message(name, priority=priority) for name, priority in order])
    got = Recorder()

    async with bus.consume(how(concurrency=1), got):
        await got.until(6)

    assert got.ids == ["f", "b", "d", "a", "e", "c"]


async def test_a_claim_is_in_order_also_within_a_batch(buses: Buses) -> None:
    bus, _ = await buses.open()
    await bus.publish([message(f"{n}", priority=n % 3, key="one at a time") for n in range(30)])
    got = Recorder()

    async with bus.consume(how(concurrency=32), got):
        await got.until(30)

    assert got.ids == [str(n) for step in (2, 1, 0) for n in range(step, 30, 3)]


async def test_a_dead_letter_that_could_not_be_written_is_tried_again_after_five_seconds(buses: Buses) -> None:
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    buses.letters.failing = 1

    async def handle(_: Delivery) -> None:
        raise ValueError("broken")

    got = Recorder(handle)
    async with bus.consume(how(max_failures=1), got):
        await bus.publish([message("1")])
        await got.until(1)
        row = await given_back(database)
        assert row["due_ns"] == clock.at_ns + 5 * NS
        clock.at_ns += 5 * NS
        await notify(database)
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await settled(database, 1, 2)

    assert buses.letters.codes == ["max_failures"]


async def test_a_consumer_that_is_not_heard_of_loses_its_message_after_the_ack_wait_and_not_before(
    buses: Buses,
) -> None:
    """And what it says afterwards changes nothing."""
    clock = ScriptedClock()
    (slow, database), (other, _) = await opened(buses, clock), await opened(buses, clock)
    go_on, second = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.message.id != "1":
            return
        await (go_on if delivery.deliveries == 1 else second).wait()
        if delivery.deliveries == 1:
            raise ValueError("too late to count")

    got, stolen = Recorder(handle), Recorder(handle)
    async with slow.consume(how(), got):
        await slow.publish([message("1")])
        await got.until(1)
        async with other.consume(how(), stolen):
            clock.at_ns += 30 * NS - 1
            await notify(database)
            await other.publish([message("canary")])
            await eventually(lambda: _any_id([*got.ids, *stolen.ids], "canary"))
            assert "1" not in stolen.ids
            clock.at_ns += 1
            await notify(database)
            await eventually(lambda: _any_id([*got.ids[1:], *stolen.ids], "1"))
            go_on.set()
            await eventually(lambda: _any_id([key for key, n in slow.statistics().items() if n], "error"))
            second.set()
            found = await settled(database, 2, 2)

    assert [(row["deliveries"], row["failures"]) for row in found if row["id"] == "1"] == [(2, 0)]


async def _any_id(ids: list[str], wanted: str) -> bool:
    return wanted in ids


async def test_a_message_that_is_lost_again_and_again_is_a_dead_letter(buses: Buses) -> None:
    """It kills every consumer, so none is left to count that as a failure."""
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    await bus.publish([message("killer")])
    claims = {"number": LOST_MAX}
    await database.write(lambda tx: tx.query("UPDATE plane_message SET deliveries = :number", claims))
    got = Recorder()

    async with bus.consume(how(), got):
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await settled(database, 1, 2)

    assert buses.letters.codes == ["lost"]
    assert got.got == []


async def test_what_was_handled_is_remembered_for_a_while_and_then_forgotten(buses: Buses) -> None:
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    got = Recorder()
    async with bus.consume(how(), got):
        await bus.publish([message("1")])
        await got.until(1)
        [row] = await settled(database, 1, 2)
        assert row["body"] == ""

        clock.at_ns += KEEP_NS - 1
        assert await bus.sweep() == 0
        clock.at_ns += 1
        assert await bus.sweep() == 1
        await bus.publish([message("1")])
        await got.until(2)


async def test_a_word_to_a_worker_that_is_gone_is_forgotten(buses: Buses) -> None:
    clock = ScriptedClock()
    bus, database = await opened(buses, clock)
    await bus.publish([Message("s", subjects.stop_subject("w1"), {}), message("kept")])

    clock.at_ns += STOP_KEPT_NS
    await bus.sweep()
    assert len(await rows(database)) == 2
    clock.at_ns += 1
    await bus.sweep()

    assert [row["id"] for row in await rows(database)] == ["kept"]


async def test_messages_that_are_handled_together_share_transactions(buses: Buses) -> None:
    """A claim is a batch, and so are acknowledgements: far fewer transactions than messages."""
    bus, database = await buses.open()
    await bus.publish([message(str(n)) for n in range(640)])
    got = Recorder()
    writes = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        async def write(self, work: Work[Any], *, checked: bool = False, lasting: bool = True) -> Any:
            nonlocal writes
            writes += 1
            return await database.write(work)

    bus._database = Counting()
    async with bus.consume(how(concurrency=64), got):
        await got.until(640)
    bus._database = database

    assert writes < 640 / 8
    assert await bus.pending(SUBJECT, GROUP) == 0


async def test_an_idle_consumer_asks_nothing(buses: Buses) -> None:
    bus, database = await buses.open(poll_ns=HOUR_NS)
    got = Recorder()
    async with bus.consume(how(), got):
        await bus.publish([message("1")])
        await got.until(1)
        await settled(database, 1, 2)
        asked = 0

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(database, name)

            async def write(self, work: Work[Any], *, checked: bool = False, lasting: bool = True) -> Any:
                nonlocal asked
                asked += 1
                return await database.write(work)

        assert isinstance(bus, EmbeddedBus)
        next(iter(bus._consumers))._database = Counting()
        await notify(database)
        await eventually(lambda: _more_than(lambda: asked, 0))
        before = asked
        for _ in range(50):
            await database.read(lambda tx: tx.query("SELECT 1"))
        assert asked <= before + 1


async def _more_than(number: Any, least: int) -> bool:
    return bool(number() > least)


async def test_what_is_claimed_while_the_consumer_ends_is_given_back(buses: Buses) -> None:
    """The claim was on its way when the block was left."""
    bus, database = await buses.open()
    assert isinstance(bus, EmbeddedBus)
    await bus.publish([message("1"), message("2")])
    asked, go_on = asyncio.Event(), asyncio.Event()
    got = Recorder()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        async def write(self, work: Work[Any], *, checked: bool = False, lasting: bool = True) -> Any:
            asked.set()
            result = await database.write(work)
            await go_on.wait()
            return result

    bus._database = Slow()

    async def consume() -> None:
        async with bus.consume(how(), got):
            await asked.wait()

    task = asyncio.create_task(consume())
    await settled(database, 2, 1)  # claimed, and not reported yet
    go_on.set()
    await task

    assert got.got == []
    assert [(row["state"], row["excused"]) for row in await rows(database)] == [(0, 1), (0, 1)]
