"""Leases in one Redis or Valkey server (6.2 or newer), written once for sync and asyncio over a driver.

Promises: every change is one script, so one atomic step; one round trip to acquire with a fence, one to release, one
for a tick of renewals. A lock is a plain string, set if absent and with an expiry, that begins with the readable owner:
`redis-cli GET name` and `PTTL name` say what a runbook needs, and other libraries of the Redis lock pattern exclude
each other with this one on the same key. Fences never go back, whatever the server forgets (see `lua/acquire.lua`), so
a write that is guarded by fence is safe: `Guarantee.FENCED`.

Does not promise: exclusion across a failover. Replication is asynchronous: a promoted replica may not know the newest
leases, and two primaries of a split brain grant the same keys. Their fences differ, and are in the order of their
clocks (see `core/lease/fencing.py`). Nor does it promise that leases survive a restart: that is the server's
persistence setting.

Clocks: expiry, tickets and `granted` are the server's clock; deadlines of calls are this host's monotonic clock.

Names: the lock is `<prefix><name>`; besides it there are `<namespace>:fence` (one counter for the database),
`<namespace>:audit` (a stream), and while a caller waits `<namespace>:ears:{<lock>}` (who is woken next, see
`waiter`), a channel `<namespace>:ear:<id>` for each waiter, and for fair locks `<namespace>:queue:{<lock>}` and
`<namespace>:tickets:{<lock>}`. Lock names contain no braces, so the braces here put what belongs to a lock into its own
hash slot: nothing has to be renamed for a cluster (`cluster_store`), where each slot has a fence counter of its own.
"""

from __future__ import annotations

from holdfast.core.ports import Capabilities
from holdfast.stores.redis.asyncio_driver import Mux
from holdfast.stores.redis.asyncio_subscriber import AsyncioSubscriber
from holdfast.stores.redis.sentinel import PrimarySource
from holdfast.stores.redis.store import CAPABILITIES, ManyRedisStore, RedisStore
from holdfast.stores.redis.sync_driver import RedisConnectionPool
from holdfast.stores.redis.sync_subscriber import SyncSubscriber
from holdfast.stores.redis.url import (
    SENTINEL_SCHEMES,
    RedisAddress,
    ServerSource,
    parse_redis_url,
    parse_sentinel_url,
)

__all__ = ["CAPABILITIES", "RedisEngine", "RedisStore", "open_engine"]


class RedisEngine:
    """One server and its sync and asyncio stores. Opening it sends nothing; a store connects at its first use."""

    def __init__(self, address: RedisAddress, source: ServerSource | None = None) -> None:
        """`source`: where the server is, if that is not fixed."""
        self._address = address
        self._source = source or address
        self._pool = RedisConnectionPool(self._source, shown=address)
        self._subscriber = SyncSubscriber(address, source)
        self._blocking = ManyRedisStore(address, self._pool, self._subscriber, source)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> ManyRedisStore:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> ManyRedisStore:
        """Make a store for one event loop: the one that first uses it."""
        address, source = self._address, self._source
        return ManyRedisStore(address, Mux(source, address), AsyncioSubscriber(address, source), source)

    def close(self) -> None:
        """Close the idle connections of the blocking store. Asyncio stores are closed by their users."""
        self._subscriber.close_idle()
        self._pool.close_idle()
        self._source.close()

    def __repr__(self) -> str:
        return f"<RedisEngine at {self._address}, database {self._address.db}>"


def open_engine(url: str) -> RedisEngine:
    """Open the engine that a URL names; see `stores.redis.url` for its form."""
    if url.partition("://")[0].lower() in SENTINEL_SCHEMES:
        address = parse_sentinel_url(url)
        return RedisEngine(address.primary, PrimarySource(address))
    return RedisEngine(parse_redis_url(url))
