"""What the programs of a long world do with their locks: they hold them for minutes, some for an hour.

Every way to take a lock is the same as in a busy world (`sessions`); what differs is the pace. Under the lease, a few
times, something is read, thought about for a while, and written. That while is what makes an old holder's late write
dangerous: a newer one has read already and has not written yet.
"""

from __future__ import annotations

import asyncio
import math
from typing import ClassVar

from holdfast.aio.lease import AnyLease
from holdfast.core import backoff
from holdfast.leases.lock_spec import LockSettings
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.sessions import Session
from holdfast.types import NS

SHORTEST_HOLD_S, LONGEST_HOLD_S = 60, 3600
IDLE_S = 60


class Shift(Session):
    """One visit that lasts."""

    CANCEL_AFTER_S: ClassVar[tuple[float, ...]] = (0.01, 1, 60, 1200)

    def idle_s(self) -> float:
        """How long its client rests afterwards."""
        return self._bounded_s(IDLE_S * self._draw.random())

    def _choose_key(self) -> str:
        if self._draw.randrange(1000) < self._world.swarm.hot:
            return self._world.keys[0]
        return super()._choose_key()

    def _settings(self) -> LockSettings:
        ttl, chance = self.ttl_ns / NS, self._draw.random
        settings: LockSettings = {"ttl": ttl, "timeout": self._draw.choice([0, 0, 1, 10, 60])}
        if chance() < 0.9:  # else as a waiter does that was told nothing: it asks about once a second
            settings["retry"] = backoff.exponential(base=0.5, cap=min(10, ttl / 4))
        if chance() < 0.25:
            settings["fair"] = True
        if chance() < 0.05:
            settings["at_least"] = ttl / 2
        if chance() < 0.05:
            settings["max_hold"] = self._hold_s() / 2
        if chance() < 0.05:
            settings["stall_after"] = self._hold_s() / 2
        if chance() < 0.2:
            settings["on_loss"] = "flag"
        return settings

    async def _by_hand(self) -> None:
        """Renewal by the holder itself, in time, mostly."""
        lock = self._host.locks.lock(self.key, ttl=self.ttl_ns / NS, auto_renew=False, timeout=60)
        async with lock as lease:
            with self._world.believing(self._host, lease):
                for _ in range(self._draw.randrange(12)):
                    await self._act(lease)
                    await asyncio.sleep(self._bounded_s(self.ttl_ns / NS * self._draw.choice([0.3, 0.3, 0.7])))
                    await lease.renew()

    async def _section(self, lease: AnyLease, *, lingers: bool = False) -> None:
        """The protected work, spread over as long as it takes."""
        hold, acts = self._hold_s(), self._draw.randint(1, 4)
        with self._world.believing(self._host, lease):
            for _ in range(acts):
                await self._act(lease)
                await asyncio.sleep(self._bounded_s(2 * self._draw.random() * hold / acts))
            if lingers:
                await asyncio.sleep(1.1 * lease.remaining())

    def _hold_s(self) -> float:
        """As many holds of one to two minutes as of thirty to sixty."""
        return SHORTEST_HOLD_S * math.exp(self._draw.random() * math.log(LONGEST_HOLD_S / SHORTEST_HOLD_S))

    def _think_s(self) -> float:
        """Half of what is written was a matter of moments, the other half took up to a whole lease."""
        return self._bounded_s(self._draw.choice([0, self.ttl_ns / NS]) * self._draw.random())

    def _pause_s(self) -> float:
        return self._bounded_s(self.ttl_ns / NS * self._draw.random())

    def _bounded_s(self, seconds: float) -> float:
        """Shorten what would not end before the world stops."""
        return min(seconds, max(0.0, self._world.left_ns() / NS) + 1)


class LongScene(Scene):
    """Long visits; all else is as in a busy world."""

    sessions = Shift
