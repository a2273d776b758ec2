"""Many locks on asyncio, acquired in one request and released in one request.

The plane uses this for many short jobs, each under its own lock. `takes_many` returns whether the store can do it.

Promises: each lock is checked, counted and recorded as if it were alone, and each lease is like any other. The order of
steps is that of `flows.acquire` and `flows.release`. The difference is in errors: the reaper releases keys that may
have been granted, or were not released, and no caller waits for that.

Does not promise to wait: a lock is free or busy. Locks with a queue, a risk class or a minimum time are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.failpoints import ARMED, areach
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event, LeasePhase
from holdfast.core.ports import AcquiresMany, MutexEntry, Ports
from holdfast.errors import BackendError, BadInput, LeaseLost, Misconfigured, Timeout, Unavailable
from holdfast.flows.acquire import AcquireResult, note
from holdfast.flows.demand import check_guarantee
from holdfast.flows.release import Released
from holdfast.leases.lock_spec import renamed
from holdfast.runtime.asyncio_runtime import on_loop, running_loop
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.types import AcquireRequest, Busy, Grant, Guarantee, Instant, elapsed_ns

_ANY = Guarantee.EFFICIENCY_ONLY
_WAIT, _HOLD = Measure.WAIT, Measure.HOLD
_GRANTED, _RELEASED = MeasuredOutcome.GRANTED, MeasuredOutcome.RELEASED


def takes_many(locks: Locks) -> bool:
    """Whether the store of these locks answers for many in one request."""
    return locks.ports.store.capabilities.many


def named(lock: Lock[Lease], name: str) -> Lock[Lease]:
    """The same lock under another name: settings that were checked once need not be checked again."""
    return Lock(lock._locks, renamed(lock._spec, name))  # noqa: SLF001 - locks and leases are one implementation


def on_loss(leases: Sequence[Lease], act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` on this event loop for each of some leases that is lost; immediately for those lost already.

    The returned function unsubscribes, which is not needed for leases that have ended.
    """
    loop, thread_id = running_loop(), threading.get_ident()

    def on_end(ended: LeaseRecord) -> None:
        if ended.recorded.phase is LeasePhase.LOST:
            on_loop(loop, thread_id, act)

    def call_off() -> None:
        for lease in leases:
            lease._lease_record.unsubscribe(on_end)  # noqa: SLF001 - as above

    for lease in leases:
        lease._lease_record.subscribe(on_end)  # noqa: SLF001 - as above
    return call_off


async def try_acquire(locks: Locks, wanted: Sequence[Lock[Lease]]) -> list[Lease | Busy]:
    """Acquire each lock that is free, and return the holders of the others. After a store error, none is acquired.

    The names must differ.
    """
    ports, manager = locks.ports, locks.manager
    store = _many(locks)
    specs = [locks._owned(each._spec) for each in wanted]  # noqa: SLF001 - as above
    if any(spec.fair or spec.risk is not None or spec.timing.at_least_ns for spec in specs):
        raise BadInput("locks", "one is fair, has a risk class or is kept for a while", "acquire it alone")
    entries = [ports.runtime.mutexes.entry(spec.key) for spec in specs]
    answers: list[AcquireResult | Busy] = []
    lease_records: list[LeaseRecord | Busy] = []
    try:
        answers = await _acquire_all(ports, store, specs, entries)
        for spec, answer in zip(specs, answers, strict=True):
            lease_records.append(answer if isinstance(answer, Busy) else manager.take(spec, answer))
    except BaseException:  # interrupted: the caller gets none of them
        for lease_record in lease_records:
            if isinstance(lease_record, LeaseRecord):
                lease_record.end(Event.RELEASED)
        for spec, answer in zip(specs, answers, strict=False):
            if isinstance(answer, AcquireResult):
                ports.reaper.reap(spec.key, answer.token, spec.timing.ttl_ns)
        for entry in entries:
            entry.leave()
        raise
    for entry, lease_record in zip(entries, lease_records, strict=True):
        if isinstance(lease_record, Busy):
            entry.leave()
    return [each if isinstance(each, Busy) else _kept(locks, each) for each in lease_records]


def _kept(locks: Locks, lease_record: LeaseRecord) -> Lease:
    lease = Lease(locks.manager, locks.ports, lease_record)
    locks.manager.renewer.keep(lease_record)
    return lease


async def taken_along(locks: Locks, lock: Lock[Lease], grant: Grant, sent: Instant) -> Lease | None:
    """The lease of a grant that a finished transaction of another component acquired. None: unusable, and released.

    `sent` was read before that transaction asked.
    """
    ports, manager, spec = locks.ports, locks.manager, locks._owned(lock._spec)  # noqa: SLF001 - as above
    entry = ports.runtime.mutexes.entry(spec.key)
    try:
        result = await _use_grant(ports, spec, grant, sent, entry)
        if result is None:
            entry.leave()
            return None
        return _kept(locks, manager.take(spec, result))
    except BaseException:
        ports.reaper.reap(spec.key, grant.token, spec.timing.ttl_ns)
        entry.leave()
        raise


async def release(locks: Locks, leases: Sequence[Lease]) -> list[LeaseLost | None]:
    """Release them, as the end of an `async with` does. For each: None, or the error of its loss.

    A lost lease is not touched, because the key may have another holder by now. A store that does not answer causes a
    warning.
    """
    # What follows is the end of leases, and locks and leases are one implementation: hence the private names.
    before = [lease._lease_record.current() for lease in leases]  # noqa: SLF001 - as above
    live = [lease for lease, state in zip(leases, before, strict=True) if state.live]
    given = [lease._lease_record for lease in live if lease._lease_record.released()]  # noqa: SLF001 - as above
    outcomes: Sequence[Released] = ()
    try:
        if given:
            grants = [each.grant for each in given if each.grant is not None]
            outcomes = await _release_all(
                locks.ports, _many(locks), [each.spec for each in given], grants, [each.judged for each in given]
            )
    finally:
        for lease in leases:
            if (entry := lease._lease_record.entry) is not None:  # noqa: SLF001 - as above
                entry.leave()
    refused = {each.key for each, outcome in zip(given, outcomes, strict=True) if outcome is Released.NOT_OWNED}
    return [
        lease._found_at_exit(state, lease.key in refused)  # noqa: SLF001 - as above
        for lease, state in zip(leases, before, strict=True)
    ]


def momentary(locks: Locks, model: Lock[Lease], answers: Sequence[tuple[str, int | Busy]], began: Instant) -> None:
    """Count, measure and record locks like `model` that one finished transaction acquired and released.

    The exact times are unknown: after `began`, and before now. So this is the longest possible wait and hold, and no
    moment is recorded as certain.
    """
    spec = locks._owned(model._spec)  # noqa: SLF001 - as above
    over, observer = locks.ports.clock.now(), locks.ports.observer
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


def _many(locks: Locks) -> AcquiresMany:
    store = locks.ports.store
    if not takes_many(locks):
        raise BadInput("locks", f"{store.capabilities.engine} answers for one lock at a time", "ask takes_many() first")
    return cast("AcquiresMany", store)


# The requests, written as the flows are.


async def _acquire_all(
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
            for at, said in zip(inside, await _request(ports, store, asks, specs, inside), strict=True):
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


async def _request(
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


async def _use_grant(
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


async def _release_all(
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
