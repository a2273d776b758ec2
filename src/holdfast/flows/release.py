"""Giving a lease back: compare and delete, bounded, and never cut short by the caller's own end.

Not owned is an answer, not an error: the key expired or was taken, and nothing was changed. A store that does not
answer is a warning: finished work stays finished, and the key expires by itself.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.history.events import EventKind
from holdfast.core.ports import Place, Ports
from holdfast.errors import BackendError
from holdfast.flows.acquire import CLEANUP_WAIT_NS, Wish, note
from holdfast.types import Grant, Instant, elapsed_ns


class Released(Enum):
    """How a release went."""

    YES = "released"
    NOT_OWNED = "not owned"
    UNKNOWN = "unknown"


async def release(ports: Ports, wish: Wish, grant: Grant, since: Instant, judged: Instant | None = None) -> Released:
    """Give the lease back. `since` is when it was granted, for locks that are kept a minimum time.

    `judged` is when it was last found to be held: until then it certainly was, which is what a history needs to know.

    If this is interrupted, whether it happened is unknown: the caller then has `again` finished.
    """
    began_ns = None if judged is None else judged.wall
    try:
        if ARMED:
            await areach("flow.release.send")
        ours = await ports.store.release(
            grant.key, grant.token, grant.claim, _keep_ns(ports, wish, since), ports.request_timeout_ns
        )
        if ARMED:
            await areach("flow.release.answered")
    except BackendError as error:
        note(ports, wish, EventKind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False, began_ns=began_ns)
        _leave_to_the_reaper(ports, wish, grant)
        return Released.UNKNOWN
    if not ours:
        note(ports, wish, EventKind.RELEASE_REFUSED, fence=grant.fence, ok=False, began_ns=began_ns)
        return Released.NOT_OWNED
    note(ports, wish, EventKind.RELEASED, fence=grant.fence, began_ns=began_ns)
    return Released.YES


async def let_the_next_ask(ports: Ports, place: Place) -> None:
    """Have this process's next waiter for a contested fair lock take its ticket before the lease is given back.

    Otherwise the process stands in no line from its release until it runs again and asks, and all turns of that moment
    go to the others, however many: on a busy machine that is most of the time. The next waiter may come in although
    the store does not know of the release yet, because the holder is done with its work.
    """
    place.leave()
    await ports.runtime.sleep(0)  # the others of this process run, and what they ask for is sent before the release


async def again(ports: Ports, wish: Wish, grant: Grant, since: Instant) -> None:
    """Release in the background after a release that was cancelled or interrupted. A second request is harmless.

    The caller waits for it for at most `CLEANUP_WAIT_NS`. The reaper is told first: see `acquiring.undo`.
    """
    orphan = None
    if not wish.timing.at_least_ns:
        orphan = ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns, ports.request_timeout_ns)
    await ports.runtime.finish(_again(ports, wish, grant, since, orphan), CLEANUP_WAIT_NS)


async def _again(ports: Ports, wish: Wish, grant: Grant, since: Instant, orphan: object | None) -> None:
    settled = False
    try:
        await ports.store.release(
            grant.key, grant.token, grant.claim, _keep_ns(ports, wish, since), ports.request_timeout_ns
        )
        settled = True  # "not there" too: this token held the key, so it was released or lost
    except BackendError as error:
        note(ports, wish, EventKind.RELEASE_FAILED, fence=grant.fence, detail=str(error), ok=False)
    else:
        note(ports, wish, EventKind.RELEASED, fence=grant.fence)
    finally:
        if orphan is not None:
            ports.reaper.settle(orphan, released=settled)


def _keep_ns(ports: Ports, wish: Wish, since: Instant) -> int:
    """How long the key is still to be kept after its release."""
    keep_ns = wish.timing.at_least_ns
    return max(0, keep_ns - elapsed_ns(since, ports.clock.now())) if keep_ns else 0


def _leave_to_the_reaper(ports: Ports, wish: Wish, grant: Grant) -> None:
    """Have the key given back later. One that is to be kept a while is left to expire: that is never too soon."""
    if not wish.timing.at_least_ns:
        ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns)
