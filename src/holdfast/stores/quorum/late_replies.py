"""What a quorum remembers of requests that are under way, and of keys that were busy. In memory, and for any thread.

A node that is slow, or is being reached again, may grant a lease after its holder was told the outcome and has released
the lease: the release found nothing there, and the vote would block every caller for a TTL. So the requests for one
token share a `TokenVotes`. A release sets `over` in it before it asks the nodes. A request that brings in a vote checks
`over` afterwards, and releases the vote. One of the two comes last at the node, so no vote is left. A `TokenVotes`
lives as long as a request refers to it: an interrupt at any point leaves no entry behind.

A key that is busy at one node and free at a majority is free. A caller that one node tells *busy* believes it, because
that is nearly always so and costs one request; but only so often. `BusyKeys` decides when to ask the others as well.

Bounded by the requests under way, and by so many keys. A forked child starts empty: the requests are the parent's.
"""

from __future__ import annotations

import os
import weakref

from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import NS

RECHECK_NS = NS // 2
_KEYS_MAX = 1024

_memories: weakref.WeakSet[QuorumMemory] = weakref.WeakSet()


class QuorumMemory:
    """Shared by the stores of one engine: the lease manager renews on one, and others acquire and release."""

    def __init__(self) -> None:
        self.late = LateVotes()
        self.busy = BusyKeys()
        _memories.add(self)

    def forget(self) -> None:
        """Start empty, in a child: another thread of the parent may have held a mutex at the fork."""
        self.late.forget()
        self.busy.forget()


class TokenVotes:
    """The requests under way for one token. `over`: its lease was released, or never granted; so are late votes."""

    __slots__ = ("__weakref__", "over")

    def __init__(self) -> None:
        self.over = False


class LateVotes:
    """The requests under way, by token."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty."""
        self._mutex = Mutex()
        self._of: weakref.WeakValueDictionary[str, TokenVotes] = weakref.WeakValueDictionary()

    def of(self, token: str) -> TokenVotes:
        """The votes of a token. Each request keeps a reference until it has ended."""
        with self._mutex:
            votes = self._of.get(token)
            if votes is None:
                votes = self._of[token] = TokenVotes()
            return votes

    def over(self, token: str) -> None:
        """The lease is released, or was never granted: late votes are to be released."""
        with self._mutex:
            votes = self._of.get(token)
            if votes is not None:
                votes.over = True

    def __len__(self) -> int:
        """How many tokens have requests under way."""
        return len(list(self._of.values()))


class BusyKeys:
    """When one node's answer that a key is busy is not enough."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty."""
        self._mutex = Mutex()
        self._asked_ns: dict[str, int] = {}  # key -> when it was busy first, or a majority was asked last; oldest first

    def due(self, key: str, now_ns: int) -> bool:
        """Whether to ask the other nodes too, when one answers *busy*. Not the first time, and not often."""
        with self._mutex:
            asked_ns = self._asked_ns.get(key)
            if asked_ns is not None and now_ns - asked_ns < RECHECK_NS:
                return False
            self._asked_ns.pop(key, None)
            self._asked_ns[key] = now_ns
            if len(self._asked_ns) > _KEYS_MAX:
                del self._asked_ns[next(iter(self._asked_ns))]
            return asked_ns is not None

    def settled(self, key: str) -> None:
        """The key was granted."""
        with self._mutex:
            self._asked_ns.pop(key, None)


def _after_fork() -> None:
    for memory in list(_memories):
        memory.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
