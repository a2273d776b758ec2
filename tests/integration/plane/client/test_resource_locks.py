"""Resource locks of a client: one contract for three transports, in both colors; and what ends a lease."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import Any

import pytest

from holdfast.errors import AcquireTimeout, BadInput, Closed, LeaseLost
from holdfast.plane import Client
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.sources import load

pytestmark = pytest.mark.asyncio

_numbers = itertools.count()


def unique(name: str) -> str:
    """A resource that no other test uses: the planes are shared."""
    return f"{name}-{os.getpid()}-{next(_numbers)}"


async def test_a_resource_is_held_renewed_and_released(client: Any) -> None:
    name = unique("gpu")
    lease = await client.resource(name, ttl=0.9, owner="trainer").acquire()
    assert (lease.key, lease.owner, lease.mode, lease.held, lease.lost.reason) == (
        name,
        "trainer",
        "exclusive",
        True,
        None,
    )
    other = client.resource(name)
    assert await other.try_acquire() is None
    with pytest.raises(AcquireTimeout, match="trainer"):
        await other.acquire(timeout=0.1)
    await asyncio.sleep(1.2)  # longer than the TTL
    lease.ensure_held()
    assert 0 < lease.remaining() < 0.9
    waiting = asyncio.ensure_future(other.acquire(timeout=30))
    await asyncio.sleep(0.05)
    assert await lease.release() is True
    assert await lease.release() is True
    assert (lease.held, lease.remaining(), lease.lost.is_set()) == (False, 0.0, False)
    with pytest.raises(LeaseLost, match="released"):
        lease.ensure_held()
    successor = await waiting
    assert successor.fence > lease.fence
    await successor.release()


async def test_readers_share_a_resource_and_a_writer_waits(client: Any) -> None:
    name = unique("table")
    readers = [await client.resource(name, mode="shared").acquire(timeout=10) for _ in range(2)]
    assert await client.resource(name).try_acquire() is None
    for each in readers:
        assert await each.release() is True


async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(client: Any) -> None:
    for options, field in (
        ({"ttl": 0}, "ttl"),
        ({"timeout": -1}, "timeout"),
        ({"mode": "both"}, "mode"),
        ({"owner": ""}, "owner"),
    ):
        with pytest.raises(BadInput, match=f"^{field}: "):
            client.resource("r", **options)
    with pytest.raises(BadInput, match=r"^resource: "):
        client.resource("")


async def test_a_resource_that_was_released_by_force_is_lost(plane_on_a_file: Any) -> None:
    name = unique("gpu")
    async with (
        open_components(load(plane_on_a_file.config)) as components,
        Client(config=plane_on_a_file.config) as client,
    ):
        with pytest.raises(LeaseLost, match="stolen") as caught:
            async with client.resource(name, ttl=0.9) as lease:
                await components.service.breaks.force_release("default", name, actor="ann", reason="test")
                async with asyncio.timeout(30):
                    await lease.lost.wait()
                assert (lease.lost.reason, lease.held, bool(lease.lost)) == ("stolen", False, True)
        assert (caught.value.key, caught.value.fence) == (name, lease.fence)
        with pytest.raises(ZeroDivisionError) as other:
            async with client.resource(name, ttl=0.9) as lease:
                await components.service.breaks.force_release("default", name, actor="ann", reason="test")
                await lease.lost.wait()
                raise ZeroDivisionError
        assert "resource lost" in other.value.__notes__[0]


async def test_a_loop_that_is_blocked_for_longer_than_the_ttl_has_lost_the_resource(plane_on_a_file: Any) -> None:
    async with Client(config=plane_on_a_file.config) as client:
        lease = await client.resource(unique("gpu"), ttl=0.3).acquire()
        threading.Event().wait(0.5)  # blocks the loop
        with pytest.raises(LeaseLost, match="expired"):
            lease.ensure_held()
        await asyncio.sleep(0.3)  # a late renewal does not bring it back
        assert (lease.held, lease.lost.reason) == (False, "expired")
        assert await lease.release() is False


async def test_a_blocking_program_keeps_its_resource_while_it_computes(plane_on_a_file: Any) -> None:
    name = unique("gpu")

    def work() -> bool:
        with Client.blocking(config=plane_on_a_file.config) as client:
            with client.resource(name, ttl=0.6) as lease:
                threading.Event().wait(1.0)  # longer than the TTL
                lease.ensure_held()
                assert not lease.lost
                assert not lease.lost.wait(timeout=0.01)
            assert client.resource(name).try_acquire() is not None  # released when the client closes
            return lease.held

    assert await asyncio.to_thread(work) is False
    async with Client(config=plane_on_a_file.config) as client:
        assert await client.resource(name).try_acquire() is not None


async def test_a_cancelled_wait_leaves_nothing_behind(plane_on_a_file: Any) -> None:
    name = unique("gpu")
    async with Client(config=plane_on_a_file.config) as client:
        lease = await client.resource(name).acquire()
        waiting = asyncio.ensure_future(client.resource(name, owner="late").acquire())
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await lease.release()
        again = await client.resource(name).acquire(timeout=30)
        await again.release()
    with pytest.raises(Closed):
        await client.resource(name).acquire()
