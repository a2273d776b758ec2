"""The relay: order per key, at least once, what happens to messages that cannot be sent, and the end of old ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import redis

import holdfast
from holdfast.errors import BadInput, RetryLater
from holdfast.guards.aio.relay import Relay as AioRelay
from holdfast.guards.outbox import OutboxMessage, prepare
from holdfast.guards.relay import Backlog, Relay, RelayStatistics
from support.faults.bytecode_interrupts import PACKAGE, Tracer, every
from support.fixtures.guards import carried
from support.fixtures.outbox import Bus, Stage

A, B = carried(1), carried(2)
OTHER = carried(1, "invoice:43")
LIMIT_S = 30.0


@pytest.fixture
def stage(outbox_stage: Stage) -> Stage:
    return outbox_stage


def run_until(relay: Relay, count: int) -> int:
    """Run as often as it takes: what was not sent is due again after a millisecond."""
    limit, sent = threading.Event(), 0
    timer = threading.Timer(LIMIT_S, limit.set)
    timer.start()
    while sent < count and not limit.is_set():
        sent += relay.run_once()
    timer.cancel()
    return sent


def refusing(*bodies: str, error: type[Exception] = ValueError) -> Any:
    return lambda message: error("no") if message.body.decode() in bodies else None


def test_messages_are_sent_in_the_order_of_their_commits_and_once(stage: Stage) -> None:
    for number, lease in enumerate([A, OTHER, A, B, OTHER, B]):
        stage.add(lease, str(number))
    bus = Bus()
    with stage.relay(bus) as relay:
        assert relay.backlog().waiting == 6
        assert (relay.run_once(limit=2), relay.run_once(), relay.run_once()) == (2, 4, 0)
        assert bus.bodies == ["0", "1", "2", "3", "4", "5"]
        assert relay.statistics() == RelayStatistics(sent=6)
        assert relay.backlog() == Backlog(0, 0, 0.0)
    assert len({message.id for message in bus.got}) == 6


def test_a_message_is_marked_only_after_it_was_published_and_keeps_its_id_when_it_is_sent_again(stage: Stage) -> None:
    stage.add(A, "one")
    seen: list[OutboxMessage] = []

    def die(message: OutboxMessage) -> None:
        seen.append(message)
        raise KeyboardInterrupt

    with stage.relay(die) as relay:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                relay.run_once()
        assert relay.backlog().waiting == 1
    bus = Bus()
    with stage.relay(bus) as relay:
        assert relay.run_once() == 1
    assert {message.id for message in seen} == {bus.got[0].id}
    assert bus.got[0].attempts == 0


def test_a_message_that_cannot_be_sent_holds_back_its_own_key_and_no_other(stage: Stage) -> None:
    for lease, body in [(A, "poison"), (OTHER, "x"), (A, "behind"), (OTHER, "y")]:
        stage.add(lease, body)
    bus = Bus(fails=refusing("poison"))
    with stage.relay(bus, backoff=3600, backoff_max=3600) as relay:
        assert relay.run_once() == 2
        assert bus.bodies == ["x", "y"]
        assert relay.run_once() == 0  # it is not due for an hour
        assert relay.statistics() == RelayStatistics(sent=2, refused=1)
        assert relay.backlog().waiting == 2


def test_a_message_that_is_refused_again_and_again_is_parked_until_a_person_decides(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.add(A, "poison")
    stage.add(A, "behind")
    bus = Bus(fails=refusing("poison"))
    with stage.relay(bus, max_attempts=3) as relay:
        while not relay.statistics().parked:
            relay.run_once()
        [parked] = relay.parked()
        assert (parked.body, parked.attempts, parked.last_error) == (b"poison", 3, "ValueError: no")
        assert relay.statistics() == RelayStatistics(refused=3, parked=1)
        assert (relay.backlog().waiting, relay.backlog().parked) == (1, 1)
        assert f"outbox: a message is parked: message={parked.id} key=invoice:42 " in caplog.text
        assert relay.run_once() == 0

        assert relay.retry("no such id") is False
        assert relay.retry(parked.id) is True
        assert relay.retry(parked.id) is False  # it is not parked any more
        bus.fails = lambda message: None
        assert run_until(relay, 2) == 2
        assert bus.bodies == ["poison", "behind"]


def test_a_parked_message_can_be_discarded_or_passed(stage: Stage) -> None:
    for body in ("poison", "behind", "poison", "last"):
        stage.add(A, body)
    bus = Bus(fails=refusing("poison"))
    with stage.relay(bus, max_attempts=1) as relay:
        assert relay.run_once() == 0
        [parked] = relay.parked()
        assert relay.discard(parked.id) is True
        assert relay.discard(parked.id) is False
        assert relay.run_once() == 1
    with stage.relay(bus, max_attempts=1, skip_parked=True) as relay:
        assert relay.run_once() == 1
        assert relay.backlog().parked == 1
    assert bus.bodies == ["behind", "last"]


@pytest.mark.parametrize(
    ("error", "outages"),
    [
        (ConnectionError, ()),
        (TimeoutError, ()),
        (holdfast.Unavailable, ()),
        (redis.ConnectionError, (redis.ConnectionError,)),
    ],
)
def test_a_bus_that_is_not_there_parks_nothing_and_ends_the_run(stage: Stage, error: Any, outages: Any) -> None:
    for number in range(5):
        stage.add(carried(1, f"invoice:{number}"), str(number))
    bus = Bus(fails=lambda message: error("down"))
    with stage.relay(bus, max_attempts=1, outages=outages) as relay:
        for _ in range(3):
            assert relay.run_once() == 0
        assert relay.statistics() == RelayStatistics(unreachable=9)
        assert relay.backlog().parked == 0
        bus.fails = lambda message: None
        assert run_until(relay, 5) == 5


def test_asking_to_come_back_later_parks_nothing(stage: Stage) -> None:
    stage.add(A, "x")
    with stage.relay(Bus(fails=lambda message: RetryLater(1.0)), max_attempts=1) as relay:
        assert relay.run_once() == 0
        assert relay.statistics().parked == 0


def test_the_pause_doubles_up_to_its_limit(stage: Stage) -> None:
    stage.add(A, "x")
    with stage.relay(Bus(fails=refusing("x")), backoff=10, backoff_max=35, max_attempts=100) as relay:
        pauses = []
        for _ in range(4):
            assert relay.run_once() == 0
            [(now, due)] = stage.execute("SELECT made_ms, due_ms FROM holdfast_guard_outbox")
            pauses.append(round((due - now) / 1000))
            stage.execute("UPDATE holdfast_guard_outbox SET due_ms = made_ms")
        # Whatever the run itself takes comes on top.
        assert [min(each, limit) for each, limit in zip(pauses, [10, 20, 35, 35], strict=True)] == [10, 20, 35, 35]
        assert all(each < limit for each, limit in zip(pauses, [20, 35, 1000, 1000], strict=True))


def test_sent_messages_are_deleted_when_they_are_old_and_waiting_ones_never(stage: Stage) -> None:
    for body in ("old", "young", "waiting"):
        stage.add(A, body)
    with stage.relay(Bus(fails=refusing("waiting")), retention=3600) as relay:
        relay.run_once()
        stage.execute("UPDATE holdfast_guard_outbox SET made_ms = 0, sent_ms = sent_ms - 3601000 WHERE id = 1")
        assert (relay.sweep(), relay.sweep()) == (1, 0)
        assert relay.statistics().swept == 1
    assert stage.execute("SELECT id FROM holdfast_guard_outbox ORDER BY id") == [(2,), (3,)]
    with stage.relay(Bus(), retention=None) as relay:
        stage.execute("UPDATE holdfast_guard_outbox SET sent_ms = 1 WHERE sent_ms IS NOT NULL")
        assert relay.sweep() == 0


def test_while_one_relay_has_a_message_another_sends_neither_it_nor_a_later_one_of_its_key(stage: Stage) -> None:
    for lease, body in [(A, "first"), (A, "second"), (OTHER, "of another key")]:
        stage.add(lease, body)
    bus = Bus()

    def slow(message: OutboxMessage) -> None:
        with stage.relay(bus) as other:
            other.run_once()
        assert bus.bodies == ([] if stage.engine == "sqlite" else ["of another key"])
        bus(message)

    with stage.relay(slow) as relay:
        relay.run_once(limit=1)
    with stage.relay(bus) as relay:
        relay.run_once()
    assert [body for body in bus.bodies if body != "of another key"] == ["first", "second"]
    assert len(bus.bodies) == 3


@pytest.mark.timeout(60)
def test_a_signal_handler_may_stop_a_relay_at_any_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside of the standard library, where an event cannot be set by the thread that waits for it."""
    relay = Relay(lambda: pytest.fail("no database is needed"), Bus())
    rounds = iter(range(9))

    def run_once(limit: int | None = None) -> int:
        del limit
        if next(rounds) >= 1:
            relay.stop()
        return 0

    monkeypatch.setattr(relay, "run_once", run_once)
    monkeypatch.setattr(relay, "sweep", lambda: 0)

    def run(_: Tracer) -> None:
        nonlocal rounds
        rounds = iter(range(9))
        relay.run(0.001)

    struck = sum(1 for _ in every(run, relay.stop, inside=(PACKAGE, threading.__file__)))
    assert struck > 20


