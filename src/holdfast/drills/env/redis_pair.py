"""A Redis primary and its replica, with proxies on every connection: the environment of a failover.

The replica replicates through a link that can be cut, so that its missing writes are determined by the drill. Clients
connect through proxies: each leads to the current primary, and can be redirected. The drill promotes a replica itself
and immediately: the election time of a sentinel is not the subject.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.env.redis_server import RedisServer, redis_server, running

_HOST: Final = "127.0.0.1"
# A new replica is served immediately, not together with others that may connect within five seconds.
_AT_ONCE: Final = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


class RedisPair:
    """Two servers, one of which replicates the other. See `paired`."""

    def __init__(
        self, directory: Path, stack: ExitStack, options: Sequence[str], environment: Mapping[str, str] | None
    ) -> None:
        self._executable = redis_server()
        self._directory = directory
        self._stack = stack
        self._environment = environment
        self._number = 0
        self._doors: list[FaultProxy] = []
        self.primary = self._server(*options)
        self.link = stack.enter_context(FaultProxy((_HOST, self.primary.port)))
        self.replica = self._server()
        self.replica.follow(self.link.port)

    def _server(self, *options: str) -> RedisServer:
        self._number += 1
        place = self._directory / f"redis-{self._number}"
        words = (*_AT_ONCE, *options)
        return self._stack.enter_context(running(self._executable, place, *words, environment=self._environment))

    def door(self) -> FaultProxy:
        """A client proxy to the primary."""
        door = self._stack.enter_context(FaultProxy((_HOST, self.primary.port)))
        self._doors.append(door)
        return door

    @property
    def in_step(self) -> bool:
        """Whether the replica has all writes of the primary."""
        return self.replica.follows_all_of(self.primary)

    def fail_over(self) -> int:
        """Kill the primary, and promote the replica with the data that it has. Returns the time of death."""
        died_ns = self.primary.kill()
        self.replica.lead()
        self.primary = self.replica
        for door in self._doors:
            door.aim(_HOST, self.primary.port)
        return died_ns

    def recruit(self) -> None:
        """Start a new replica of the promoted server."""
        self.replica = self._server()
        self._lead_the_link()

    def split(self, *doors: FaultProxy) -> int:
        """Separate the two, and promote the replica as well; these proxies are on its side. Returns the time.

        The connection between them falls silent, as with a dead switch: neither learns that the other one is gone.
        """
        self.link.hush()
        at_ns = time.time_ns()
        self.replica.lead()
        for door in doors:
            door.aim(_HOST, self.replica.port)
        return at_ns

    def heal(self) -> int:
        """Reconnect the two. The promoted one stays primary, and the other one loses its separate writes."""
        self.primary, self.replica = self.replica, self.primary
        for door in self._doors:
            door.aim(_HOST, self.primary.port)
        at_ns = time.time_ns()
        self._lead_the_link()
        return at_ns

    def _lead_the_link(self) -> None:
        self.link.aim(_HOST, self.primary.port)
        self.link.mend()
        self.replica.follow(self.link.port)


@contextmanager
def paired(directory: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[RedisPair]:
    """A pair for the duration of the block. `options` are for the first primary, `environment` for every server."""
    with ExitStack() as stack:
        yield RedisPair(directory, stack, options, environment)


def url_of(door: FaultProxy) -> str:
    """The URL for a client."""
    return f"redis://{_HOST}:{door.port}"
