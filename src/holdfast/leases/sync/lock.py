"""A lock in blocking code: a name with settings, which can be acquired. It holds nothing itself."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event
from holdfast.flows import acquire as acquiring
from holdfast.flows.acquire import AcquireResult
from holdfast.leases.inspection import Inspection
from holdfast.leases.lock_spec import NamedLock, timeout_ns
from holdfast.leases.sync.lease import DegradedLease, Lease, call_back
from holdfast.leases.sync.with_statement import begun, exit_of_each_statement
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import caller_id, this_thread
from holdfast.types import Busy, Duration

if TYPE_CHECKING:
    from holdfast.leases.sync.client import Locks

L = TypeVar("L", bound=Lease | DegradedLease)


class Lock(NamedLock, Generic[L]):
    """A named lock: immutable, cheap, and safe to share between threads and to pickle.

    A lock without a risk class always fails closed, so its leases are `Lease`; one with a risk class may give out a
    `DegradedLease` when the store is down and the policy says so.
    """

    __slots__ = ("_entered", "_locks")

    def __init__(self, locks: Locks, spec: LockSpec) -> None:
        super().__init__(spec)
        self._locks = locks
        self._entered: dict[int, list[L]] = {}

    def acquire(self, timeout: Duration | None = None) -> L:
        """Wait for the lock. `AcquireTimeout` if it is still busy after `timeout` (by default the lock's own).

        Without any timeout, `AlreadyHeld` if the same thread or task holds it: it would wait for itself.
        `Lease.hand_over` says that another one will release it.
        """
        return self._acquire(timeout, this_thread.mark)

    def _acquire(self, timeout: Duration | None, caller: object) -> L:
        limit = self._spec.timeout_ns if timeout is None else timeout_ns(timeout)
        locks = self._locks
        spec = locks._owned(self._spec)  # noqa: SLF001 - locks and leases are one implementation
        entry = locks.ports.runtime.mutexes.entry(spec.key, caller)
        try:
            result = run_now(acquiring.acquire(locks.ports, spec, limit, entry))
            return self._hand_out(spec, result)
        except BaseException:
            try:
                run_now(acquiring.take_back(locks.ports, spec, entry))
            finally:
                entry.leave()  # again, because a second interrupt may have cut the clean-up
            raise

    def try_acquire(self) -> L | None:
        """Acquire the lock if it is free. None if it is busy, even for its own holder. Never waits for a holder."""
        locks = self._locks
        spec = locks._owned(self._spec)  # noqa: SLF001 - locks and leases are one implementation
        entry = locks.ports.runtime.mutexes.entry(spec.key, this_thread.mark)
        try:
            answer = run_now(acquiring.attempt(locks.ports, spec, entry))
            if isinstance(answer, Busy):
                entry.leave()
                return None
            return self._hand_out(spec, answer)
        except BaseException:
            try:
                run_now(acquiring.take_back(locks.ports, spec, entry))
            finally:
                entry.leave()  # again, because a second interrupt may have cut the clean-up
            raise

    def locked(self) -> bool:
        """Whether anyone holds it, as the store sees it now."""
        return self.inspect().held

    def inspect(self) -> Inspection:
        """Who holds it, since when, for how long, under which fence, and how many wait."""
        return self._locks.inspect(self.name)

    def _hand_out(self, spec: LockSpec, result: AcquireResult) -> L:
        locks = self._locks
        lease_record = locks.manager.take(spec, result)
        try:
            kind: Any = DegradedLease if result.grant is None else Lease
            lease: L = kind(locks.manager, locks.ports, lease_record)
            if spec.on_lost is not None or spec.on_warning is not None:
                call_back(locks.manager, lease, lease_record, spec)
            locks.manager.renewer.keep(lease_record)
            return lease  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            lease_record.end(Event.RELEASED)
            raise

    def __enter__(self) -> L:
        statement = begun()
        lease: L | None = None
        try:
            lease = self.acquire()
            if statement is None:
                self._entered.setdefault(caller_id(), []).append(lease)
            else:
                statement.entered(lease)
            return lease  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            if lease is not None:
                lease.release()  # interrupted before the block began, so nothing will end it
            raise

    @exit_of_each_statement
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self._entered[caller_id()]
        try:
            mine[-1].__exit__(kind, error, trace)
        finally:
            mine.pop()
            if not mine:
                del self._entered[caller_id()]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._locks.reconnection(), self._spec)


def _unpickle(reconnection: Any, spec: LockSpec) -> Lock[Any]:
    from holdfast.leases.sync.client import reconnect

    return Lock(reconnect(reconnection), spec)
