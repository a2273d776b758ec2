"""The clock that a test of a user moves: leases are renewed, or lost, without waiting."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.errors import BadInput, LeaseLost
from holdfast.testing import MovableClock


def test_a_lease_is_renewed_while_time_passes_and_lost_after_a_pause() -> None:
    clock, began = MovableClock(), time.monotonic()
    with clock.locks() as locks, clock.locks() as others:
        lease = locks.lock("invoice:7", ttl=30).acquire()
        clock.advance(3600)
        lease.ensure_held()
        assert others.lock("invoice:7").try_acquire() is None
        clock.pause(31)
        with pytest.raises(LeaseLost):
            lease.ensure_held()
        assert lease.lost.is_set()
        taken = others.lock("invoice:7").try_acquire()
        assert taken is not None
        assert taken.fence > lease.fence
        taken.release()
    assert time.monotonic() - began < 60


def test_a_lease_that_is_not_renewed_expires_after_its_ttl() -> None:
    clock = MovableClock()
    with clock.locks() as locks:
        lease = locks.lock("n", ttl=10, auto_renew=False).acquire()
        clock.advance(5)
        lease.ensure_held()
        clock.advance(5)
        with pytest.raises(LeaseLost):
            lease.ensure_held()


def test_leases_in_asyncio_follow_the_clock() -> None:
    clock = MovableClock()

    async def work() -> None:
        async with clock.aio_locks() as locks:
            lease = await locks.lock("n", ttl=30).acquire()
            await asyncio.to_thread(clock.advance, 300)
            lease.ensure_held()
            await asyncio.to_thread(clock.pause, 40)
            with pytest.raises(LeaseLost):
                lease.ensure_held()

    asyncio.run(work())


@pytest.mark.parametrize("seconds", [-1, float("nan"), "soon", 1e12])
def test_time_moves_forward_only(seconds: float) -> None:
    with pytest.raises(BadInput, match="seconds"):
        MovableClock().advance(seconds)
