"""What holds for the bus on NATS alone: what goes over the wire, servers that go away, and the outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast.core.retry_delays import RetryDelays
from holdfast.errors import BackendError, BadInput, LockBusy, Misconfigured, RetryLater, Timeout, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.bus.nats.bus import NatsBus
from holdfast.plane.bus.open import open_bus
from holdfast.plane.bus.outbox import LATE_NS, waves
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Delivery, Message
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import MS, NS
from support.fixtures.buses import (
    GROUP,
    HOUR_NS,
    SUBJECT,
    Buses,
    Recorder,
    ScriptedClock,
    eventually,
    how,
    message,
    on_nats,
    until,
)
from support.servers.nats import NatsServer, own_stream

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def lonely(own_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Buses]:
    """Buses on a server that the test may stop."""
    opened = Buses(f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", own_stream(own_nats))
    yield opened
    await opened.close()


async def staged(database: Database) -> list[str]:
    rows = await database.read(lambda tx: tx.query("SELECT id FROM plane_outbox ORDER BY due_ns, place"))
    return [row["id"] for row in rows]


async def nothing_staged(database: Database) -> None:
    async def none() -> bool:
        return not await staged(database)

    await eventually(none)


@on_nats
@pytest.mark.requires("R148", "R149", "R156", "R165", "R166")
@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (RetryDelays().later(LockBusy("b"), lambda n: n - 1), b'-NAK {"delay": 500000000}'),
        (RetryDelays().later(Unavailable("u"), lambda n: n - 1), b'-NAK {"delay": 1000000000}'),
        (RetryDelays().with_jitter().later(LockBusy("b"), lambda n: 0), b'-NAK {"delay": 300000000}'),
        (RetryDelays().with_jitter().later(LockBusy("b"), lambda n: n - 1), b'-NAK {"delay": 699999999}'),
        (RetryLater(0.29, "not yet"), b'-NAK {"delay": 290000000}'),
        (RetryLater(0, LockBusy("b")), b"-NAK"),
    ],
)
async def test_a_delay_goes_to_the_server_to_the_nanosecond(buses: Buses, error: RetryLater, sent: bytes) -> None:
    bus = await buses.bus()

    async def handle(delivery: Delivery) -> None:
        if delivery.deliveries == 1:
            raise error

    async with buses.client() as client:
        heard = await client.subscribe(f"$JS.ACK.{buses.names.stream}.>")
        await client.flush()
        async with bus.consume(how(), Recorder(handle)):
            await bus.publish([message("1")])
            words = [(await heard.next_msg(timeout=30)).data for _ in range(2)]

    assert words == [sent, b"+ACK"]


@on_nats
async def test_the_wire_shows_id_and_fence_and_the_server_never_gives_up(buses: Buses) -> None:
    bus = await buses.bus()
    fenced = Message("a/1", SUBJECT, {"x": 1}, "k", CarriedFence("holdfast:job:ä", 17))
    consumption = how(ack_wait_ns=7 * NS)
    await bus.publish([fenced])
    async with buses.client() as client:
        context = client.jetstream()
        stored = await context.get_msg(buses.names.stream, subject=buses.names.subject(GROUP, SUBJECT))
        got = Recorder()
        async with bus.consume(consumption, got):
            await got.until(1)
            [info] = await context.consumers_info(buses.names.stream)

    assert stored.headers["Nats-Msg-Id"] == "scheduler/a/1"
    assert (stored.headers["Holdfast-Key"], stored.headers["Holdfast-Fence"]) == ("holdfast:job:%C3%A4", "17")
    assert (info.config.max_deliver, info.config.ack_policy, info.config.ack_wait) == (-1, "explicit", 7)


@on_nats
async def test_a_word_to_a_worker_that_is_gone_is_forgotten_by_the_server(buses: Buses) -> None:
    bus = await buses.bus()
    subject = subjects.stop_subject("w1")
    await bus.publish([message("s", subject=subject), message("kept")])

    async with buses.client() as client:
        context = client.jetstream()
        stop = await context.get_msg(buses.names.stream, subject=buses.names.subject(subjects.WORKERS, subject))
        kept = await context.get_msg(buses.names.stream, subject=buses.names.subject(GROUP, SUBJECT))

    assert stop.headers["Nats-TTL"] == "3600"
    assert "Nats-TTL" not in kept.headers


@on_nats
async def test_another_stream_of_our_name_is_refused(buses: Buses) -> None:
    bus = await buses.bus()
    async with buses.client() as client:
        await client.jetstream().add_stream(name=buses.names.stream, subjects=["elsewhere.>"])

    with pytest.raises(Misconfigured, match="not the plane's"):
        await bus.publish([message("1")])


@on_nats
async def test_what_somebody_else_staged_and_did_not_publish_is_published(buses: Buses) -> None:
    """Its process died between the commit and the relay. Until it is late, it is left to its own process."""
    clock = ScriptedClock()
    (dead, database), got = await buses.open(clock=clock), Recorder()
    assert isinstance(dead, NatsBus)
    await dead._outbox.close()
    await database.write(partial(dead.stage, messages=[message(str(n), key="k") for n in range(5)]))
    clock.at_ns += LATE_NS - 1
    early = await buses.bus(clock=clock, poll_ns=HOUR_NS)
    await early.publish([message("canary")])
    async with early.consume(how(), got):
        await got.until(1)
        assert await staged(database) == [str(n) for n in range(5)]

        clock.at_ns += 10
        await buses.open(clock=clock)
        await got.until(6)

    assert got.ids == ["canary", *map(str, range(5))]
    await nothing_staged(database)


@on_nats
async def test_a_message_for_later_waits_in_the_database_until_its_time(buses: Buses) -> None:
    clock = ScriptedClock()
    bus, database = await buses.open(clock=clock, poll_ns=20 * MS)
    at_ns = clock.at_ns + HOUR_NS
    got = Recorder()
    async with bus.consume(how(), got):
        await bus.publish([message("later", not_before_ns=at_ns), message("now")])
        clock.at_ns = at_ns - 1
        await database.write(partial(bus.stage, messages=[message("canary")]))
        await got.until(2)
        assert await bus.pending(SUBJECT, GROUP) >= 1
        clock.at_ns = at_ns
        await got.until(3)

    assert got.ids == ["now", "canary", "later"]


async def test_a_server_that_is_gone_loses_nothing_that_was_staged(lonely: Buses, own_nats: NatsServer) -> None:
    """`publish` says so; what was staged goes when the server is back, and consumers find it by themselves."""
    bus, database = await lonely.open()
    got = Recorder()
    async with bus.consume(how(), got):
        await bus.publish([message("before")])
        await got.until(1)
        own_nats.kill()
        with pytest.raises((Unavailable, Timeout)):
            await bus.publish([message("nowhere")])
        await database.write(partial(bus.stage, messages=[message(f"s{n}", key="k") for n in range(20)]))
        assert len(await staged(database)) == 20

        own_nats.start()
        await got.until(21)
        await nothing_staged(database)

    found = [each for each in got.ids if each.startswith("s")]
    assert found == [f"s{n}" for n in range(20)]
    assert "before" in got.ids


async def test_a_stream_that_is_gone_is_made_again(lonely: Buses) -> None:
    """As after a server that lost its disk."""
    bus, database = await lonely.open()
    got = Recorder()
    async with bus.consume(how(), got):
        await bus.publish([message("before")])
        await got.until(1)
        async with lonely.client() as client:
            await client.jetstream().delete_stream(lonely.names.stream)
        await database.write(partial(bus.stage, messages=[message("after")]))
        await got.until(2)

    assert got.ids == ["before", "after"]


async def test_a_bus_whose_server_was_never_there_stages_and_says_so(lonely: Buses, own_nats: NatsServer) -> None:
    own_nats.kill()
    bus, database = await lonely.open()
    got = Recorder()

    async with bus.consume(how(), got):
        await database.write(partial(bus.stage, messages=[message("1")]))
        with pytest.raises(BackendError):
            await bus.publish([message("2")])
        own_nats.start()
        await got.until(1)

    assert got.ids == ["1"]


@on_nats
async def test_what_the_server_can_never_take_is_a_dead_letter(buses: Buses) -> None:
    """Its limit is smaller than ours: the rest must not wait behind it forever."""
    bus, database = await buses.open()
    assert isinstance(bus, NatsBus)
    client = await bus._connection.client()
    client._max_payload = 1000
    got = Recorder()

    async with bus.consume(how(), got):
        large = message("large", body={"x": "x" * 2000}, key="k")
        await database.write(partial(bus.stage, messages=[large, message("small", key="k")]))
        await until(lambda: bool(buses.letters.found), buses.letters.changed)
        await got.until(1)
        await nothing_staged(database)

    assert buses.letters.codes == ["too_large"]
    assert got.ids == ["small"]


@on_nats
async def test_a_bus_that_does_not_relay_does_not_stage(buses: Buses) -> None:
    await buses.open()
    bus, database = await buses.open(prepared=False)

    with pytest.raises(Misconfigured, match="prepare"):
        await database.write(partial(bus.stage, messages=[message("1")]))


def row(number: int, key: str, recipient: str = GROUP) -> dict[str, Any]:
    return {"id": str(number), "message_key": key, "recipient": recipient, "subject": SUBJECT}


async def test_waves_keep_the_order_of_each_key_and_hold_up_nobody_else() -> None:
    rows = [row(0, "a"), row(1, "b"), row(2, "a"), row(3, ""), row(4, ""), row(5, "a"), row(6, "a", "other")]

    found = [[int(each["id"]) for each in wave] for wave in waves(rows)]

    assert found == [[0, 1, 3, 4, 6], [2], [5]]


@on_nats
async def test_behind_a_message_that_failed_those_of_its_key_wait(buses: Buses) -> None:
    bus, _ = await buses.open()
    assert isinstance(bus, NatsBus)
    sent: list[str] = []

    async def send(rows: Any) -> Any:
        sent.extend(each["id"] for each in rows)
        return [each for each in rows if each["id"] != "0"]

    bus._outbox._send = send
    done = await bus._outbox._publish([row(0, "a"), row(1, "a"), row(2, "b"), row(3, "a"), row(4, "b")])

    assert sent == ["0", "2", "4"]
    assert [each["id"] for each in done] == ["2", "4"]


@pytest.mark.parametrize(
    "url",
    [
        "nats",
        "redis://x",
        "nats://",
        "nats://x?stream=a b",
        "nats://x?replicas=9",
        "nats://x?x=1",
        "nats://x?stream=a&stream=b",
        7,
    ],
)
async def test_a_url_that_is_no_bus_is_refused(url: Any, tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'plane.db'}")

    with pytest.raises(BadInput):
        open_bus(url, database, SystemClock(), SystemEntropy())


async def test_a_password_is_not_shown(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'plane.db'}")
    bus = open_bus("nats://me:secret-word@127.0.0.1:1,other:1?stream=S", database, SystemClock(), SystemEntropy())
    assert isinstance(bus, NatsBus)

    assert "secret-word" not in bus._connection.shown
    await bus.close()
