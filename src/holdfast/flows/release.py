"""Releasing a lease: compare and delete, within a time limit, and not cut short by the end of the caller.

"Not owned" is an answer and not an error: the key expired or has another holder, and nothing was changed. A store that
does not answer causes a warning: finished work stays finished, and the key expires.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.history.events import EventKind
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import MutexEntry, Ports
from holdfast.errors import BackendError
from holdfast.flows.acquire import CLEANUP_WAIT_NS, note
from holdfast.types import Grant, Instant, elapsed_ns


class Released(Enum):
    """The result of a release."""

    YES = "released"
    NOT_OWNED = "not owned"
    UNKNOWN = "unknown"


async def release(
    ports: Ports, spec: LockSpec, grant: Grant, since: Instant, judged: Instant | None = None
) -> Released:
    """Release the lease. `since`: when it was granted, for locks that are kept a minimum time.

    `judged`: when it was last found to be held, for the history: until then it certainly was.

    If this is interrupted, the outcome is unknown: the caller then runs `again`.
    """
    began_ns = None if judged is None else judged.wall
    try:
        if ARMED:
            await areach("flow.release.send")
        keep_ns = _keep_ns(ports, spec, since) if spec.timing.at_least_ns else 0
        ours = await ports.store.release(grant.key, grant.token, grant.claim, keep_ns, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.release.answered")
    except BackendError as error:
        note(ports, spec, EventKind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False, began_ns=began_ns)
        _leave_to_the_reaper(ports, spec, grant)
        return Released.UNKNOWN
    if not ours:
        note(ports, spec, EventKind.RELEASE_REFUSED, fence=grant.fence, ok=False, began_ns=began_ns)
        return Released.NOT_OWNED
    note(ports, spec, EventKind.RELEASED, fence=grant.fence, began_ns=began_ns)
    return Released.YES


async def let_the_next_ask(ports: Ports, entry: MutexEntry) -> None:
    """Let the next waiter of this process take its ticket for a contested fair lock before the lease is released.

    Otherwise this process is in no queue from its release until it runs again and asks, and all grants of that moment
    go to other processes: on a busy machine that is most of the time. The next waiter may enter although the store does
    not know of the release yet, because the holder has finished its work.
    """
    entry.leave()
    await ports.runtime.sleep(0)  # other callers of this process run, and their requests are sent before the release


async def again(ports: Ports, spec: LockSpec, grant: Grant, since: Instant) -> None:
    """Release in the background after a release that was cancelled or interrupted. A second request is harmless.

    The caller waits for it for at most `CLEANUP_WAIT_NS`. The reaper gets the grant first: see `acquire.undo`.
    """
    orphan = None
    if not spec.timing.at_least_ns:
        orphan = ports.reaper.reap(grant.key, grant.token, spec.timing.ttl_ns, ports.request_timeout_ns)
    await ports.runtime.finish(_again(ports, spec, grant, since, orphan), CLEANUP_WAIT_NS)


async def _again(ports: Ports, spec: LockSpec, grant: Grant, since: Instant, orphan: object | None) -> None:
    settled = False
    try:
        await ports.store.release(
            grant.key, grant.token, grant.claim, _keep_ns(ports, spec, since), ports.request_timeout_ns
        )
        settled = True  # "not there" too: this token held the key, so it was released or lost
    except BackendError as error:
        note(ports, spec, EventKind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False)
    else:
        note(ports, spec, EventKind.RELEASED, fence=grant.fence)
    finally:
        if orphan is not None:
            ports.reaper.settle(orphan, released=settled)


def _keep_ns(ports: Ports, spec: LockSpec, since: Instant) -> int:
    """How long the store keeps the key after its release."""
    keep_ns = spec.timing.at_least_ns
    return max(0, keep_ns - elapsed_ns(since, ports.clock.now())) if keep_ns else 0


def _leave_to_the_reaper(ports: Ports, spec: LockSpec, grant: Grant) -> None:
    """Have the reaper release the key later. A key with a minimum time is left to expire, which is never too early."""
    if not spec.timing.at_least_ns:
        ports.reaper.reap(grant.key, grant.token, spec.timing.ttl_ns)
