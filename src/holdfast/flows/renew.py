"""Renewing leases in batches, promoting degraded leases, and releasing grants that may be left over."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.history.events import EventKind
from holdfast.core.lease.loss_diagnosis import RenewalRequest
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import Kept, Ports
from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.flows.acquire import note
from holdfast.types import AcquireRequest, Grant, Instant


async def renew(ports: Ports, batch: Sequence[Kept], timeout_ns: int) -> tuple[int, bool]:
    """Renew many leases with one request, and pass its answer to each.

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
        ports.breaker.failed(error)
        answers = [None] * len(batch)
    else:
        ports.breaker.answered()
    now = ports.clock.now()
    answered = answers[0] is not None
    ports.breaker.renewals.append(RenewalRequest(sent.mono, now.mono - sent.mono, answered))
    for kept, answer in zip(batch, answers, strict=True):
        kept.answered(answer, sent, now)
    return now.mono - sent.mono, answered


async def promote(ports: Ports, spec: LockSpec, token: str) -> tuple[Grant, Instant] | bool | None:
    """Try to turn a degraded lease into a full one. False: another holder has the key. True: the store was not reached.

    None: not now, and never under this token. `Timeout`: no answer, and the store may have granted it.
    """
    ask = AcquireRequest(spec.key, token, spec.owner, spec.family, spec.timing.ttl_ns)
    try:
        ports.breaker.admit(ports.request_timeout_ns)
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
        ports.breaker.failed(error)
        raise
    except BackendError as error:
        ports.breaker.failed(error)
        return True
    ports.breaker.answered()
    if not isinstance(answer, Grant):
        # No other caller of this process can hold the key at the store, so this is the grant of a failed attempt of the
        # same caller, and it is being released.
        if answer.owner != spec.owner:
            return False
        return None if answer.spent else True
    note(ports, spec, EventKind.PROMOTED, fence=answer.fence)
    return answer, sent


async def reap(ports: Ports, key: str, token: str) -> bool:
    """Try once to release a grant that may exist. True when it existed and is released."""
    try:
        return await ports.store.release(key, token, None, 0, ports.request_timeout_ns)
    except BackendError:
        return False


async def renew_one(ports: Ports, kept: Kept, timeout_ns: int) -> bool:
    """Renew one lease for its holder. False: refused. A store error is raised, and counts like any other."""
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.renew.send")
        answer = (await ports.store.renew_many([kept.renewal], timeout_ns))[0]
        if ARMED:
            await areach("flow.renew.answered")
    except BackendError as error:
        ports.breaker.failed(error)
        kept.answered(None, sent, ports.clock.now())
        raise
    kept.answered(answer, sent, ports.clock.now())
    if answer is None:
        raise Timeout(f"renew lock {kept.renewal.key}: the store did not answer")
    return answer
