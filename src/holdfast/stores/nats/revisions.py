"""What is known about the last message of a key, and what follows from it. Pure.

A holder counts its validity from before its request was sent. A message of a held key exists at the server from then
on, and every renewal replaces it by a new one with a higher sequence. So a client may replace the message of another
holder in two cases, and no third one:

    watched     it has known this same message for the whole TTL on its own monotonic clock. No wall clock is compared,
                and no clock of two hosts: the client saw the message after the holder had sent it, so the holder has
                counted at least as much, up to the drift that every lease allows for (1 %).
    stale       by the timestamps of the servers, the message is older than its TTL and `CLOCKS_APART_NS`. One server
                has stored it and another one may have told the time: that does no harm while their clocks differ by
                less, and step by less. Without this rule a process that starts after a crash would have to wait for
                one TTL, and one that does not wait would never get the lock.

Neither case is a decision: the replacement names the sequence of the message, and the server refuses it if there is
a newer one. That a holder may not renew a lease that has expired here is for the same answer on all stores; a renewal
that names the last sequence could harm no other client.

Clocks: this host's monotonic clock, and the timestamps of the servers, both passed in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.stores.nats.values import Content, Foreign, Free, HeldValue
from holdfast.types import NS

CLOCKS_APART_NS: Final = 10 * NS
KNOWN_MAX: Final = 20_000


class Revision(NamedTuple):
    """The last message of a key that this process knows."""

    seq: int
    content: Content
    since_ns: int  # when this process knew of it first; its monotonic clock
    stored_ns: int | None = None  # the timestamp that the server gave it; None: it was written from here

    @property
    def fence(self) -> int:
        """The fence of the grant that the message belongs to."""
        fence = self.content.fence if isinstance(self.content, HeldValue) else None
        return self.seq if fence is None else fence


class ServerTime(NamedTuple):
    """The wall clock of the servers, read once."""

    wall_ns: int
    read_ns: int  # on the monotonic clock of this process, when the answer had arrived

    def at(self, now_ns: int) -> int:
        """An estimate of the same clock now. It is behind, by the time that the answer was on its way."""
        return self.wall_ns + now_ns - self.read_ns


def left_ns(revision: Revision, now_ns: int, server: ServerTime | None) -> int | None:
    """How long the message still protects its key. 0 or less: it may be replaced. None: it does not expire."""
    content = revision.content
    if isinstance(content, Foreign):
        return None
    if isinstance(content, Free):
        return 0
    left = content.ttl_ns - (now_ns - revision.since_ns)
    if revision.stored_ns is not None and server is not None:
        left = min(left, content.ttl_ns + CLOCKS_APART_NS - (server.at(now_ns) - revision.stored_ns))
    return left


def shown_ns(revision: Revision, now_ns: int, server: ServerTime | None) -> int | None:
    """The time left as people should see it: by the clock of the servers, without the allowance for clocks."""
    left = left_ns(revision, now_ns, server)
    if left is None or not isinstance(revision.content, HeldValue):
        return left
    if revision.stored_ns is not None and server is not None:
        left = min(left, revision.content.ttl_ns - (server.at(now_ns) - revision.stored_ns))
    return max(0, left)


class Revisions:
    """What this process knows of each key, for all stores of one engine. Safe from any thread without a mutex.

    Each step is one operation on a dict. What is lost in a race, or forgotten because there are too many keys, costs a
    read or a longer wait, never a wrong answer: every write names the sequence that it replaces.
    """

    def __init__(self) -> None:
        self._known: dict[str, Revision] = {}

    def get(self, key: str) -> Revision | None:
        """The last message of a key that is known. None: nothing is known."""
        return self._known.get(key)

    def learned(self, key: str, revision: Revision) -> Revision:
        """Note a message that was read or written. One that was known already keeps the time of its first sight."""
        known = self._known.get(key)
        if known is not None and known.seq == revision.seq:
            stored_ns = revision.stored_ns if known.stored_ns is None else known.stored_ns
            revision = Revision(revision.seq, revision.content, min(known.since_ns, revision.since_ns), stored_ns)
        self._known.pop(key, None)  # so that the newest is the last
        self._known[key] = revision
        while len(self._known) > KNOWN_MAX:
            try:
                self._known.pop(next(iter(self._known)), None)
            except (StopIteration, RuntimeError):  # another thread changes it
                break
        return revision

    def forget(self, key: str) -> None:
        """The key has no message any more."""
        self._known.pop(key, None)
