"""Trouble for the nodes of a quorum world: what happens to the one store of other worlds happens to one of them.

A node that restarts without its memory, or fails over to a replica that lags, stays away for as long as the longest
lease when the world's settings say so: whatever it has forgotten has run out by then. All being healed does not shorten
that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.testing.sim.environment.store import LeaseServer
from holdfast.testing.sim.worlds.fault_injector import FaultInjector
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld


class NodeTrouble(FaultInjector):
    """Applies faults to nodes. Each ends after its duration, or with `heal`."""

    def __init__(self, world: SimWorld, break_lock: Callable[[str], None]) -> None:
        super().__init__(world)
        self._break = break_lock
        self._away: dict[str, int] = {}  # those that have forgotten, and until when they do not answer

    def heal(self) -> None:
        """End what can be ended."""
        super().heal()
        for server in self._world.servers:
            server.down = server.name in self._away
            server.ailing = 0

    def _node(self) -> LeaseServer:
        return self._chance.choice(self._world.servers)

    def _partition(self, ns: int) -> None:
        """A host and some of the nodes do not hear each other, in one direction or both."""
        network, host, servers = self._world.network, self._host().name, self._world.servers
        for node in self._chance.sample(servers, self._chance.randint(1, len(servers))):
            ways = [(host, node.name), (node.name, host)]
            for source, target in self._chance.choice([ways, ways[:1], ways[1:]]):
                network.block(source, target)
                self._later(ns, partial(network.unblock, source, target))

    def _server_pause(self, ns: int) -> None:
        domain = self._node().domain
        domain.stop()
        self._later(ns, lambda: domain.resume(self._world.loop))

    def _restart(self, ns: int, *, forgets: bool, to_backup: bool = False) -> None:
        self._restart_node(self._node(), ns, forgets=forgets, to_backup=to_backup)

    def _restart_node(self, node: LeaseServer, ns: int, *, forgets: bool, to_backup: bool) -> None:
        if self._healed or node.name in self._away:
            return
        node.down = True

        def up() -> None:
            if forgets and not self._healed:
                self._forget(node, to_backup=to_backup)
            node.down = node.name in self._away

        self._later(ns, up)

    def _forget(self, node: LeaseServer, *, to_backup: bool) -> None:
        node.forget(to_backup=to_backup)
        if not self._world.swarm.stays_away:
            return
        loop, away_ns = self._world.loop, node.clock.true_ns(self._world.swarm.longest_ttl_ns()) + MS
        self._away[node.name] = loop.now_ns + away_ns

        def back() -> None:
            if self._away.get(node.name, loop.now_ns + 1) <= loop.now_ns:  # it may have forgotten again meanwhile
                del self._away[node.name]
                node.down = False

        self._later(away_ns, back)

    def _lag(self, ns: int) -> None:
        node = self._node()
        node.back_up()
        self._later(self._length_ns(), lambda: self._restart_node(node, ns, forgets=True, to_backup=True))

    def _ail(self, ns: int) -> None:
        node = self._node()
        node.ailing = self._chance.choice([300, 1000])
        self._later(ns, lambda: setattr(node, "ailing", 0))

    def _server_step(self) -> None:
        """Set a node's clock, forward or back by as much as an hour."""
        self._node().step(self._chance.randrange(-3600 * NS, 3600 * NS))

    def _force(self) -> None:
        self._break(self._chance.choice(self._world.keys))
