"""Messages under a fence: a stale holder's are not sent, and one that arrives late can be refused by the receiver."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import holdfast
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.errors import BadInput, FencedOut, LeaseLost, Unfenced
from holdfast.guards import CarriedFence
from holdfast.guards.redis.pubsub import GuardedMessage, opened, sealed
from support.fixtures.guards import carried
from support.fixtures.redis_guards import Stage

A, B = carried(1), carried(2)
LIMIT_S = 20.0
TEXTS = ["", "paid", '{"json": [1, "two"]}', "two\nlines", "grün 🙂", "\0", "x" * 100_000]


class Listener:
    """A plain subscriber, which knows nothing of guards."""

    def __init__(self, stage: Stage, channel: str) -> None:
        self._heard = stage.raw.pubsub()
        self._heard.subscribe(channel)
        assert self._next()["type"] == "subscribe"

    def message(self) -> bytes:
        """The next message."""
        data: bytes = self._next()["data"]
        return data

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + LIMIT_S
        while (found := self._heard.get_message(timeout=1.0)) is None:
            assert time.monotonic() < limit, "nothing was heard"
        heard: dict[str, Any] = found
        return heard

    def close(self) -> None:
        self._heard.close()


@pytest.mark.server
@pytest.mark.asyncio
@pytest.mark.requires("R34")
async def test_a_message_carries_its_key_and_fence_and_a_stale_one_is_not_sent(stage: Stage, keys: Any) -> None:
    channel = stage.name("news")
    listener = Listener(stage, channel)
    try:
        for text in TEXTS:
            assert await keys.publish(A, channel, text) == 1
            data = listener.message()
            assert json.loads(data) == {"key": "invoice:42", "fence": "1", "message": text}
            assert await keys.received(channel, data) == GuardedMessage(text, A)
        assert await keys.publish(B, channel, "newer") == 1
        with pytest.raises(FencedOut) as refused:
            await keys.publish(A, channel, "stale")
        assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, channel)
        assert await keys.publish(B, channel, "newest") == 1
        assert [opened(listener.message()).message for _ in range(2)] == ["newer", "newest"]
    finally:
        listener.close()


@pytest.mark.server
@pytest.mark.asyncio
@pytest.mark.requires("R34")
async def test_a_message_that_arrives_after_a_newer_holders_is_refused(stage: Stage, keys: Any) -> None:
    channel = stage.name("news")
    late = sealed("invoice:42", 1, "late")
    assert (await keys.received(channel, late)).carried == A
    await keys.publish(B, channel, "newer")
    for data in (late, late.decode()):
        with pytest.raises(FencedOut):
            await keys.received(channel, data)
    assert opened(late).message == "late"  # for those who want it all the same
    assert keys.statistics().refused == 2


@pytest.mark.server
@pytest.mark.asyncio
async def test_locks_that_share_a_channel_do_not_shut_each_other_out(stage: Stage, keys: Any) -> None:
    channel = stage.name("news")
    await keys.publish(carried(FENCE_MAX, "invoice:1"), channel, "high")
    await keys.publish(carried(0, "invoice:2"), channel, "low")
    await keys.publish(carried(1, "invoice:2"), channel, "low")
    with pytest.raises(FencedOut):
        await keys.publish(carried(0, "invoice:2"), channel, "stale")
    assert (await keys.received(channel, sealed("invoice:1", FENCE_MAX, "x"))).carried.fence == FENCE_MAX


@pytest.mark.server
@pytest.mark.asyncio
async def test_a_channel_and_a_key_of_the_same_name_have_fences_of_their_own(stage: Stage) -> None:
    keys = stage.guard(key="lock of {key}")
    name = stage.name("news")
    await keys.set(carried(5, f"lock of {name}"), name, "x")
    assert await keys.publish(carried(1, f"lock of {name}"), name, "x") == 0
    assert await keys.publish(carried(1, "another lock"), name, "x") == 0
    assert await keys.seen(name) == 5


@pytest.mark.server
@pytest.mark.asyncio
async def test_who_may_not_write_may_not_publish(
    stage: Stage, keys: Any, released: holdfast.Lease, degraded: holdfast.DegradedLease
) -> None:
    channel = stage.name("news")
    with pytest.raises(LeaseLost):
        await keys.publish(released, channel, "x")
    with pytest.raises(Unfenced):
        await keys.publish(degraded, channel, "x")
    await keys.publish(carried(released.fence + 1), channel, "newer")
    with pytest.raises(FencedOut):
        await keys.publish(released, channel, "x")
    listener = Listener(stage, channel)
    try:
        assert await stage.guard(allow_degraded=True).publish(degraded, channel, "unprotected") == 1
        with pytest.raises(BadInput):
            await keys.received(channel, listener.message())
    finally:
        listener.close()


@pytest.mark.server
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("channel", "message", "field"),
    [("", "x", "channel"), (7, "x", "channel"), (b"news", "x", "channel"), ("\ud800", "x", "channel")]
    + [("news", each, "message") for each in (b"x", 7, None, {"a": 1})],
)
async def test_what_cannot_be_published_is_refused_by_name(
    stage: Stage, keys: Any, channel: Any, message: Any, field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await keys.publish(A, channel, message)
    assert refused.value.field == field


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("fence", [0, 2**53 + 1, FENCE_MAX])
def test_an_envelope_is_read_as_it_was_written(text: str, fence: int) -> None:
    assert opened(sealed("invoice:42", fence, text)) == GuardedMessage(text, CarriedFence("invoice:42", fence))


GOOD = {"key": "k", "fence": "1", "message": "m"}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"paid", b"\xff", b"[]", b"1", b"null", b"{}", "[" * 100_000, 7, None),
        *(json.dumps({**GOOD, "fence": each}) for each in (1, 1.0, "01", "-1", "", None, "1e3", str(2**63), ["1"])),
        *(json.dumps({**GOOD, "key": each}) for each in ("", None, 7, "a{b}", "a\n")),
        *(json.dumps({**GOOD, "message": each}) for each in (None, 7, {"a": 1})),
        *(json.dumps({**GOOD, "more": 1}), json.dumps({"key": "k", "fence": "1"})),
    ],
    ids=lambda data: repr(data)[:40],
)
def test_what_is_not_an_envelope_is_refused(data: Any) -> None:
    with pytest.raises(BadInput) as refused:
        opened(data)
    assert refused.value.field == "message"
