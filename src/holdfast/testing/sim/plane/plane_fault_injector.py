"""The maker of trouble around a simulated plane: applies the faults of its swarm at random times, and heals them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.network import Server
from holdfast.testing.sim.plane.plane_faults import PlaneFault
from holdfast.testing.sim.plane.plane_process import Process
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.plane.simulated_plane import PlaneWorld

STEP_MAX_NS = 5 * NS  # each host judges due times by its own clock, so hosts must agree within some seconds


class PlaneTrouble:
    """Applies faults. Each ends after its duration, or with `heal`."""

    def __init__(self, world: PlaneWorld) -> None:
        self._world = world
        self._chance = world.chance
        self._healed = False
        self._steps: dict[str, int] = {}
        leases, database = world.leases, world.database
        self._acts: dict[PlaneFault, Callable[[int], None]] = {
            PlaneFault.PAUSE: self._stop,
            PlaneFault.BLOCK: self._block,
            PlaneFault.STALL: self._stall,
            PlaneFault.SUSPEND: self._suspend,
            PlaneFault.CRASH: lambda _: self._process().crash(),
            PlaneFault.ROLL: lambda _: self._process().roll(),
            PlaneFault.ROLL_ALL: lambda _: self._roll_all(),
            PlaneFault.STEP: lambda _: self._step(),
            PlaneFault.LEASES_CUT: partial(self._cut, leases),
            PlaneFault.LEASES_PAUSE: partial(self._pause, leases),
            PlaneFault.LEASES_RESTART: lambda ns: self._restart(ns, forgets=False),
            PlaneFault.LEASES_FORGET: lambda ns: self._restart(ns, forgets=True),
            PlaneFault.LEASES_LAG: self._lag,
            PlaneFault.LEASES_AIL: partial(self._ail, leases),
            PlaneFault.LEASES_STEP: lambda _: leases.clock.step(self._chance.randrange(3600 * NS)),
            PlaneFault.FORCE: lambda _: self._force(),
            PlaneFault.DATABASE_CUT: partial(self._cut, database),
            PlaneFault.DATABASE_PAUSE: partial(self._pause, database),
            PlaneFault.DATABASE_DOWN: self._database_down,
            PlaneFault.DATABASE_AIL: partial(self._ail, database),
            PlaneFault.CLOG: self._clog,
            PlaneFault.COPIES: lambda _: self._copies(),
            PlaneFault.DISORDER: lambda _: self._disorder(),
        }

    async def rage(self, for_ns: int) -> None:
        """Make trouble for that long."""
        world, until = self._world, self._world.loop.now_ns + for_ns
        while (left := until - world.loop.now_ns) > 0:
            await asyncio.sleep(min(left, self._chance.randrange(2 * world.swarm.every_ns)) / NS)
            if world.swarm.faults and world.loop.now_ns < until and world.processes:
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
        for server in (world.leases, world.database):
            server.down = False
            server.ailing = 0
        for process in world.processes:
            process.host.clock.step(-self._steps.pop(process.name, 0))

    def _length_ns(self) -> int:
        """From a blip to well past the longest lease."""
        longest = self._world.swarm.longest_ttl_ns()
        return MS + self._chance.randrange(self._chance.choice([50 * MS, longest, 2 * longest]))

    def _process(self) -> Process:
        return self._chance.choice(self._world.processes)

    def _later(self, ns: int, act: Callable[[], None]) -> None:
        self._world.loop.call_after_ns(ns, act, context=OUTSIDE)

    def _stop(self, ns: int) -> None:
        self._process().host.stop_for(ns)

    def _suspend(self, ns: int) -> None:
        self._process().host.suspend_for(ns)

    def _block(self, ns: int) -> None:
        host = self._process().host
        host.stop_for(ns, host.loop_thread)

    def _stall(self, ns: int) -> None:
        host = self._process().host
        host.stop_for(ns, host.keeper_thread)

    def _roll_all(self) -> None:
        """One after the other, as a careful operator does: the next when the one before has ended."""
        waiting = list(self._world.processes)

        def next_one(_: object = None) -> None:
            while waiting and not self._healed:
                process = waiting.pop(0)
                if process.serves:
                    process.gone.add_done_callback(next_one, context=OUTSIDE)
                    process.roll()
                    return

        next_one()

    def _step(self) -> None:
        process = self._process()
        before = self._steps.get(process.name, 0)
        after = self._chance.randrange(-STEP_MAX_NS, STEP_MAX_NS)
        process.host.clock.step(after - before)
        self._steps[process.name] = after

    def _cut(self, server: Server, ns: int) -> None:
        network, far, near = self._world.network, server.name, self._process().name
        ways = self._chance.choice([[(near, far)], [(far, near)], [(near, far), (far, near)]])
        for source, target in ways:
            network.block(source, target)
            self._later(ns, partial(network.unblock, source, target))

    def _pause(self, server: Server, ns: int) -> None:
        server.domain.stop()
        self._later(ns, lambda: server.domain.resume(self._world.loop))

    def _ail(self, server: Server, ns: int) -> None:
        server.ailing = self._chance.choice([300, 1000])
        self._later(ns, lambda: setattr(server, "ailing", 0))

    def _restart(self, ns: int, *, forgets: bool, to_backup: bool = False) -> None:
        leases = self._world.leases
        if self._healed:
            return
        leases.down = True
        leases.hang_up()

        def up() -> None:
            if forgets and not self._healed:
                leases.forget(to_backup=to_backup)
            leases.down = False

        self._later(ns, up)

    def _lag(self, ns: int) -> None:
        """A replica falls behind now, and takes over a little later."""
        self._world.leases.back_up()
        self._later(self._length_ns(), lambda: self._restart(ns, forgets=True, to_backup=True))

    def _force(self) -> None:
        held = self._world.leases.table.holdings("", 200)
        if held:
            self._world.leases.force_release(self._chance.choice(held).key, "operator", "drill")

    def _database_down(self, ns: int) -> None:
        database = self._world.database
        database.down = True
        self._later(ns, lambda: setattr(database, "down", False))

    def _clog(self, ns: int) -> None:
        self._world.network.clog()
        self._later(ns, self._world.network.unclog)

    def _copies(self) -> None:
        """Redeliver in-flight messages to other consumers, as a bus may do."""
        self._world.database.query(
            "UPDATE plane_message SET state = 0, excused = excused + 1 WHERE state = 1 AND deliveries > 0"
        )

    def _disorder(self) -> None:
        waiting = self._world.database.query("SELECT rowid, place FROM plane_message WHERE state < 2 ORDER BY rowid")
        places = [place for _, place in waiting]
        self._chance.shuffle(places)
        for (row, _), place in zip(waiting, places, strict=True):
            self._world.database.query("UPDATE plane_message SET place = ? WHERE rowid = ?", place, row)


OUTSIDE = Domain("trouble").context()
