"""How a loop holds its lock: a sticky leader's lease, or a rotating hold. One object for each loop and mode.

Sticky: the renewer renews the lease, between ticks as during them. It is released when the replica stops, so that
another one acquires it immediately. Waiting replicas are notified of the release, try again when the lease of the
holder should have expired, and in any case once for each interval.

Rotating: the key is held for two intervals and never released; expiry passes it on. It is renewed only while a tick
runs for longer than a third of that, so that a long tick never overlaps another replica's.

Clock: that of the locks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.core import backoff
from holdfast.core.lease.timing import drift_ns
from holdfast.core.ports import Entropy
from holdfast.errors import AcquireTimeout, BackendError, LeaseLost
from holdfast.plane.locks.registry import LockFamily
from holdfast.plane.loops.cadence import Cadence, Mode
from holdfast.types import NS

RENEW_AGAIN_SHARE: Final = 10  # after trouble with the store, a renewal is tried again after this part of the TTL


class Leadership(Protocol):
    """What a loop needs of its lock."""

    async def take(self) -> Lease | None:
        """Lead, or None: another replica does. May wait for that, at most one interval."""
        ...

    async def busy_ns(self) -> int:
        """After a vain attempt: how long until the next."""
        ...

    async def lost(self, lease: Lease) -> None:
        """Return when a tick must stop, because the lease is not ours any more. Keeps it ours for as long as it can."""
        ...

    def window_ns(self, lease: Lease) -> int | None:
        """How long it may be led without another word from the store; None: until it is lost."""
        ...

    def over_ns(self, lease: Lease) -> int:
        """After the last tick of a window: how long until this replica may try again."""
        ...

    async def let_go(self, lease: Lease) -> None:
        """The replica stops, or its window is over."""
        ...


class Sticky:
    """A leader that stays."""

    def __init__(self, locks: Locks, family: LockFamily, cadence: Cadence, entropy: Entropy) -> None:
        interval = cadence.interval_ns / NS
        polled = replace(family, retry=backoff.Fixed(cadence.interval_ns))
        self._lock = polled.lock(locks, interval=interval)
        self._cadence = cadence
        self._entropy = entropy

    async def take(self) -> Lease | None:
        """See `Leadership`."""
        try:
            return await self._lock.acquire(timeout=self._cadence.retry_ns(self._entropy.below) / NS)
        except AcquireTimeout:
            return None

    async def busy_ns(self) -> int:
        """See `Leadership`. The waiting was done already."""
        return 0

    async def lost(self, lease: Lease) -> None:
        """See `Leadership`. The renewer renews it."""
        await lease.lost.wait()

    def window_ns(self, lease: Lease) -> int | None:
        """See `Leadership`."""
        return None

    def over_ns(self, lease: Lease) -> int:
        """See `Leadership`. There are no windows."""
        return 0

    async def let_go(self, lease: Lease) -> None:
        """See `Leadership`."""
        await lease.release()


class Rotating:
    """A hold that goes round."""

    def __init__(self, locks: Locks, family: LockFamily, cadence: Cadence, entropy: Entropy) -> None:
        self._locks = locks
        self._family = family
        self._key = family.key()
        self._ttl = family.ttl_for(cadence.interval_ns / NS)
        self._cadence = cadence
        self._entropy = entropy

    async def take(self) -> Lease | None:
        """See `Leadership`."""
        return await self._locks.hold(self._key, ttl=self._ttl, family=self._family.name)

    async def busy_ns(self) -> int:
        """See `Leadership`. The end of the present hold is worth waiting for, if it comes sooner."""
        draw = self._entropy.below
        longest = self._cadence.retry_ns(draw)
        left = (await self._locks.inspect(self._key)).remaining
        return (
            longest if left is None else min(longest, self._cadence.after_window_ns(round(left * NS), draw, own=False))
        )

    async def lost(self, lease: Lease) -> None:
        """See `Leadership`. Renews it, because the renewer does not."""
        every = lease.ttl / 3
        pause = every
        while lease.held:
            await asyncio.sleep(min(pause, lease.remaining()))
            pause = every
            try:
                await lease.renew()
            except LeaseLost:
                return
            except BackendError:
                pause = lease.ttl / RENEW_AGAIN_SHARE

    def window_ns(self, lease: Lease) -> int | None:
        """See `Leadership`."""
        return round(lease.remaining() * NS)

    def over_ns(self, lease: Lease) -> int:
        """See `Leadership`. The store keeps the key for longer than we may rely on it, by what clocks may differ."""
        left_ns = round(lease.remaining() * NS) + drift_ns(round(lease.ttl * NS))
        return self._cadence.after_window_ns(left_ns, self._entropy.below, own=True)

    async def let_go(self, lease: Lease) -> None:
        """See `Leadership`. It is left to run out."""


def leadership(mode: Mode, locks: Locks, family: LockFamily, cadence: Cadence, entropy: Entropy) -> Leadership:
    """The one of that mode."""
    kind = Sticky if mode is Mode.STICKY else Rotating
    return kind(locks, family, cadence, entropy)
