"""Many locks on asyncio, acquired in one request and released in one request. Each lease is like any other.

The plane uses this for many short jobs, each under its own lock. A lock is free or busy; no caller waits here.
`takes_many` returns whether the store can do it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.lease.states import Event, LeasePhase
from holdfast.core.ports import AcquiresMany
from holdfast.errors import BadInput, LeaseLost
from holdfast.flows import batch as many
from holdfast.flows.acquire import AcquireResult
from holdfast.flows.release import Released
from holdfast.leases.lock_spec import renamed
from holdfast.runtime.asyncio_runtime import on_loop, running_loop
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.types import Busy, Grant, Instant


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

    def told(ended: LeaseRecord) -> None:
        if ended.recorded.phase is LeasePhase.LOST:
            on_loop(loop, thread_id, act)

    def call_off() -> None:
        for lease in leases:
            lease._lease_record.unsubscribe(told)  # noqa: SLF001 - as above

    for lease in leases:
        lease._lease_record.subscribe(told)  # noqa: SLF001 - as above
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
        answers = await many.attempt(ports, store, specs, entries)
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
        result = await many.taken_along(ports, spec, grant, sent, entry)
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
            outcomes = await many.release(
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
    """Note locks like `model` that a transaction acquired, and those that were busy; see `flows.batch`."""
    many.momentary(locks.ports, locks._owned(model._spec), answers, began)  # noqa: SLF001 - as above


def _many(locks: Locks) -> AcquiresMany:
    store = locks.ports.store
    if not takes_many(locks):
        raise BadInput("locks", f"{store.capabilities.engine} answers for one lock at a time", "ask takes_many() first")
    return cast("AcquiresMany", store)
