"""Three Redis servers that know nothing of each other, with the drill's own proxies on every line: a quorum.

Each client comes by doors of its own, one for each node, so that it is decided and not left to luck which nodes have
granted it something. A node that is replaced comes back empty, as a server without persistence does, and all doors to
it lead to the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.drills.env.proxy import Proxy
from holdfast.drills.env.redis_server import Server, redis_server, running

NODES: Final = 3
_HOST: Final = "127.0.0.1"


class Doors:
    """One client's ways to the nodes."""

    def __init__(self, ways: list[Proxy]) -> None:
        self.ways = ways

    @property
    def url(self) -> str:
        """What the client is given."""
        return f"redlock://{','.join(f'{_HOST}:{way.port}' for way in self.ways)}"

    def cut(self, *nodes: int) -> None:
        """Be away from these nodes."""
        for node in nodes:
            self.ways[node].cut()

    def mend(self) -> None:
        """Reach every node again."""
        for way in self.ways:
            way.mend()


class Nodes:
    """The servers of a quorum. See `voting`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._executable = redis_server()
        self._directory = directory
        self._stack = stack
        self._number = 0
        self._doors: list[Doors] = []
        self.servers = [self._server() for _ in range(NODES)]

    def _server(self) -> Server:
        self._number += 1
        return self._stack.enter_context(running(self._executable, self._directory / f"redis-{self._number}"))

    def doors(self) -> Doors:
        """Ways of its own for one client, or for all who share them."""
        ways = [self._stack.enter_context(Proxy(_HOST, server.port)) for server in self.servers]
        self._doors.append(Doors(ways))
        return self._doors[-1]

    def lose(self, node: int) -> int:
        """Kill one: when it died."""
        return self.servers[node].kill()

    def prepare(self) -> Server:
        """An empty one, for when there is no time to start it."""
        return self._server()

    def replace(self, node: int, by: Server | None = None) -> None:
        """Put an empty one in its place, which is started now if there is none yet."""
        self.servers[node] = self._server() if by is None else by
        for doors in self._doors:
            doors.ways[node].aim(_HOST, self.servers[node].port)


@contextmanager
def voting(directory: Path) -> Iterator[Nodes]:
    """A quorum for the length of the block."""
    with ExitStack() as stack:
        yield Nodes(directory, stack)
