"""Leases in a bucket of NATS JetStream (server 2.11 or newer), written once over asyncio.

Promises: every change of a lease is one message that names the sequence which it replaces, and the leader of the stream
stores it only if that is still the last one, after a majority of the replicas has it. So no two holders have the same
message, whatever a client has read: a read decides nothing. The fence of a grant is the sequence of its message, so
fences rise from grant to grant, through restarts, purges and elections: `Guarantee.FENCED`. A repeated request with
the same token gets the same grant.

Expiry: NATS has no request that compares a time, so a client decides when a lease of another one is over, and never by
comparing the clocks of two hosts: it has known the same message for the whole TTL, or the servers' own timestamps say
that the message is older than its TTL by ten seconds (see `revisions`, with the argument).

Does not promise: exclusion when the server loses what it has acknowledged. With one replica that is a loss of power
(`sync_interval`), with three of them the loss of a majority's disks. Fences still rise then, unless the bucket is
created again by a host whose clock is behind. A server whose clock jumps forward by more than a day deletes leases that
are held, because it takes them for left over. No fair queue. A process that starts after a holder has died, and waits,
gets the key within one TTL of its own first look, or ten seconds after the TTL, whichever is first.

Clocks: this host's monotonic clock, the servers' timestamps, the event loop's for deadlines.

Names: the bucket `<bucket>` (stream `KV_<bucket>`) has one key for each lock, whose characters that are not safe in a
subject are `=` and two digits; `KV_<bucket>_audit` keeps forced releases; waiters listen on
`holdfast.free.<bucket>.<key>`.
"""

from __future__ import annotations

from holdfast.core.ports import Capabilities
from holdfast.runtime.system import SystemClock
from holdfast.stores.blocking import BlockingStore
from holdfast.stores.nats.link import NatsLink
from holdfast.stores.nats.revisions import Revisions
from holdfast.stores.nats.store import CAPABILITIES, NatsStore
from holdfast.stores.nats.url import NatsAddress, parse_nats_url

__all__ = ["CAPABILITIES", "NatsEngine", "NatsStore", "open_engine"]


class NatsEngine:
    """One bucket and its sync and asyncio stores. Opening it sends nothing; a store connects at its first use."""

    def __init__(self, address: NatsAddress) -> None:
        self._address = address
        self._clock = SystemClock()
        self._revisions = Revisions()
        self._blocking = BlockingStore(self.asynchronous(), f"holdfast-nats {address}")

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> BlockingStore:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> NatsStore:
        """Make a store for one event loop: the one that first uses it."""
        return NatsStore(NatsLink(self._address), self._revisions, self._clock)

    def close(self) -> None:
        """Close the connection of the blocking store. Asyncio stores are closed by their users."""
        self._blocking.end()

    def __repr__(self) -> str:
        return f"<NatsEngine at {self._address}, bucket {self._address.bucket}>"


def open_engine(url: str) -> NatsEngine:
    """Open the engine that a URL names; see `stores.nats.url` for its form."""
    return NatsEngine(parse_nats_url(url))