def test_a_relay_runs_until_it_is_stopped_and_goes_on_after_errors(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    arrived, bus, refusals = threading.Event(), Bus(), iter([True, False])

    def publish(message: OutboxMessage) -> None:
        bus(message)
        arrived.set()

    def connect() -> Any:
        if next(refusals, False):
            raise OSError("no database yet")
        return stage.connect()

    relay = Relay(connect, publish)
    running = threading.Thread(target=relay.run, args=(0.01,))
    running.start()
    try:
        stage.add(A, "one")
        assert arrived.wait(LIMIT_S)
    finally:
        relay.stop()
        running.join(LIMIT_S)
    assert not running.is_alive()
    assert bus.bodies == ["one"]
    assert "no database yet" in caplog.text


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"backoff": 0}, "backoff"),
        ({"backoff": 10, "backoff_max": 5}, "backoff_max"),
        ({"retention": -1}, "retention"),
        ({"outages": ValueError}, "outages"),
        ({"outages": ("ValueError",)}, "outages"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, field: str) -> None:
    for kind in (Relay, AioRelay):
        with pytest.raises(BadInput) as refused:
            kind(lambda: None, lambda message: None, **settings)  # type: ignore[arg-type,return-value]
        assert refused.value.field == field


def test_arguments_that_make_no_sense_are_refused(stage: Stage) -> None:
    for kind, wrong in ((Relay, "connect"), (AioRelay, "connect")):
        with pytest.raises(BadInput) as refused:
            kind("app.db", print)  # type: ignore[arg-type]
        assert refused.value.field == wrong
    with stage.relay(Bus()) as relay:
        with pytest.raises(BadInput):
            relay.run_once(limit=0)
        with pytest.raises(BadInput):
            relay.parked(limit=0)
        with pytest.raises(BadInput):
            relay.retry(7)  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            relay.run(interval=0)


