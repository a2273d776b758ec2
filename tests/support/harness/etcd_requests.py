"""Requests to an etcd store, a driver that delivers one of them late, and what is stored behind it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import Any

from holdfast.core.ports import Store
from holdfast.errors import Timeout
from holdfast.stores.etcd.sync_driver import BlockingHttp
from holdfast.stores.etcd.url import EtcdAddress, parse_etcd_url
from holdfast.stores.url_parts import Endpoint
from holdfast.types import NS, AcquireRequest, Grant, Renewal

SOON = 5 * NS
LONG = 60 * NS
_numbers = itertools.count()


def ask(key: str, ttl_ns: int = LONG, ticket: str | None = None) -> AcquireRequest:
    """A request of a new asker."""
    owner = f"test@host:{next(_numbers)}/x"
    return AcquireRequest(key, secrets.token_hex(16), owner, "test.family", ttl_ns, ticket, LONG if ticket else 0)


async def take(store: Store, key: str, ttl_ns: int = LONG) -> tuple[AcquireRequest, Grant]:
    """Acquire, and insist on the grant."""
    asked = ask(key, ttl_ns)
    grant = await store.acquire(asked, SOON)
    assert isinstance(grant, Grant), grant
    return asked, grant


def renewal(asked: AcquireRequest, grant: Grant, ttl_ns: int = LONG) -> Renewal:
    """A renewal of a grant."""
    return Renewal(asked.key, asked.token, grant.claim, ttl_ns)


class LateHttp(BlockingHttp):
    """Holds back the first request that is to be late. Its sender sees no answer; `deliver` sends it after all."""

    def __init__(self, url: str, late: Callable[[str, bytes], bool]) -> None:
        super().__init__(parse_etcd_url(url))
        self._late = late
        self.held: list[tuple[Endpoint, str, bytes, str | None]] = []

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, token: str | None, deadline_ns: int
    ) -> tuple[int, bytes]:
        if not self.held and self._late(path, body):
            self.held.append((endpoint, path, body, token))
            raise Timeout("held back by a test; it may have taken effect")
        return await super().post(endpoint, path, body, token, deadline_ns)

    async def deliver(self) -> tuple[int, bytes]:
        """Send what was held back."""
        return await super().post(*self.held[0], self.deadline(SOON))


def over(url: str, http: BlockingHttp) -> Any:
    """The blocking store of an engine whose requests go through this driver."""
    from holdfast.stores.etcd.engine import EtcdEngine

    engine: Any = EtcdEngine(address_of(url))
    return engine._store(http)


def address_of(url: str) -> EtcdAddress:
    """The parsed URL."""
    return parse_etcd_url(url)
