"""The contract of a bus, first part: delivery, identity, staging. In SQLite, in Postgres, on NATS with either."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from holdfast.guards.bearer import CarriedFence
from holdfast.plane.db.notifier import DatabaseNotifier
from holdfast.plane.db.ports import Handler, Tx
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Delivery, Message
from holdfast.types import MS
from support.fixtures.buses import (
    GROUP,
    HOUR_NS,
    SUBJECT,
    Buses,
    Recorder,
    everywhere,
    how,
    message,
    nothing_pending,
)
from support.fixtures.databases import until
from support.fixtures.scheduling import holds

pytestmark = [pytest.mark.asyncio, everywhere]


async def ids_in(tx: Tx, table: str) -> list[str]:
    return [row["id"] for row in await tx.query(f"SELECT id FROM {table}")]


# Delivery.


async def test_a_message_arrives_as_it_was_sent(buses: Buses) -> None:
    bus = await buses.bus()
    body = {"job": "ä:1", "payload": {"deep": [1, 2.5, None, True, "€ \n"]}}
    sent = Message("id:1/ü", SUBJECT, body, "key ö", CarriedFence("holdfast:job:ä,%", 2**62), -7)
    got = Recorder()

    async with bus.consume(how(), got):
        await bus.publish([sent])
        await got.until(1)
    await nothing_pending(bus)

    assert got.got[0].message == sent
    assert (got.got[0].group, got.got[0].deliveries, got.got[0].failures) == (GROUP, 1, 0)


async def test_each_group_gets_each_message(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(subjects.GROUPS, "job.done", ("one", "two"))
    bus = await buses.bus()
    one, two = Recorder(), Recorder()

    async with bus.consume(how(subject="job.done", group="one"), one):
        await bus.publish([message(str(n), subject="job.done") for n in range(10)])
        await one.until(10)
    async with bus.consume(how(subject="job.done", group="two"), two):
        await two.until(10)

    assert sorted(one.ids) == sorted(two.ids) == sorted(map(str, range(10)))


async def test_a_subject_that_nobody_consumes_is_dropped(buses: Buses) -> None:
    bus, database = await buses.open()

    await bus.publish([message("1", subject="job.done")])
    await database.write(lambda tx: bus.stage(tx, [message("2", subject="job.done")]))

    for table in ("plane_message", "plane_outbox"):
        found = await database.read(partial(ids_in, table=table))
        assert found == []


async def test_the_names_of_pools_and_workers_are_kept_apart(buses: Buses) -> None:
    bus = await buses.bus()
    pools = ["a", "a.b", "a..b", "b>", "a*", "a b", "ä", "a%2Eb", "x" * 100]
    recorders = [Recorder() for _ in pools]
    for pool in pools:
        await bus.publish([message(f"to {pool}", subject=subjects.work_subject(pool))])

    for pool, got in zip(pools, recorders, strict=True):
        async with bus.consume(how(subject=subjects.work_subject(pool), group=subjects.WORKERS), got):
            await got.until(1)

    assert [got.ids for got in recorders] == [[f"to {pool}"] for pool in pools]


async def test_a_consumer_of_several_subjects_gets_the_messages_of_these_and_of_no_other(buses: Buses) -> None:
    bus = await buses.bus()
    topics = ["a", "b", "a.b", "c"]
    sent = {topic: [f"{topic} {n}" for n in range(6)] for topic in topics}
    queues = {topic: subjects.work_subject("default", topic) for topic in topics}
    shared = subjects.work_subject("default")
    await bus.publish([message(each, subject=queues[topic]) for topic in topics for each in sent[topic]])
    await bus.publish([message("older", subject=shared)])
    some, rest = Recorder(), Recorder()
    wanted = how(subject=shared, also=(queues["a"], queues["b"]), group=subjects.WORKERS, concurrency=2)

    async with bus.consume(wanted, some):
        await some.until(13)
    async with bus.consume(how(subject=queues["c"], also=(queues["a.b"],), group=subjects.WORKERS), rest):
        await rest.until(12)

    assert sorted(some.ids) == sorted([*sent["a"], *sent["b"], "older"])
    assert sorted(rest.ids) == sorted([*sent["a.b"], *sent["c"]])
    for subject in (shared, *queues.values()):
        assert await bus.pending(subject, subjects.WORKERS) == 0


async def test_the_subjects_of_a_consumer_share_its_concurrency_and_leave_the_rest_to_others(buses: Buses) -> None:
    bus = await buses.bus()
    queues = [subjects.work_subject("default", f"t{number}") for number in range(3)]
    gate, at_once, most = asyncio.Event(), Counter[str](), Counter[str]()

    def handler(name: str) -> Handler:
        async def handle(delivery: Delivery) -> None:
            at_once[name] += 1
            most[name] = max(most[name], at_once[name])
            await gate.wait()
            at_once[name] -= 1

        return handle

    wanted = how(subject=queues[0], also=tuple(queues[1:]), group=subjects.WORKERS, concurrency=2)
    async with bus.consume(wanted, handler("one")), bus.consume(wanted, handler("two")):
        await bus.publish([message(f"{n}", subject=queues[n % 3]) for n in range(9)])
        await until(lambda: at_once == {"one": 2, "two": 2})
        gate.set()

        async def none() -> bool:
            return not sum([await bus.pending(queue, subjects.WORKERS) for queue in queues])

        await holds(none)
    assert most == {"one": 2, "two": 2}


async def test_messages_wait_for_a_consumer_that_comes_later(buses: Buses) -> None:
    bus = await buses.bus()
    await bus.publish([message(str(n)) for n in range(5)])
    assert await bus.pending(SUBJECT, GROUP) == 5
    got = Recorder()

    later = await buses.bus()
    async with later.consume(how(), got):
        await got.until(5)

    await nothing_pending(bus)


async def test_it_is_known_whether_what_waited_at_one_time_has_been_handled(buses: Buses) -> None:
    """Also while there is always something that waits: whatever comes later has a higher place."""
    bus = await buses.bus()
    assert await bus.span(SUBJECT, GROUP) is None
    await bus.publish([message("1"), message("2")])
    before = await bus.span(SUBJECT, GROUP)
    assert before is not None
    assert before[0] < before[1]
    last = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.message.id == "3":
            await last.wait()

    async def passed() -> bool:
        now = await bus.span(SUBJECT, GROUP)
        return now is not None and now[0] > before[1]

    async with bus.consume(how(), got := Recorder(handle)):
        await bus.publish([message("3")])
        await got.until(3)
        await holds(passed)
        last.set()
        await nothing_pending(bus)
    assert await bus.span(SUBJECT, GROUP) is None


async def test_a_message_is_acknowledged_when_its_handler_has_returned_and_not_before(buses: Buses) -> None:
    bus = await buses.bus()
    go_on = asyncio.Event()

    async def handle(_: Delivery) -> None:
        await go_on.wait()

    got = Recorder(handle)
    async with bus.consume(how(), got) as consumer:
        await bus.publish([message("1")])
        await got.until(1)
        assert (consumer.handling, await bus.pending(SUBJECT, GROUP)) == (1, 1)
        go_on.set()
        await nothing_pending(bus)

    assert len(got.got) == 1


async def test_never_more_handlers_at_once_than_asked_for(buses: Buses) -> None:
    bus = await buses.bus()
    running, most = 0, 0

    async def handle(_: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    got = Recorder(handle)
    await bus.publish([message(str(n)) for n in range(60)])
    async with bus.consume(how(concurrency=3), got):
        await got.until(60)

    assert most == 3


async def test_many_consumers_share_without_delivering_twice(buses: Buses) -> None:
    got = Recorder()
    all_buses = [await buses.bus() for _ in range(3)]
    ids = [f"m{n}" for n in range(300)]

    async with (
        all_buses[0].consume(how(concurrency=8), got),
        all_buses[1].consume(how(concurrency=8), got),
        all_buses[2].consume(how(concurrency=8), got),
    ):
        for start in range(0, 300, 50):
            await all_buses[start % 3].publish([message(each) for each in ids[start : start + 50]])
        await got.until(300)
        await nothing_pending(all_buses[0])

    assert Counter(got.ids) == Counter(ids)


async def test_messages_of_one_key_are_handled_one_after_another_in_order(buses: Buses) -> None:
    bus, database = await buses.open()
    at_work: set[str] = set()
    overlaps = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal overlaps
        overlaps += delivery.message.key in at_work
        at_work.add(delivery.message.key)
        await asyncio.sleep(0)
        at_work.discard(delivery.message.key)

    got = Recorder(handle)
    messages = [message(f"{n}", key=f"k{n % 5}") for n in range(100)]
    for start in range(0, 100, 20):
        await database.write(partial(bus.stage, messages=messages[start : start + 20]))
    async with bus.consume(how(concurrency=50), got):
        await got.until(100)

    assert overlaps == 0
    for key in range(5):
        assert [int(each) for each in got.ids if int(each) % 5 == key] == list(range(key, 100, 5))


async def test_a_consumer_is_woken_and_does_not_poll(buses: Buses) -> None:
    """Two buses that share nothing but their servers; both would look again after an hour."""
    (here, _), (there, database) = await buses.open(poll_ns=HOUR_NS), await buses.open(poll_ns=HOUR_NS)
    got = Recorder()

    async with here.consume(how(), got):
        for n in range(20):
            await database.write(partial(there.stage, messages=[message(str(n))]))
            await got.until(n + 1)

    assert got.ids == [str(n) for n in range(20)]


async def test_a_hint_that_was_lost_is_made_up_for_by_a_look(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabaseNotifier, "notify", lambda self, channels: None)
    bus, database = await buses.open(poll_ns=20 * MS)
    got = Recorder()

    async with bus.consume(how(), got):
        for n in range(3):
            await database.write(partial(bus.stage, messages=[message(str(n))]))
            await got.until(n + 1)

    assert got.ids == ["0", "1", "2"]


# Identity.


async def test_an_id_is_one_message_however_often_it_is_published(buses: Buses) -> None:
    bus, database = await buses.open()
    got = Recorder()
    await bus.publish([message("1"), message("1")])
    await database.write(lambda tx: bus.stage(tx, [message("1")]))

    async with bus.consume(how(), got):
        await got.until(1)
        await nothing_pending(bus)
        await bus.publish([message("1")])  # it was handled, and is still known
        await database.write(lambda tx: bus.stage(tx, [message("1"), message("2")]))
        await got.until(2)
        await nothing_pending(bus)

    assert got.ids == ["1", "2"]


# Staging.


async def test_what_is_undone_is_never_delivered_and_what_is_committed_is(buses: Buses) -> None:
    bus, database = await buses.open()
    got = Recorder()

    async def undone(tx: Tx) -> None:
        await bus.stage(tx, [message("undone")])
        raise ValueError("undo")

    async with bus.consume(how(), got):
        with pytest.raises(ValueError, match="undo"):
            await database.write(undone)
        await database.write(lambda tx: bus.stage(tx, [message("done")]))
        await got.until(1)
        await nothing_pending(bus)

    assert got.ids == ["done"]
