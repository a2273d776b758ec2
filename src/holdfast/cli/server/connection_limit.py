"""Open connections of one HTTP server: how many there may be, and which one is closed to make room.

Promises: at most `most + RESERVED` connections are open. A new connection at the limit is always accepted while an
older one can be closed in its place. The victim is the oldest connection of the first non-empty group in the order of
`EvictionGroup`: connections without a valid token go first, and a request with a valid token that is being answered is
never cut off. If every connection is answering such a request, the new one is admitted to the reserve, where only
health probes are answered. So neither idle connections nor long polls keep a load balancer from seeing the process.

Does not promise fairness between peers: behind a proxy, all callers have the same address.
"""

from __future__ import annotations

import resource
from collections import Counter
from enum import IntEnum
from typing import Final, Protocol

CONNECTIONS_MAX: Final = 1000
RESERVED: Final = 8
_BATCH_MAX: Final = 64


class EvictionGroup(IntEnum):
    """Why a connection may be closed to make room, in the order in which the groups are emptied."""

    ANONYMOUS = 0  # no valid token was seen, and no request of it is being answered
    IDLE = 1  # between two requests of a caller with a valid token
    ARRIVING = 2  # a request with a valid token has not arrived completely, so it has had no effect
    ANSWERING = 3  # a request without a token is being answered
    KEPT = 4  # a request with a valid token is being answered: never closed


class Closable(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Close the connection immediately, without sending what is left."""


def _files() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_max() -> int:
    """The limit of connections: half of the files that the process may open, at most 1000."""
    files = _files()
    return CONNECTIONS_MAX if files is None else max(8, min(CONNECTIONS_MAX, files // 2))


def accept_batch() -> int:
    """How many connections to accept before data is read again.

    asyncio accepts as many as the backlog holds before the first of them can be closed. A burst would take all file
    descriptors, and asyncio stops accepting for a second when there are none.
    """
    files = _files()
    return _BATCH_MAX if files is None else max(1, min(_BATCH_MAX, files // 16))


class ConnectionLimit:
    """The open connections of one server, by group, oldest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed: Counter[str] = Counter({"evicted": 0, "refused": 0, "request_timeout": 0, "write_timeout": 0})
        self._groups: tuple[dict[Closable, None], ...] = tuple({} for _ in EvictionGroup)
        self._group_of: dict[Closable, EvictionGroup] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def enter(self, new: Closable) -> bool | None:
        """Admit a connection: True, False: only for health probes, None: refused."""
        if len(self) >= self.most and not self._evict_one() and len(self) >= self.most + RESERVED:
            self.closed["refused"] += 1
            return None
        admitted = len(self) < self.most
        self.move(new, EvictionGroup.ANONYMOUS)
        return admitted

    def move(self, connection: Closable, group: EvictionGroup) -> None:
        """Note the state of a connection. Its age within a group counts from the moment it came there."""
        before = self._group_of.get(connection)
        if before is group:
            return
        if before is not None:
            del self._groups[before][connection]
        self._group_of[connection] = group
        self._groups[group][connection] = None

    def leave(self, connection: Closable) -> None:
        """Forget a connection. Can be repeated."""
        group = self._group_of.pop(connection, None)
        if group is not None:
            del self._groups[group][connection]

    def _evict_one(self) -> bool:
        for group in self._groups[: EvictionGroup.KEPT]:
            for oldest in group:
                self.closed["evicted"] += 1
                self.leave(oldest)
                oldest.evict()
                return True
        return False
