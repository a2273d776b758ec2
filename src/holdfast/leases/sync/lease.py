"""A lease in blocking code: what `acquire` returns. It holds the token, and can be spent once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self, TypeVar
from weakref import ref

from holdfast.core.lease.states import Standing, State
from holdfast.core.ports import Place, Ports
from holdfast.errors import NotOwner
from holdfast.flows import release as releasing
from holdfast.flows import renew as keeping
from holdfast.flows.release import Released
from holdfast.leases.lease_base import Degraded, Granted, HeldLease
from holdfast.leases.lock_spec import LockSpec, timeout_ns
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.loss_event import ThreadLost
from holdfast.runtime.run_sync import run_now
from holdfast.types import Duration

L = TypeVar("L", bound="AnyLease")


class Lost:
    """The loss of a lease, as an event: `is_set()`, `wait()`, and `reason` once it is set."""

    __slots__ = ("_signal",)

    def __init__(self, lease_record: LeaseRecord) -> None:
        self._signal = ThreadLost(lease_record)

    def is_set(self) -> bool:
        """Whether the lease is lost, now. A lease that was released is not lost."""
        return self._signal.is_set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost. False when the time is over or the lease was released first."""
        return self._signal.wait(timeout_ns(timeout))

    @property
    def reason(self) -> str | None:
        """Why it was lost: expired, stolen, unconfirmed, max_hold, stalled, revoked or forked."""
        return self._signal.reason

    def __bool__(self) -> bool:
        return self._signal.is_set()


class AnyLease(HeldLease):
    """Possession of a lock, full or degraded. `with lease:` ends as `with lock:` does."""

    __slots__ = ("_place", "_ports")

    def __init__(self, manager: LeaseManager, ports: Ports, lease_record: LeaseRecord, place: Place | None) -> None:
        super().__init__(manager, lease_record)
        self._ports = ports
        self._place = place

    @property
    def lost(self) -> Lost:
        """The loss of this lease, to ask or to wait for."""
        return Lost(self._lease_record)

    def renew(self) -> None:
        """Renew now, not when the keeper would. `LeaseLost` if it is not ours any more; `BackendError` if unknown."""
        self.ensure_held()
        if self._lease_record.degraded:
            return
        timeout = min(self._manager.request_timeout_ns, self._lease_record.renew_timeout_ns(self._manager.clock.now()))
        if not run_now(keeping.renew_one(self._ports, self._manager.health, self._lease_record, timeout)):
            raise self._lost_error(self._lease_record.standing()) from NotOwner(key=self.key)

    def release(self) -> bool:
        """Give the lock back. True when the store confirmed it.

        Idempotent and safe in `finally`: a lease that was lost is not released (the key may be somebody else's by
        now), and a store that does not answer is a warning, not an exception.
        """
        return self._release(self._lease_record.standing()) is Released.YES

    def _release(self, standing: Standing) -> Released:
        if not standing.live:
            self._lease_record.announce()  # this and the next: the rest of a first call that was interrupted
            if self._place is not None:
                self._place.leave()
            return Released.NOT_OWNED if standing.state is State.LOST else Released.UNKNOWN
        ports, lease_record = self._ports, self._lease_record
        try:
            lease_record.released()
            if lease_record.grant is None:
                return Released.YES
            if lease_record.contested and self._place is not None:
                run_now(releasing.let_the_next_ask(ports, self._place))
            return run_now(
                releasing.release(ports, lease_record.wish, lease_record.grant, standing.granted, lease_record.judged)
            )
        except BaseException:
            if lease_record.grant is not None:
                run_now(releasing.again(ports, lease_record.wish, lease_record.grant, standing.granted))
            raise
        finally:
            if self._place is not None:
                self._place.leave()

    def __enter__(self) -> Self:
        self.ensure_held()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave_block(error)
        finally:
            if self._abandonable:
                self.release()  # does nothing, unless an interrupt struck before the line above

    def _leave_block(self, error: BaseException | None) -> None:
        """The end of a `with` block: give back, and say so if the lease had been lost and nothing else is wrong."""
        before = self._lease_record.standing()
        outcome = self._release(before) if before.live and self._abandonable else Released.UNKNOWN
        lost = self._found_at_exit(before, outcome is Released.NOT_OWNED)
        if lost is not None:
            self._report_at_exit(lost, error)


class Lease(AnyLease, Granted):
    """Possession of a lock that the store knows about: it has a fence, and the store keeps others out."""

    __slots__ = ()


class DegradedLease(AnyLease, Degraded):
    """Possession that only this process knows about, because the store failed and the policy said to go on.

    It excludes other threads of this process and nobody else, and it has no fence, until the store is back and grants
    it after all (`guaranteed` turns true and `fence` appears), or turns out to have granted the key to somebody else
    (the lease is lost, `stolen`).
    """

    __slots__ = ()


def lease_of(
    manager: LeaseManager, ports: Ports, lease_record: LeaseRecord, place: Place | None
) -> Lease | DegradedLease:
    """The lease for a tenure: degraded when the store knows nothing of it."""
    kind = DegradedLease if lease_record.degraded else Lease
    return kind(manager, ports, lease_record, place)


@contextmanager
def block(lease: L) -> Iterator[L]:
    """A `with` block that may be left by another thread than the one that entered it, as generators are."""
    error: BaseException | None = None
    try:
        yield lease
    except BaseException as raised:
        error = raised
        raise
    finally:
        lease._leave_block(error)  # noqa: SLF001 - the end of the block is the lease's own business


def call_back(manager: LeaseManager, lease: AnyLease, lease_record: LeaseRecord, description: LockSpec) -> None:
    """Have the user's functions called with the lease when it is lost or close to it, on a thread of their own."""
    # The tenure must not keep its own lease alive, or a dropped lease could never be noticed.
    weak = ref(lease)

    def warn() -> None:
        known = weak()
        if known is not None and description.on_warning is not None:
            description.on_warning(known)

    def told(ended: LeaseRecord) -> None:
        known = weak()
        if known is not None and description.on_lost is not None and ended.recorded.state is State.LOST:
            manager.callbacks.submit(partial(description.on_lost, known))

    if description.on_warning is not None:
        lease_record.on_warning = warn
    lease_record.tell(told)
