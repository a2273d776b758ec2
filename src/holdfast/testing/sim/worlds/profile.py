"""What a profile adds to a simulated world: its programs, what their leases protect, and what else must hold in it.

A scene belongs to one world. This one adds nothing: it is that of busy worlds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol

from holdfast.core.history.events import Record
from holdfast.core.history.invariants import Breach
from holdfast.testing.sim.environment.clock import SimClock
from holdfast.testing.sim.environment.store import LeaseServer, SimEngine
from holdfast.testing.sim.worlds.fault_injector import FaultInjector
from holdfast.testing.sim.worlds.resource import FencedResource
from holdfast.testing.sim.worlds.sessions import Session

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld


class Resource(Protocol):
    """What a lease protects, at the far end of the network."""

    async def read(self, host: str, owner: str, fence: int) -> int:
        """Register the fence, and read. `FencedOut` when a newer one was here, `BackendError` when it is unknown."""
        ...

    async def write(self, host: str, owner: str, fence: int, based_on: int, late_ns: int = 0) -> int:
        """Write a result of what was read. It may arrive after its sender has given up."""
        ...


class Scene:
    """One world's own part. Every method is called by the world, none of them more than its name says."""

    sessions: ClassVar[type[Session]] = Session

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def servers(self) -> list[LeaseServer]:
        """Where leases are kept."""
        world = self._world
        return [LeaseServer(world.loop, world.make_clock("store"), world.note)]

    def engine(self, host: str, clock: SimClock) -> SimEngine:
        """The connections of a host to where leases are kept."""
        return SimEngine(self._world.network, self._world.server, host)

    def trouble(self) -> FaultInjector:
        """What goes wrong."""
        return FaultInjector(self._world)

    def held_ns(self) -> int:
        """For how long keys were taken, all in all."""
        return self._world.server.tenancy.all_freed(self._world.loop.now_ns)

    def resource(self, key: str) -> Resource:
        """What the leases of a key protect."""
        return FencedResource(key, self._world.network, self._world.note)

    def handed(self, record: Record) -> None:
        """The store has just granted a key."""

    async def after_recovery(self) -> None:
        """All is healed, every program has ended, and every process works again."""

    def judge(self, history: Iterable[Record]) -> list[Breach]:
        """What else is wrong with what has happened."""
        return []

    def close(self) -> None:
        """The world is over."""
