"""Keeping leases alive: one batched renewal, promotion of degraded leases, and giving back what may be left over."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.history.events import EventKind
from holdfast.core.lease.loss_diagnosis import RenewalRequest
from holdfast.core.ports import Kept, Ports
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.flows.acquire import Wish, note
from holdfast.flows.store_health import StoreHealth
from holdfast.types import Ask, Grant, Instant


async def renew(ports: Ports, health: StoreHealth, batch: Sequence[Kept], timeout_ns: int) -> tuple[int, bool]:
    """Renew many leases with one request; each is told what became of it.

    Returns how long the request took, and whether the store answered.
    """
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.renew.send")
        answers = await ports.store.renew_many([kept.renewal for kept in batch], timeout_ns)
        if ARMED:
            await areach("flow.renew.answered")
    except BackendError as error:
        health.failed(error)
        answers = [None] * len(batch)
    else:
        health.answered()
    now = ports.clock.now()
    answered = answers[0] is not None
    health.renewals.append(RenewalRequest(sent.mono, now.mono - sent.mono, answered))
    for kept, answer in zip(batch, answers, strict=True):
        kept.answered(answer, sent, now)
    return now.mono - sent.mono, answered


async def promote(ports: Ports, health: StoreHealth, wish: Wish, token: str) -> tuple[Grant, Instant] | bool | None:
    """Try to turn a degraded lease into a full one. False: somebody else has the key. True: not reached.

    None: not this time, and under this token never. `Timeout` when there was no answer: then the store may have granted
    it all the same.
    """
    ask = Ask(wish.key, token, wish.owner, wish.family, wish.timing.ttl_ns)
    try:
        health.admit(ports.request_timeout_ns)
    except Unavailable:
        return True
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.promote.send")
        answer = await ports.store.acquire(ask, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.promote.answered")
    except Timeout as error:
        health.failed(error)
        raise
    except BackendError as error:
        health.failed(error)
        return True
    health.answered()
    if not isinstance(answer, Grant):
        # What we hold here nobody else in this process can hold at the store: it is what a failed attempt of our own
        # left behind, and it is being given back.
        if answer.owner != wish.owner:
            return False
        return None if answer.spent else True
    note(ports, wish, EventKind.PROMOTED, fence=answer.fence)
    return answer, sent


async def reap(ports: Ports, key: str, token: str) -> bool:
    """Try once to give back a grant that may exist. True when it did exist and is given back."""
    try:
        return await ports.store.release(key, token, None, 0, ports.request_timeout_ns)
    except BackendError:
        return False


async def renew_one(ports: Ports, health: StoreHealth, kept: Kept, timeout_ns: int) -> bool:
    """Renew one lease because its holder asked. False: refused. A store error is raised, and counts like any other."""
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.renew.send")
        answer = (await ports.store.renew_many([kept.renewal], timeout_ns))[0]
        if ARMED:
            await areach("flow.renew.answered")
    except BackendError as error:
        health.failed(error)
        kept.answered(None, sent, ports.clock.now())
        raise
    kept.answered(answer, sent, ports.clock.now())
    if answer is None:
        raise Timeout(f"renew lock {kept.renewal.key}: the store did not answer")
    return answer
