"""What a quorum remembers of votes that are under way, and of keys that were busy. In memory, and for any thread.

A node that is slow, or is being reached again, may grant a lease after its holder was told the outcome and has released
the lease: the release found nothing there, and the vote would block every caller for a TTL. So votes that are under way
are counted for each token, and the job that brings one in asks whether the lease is over by then.

A key that is busy at one node and free at a majority is free. A caller that one node tells *busy* believes it, because
that is nearly always so and costs one request; but only so often. `Doubts` says when to ask the others as well.

Bounded by what is under way, and by so many keys. A forked child begins with nothing: the requests are the parent's.
"""

from __future__ import annotations

import os
import weakref

from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import NS

DOUBT_NS = NS // 2
_KEYS_MAX = 1024

_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


class Memory:
    """What the stores of one engine know in common: the keeper renews on one, and others acquire and release."""

    def __init__(self) -> None:
        self.late = Late()
        self.doubts = Doubts()
        _memories.add(self)

    def forget(self) -> None:
        """Start empty, in a child: another thread of the parent may have held a mutex at the fork."""
        self.late.forget()
        self.doubts.forget()


class Late:
    """Votes that are under way, by the token that they are for."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all keys and all checks under way."""
        self._mutex = Mutex()
        self._under_way: dict[str, int] = {}
        self._over: set[str] = set()

    def begin(self, token: str, votes: int) -> None:
        """So many votes may come later than their election."""
        if votes:
            with self._mutex:
                self._under_way[token] = self._under_way.get(token, 0) + votes

    def over(self, token: str) -> bool:
        """The lease is released, or was never granted: votes that come from now on are too. Returns whether any may."""
        with self._mutex:
            if token not in self._under_way:
                return False
            self._over.add(token)
            return True

    def is_over(self, token: str) -> bool:
        """Whether that was said of votes that are still under way."""
        with self._mutex:
            return token in self._over

    def ended(self, token: str, votes: int = 1) -> bool:
        """So many votes have come, or will not. Returns whether they are to be released."""
        with self._mutex:
            over = token in self._over
            left = self._under_way.get(token, 0) - votes
            if left > 0:
                self._under_way[token] = left
            else:
                self._under_way.pop(token, None)
                self._over.discard(token)
            return over

    def __len__(self) -> int:
        """How many tokens have votes under way."""
        with self._mutex:
            return len(self._under_way)


class Doubts:
    """When one node's word that a key is busy is not enough."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all keys and all checks under way."""
        self._mutex = Mutex()
        self._asked_ns: dict[str, int] = {}  # key -> when it was busy first, or a majority was asked last; oldest first

    def due(self, key: str, now_ns: int) -> bool:
        """A node says that the key is busy: whether to ask the others. Not the first time, and not again and again."""
        with self._mutex:
            asked_ns = self._asked_ns.get(key)
            if asked_ns is not None and now_ns - asked_ns < DOUBT_NS:
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
