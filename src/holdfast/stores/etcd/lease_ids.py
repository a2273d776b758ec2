"""etcd leases that keys end with, each shared by all requests of about the same moment with the same TTL.

etcd leases are granted here and never kept alive. Granting goes through consensus, so the end of a lease is known to
every member: none ends it earlier than its TTL after it has learned of it, and a new leader begins the TTL again. A
keepalive is known to one member only: leaders that were stuck and deposed have confirmed keepalives, and ended leases
that their successors had extended. So a renewal moves its key to a new etcd lease, in a transaction that checks the
holder; the old one expires without keys.

Promises: a key that was put with a lease from here lasts for at least its TTL, counted from when its request was begun,
if the clocks of this host and of the cluster do not drift apart by more than 1 %. etcd counts whole seconds, so a lease
is granted for longer than was asked, and is shared during the difference. Clock: the host's most pessimistic one.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from holdfast.core.ports import Clock
from holdfast.errors import Timeout, Unavailable
from holdfast.stores.etcd.gateway import Gateway
from holdfast.types import MS, NS, Instant, elapsed_ns

SHARED_NS: Final = 500 * MS
_KEPT_MAX: Final = 256


class _EtcdLease(NamedTuple):
    id: int
    granted: Instant  # before it was requested
    shared_ns: int  # requests that begin within this time may use it


class LeaseIds:
    """The leases of one engine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leases: dict[tuple[int, int], _EtcdLease] = {}  # by TTL, and by how long it is shared at least

    def ready(self, ttl_ns: int, shared_ns: int = SHARED_NS) -> int | None:
        """A lease that was granted before and can still be used for this TTL."""
        lease = self._leases.get((ttl_ns, shared_ns))
        if lease is None or elapsed_ns(lease.granted, self._clock.now()) >= lease.shared_ns:
            return None
        return lease.id

    async def get(self, gateway: Gateway, ttl_ns: int, deadline_ns: int, shared_ns: int = SHARED_NS) -> int:
        """A lease on which a key lasts for at least this TTL from now. Granting one has no effect on any lock."""
        found = self.ready(ttl_ns, shared_ns)
        if found is not None:
            return found
        granted = self._clock.now()
        ask = {"TTL": str(-(-(ttl_ns + shared_ns) // NS)), "ID": "0"}
        try:
            made, seconds = await gateway.call("/v3/lease/grant", ask, deadline_ns, _read)
        except Timeout as error:
            raise Unavailable(f"no lease was granted: {error}") from error
        if len(self._leases) >= _KEPT_MAX:
            self._leases = {}
        shared = (seconds * NS - ttl_ns) * 99 // 100
        self._leases[ttl_ns, shared_ns] = _EtcdLease(made, granted, shared)
        return int(made)

    def forget(self) -> None:
        """The cluster does not know one of them: it was emptied, or an operator revoked it."""
        self._leases = {}


def _read(reply: Any) -> tuple[int, int]:
    made, seconds = int(reply["ID"]), int(reply["TTL"])
    if made <= 0 or seconds <= 0:
        raise ValueError("no lease")
    return made, seconds
