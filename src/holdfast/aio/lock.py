"""A lock on asyncio: the description of what can be held. It holds nothing itself."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.aio.lease import DegradedLease, Lease, call_back, lease_of
from holdfast.core.lease.states import Event
from holdfast.flows import acquire as acquiring
from holdfast.flows.acquire import AcquireResult, Wish
from holdfast.leases.inspection import Inspection
from holdfast.leases.lock_spec import LockSpec, NamedLock, timeout_ns
from holdfast.runtime.asyncio_runtime import caller_task, this_task
from holdfast.types import Busy, Duration

if TYPE_CHECKING:
    from holdfast.aio.client import Locks

L = TypeVar("L", bound=Lease | DegradedLease)


class Lock(NamedLock, Generic[L]):
    """A named lock: immutable, cheap, and safe to share between tasks and to pickle.

    A lock without a risk class always fails closed, so its leases are `Lease`; one with a risk class may give out a
    `DegradedLease` when the store is down and the policy says so.
    """

    __slots__ = ("_entered", "_locks")

    def __init__(self, locks: Locks, description: LockSpec) -> None:
        super().__init__(description)
        self._locks = locks
        self._entered: dict[object, list[L]] = {}

    async def acquire(self, timeout: Duration | None = None) -> L:
        """Wait for the lock. `AcquireTimeout` if it is still busy after `timeout` (by default the lock's own).

        Without any timeout, `AlreadyHeld` if the same thread or task holds it: it would wait for itself.
        `Lease.hand_over` says that another one will release it.
        """
        limit = self._description.timeout_ns if timeout is None else timeout_ns(timeout)
        locks, wish = self._locks, self._wish(self._locks)
        place = locks.ports.runtime.gate.place(wish.key, this_task())
        try:
            possession = await acquiring.acquire(
                locks.ports, locks.manager.health, wish, locks.manager.policy.on_error, limit, place
            )
            return self._hand_out(wish, possession)
        except BaseException:
            await acquiring.take_back(locks.ports, wish, place)
            raise

    async def try_acquire(self) -> L | None:
        """Take the lock if it is free. None if it is busy, also for its own holder. Never waits for a holder."""
        locks, wish = self._locks, self._wish(self._locks)
        place = locks.ports.runtime.gate.place(wish.key, this_task())
        try:
            answer = await acquiring.attempt(
                locks.ports, locks.manager.health, wish, locks.manager.policy.on_error, place
            )
            if isinstance(answer, Busy):
                place.leave()
                return None
            return self._hand_out(wish, answer)
        except BaseException:
            await acquiring.take_back(locks.ports, wish, place)
            raise

    async def locked(self) -> bool:
        """Whether anyone holds it, as the store sees it now."""
        return (await self.inspect()).held

    async def inspect(self) -> Inspection:
        """Who holds it, since when, for how long, under which fence, and how many wait."""
        return await self._locks.inspect(self.name)

    def _hand_out(self, wish: Wish, possession: AcquireResult) -> L:
        locks, description = self._locks, self._description
        lease_record = locks.manager.take(wish, possession)
        try:
            lease = lease_of(locks.manager, locks.ports, lease_record, possession.place)
            lease._cancels = description.on_loss == "cancel"  # noqa: SLF001 - one implementation in two files
            if description.on_lost is not None or description.on_warning is not None:
                call_back(locks.runtime, lease, lease_record, description)
            locks.manager.keep(lease_record)
            return cast("L", lease)
        except BaseException:
            lease_record.end(Event.RELEASED)
            raise

    async def __aenter__(self) -> L:
        lease = await self.acquire()
        self._entered.setdefault(caller_task(), []).append(lease)
        lease._begin_block()  # noqa: SLF001 - as above
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self._entered[caller_task()]
        lease = mine.pop()
        if not mine:
            del self._entered[caller_task()]
        await lease.__aexit__(kind, error, trace)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._locks.reconnection(), self._description)


def _unpickle(reconnection: Any, description: LockSpec) -> Lock[Any]:
    from holdfast.aio.client import reconnect

    return Lock(reconnect(reconnection), description)
