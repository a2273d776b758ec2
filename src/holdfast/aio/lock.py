"""A lock in asyncio: a name with settings, which can be acquired. It holds nothing itself."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.aio.lease import DegradedLease, Lease, call_back
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event
from holdfast.flows import acquire as acquiring
from holdfast.flows.acquire import AcquireResult
from holdfast.leases.inspection import Inspection
from holdfast.leases.lock_spec import NamedLock, timeout_ns
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

    def __init__(self, locks: Locks, spec: LockSpec) -> None:
        super().__init__(spec)
        self._locks = locks
        self._entered: dict[object, list[L]] = {}

    async def acquire(self, timeout: Duration | None = None) -> L:
        """Wait for the lock. `AcquireTimeout` if it is still busy after `timeout` (by default the lock's own).

        Without any timeout, `AlreadyHeld` if the same thread or task holds it: it would wait for itself.
        `Lease.hand_over` says that another one will release it.
        """
        limit = self._spec.timeout_ns if timeout is None else timeout_ns(timeout)
        locks = self._locks
        spec = locks._owned(self._spec)  # noqa: SLF001 - locks and leases are one implementation
        entry = locks.ports.runtime.mutexes.entry(spec.key, this_task())
        try:
            result = await acquiring.acquire(locks.ports, spec, limit, entry)
            return self._hand_out(spec, result)
        except BaseException:
            await acquiring.take_back(locks.ports, spec, entry)
            raise

    async def try_acquire(self) -> L | None:
        """Acquire the lock if it is free. None if it is busy, even for its own holder. Never waits for a holder."""
        locks = self._locks
        spec = locks._owned(self._spec)  # noqa: SLF001 - locks and leases are one implementation
        entry = locks.ports.runtime.mutexes.entry(spec.key, this_task())
        try:
            answer = await acquiring.attempt(locks.ports, spec, entry)
            if isinstance(answer, Busy):
                entry.leave()
                return None
            return self._hand_out(spec, answer)
        except BaseException:
            await acquiring.take_back(locks.ports, spec, entry)
            raise

    async def locked(self) -> bool:
        """Whether anyone holds it, as the store sees it now."""
        return (await self.inspect()).held

    async def inspect(self) -> Inspection:
        """Who holds it, since when, for how long, under which fence, and how many wait."""
        return await self._locks.inspect(self.name)

    def _hand_out(self, spec: LockSpec, result: AcquireResult) -> L:
        locks = self._locks
        lease_record = locks.manager.take(spec, result)
        try:
            kind: Any = DegradedLease if result.grant is None else Lease
            lease: L = kind(locks.manager, locks.ports, lease_record)
            lease._cancels = spec.on_loss == "cancel"  # noqa: SLF001 - one implementation in two files
            if spec.on_lost is not None or spec.on_warning is not None:
                call_back(locks.runtime, lease, lease_record, spec)
            locks.manager.renewer.keep(lease_record)
            return lease  # noqa: TRY300 - until it is returned it can be interrupted
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
        return _unpickle, (self._locks.reconnection(), self._spec)


def _unpickle(reconnection: Any, spec: LockSpec) -> Lock[Any]:
    from holdfast.aio.client import reconnect

    return Lock(reconnect(reconnection), spec)
