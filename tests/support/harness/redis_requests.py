"""Asks for tests of the Redis store, and how long a test is willing to wait for an answer."""

from __future__ import annotations

import uuid

from holdfast.core.ports import Store
from holdfast.stores.redis.url import parse_redis_url
from holdfast.types import NS, AcquireRequest, Busy, Grant, Renewal

SOON = 5 * NS  # how long a test lets a healthy server take
OWNER = "billing@host-1:42/abc"


def ask(key: str, *, token: str | None = None, ttl_ns: int = 30 * NS, ticket: str | None = None) -> AcquireRequest:
    """A request for a lease with a fresh token."""
    return AcquireRequest(key, token or uuid.uuid4().hex, OWNER, "billing", ttl_ns, ticket, 10 * NS if ticket else 0)


async def take(store: Store, key: str, **options: object) -> Grant:
    """An uncontested lease."""
    answer = await store.acquire(ask(key, **options), SOON)  # type: ignore[arg-type]
    assert isinstance(answer, Grant), answer
    return answer


async def meet(store: Store, key: str, **options: object) -> Busy:
    """An attempt that must find the lock busy."""
    answer = await store.acquire(ask(key, **options), SOON)  # type: ignore[arg-type]
    assert isinstance(answer, Busy), answer
    return answer


async def give_back(store: Store, grant: Grant) -> bool:
    """Release by claim."""
    return await store.release(grant.key, grant.token, grant.claim, 0, SOON)


def renewal(grant: Grant, ttl_ns: int = 30 * NS) -> Renewal:
    """The renewal of a grant."""
    return Renewal(grant.key, grant.token, grant.claim, ttl_ns)


def lock_name(url: str, key: str) -> str:
    """The Redis key of a lock."""
    return parse_redis_url(url).prefix + key


def aux_name(url: str, kind: str) -> str:
    """The Redis key of something that the store keeps besides locks."""
    return f"{parse_redis_url(url).namespace}:{kind}"


def queue_name(url: str, kind: str, key: str) -> str:
    """The Redis key of a part of the queue of a fair lock."""
    return f"{aux_name(url, kind)}:{{{lock_name(url, key)}}}"
