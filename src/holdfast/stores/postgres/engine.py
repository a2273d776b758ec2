"""Leases in one Postgres database (14 or newer), written once for sync and asyncio over a driver.

Promises: every change is one statement, which is one transaction: one round trip to acquire with a fence, one to
release, one for any number of renewals. A grant and a renewal are durable when they are reported (a release need not
be). Fences never go back, whatever is truncated or dropped (see `sql/fence.sql`), so a write that is guarded by fence
is safe: `Guarantee.FENCED`. Works behind PgBouncer in transaction mode: nothing remains in a session. Ownership can be
a part of the caller's own transaction (`sql/condition.sql`).

Does not promise: exclusion across a failover to an asynchronous replica. A promoted replica may not know the newest
leases, and grants them again. Fences then are in the order of the clocks of the servers (`core/lease/fence_clock.py`).
A synchronous replica knows every lease that was reported.

Clocks: expiry, tickets and `granted` are the server's clock (`clock_timestamp()`); deadlines of calls are this host's
monotonic clock.

Names: the tables `holdfast_lease`, `holdfast_fence`, `holdfast_waiter`, `holdfast_audit` and `holdfast_meta` with their
functions, in the schema that the URL names; and while a caller waits one channel `holdfast_<id>` for its process.
"""

from __future__ import annotations

from holdfast.core.ports import Capabilities
from holdfast.runtime.postgres_driver import missing_driver

try:
    from holdfast.stores.postgres.asyncio_driver import AsyncioPool
    from holdfast.stores.postgres.listener import ListenerThread, PostgresAsyncioSubscriber, PostgresSyncSubscriber
    from holdfast.stores.postgres.store import CAPABILITIES, PostgresStore
    from holdfast.stores.postgres.sync_driver import LeaseConnections
    from holdfast.stores.postgres.url import PostgresAddress, parse_postgres_url
except ImportError as error:
    raise missing_driver("postgresql://", error) from error

__all__ = ["CAPABILITIES", "PostgresEngine", "PostgresStore", "open_engine"]


class PostgresEngine:
    """One database and its sync and asyncio stores. Opening it sends nothing; a store connects at its first use."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._pool = LeaseConnections(address)
        self._listener = ListenerThread(address)
        self._blocking = PostgresStore(address, self._pool, PostgresSyncSubscriber(self._listener))

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> PostgresStore:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> PostgresStore:
        """Make a store for one event loop: the one that first uses it."""
        return PostgresStore(self._address, AsyncioPool(self._address), PostgresAsyncioSubscriber(self._listener))

    def close(self) -> None:
        """Close the idle connections of the blocking store. Asyncio stores are closed by their users."""
        self._listener.close()
        self._pool.close_idle()

    def __repr__(self) -> str:
        return f"<PostgresEngine at {self._address}, schema {self._address.schema}>"


def open_engine(url: str) -> PostgresEngine:
    """Open the engine that a URL names; see `stores.postgres.url` for its form."""
    return PostgresEngine(parse_postgres_url(url))
