"""Answers of a NATS server to what is published: each to its own message, in time or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import nats
import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from holdfast.plane.bus.nats.consumer import deliveries_of
from holdfast.stores.nats.acks import NatsAcks, Outgoing

pytestmark = [pytest.mark.asyncio, pytest.mark.server]


@pytest_asyncio.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    opened = await nats.connect(nats_url)
    try:
        yield opened
    finally:
        await opened.close()


async def echo(msg: Msg) -> None:
    await msg.respond(b"heard " + msg.data)


async def test_each_message_gets_its_own_answer_whatever_their_order(client: Client) -> None:
    acks, held = NatsAcks(), list[Msg]()

    async def backwards(msg: Msg) -> None:
        held.append(msg)
        if len(held) == 5:
            for each in reversed(held):
                await each.respond(b"heard " + each.data)

    await client.subscribe("acks.backwards", cb=backwards)
    going = [Outgoing("acks.backwards", b"%d" % number, {"Nats-Msg-Id": str(number)}) for number in range(5)]
    assert await acks.publish(client, going, 20.0) == [b"heard %d" % number for number in range(5)]
    assert held[0].headers == {"Nats-Msg-Id": "0"}
    assert await acks.publish(client, [], 20.0) == []


async def test_what_goes_wrong_with_one_is_its_own(client: Client) -> None:
    acks = NatsAcks()
    await client.subscribe("acks.echo", cb=echo)
    going = [
        Outgoing("acks.echo", b"1", {}),
        Outgoing("acks.nobody", b"2", {}),
        Outgoing("acks.echo", b"x" * (client.max_payload + 1), {}),
        Outgoing("acks echo", b"4", {}),
        Outgoing("acks.echo", b"5", {}),
    ]
    found = await acks.publish(client, going, 20.0)
    assert (found[0], found[4]) == (b"heard 1", b"heard 5")
    assert [type(each) for each in found[1:4]] == [
        nats.errors.NoRespondersError,
        nats.errors.MaxPayloadError,
        nats.errors.BadSubjectError,
    ]


async def test_an_answer_that_does_not_come_in_time_is_none_and_a_late_one_is_dropped(client: Client) -> None:
    acks, late = NatsAcks(), asyncio.Event()

    async def slow(msg: Msg) -> None:
        await late.wait()
        await msg.respond(b"late")

    await client.subscribe("acks.slow", cb=slow)
    await client.subscribe("acks.echo", cb=echo)
    found = await acks.publish(client, [Outgoing("acks.echo", b"1", {}), Outgoing("acks.slow", b"2", {})], 0.5)
    assert found[0] == b"heard 1"
    assert isinstance(found[1], nats.errors.TimeoutError)
    assert acks._waiting == {}
    late.set()
    await client.flush()
    assert await acks.publish(client, [Outgoing("acks.echo", b"3", {})], 20.0) == [b"heard 3"]


async def test_whoever_is_cancelled_leaves_nothing_behind_and_another_connection_is_listened_to(
    client: Client, nats_url: str
) -> None:
    acks, inside = NatsAcks(), asyncio.Event()

    async def never(msg: Msg) -> None:
        inside.set()

    await client.subscribe("acks.never", cb=never)
    publishing = asyncio.create_task(acks.publish(client, [Outgoing("acks.never", b"1", {})], 60.0))
    await inside.wait()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert acks._waiting == {}
    other = await nats.connect(nats_url)
    try:
        await other.subscribe("acks.other", cb=echo)
        assert await acks.publish(other, [Outgoing("acks.other", b"2", {})], 20.0) == [b"heard 2"]
    finally:
        await other.close()


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("$JS.ACK.stream.consumer.3.12.11.1794859122268530123.0", 3),
        ("$JS.ACK._.account.stream.consumer.4.12.11.1794859122268530123.0.token", 4),
        ("$JS.ACK.domain.account.stream.consumer.5.12.11.1794859122268530123.0", 5),
    ],
)
async def test_how_often_a_message_was_delivered_is_read_as_the_client_reads_it(
    client: Client, reply: str, number: int
) -> None:
    msg = Msg(client, "subject", reply, b"")
    assert deliveries_of(msg) == msg.metadata.num_delivered == number


async def test_what_is_not_delivered_by_a_stream_is_refused(client: Client) -> None:
    with pytest.raises(nats.errors.NotJSMessageError):
        deliveries_of(Msg(client, "subject", "somebody.else", b""))
