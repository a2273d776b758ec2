"""A lease in blocking code: the handle that `acquire` returns. It can be released once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar
from weakref import ref

from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import LIVE, LeasePhase, LeaseState
from holdfast.errors import NotOwner
from holdfast.flows import release as releasing
from holdfast.flows import renew as keeping
from holdfast.flows.release import Released
from holdfast.leases.lease_base import AnyLost, Degraded, Granted, HeldLease
from holdfast.leases.lock_spec import timeout_ns
from holdfast.leases.sync.with_statement import begun, exit_of_each_statement
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Wakeup
from holdfast.types import NS, Duration

L = TypeVar("L", bound="AnyLease")


class Lost(AnyLost):
    """The loss of a lease, as an event: `is_set()`, `wait()`, and `reason` once it is set."""

    __slots__ = ()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost. False when the time is over or the lease was released first."""
        limit_ns = timeout_ns(timeout)
        ended = Wakeup()

        def on_end(_: LeaseRecord) -> None:
            ended.notify()

        self._lease_record.subscribe(on_end)
        try:
            ended.wait(None if limit_ns is None else limit_ns / NS)
        finally:
            self._lease_record.unsubscribe(on_end)
        return self.is_set()


class AnyLease(HeldLease):
    """A lease, full or degraded. `with lease:` ends as `with lock:` does."""

    __slots__ = ()

    @property
    def lost(self) -> Lost:
        """The loss of this lease, to ask or to wait for."""
        return Lost(self._lease_record)

    def renew(self) -> None:
        """Renew now, and not when it is due. `LeaseLost` if the lease was lost; `BackendError` if that is unknown."""
        self.ensure_held()
        if self._lease_record.degraded:
            return
        timeout = min(self._manager.request_timeout_ns, self._lease_record.renew_timeout_ns(self._manager.clock.now()))
        if not run_now(keeping.renew_one(self._ports, self._lease_record, timeout)):
            raise self._lost_error(self._lease_record.current()) from NotOwner(key=self.key)

    def release(self) -> bool:
        """Release the lock. True when the store confirmed it.

        Idempotent and safe in `finally`: a lost lease is not released (the key may have another holder by now), and a
        store that does not answer causes a warning, not an exception.
        """
        return self._release(self._lease_record.current()) is Released.YES

    def _release(self, state: LeaseState) -> Released:
        ports, lease_record = self._ports, self._lease_record
        entry = lease_record.entry
        if state.phase not in LIVE:
            lease_record.notify()  # these two complete a first call that was interrupted
            if entry is not None:
                entry.leave()
            return Released.NOT_OWNED if state.phase is LeasePhase.LOST else Released.UNKNOWN
        try:
            lease_record.released()
            if lease_record.grant is None:
                return Released.YES
            if lease_record.contested and entry is not None:
                run_now(releasing.let_the_next_ask(ports, entry))
            return run_now(
                releasing.release(ports, lease_record.spec, lease_record.grant, state.granted, lease_record.judged)
            )
        except BaseException:
            if lease_record.grant is not None:
                run_now(releasing.again(ports, lease_record.spec, lease_record.grant, state.granted))
            raise
        finally:
            if entry is not None:
                entry.leave()

    def __enter__(self) -> Self:
        statement = begun()
        self.ensure_held()
        if statement is not None:
            statement.entered(self)
        return self

    @exit_of_each_statement
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave_block(error)
        finally:
            self._release_unless_detached()  # does nothing, unless an interrupt struck before the line above

    def _release_unless_detached(self) -> None:
        if self._abandonable:
            self.release()

    def _leave_block(self, error: BaseException | None) -> None:
        """The end of a `with` block: release, and raise a loss unless the block raised another error."""
        before = self._lease_record.current()
        outcome = self._release(before) if before.live and self._abandonable else Released.UNKNOWN
        lost = self._found_at_exit(before, outcome is Released.NOT_OWNED)
        if lost is not None:
            self._report_at_exit(lost, error)


class Lease(AnyLease, Granted):
    """A lease that the store has granted: it has a fence, and the store excludes other holders."""

    __slots__ = ()


class DegradedLease(AnyLease, Degraded):
    """A lease that only this process knows, because the store failed and the error policy allows to continue.

    It excludes only other threads of this process, and it has no fence. When the store is back, it grants the lease
    (`guaranteed` becomes true and `fence` appears), or it has granted the key to another holder (the lease is lost,
    `stolen`).
    """

    __slots__ = ()


@contextmanager
def block(lease: L) -> Iterator[L]:
    """A `with` block that another thread may leave than the one that entered it, as with generators."""
    error: BaseException | None = None
    try:
        yield lease
    except BaseException as raised:
        error = raised
        raise
    finally:
        lease._leave_block(error)  # noqa: SLF001 - the end of the block is the lease's own business


def call_back(manager: LeaseManager, lease: AnyLease, lease_record: LeaseRecord, spec: LockSpec) -> None:
    """Have the user's functions called with the lease when it is lost or close to it, on a thread of their own."""
    # The record must not keep its own lease alive, or a dropped lease could never be noticed.
    weak = ref(lease)

    def warn() -> None:
        known = weak()
        if known is not None and spec.on_warning is not None:
            spec.on_warning(known)

    def on_end(ended: LeaseRecord) -> None:
        known = weak()
        if known is not None and spec.on_lost is not None and ended.recorded.phase is LeasePhase.LOST:
            manager.callbacks.submit(partial(spec.on_lost, known))

    if spec.on_warning is not None:
        lease_record.on_warning = warn
    lease_record.subscribe(on_end)
