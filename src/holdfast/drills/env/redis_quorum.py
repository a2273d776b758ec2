"""Three independent Redis servers, with proxies on every connection: a quorum.

Each client has its own proxy to each node, so that the drill determines which nodes have granted it a lock. A replaced
node comes back empty, like a server without persistence, and all proxies to it lead to the new one.

"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.env.redis_server import RedisServer, redis_server, running

NODES: Final = 3
_HOST: Final = "127.0.0.1"


class NodeProxies:
    """One client's proxies to the nodes."""

    def __init__(self, ways: list[FaultProxy]) -> None:
        self.ways = ways

    @property
    def url(self) -> str:
        """The URL for the client."""
        return f"redlock://{','.join(f'{_HOST}:{way.port}' for way in self.ways)}"

    def cut(self, *nodes: int) -> None:
        """Make these nodes unreachable."""
        for node in nodes:
            self.ways[node].cut()

    def mend(self) -> None:
        """Make every node reachable."""
        for way in self.ways:
            way.mend()


class QuorumServers:
    """The servers of a quorum. See `voting`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._executable = redis_server()
        self._directory = directory
        self._stack = stack
        self._number = 0
        self._doors: list[NodeProxies] = []
        self.servers = [self._server() for _ in range(NODES)]

    def _server(self) -> RedisServer:
        self._number += 1
        return self._stack.enter_context(running(self._executable, self._directory / f"redis-{self._number}"))

    def doors(self) -> NodeProxies:
        """New proxies for one client, or for several that share them."""
        ways = [self._stack.enter_context(FaultProxy((_HOST, server.port))) for server in self.servers]
        self._doors.append(NodeProxies(ways))
        return self._doors[-1]

    def lose(self, node: int) -> int:
        """Kill a node. Returns the time of death."""
        return self.servers[node].kill()

    def prepare(self) -> RedisServer:
        """Start an empty server in advance."""
        return self._server()

    def replace(self, node: int, by: RedisServer | None = None) -> None:
        """Replace a node with an empty server, which is started now unless it is given."""
        self.servers[node] = self._server() if by is None else by
        for doors in self._doors:
            doors.ways[node].aim(_HOST, self.servers[node].port)


@contextmanager
def voting(directory: Path) -> Iterator[QuorumServers]:
    """A quorum for the duration of the block."""
    with ExitStack() as stack:
        yield QuorumServers(directory, stack)
