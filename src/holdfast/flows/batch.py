"""Getting and giving back many leases in one request: each is judged, counted and noted as if it were alone.

For locks that nobody waits for in line: not fair, without a risk class (a store error is raised), and not kept for a
minimum time. The order of things is that of `acquiring` and `releasing`; the difference is in trouble: what may have
been granted, or not given back, is left to the reaper, key by key, and nobody waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.ports import AcquiresMany, Place, Ports
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.flows.acquire import AcquireResult, Wish, note
from holdfast.flows.release import Released
from holdfast.flows.store_health import StoreHealth
from holdfast.types import Ask, Busy, Grant, Instant, elapsed_ns

_WAIT, _HOLD = Measure.WAIT, Measure.HOLD
_GRANTED, _RELEASED = MeasuredOutcome.GRANTED, MeasuredOutcome.RELEASED


async def attempt(
    ports: Ports, health: StoreHealth, store: AcquiresMany, wishes: Sequence[Wish], places: Sequence[Place]
) -> list[AcquireResult | Busy]:
    """Ask once for all of them. The caller owns the places, and leaves those without a possession."""
    came = ports.clock.now()
    answers: list[AcquireResult | Busy] = [Busy(wish.key, "another holder in this process", None) for wish in wishes]
    inside = [at for at, place in enumerate(places) if await place.enter(0)]
    asks = [
        Ask(wish.key, ports.entropy.token(), wish.owner, wish.family, wish.timing.ttl_ns)
        for wish in (wishes[at] for at in inside)
    ]
    outcome = MeasuredOutcome.FAILED
    try:
        if asks:
            sent = ports.clock.now()
            for at, said in zip(inside, await _asked(ports, health, store, asks, wishes, inside), strict=True):
                if isinstance(said, Grant):
                    answers[at] = AcquireResult(said.token, said, sent, places[at])
                else:
                    answers[at] = said
                    note(ports, wishes[at], EventKind.BUSY, detail=said.owner or "")
        outcome = MeasuredOutcome.BUSY
    finally:
        waited_ns = ports.clock.now().mono - came.mono
        for wish, answer in zip(wishes, answers, strict=True):
            had = isinstance(answer, AcquireResult)
            ports.observer.measured(_WAIT, wish.family, _GRANTED if had else outcome, waited_ns)
    return answers


async def _asked(
    ports: Ports,
    health: StoreHealth,
    store: AcquiresMany,
    asks: Sequence[Ask],
    wishes: Sequence[Wish],
    inside: Sequence[int],
) -> list[Grant | Busy]:
    health.admit(ports.request_timeout_ns)
    sent = ports.clock.now()
    try:
        if ARMED:
            await areach("flow.acquire.ask")
        answers = await store.acquire_many(asks, ports.request_timeout_ns)
        if ARMED:
            await areach("flow.acquire.answered")
    except BaseException as error:
        if isinstance(error, Unavailable | Timeout):
            health.failed(error)
        if isinstance(error, BackendError):
            for at in inside:
                note(ports, wishes[at], EventKind.FAILED, detail=str(error), ok=False)
        if not isinstance(error, Misconfigured):  # also if it is certain that nothing happened: of some, perhaps
            for ask in asks:
                ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)
        raise
    health.answered()
    took_ns = elapsed_ns(sent, ports.clock.now())
    if any(took_ns >= wishes[at].timing.loss_age_ns() for at in inside):
        for ask in asks:
            ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)
        raise Timeout("acquire locks: the store's answer took longer than the leases may be trusted")
    return answers


async def taken_along(ports: Ports, wish: Wish, grant: Grant, sent: Instant, place: Place) -> AcquireResult | None:
    """What a transaction of somebody else's, which is over, has got for us. None: we cannot use it; it is given back.

    `sent` was before that transaction asked. The caller owns the place, and leaves it if there is no possession.
    """
    now = ports.clock.now()
    if elapsed_ns(sent, now) < wish.timing.loss_age_ns() and await place.enter(0):
        ports.observer.measured(_WAIT, wish.family, _GRANTED, now.mono - sent.mono)
        return AcquireResult(grant.token, grant, sent, place)
    ports.reaper.reap(wish.key, grant.token, wish.timing.ttl_ns)
    return None


async def release(
    ports: Ports, store: AcquiresMany, wishes: Sequence[Wish], grants: Sequence[Grant], judged: Sequence[Instant | None]
) -> list[Released]:
    """Give them back. What the store does not answer for is a warning each, and left to the reaper."""
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
        for grant, wish in zip(grants, wishes, strict=True):
            ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns)
        raise
    outcomes: list[Released] = []
    for wish, grant, since, answer in zip(wishes, grants, judged, answers, strict=True):
        began_ns = None if since is None else since.wall
        if answer:
            note(ports, wish, EventKind.RELEASED, fence=grant.fence, began_ns=began_ns)
            outcomes.append(Released.YES)
        elif answer is None:
            note(ports, wish, EventKind.RELEASE_FAILED, fence=grant.fence, detail=detail, ok=False, began_ns=began_ns)
            ports.reaper.reap(grant.key, grant.token, wish.timing.ttl_ns)
            outcomes.append(Released.UNKNOWN)
        else:
            note(ports, wish, EventKind.RELEASE_REFUSED, fence=grant.fence, ok=False, began_ns=began_ns)
            outcomes.append(Released.NOT_OWNED)
    return outcomes


def momentary(ports: Ports, wish: Wish, answers: Sequence[tuple[str, int | Busy]], began: Instant) -> None:
    """Count, measure and note locks that were had and given back by one transaction of somebody else's, which is over.

    When exactly that was nobody has seen: after `began`, and before now. So that is how long they were waited for, and
    held, at most; and no moment is said to be certain.
    """
    over, observer = ports.clock.now(), ports.observer
    took_ns = over.mono - began.mono
    for key, answer in answers:
        if isinstance(answer, Busy):
            observer.measured(_WAIT, wish.family, MeasuredOutcome.BUSY, took_ns)
            if observer.tally(EventKind.BUSY, wish.family):
                observer.note(
                    Record(EventKind.BUSY, over.wall, key, wish.family, wish.owner, detail=answer.owner or "")
                )
            continue
        observer.measured(_WAIT, wish.family, _GRANTED, took_ns)
        observer.measured(_HOLD, wish.family, _RELEASED, took_ns)
        for kind in (EventKind.GRANTED, EventKind.RELEASED):
            if observer.tally(kind, wish.family):
                about: dict[str, Any] = {"fence": answer, "began_ns": began.wall, "until_ns": over.wall}
                observer.note(Record(kind, over.wall, key, wish.family, wish.owner, **about))
