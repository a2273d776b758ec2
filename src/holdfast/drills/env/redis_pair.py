"""A Redis primary and its replica, with the drill's own proxies on every line: what there is to fail over.

The replica follows through a link that can be cut, so that what it lacks is decided and not left to luck. Clients come
through doors: a door leads to the primary, and is led elsewhere when somebody else is. Whoever is promoted is promoted
by the drill, at once: how long a sentinel takes to make up its mind is not the subject.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from holdfast.drills.env.proxy import Proxy
from holdfast.drills.env.redis_server import Server, redis_server, running

_HOST: Final = "127.0.0.1"
# A new replica is served at once, and not with others that may come within five seconds.
_AT_ONCE: Final = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


class Pair:
    """Two servers, one of which follows the other. See `paired`."""

    def __init__(
        self, directory: Path, stack: ExitStack, options: Sequence[str], environment: Mapping[str, str] | None
    ) -> None:
        self._executable = redis_server()
        self._directory = directory
        self._stack = stack
        self._environment = environment
        self._number = 0
        self._doors: list[Proxy] = []
        self.primary = self._server(*options)
        self.link = stack.enter_context(Proxy(_HOST, self.primary.port))
        self.replica = self._server()
        self.replica.follow(self.link.port)

    def _server(self, *options: str) -> Server:
        self._number += 1
        place = self._directory / f"redis-{self._number}"
        words = (*_AT_ONCE, *options)
        return self._stack.enter_context(running(self._executable, place, *words, environment=self._environment))

    def door(self) -> Proxy:
        """A way to the primary."""
        door = self._stack.enter_context(Proxy(_HOST, self.primary.port))
        self._doors.append(door)
        return door

    @property
    def in_step(self) -> bool:
        """Whether the replica has everything that the primary has."""
        return self.replica.follows_all_of(self.primary)

    def fail_over(self) -> int:
        """Kill the primary, and have the replica take its place, with whatever it has: when the primary died."""
        died_ns = self.primary.kill()
        self.replica.lead()
        self.primary = self.replica
        for door in self._doors:
            door.aim(_HOST, self.primary.port)
        return died_ns

    def recruit(self) -> None:
        """Start a replica in place of the one that was promoted."""
        self.replica = self._server()
        self._lead_the_link()

    def split(self, *doors: Proxy) -> int:
        """Part the two, and have the replica lead as well; these doors are on its side: since when.

        The line between them falls silent, as it does when a switch dies: neither is told that the other has gone.
        """
        self.link.hush()
        at_ns = time.time_ns()
        self.replica.lead()
        for door in doors:
            door.aim(_HOST, self.replica.port)
        return at_ns

    def heal(self) -> int:
        """Put the two together again. The one that was promoted stays, and the other forgets what it did alone."""
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
def paired(directory: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Pair]:
    """A pair for the length of the block. `options` are for the first primary alone, `environment` for every server."""
    with ExitStack() as stack:
        yield Pair(directory, stack, options, environment)


def url_of(door: Proxy) -> str:
    """What a client is given."""
    return f"redis://{_HOST}:{door.port}"
