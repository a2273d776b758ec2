"""Acquiring and releasing many leases in one request: each is judged, counted and noted as if it were alone.

For locks without a queue: not fair, without a risk class (a store error is raised), and not kept for a minimum time.
The order of steps is that of `acquire` and `release`. The difference is in errors: keys that may have been granted, or
not released, are left to the reaper, and no caller waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import AcquiresMany, MutexEntry, Ports
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.flows.acquire import AcquireResult, note
from holdfast.flows.demand import check_guarantee
from holdfast.flows.release import Released
from holdfast.types import AcquireRequest, Busy, Grant, Guarantee, Instant, elapsed_ns

_ANY = Guarantee.EFFICIENCY_ONLY
_WAIT, _HOLD = Measure.WAIT, Measure.HOLD
_GRANTED, _RELEASED = MeasuredOutcome.GRANTED, MeasuredOutcome.RELEASED


async def attempt(
    ports: Ports, store: AcquiresMany, specs: Sequence[LockSpec], entries: Sequence[MutexEntry]
) -> list[AcquireResult | Busy]:
    """Ask once for all locks. The caller owns the entries, and leaves those without a lease."""
    for spec in specs:
        if spec.guarantee is not _ANY:
            await check_guarantee(ports, spec)
    came = ports.clock.now()
    answers: list[AcquireResult | Busy] = [Busy(spec.key, "another holder in this process", None) for spec in specs]
    inside = [at for at, entry in enumerate(entries) if await entry.enter(0)]
    asks = [
        AcquireRequest(spec.key, ports.entropy.token(), spec.owner, spec.family, spec.timing.ttl_ns)
        for spec in (specs[at] for at in inside)
    ]
    outcome = MeasuredOutcome.FAILED
    try:
        if asks:
            sent = ports.clock.now()
            for at, said in zip(inside, await _asked(ports, store, asks, specs, inside), strict=True):
                if isinstance(said, Grant):
                    answers[at] = AcquireResult(said.token, said, sent, entries[at])
                else:
                    answers[at] = said
                    note(ports, specs[at], EventKind.BUSY, detail=said.owner or "")
        outcome = MeasuredOutcome.BUSY
    finally:
        waited_ns = ports.clock.now().mono - came.mono
        for spec, answer in zip(specs, answers, strict=True):
            had = isinstance(answer, AcquireResult)
            ports.observer.measured(_WAIT, spec.family, _GRANTED if had else outcome, waited_ns)
    return answers


async def _asked(
    ports: Ports,
    store: AcquiresMany,
    asks: Sequence[AcquireRequest],
    specs: Sequence[LockSpec],
    inside: Sequence[int],
) -> list[Grant | Busy]:
    ports.breaker.admit(ports.request_timeout_ns)
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.acquire.ask")
        answers = await store.acquire_many(asks, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.acquire.answered")
    except BaseException as error:
        if isinstance(error, Unavailable | Timeout):
            ports.breaker.failed(error)
        if isinstance(error, BackendError):
            for at in inside:
                note(ports, specs[at], EventKind.FAILED, detail=str(error), ok=False)
        if not isinstance(error, Misconfigured):  # also after `Unavailable`: it may be certain for some of them only
            for ask in asks:
                ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)
        raise
    ports.breaker.answered()
    took_ns = elapsed_ns(sent, ports.clock.now())
    if any(took_ns >= specs[at].timing.loss_age_ns() for at in inside):
        for ask in asks:
            ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)
        raise Timeout("acquire locks: the store's answer took longer than the leases may be trusted")
    return answers


async def taken_along(
    ports: Ports, spec: LockSpec, grant: Grant, sent: Instant, entry: MutexEntry
) -> AcquireResult | None:
    """Use a grant that a finished transaction of another component has acquired. None: unusable, and released.

    `sent` was read before that transaction asked. The caller owns the entry, and leaves it if there is no lease.
    """
    now = ports.clock.now()
    if elapsed_ns(sent, now) < spec.timing.loss_age_ns() and await entry.enter(0):
        ports.observer.measured(_WAIT, spec.family, _GRANTED, now.mono - sent.mono)
        return AcquireResult(grant.token, grant, sent, entry)
    ports.reaper.reap(spec.key, grant.token, spec.timing.ttl_ns)
    return None


async def release(
    ports: Ports,
    store: AcquiresMany,
    specs: Sequence[LockSpec],
    grants: Sequence[Grant],
    judged: Sequence[Instant | None],
) -> list[Released]:
    """Release them. A key without an answer of the store causes a warning, and is left to the reaper."""
    try:
        if ARMED:
            await areach("flow.release.send")
        answers = await store.release_many(grants, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.release.answered")
        detail = "no answer"
    except BackendError as error:
        answers, detail = [None] * len(grants), str(error)
    except BaseException:
        for grant, spec in zip(grants, specs, strict=True):
            ports.reaper.reap(grant.key, grant.token, spec.timing.ttl_ns)
        raise
    outcomes: list[Released] = []
    for spec, grant, since, answer in zip(specs, grants, judged, answers, strict=True):
        began_ns = None if since is None else since.wall
        if answer:
            note(ports, spec, EventKind.RELEASED, fence=grant.fence, began_ns=began_ns)
            outcomes.append(Released.YES)
        elif answer is None:
            note(ports, spec, EventKind.RELEASE_FAILED, fence=grant.fence, detail=detail, ok=False, began_ns=began_ns)
            ports.reaper.reap(grant.key, grant.token, spec.timing.ttl_ns)
            outcomes.append(Released.UNKNOWN)
        else:
            note(ports, spec, EventKind.RELEASE_REFUSED, fence=grant.fence, ok=False, began_ns=began_ns)
            outcomes.append(Released.NOT_OWNED)
    return outcomes


def momentary(ports: Ports, spec: LockSpec, answers: Sequence[tuple[str, int | Busy]], began: Instant) -> None:
    """Count, measure and note locks that one finished transaction of another component acquired and released.

    The exact times are unknown: after `began`, and before now. So this is the longest possible wait and hold, and no
    moment is recorded as certain.
    """
    over, observer = ports.clock.now(), ports.observer
    took_ns = over.mono - began.mono
    for key, answer in answers:
        if isinstance(answer, Busy):
            observer.measured(_WAIT, spec.family, MeasuredOutcome.BUSY, took_ns)
            if observer.tally(EventKind.BUSY, spec.family):
                observer.note(
                    Record(EventKind.BUSY, over.wall, key, spec.family, spec.owner, detail=answer.owner or "")
                )
            continue
        observer.measured(_WAIT, spec.family, _GRANTED, took_ns)
        observer.measured(_HOLD, spec.family, _RELEASED, took_ns)
        for kind in (EventKind.GRANTED, EventKind.RELEASED):
            if observer.tally(kind, spec.family):
                about: dict[str, Any] = {"fence": answer, "began_ns": began.wall, "until_ns": over.wall}
                observer.note(Record(kind, over.wall, key, spec.family, spec.owner, **about))
