"""The lock primitive: the caller keeps the token, and can pass it from process to process.

Nothing is renewed, watched or remembered here. Contention is an empty token. A token that is not the stored one is
`NotOwner` ("lock not owned", also for an absent key). A store error keeps its class and its cause, and its text names
the operation. The token is opaque text: the secret, and the claim that the store needs to find the lease.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import MutexEntry, Ports
from holdfast.errors import (
    LOCK_KEY_AND_TOKEN_REQUIRED,
    LOCK_NOT_OWNED,
    LOCK_TOKEN_REQUIRED,
    BackendError,
    FenceUnusable,
    LockBusy,
    Misconfigured,
    NotOwner,
    Timeout,
    Unavailable,
)
from holdfast.flows.acquire import try_once, undo
from holdfast.flows.log import log_event
from holdfast.types import NS, Busy, Grant, Renewal

_log = logging.getLogger("holdfast")

E = TypeVar("E", bound=BackendError)


async def acquire(ports: Ports, spec: LockSpec, entry: MutexEntry) -> str:
    """Set the key if it is absent, with expiry. A new token, or the empty string while anyone holds the key.

    `entry` remembers the token for the caller, who undoes the grant if it is interrupted. It does not enter.
    """
    try:
        answer = await _ask(ports, spec, entry)
    except BackendError as error:
        raise _naming(error, f"job store try acquire lock {spec.key}") from error
    return f"{answer.token}.{answer.claim}" if isinstance(answer, Grant) else ""


async def acquire_fenced(ports: Ports, spec: LockSpec, entry: MutexEntry) -> tuple[str, int]:
    """The same, with the fence of the grant; `LockBusy` while anyone holds the key.

    The store grants the key and counts the fence in one step. If its counter is unusable, no key is left behind.
    """
    try:
        answer = await _ask(ports, spec, entry)
    except BackendError as error:
        raise _naming(error, "fence token" if isinstance(error, FenceUnusable) else "acquire lock") from error
    if isinstance(answer, Grant):
        return f"{answer.token}.{answer.claim}", answer.fence
    left = None if answer.remaining_ns is None else answer.remaining_ns / NS
    raise LockBusy(
        f"lock busy: {spec.key} is held by {answer.owner or 'another holder'}",
        key=spec.key,
        holder=answer.owner,
        retry_after=spec.retry.longest_ns() / NS if left is None else left,
        remaining=left,
    )


async def _ask(ports: Ports, spec: LockSpec, entry: MutexEntry) -> Grant | Busy:
    token = entry.asked = ports.entropy.token()
    try:
        answer, _, _ = await try_once(ports, spec, token, ports.clock.now())
    except BackendError as error:
        if not isinstance(error, Unavailable | Misconfigured):
            await undo(ports, spec, token)
        entry.asked = None
        raise
    if not isinstance(answer, Grant):
        entry.asked = None
    return answer


async def release(ports: Ports, key: str, token: str) -> None:
    """Delete the key if it has this token; change nothing otherwise. An empty key is a silent success."""
    if not key:
        return
    if not token:
        log_event(_log, logging.WARNING, "lock release skipped: missing token", key=key)
        raise NotOwner(LOCK_TOKEN_REQUIRED, key=key)
    try:
        secret, _, claim = token.partition(".")
        ours = await ports.store.release(key, secret, claim or None, 0, ports.request_timeout_ns)
    except BackendError as error:
        raise _naming(error, f"job store release lock {key}") from error
    if not ours:
        log_event(_log, logging.WARNING, "lock release skipped: token mismatch", key=key, error=LOCK_NOT_OWNED)
        raise NotOwner(key=key)


async def renew(ports: Ports, key: str, token: str, ttl_ns: int) -> None:
    """Set the expiry to the TTL if the key has this token; change nothing otherwise."""
    if not key or not token:
        raise NotOwner(LOCK_KEY_AND_TOKEN_REQUIRED, key=key)
    secret, _, claim = token.partition(".")
    try:
        answer = (await ports.store.renew_many([Renewal(key, secret, claim, ttl_ns)], ports.request_timeout_ns))[0]
    except BackendError as error:
        raise _naming(error, f"job store renew lock {key}") from error
    if answer is None:
        raise Timeout(f"job store renew lock {key}: the store did not answer")
    if not answer:
        raise NotOwner(key=key)


def _naming(error: E, what: str) -> E:
    return type(error)(f"{what}: {error}")
