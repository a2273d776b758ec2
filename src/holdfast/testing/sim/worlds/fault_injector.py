"""The maker of trouble in a simulated world: applies the faults of its swarm at random times, and heals them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.host import SimHost
from holdfast.testing.sim.worlds.faults import Fault
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld


class FaultInjector:
    """Applies faults. Each ends after its duration, or with `heal`."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._chance = world.chance
        self._healed = False
        self._lagging = 0  # replicas that have fallen behind and have not taken over yet
        self._acts: dict[Fault, Callable[[int], None]] = {
            Fault.PAUSE: lambda ns: self._host().stop_for(ns),
            Fault.BLOCK: self._block,
            Fault.STALL: self._stall,
            Fault.SUSPEND: lambda ns: self._host().suspend_for(ns),
            Fault.CRASH: lambda _: world.crash(self._host()),
            Fault.STEP: self._step,
            Fault.PARTITION: self._partition,
            Fault.CLOG: self._clog,
            Fault.SERVER_PAUSE: self._server_pause,
            Fault.SERVER_RESTART: lambda ns: self._restart(ns, forgets=False),
            Fault.SERVER_FORGETS: lambda ns: self._restart(ns, forgets=True),
            Fault.SERVER_LAGS: self._lag,
            Fault.SERVER_AILS: self._ail,
            Fault.SERVER_STEP: lambda _: self._server_step(),
            Fault.FORCE: lambda _: self._force(),
        }

    async def rage(self, for_ns: int) -> None:
        """Make trouble for that long."""
        world, until = self._world, self._world.loop.now_ns + for_ns
        while (left := until - world.loop.now_ns) > 0:
            await asyncio.sleep(min(left, self._chance.randrange(2 * world.swarm.every_ns)) / NS)
            if world.swarm.faults and world.loop.now_ns < until:
                fault = self._chance.choice(world.swarm.faults)
                length = self._length_ns()
                world.trace("trouble", f"{fault} {length}")
                world.counts[f"fault {fault}"] += 1
                self._acts[fault](length)

    def heal(self) -> None:
        """End all faults that can be ended. Stopped processes continue within the longest pause."""
        world = self._world
        self._healed = True
        world.trace("trouble", "healed")
        world.network.heal()
        world.server.down = False
        world.server.ailing = 0

    def _length_ns(self) -> int:
        """From a blip to well past the longest lease."""
        longest = self._world.swarm.longest_ttl_ns()
        return MS + self._chance.randrange(self._chance.choice([50 * MS, longest, 2 * longest]))

    def _host(self) -> SimHost:
        return self._chance.choice(self._world.hosts)

    def _later(self, ns: int, act: Callable[[], None]) -> None:
        self._world.loop.call_after_ns(ns, act, context=_NOBODY)

    def _block(self, ns: int) -> None:
        host = self._host()
        host.stop_for(ns, host.loop_thread)

    def _stall(self, ns: int) -> None:
        host = self._host()
        host.stop_for(ns, host.keeper_thread)

    def _step(self, _: int) -> None:
        by = self._chance.randrange(1, 60) * self._chance.choice([MS, NS, 60 * NS])
        self._host().clock.step(by * self._chance.choice([-1, 1]))

    def _partition(self, ns: int) -> None:
        network, store = self._world.network, self._world.server.name
        host = self._host().name
        ways = self._chance.choice([[(host, store)], [(store, host)], [(host, store), (store, host)]])
        for source, target in ways:
            network.block(source, target)
            self._later(ns, partial(network.unblock, source, target))

    def _clog(self, ns: int) -> None:
        self._world.network.clog()
        self._later(ns, self._world.network.unclog)

    def _server_pause(self, ns: int) -> None:
        domain = self._world.server.domain
        domain.stop()
        self._later(ns, lambda: domain.resume(self._world.loop))

    def _restart(self, ns: int, *, forgets: bool, to_backup: bool = False) -> None:
        server = self._world.server
        if self._healed:
            return
        server.down = True
        server.hang_up()

        def up() -> None:
            self._lagging -= to_backup
            if forgets and not self._healed:
                server.forget(to_backup=to_backup)
            server.down = False

        self._later(ns, up)

    def _server_step(self) -> None:
        """Set the store's clock, forward or back by as much as an hour.

        Back only where the order of fences is promised all the same: not in worlds in which the counter is lost as
        well, nor while a replica is behind, which could not know how much time has passed.
        """
        by_ns = self._chance.randrange(3600 * NS)
        back = by_ns % 2 == 1 and not self._lagging and Fault.SERVER_FORGETS not in self._world.swarm.faults
        self._world.server.step(-by_ns if back else by_ns)

    def _lag(self, ns: int) -> None:
        """A replica falls behind now, and takes over a little later."""
        self._lagging += 1
        self._world.server.back_up()
        self._later(self._length_ns(), lambda: self._restart(ns, forgets=True, to_backup=True))

    def _ail(self, ns: int) -> None:
        server = self._world.server
        server.ailing = self._chance.choice([300, 1000])
        self._later(ns, lambda: setattr(server, "ailing", 0))

    def _force(self) -> None:
        self._world.server.force_release(self._chance.choice(self._world.keys), "operator", "drill")


_NOBODY = Domain("trouble").context()
