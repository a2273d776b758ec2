"""Giving a lease back: compare and delete, bounded, and never cut short by the caller's own end.

Not owned is an answer, not an error: the key expired or was taken, and nothing was changed. A store that does not
answer is a warning: finished work stays finished, and the key expires by itself.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.history import Kind
from holdfast.errors import BackendError
from holdfast.flows.acquiring import CLEANUP_NS, Wish, note
from holdfast.ports import Ports
from holdfast.types import Grant, Instant, elapsed_ns


class Released(Enum):
    """How a release went."""

    YES = "released"
    NOT_OWNED = "not owned"
    UNKNOWN = "unknown"


async def release(ports: Ports, wish: Wish, grant: Grant, since: Instant) -> Released:
    """Give the lease back. `since` is when it was granted, for locks that are kept a minimum time."""
    keep_ns = wish.timing.at_least_ns
    if keep_ns:
        keep_ns = max(0, keep_ns - elapsed_ns(since, ports.clock.now()))
    try:
        ours = await ports.store.release(grant.key, grant.token, grant.claim, keep_ns, ports.request_timeout_ns)
    except BackendError as error:
        note(ports, wish, Kind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False)
        ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns)
        return Released.UNKNOWN
    except BaseException:
        # Cancelled or interrupted in mid-release: whether it happened is unknown, and asking again is harmless.
        await ports.runtime.finish(_again(ports, wish, grant, keep_ns), CLEANUP_NS)
        raise
    if not ours:
        note(ports, wish, Kind.RELEASE_REFUSED, fence=grant.fence, ok=False)
        return Released.NOT_OWNED
    note(ports, wish, Kind.RELEASED, fence=grant.fence)
    return Released.YES


async def _again(ports: Ports, wish: Wish, grant: Grant, keep_ns: int) -> None:
    try:
        await ports.store.release(grant.key, grant.token, grant.claim, keep_ns, ports.request_timeout_ns)
    except BackendError as error:
        note(ports, wish, Kind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False)
        ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns)
    else:
        note(ports, wish, Kind.RELEASED, fence=grant.fence)