# The awaited color, on Postgres.


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        prepare(connection)
        stage = Stage("postgres", lambda: None, connection)
        for lease, body in [(A, "poison"), (A, "behind"), (OTHER, "x")]:
            stage.add(lease, body)
        yield postgres_url


@pytest.mark.asyncio
async def test_an_awaited_relay_sends_parks_retries_and_sweeps(url: str) -> None:
    bus = Bus(fails=refusing("poison"))

    async def publish(message: OutboxMessage) -> None:
        bus(message)

    async with AioRelay(
        lambda: psycopg.AsyncConnection.connect(url), publish, max_attempts=1, backoff=0.001, retention=0
    ) as relay:
        assert await relay.run_once() == 1
        [parked] = await relay.parked()
        assert (await relay.backlog()).parked == 1
        assert await relay.retry(parked.id)
        assert await relay.run_once() == 0
        assert await relay.discard(parked.id)
        assert await relay.run_once() == 1
        assert bus.bodies == ["x", "behind"]
        while relay.statistics().swept < 2:  # sent longer than no time ago, by the clock of the database
            await relay.sweep()
        assert relay.statistics() == RelayStatistics(sent=2, refused=2, parked=2, swept=2)


@pytest.mark.asyncio
async def test_a_cancelled_relay_has_not_marked_what_was_on_its_way(url: str) -> None:
    on_its_way, bus = asyncio.Event(), Bus()

    async def hang(message: OutboxMessage) -> None:
        on_its_way.set()
        await asyncio.Event().wait()

    relay = AioRelay(lambda: psycopg.AsyncConnection.connect(url), hang)
    running = asyncio.create_task(relay.run())
    await on_its_way.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    done = asyncio.Event()

    async def publish(message: OutboxMessage) -> None:
        bus(message)
        if len(bus.got) == 3:
            done.set()

    relay = AioRelay(lambda: psycopg.AsyncConnection.connect(url), publish)
    running = asyncio.create_task(relay.run(0.01))
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    relay.stop()
    await running
    assert bus.bodies == ["poison", "behind", "x"]
