"""Leases in an etcd cluster (3.4 or newer), through its JSON gateway, written once for sync and asyncio over a driver.

Promises: every change is one transaction that went through consensus, so a lease survives every failure of a minority,
of the leader too. A lock is one key; it is granted if the key does not exist, and it ends with an etcd lease. The
fence is the revision of the transaction that granted it, added to a base (see `fence_base`): `Guarantee.FENCED`.
Decisions are made from results of transactions, never from a member's own copy of the data.

An uncontended acquire is one or two round trips: one transaction, and a grant of an etcd lease if none of the last
moments can be shared (see `lease_ids`). A release is one. A tick of renewals is one grant and a transaction for each
hundred leases.

Does not promise exclusion across a restored backup, nor while the clocks of the cluster run away from this host's: see
docs/etcd.md. Clocks: expiry is the leader's monotonic clock; deadlines of calls are this host's.
"""

from __future__ import annotations

from holdfast.core.ports import Capabilities
from holdfast.runtime.system import SystemClock
from holdfast.stores.etcd.asyncio_driver import AsyncioHttp
from holdfast.stores.etcd.fence_base import FenceBase
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.http import HttpDriver
from holdfast.stores.etcd.lease_ids import LeaseIds
from holdfast.stores.etcd.lock_value import KeyNames
from holdfast.stores.etcd.store import CAPABILITIES, EtcdStore
from holdfast.stores.etcd.sync_driver import BlockingHttp
from holdfast.stores.etcd.url import EtcdAddress, parse_etcd_url

__all__ = ["CAPABILITIES", "EtcdEngine", "EtcdStore", "open_engine"]


class EtcdEngine:
    """One cluster and its sync and asyncio stores. Opening it sends nothing; a store connects at its first use."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._clock = SystemClock()
        self._keys = KeyNames(address.prefix)
        self._leases = LeaseIds(self._clock)
        self._base = FenceBase(self._keys.fence, self._clock)
        self._http = BlockingHttp(address)
        self._blocking = self._store(self._http)

    def _store(self, http: HttpDriver) -> EtcdStore:
        gateway = Gateway(self._address, http)
        name = f"at {self._address}/{self._address.prefix}"
        return EtcdStore(gateway, name, clock=self._clock, leases=self._leases, base=self._base, keys=self._keys)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return CAPABILITIES

    @property
    def blocking(self) -> EtcdStore:
        """The store for ordinary code and for the renewer, safe from any thread. Always the same one."""
        return self._blocking

    def asynchronous(self) -> EtcdStore:
        """Make a store for one event loop: the one that first uses it."""
        return self._store(AsyncioHttp(self._address))

    def close(self) -> None:
        """Close the idle connections of the blocking store. Asyncio stores are closed by their users."""
        self._http.close_idle()

    def __repr__(self) -> str:
        return f"<EtcdEngine at {self._address}/{self._address.prefix}>"


def open_engine(url: str) -> EtcdEngine:
    """Open the engine that a URL names; see `stores.etcd.url` for its form."""
    return EtcdEngine(parse_etcd_url(url))
