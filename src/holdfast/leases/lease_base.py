"""The common part of all leases: their properties and checks. Nothing here waits or talks to a store."""

from __future__ import annotations

import warnings
import weakref
from typing import Literal, NoReturn, Self

from holdfast.core.lease.states import LIVE, LeasePhase, LeaseState
from holdfast.core.ports import Ports, SharesDatabase, SharesKeys
from holdfast.errors import BadInput, LeaseLost, Misconfigured
from holdfast.flows.acquire import noun
from holdfast.leases.ownership import Condition, KeyCondition
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.types import NS, Duration, LossReason, duration_ns, fingerprint


class AnyLost:
    """Whether and why a lease is lost. Judged at the moment of asking."""

    __slots__ = ("_lease_record",)

    def __init__(self, lease_record: LeaseRecord) -> None:
        self._lease_record = lease_record

    def is_set(self) -> bool:
        """Whether the lease is lost, now. A lease that was released is not lost."""
        return self._lease_record.current().phase is LeasePhase.LOST

    @property
    def reason(self) -> str | None:
        """Why it was lost: expired, stolen, unconfirmed, max_hold, stalled, revoked or forked."""
        reason = self._lease_record.current().reason
        return None if reason is None else str(reason)

    def __bool__(self) -> bool:
        return self.is_set()


class HeldLease:
    """A lease. Everything here is local, judged at the moment of reading, and errs towards "lost"."""

    __slots__ = ("__weakref__", "_abandonable", "_lease_record", "_manager", "_ports")

    def __init__(self, manager: LeaseManager, ports: Ports, lease_record: LeaseRecord) -> None:
        self._manager = manager
        self._ports = ports
        self._lease_record = lease_record
        self._abandonable = True
        lease_record.holder = weakref.ref(self)

    @property
    def key(self) -> str:
        """The name of the lock."""
        return self._lease_record.key

    @property
    def owner(self) -> str:
        """Who holds it: service, host, process, instance. For people."""
        return self._lease_record.spec.owner

    @property
    def family(self) -> str:
        """What kind of lock it is."""
        return self._lease_record.spec.family

    @property
    def ttl(self) -> float:
        """The lease TTL in seconds: how long the store keeps the key without a renewal."""
        return self._lease_record.timing.ttl_ns / NS

    @property
    def held(self) -> bool:
        """Whether the lease is held, now."""
        return self._lease_record.current().live

    @property
    def state(self) -> str:
        """The state: `held`, `doubtful`, `lost` or `released`."""
        return str(self._lease_record.current().phase)

    @property
    def fingerprint(self) -> str:
        """Six characters that distinguish two grants in logs without revealing the token."""
        return fingerprint(self._lease_record.token)

    def remaining(self) -> float:
        """How many seconds the store still keeps the key for this lease. Conservative; 0.0 when lost."""
        return self._lease_record.remaining_ns() / NS

    def ensure_held(self, min_remaining: Duration = 0) -> None:
        """Return if the lease is held and has at least `min_remaining` left; raise `LeaseLost` otherwise."""
        least = duration_ns("min_remaining", min_remaining)
        state = self._lease_record.current()
        if not state.live:
            raise self._lost_error(state)
        if least and (left := self._lease_record.remaining_ns()) < least:
            raise LeaseLost(
                f"{noun(self.family)} about to be lost: {self.key} has {left / NS:.3f} s left of the "
                f"{least / NS:g} s that were asked for",
                key=self.key,
                reason=str(LossReason.EXPIRED),
                fence=self._fence(),
            )

    def progress(self) -> None:
        """Report progress of the work. With `stall_after`, the lease is given up when these reports stop."""
        self._lease_record.progress()

    def hand_over(self) -> Self:
        """Say that any thread or task may release this lease, and return it.

        Call it before you pass the lease on. The caller that acquired it may then wait for the lock again, as all
        others may; until then such a wait is `AlreadyHeld`.
        """
        if self._lease_record.entry is not None:
            self._lease_record.entry.caller = None
        return self

    def let_run_out(self) -> None:
        """Leave this lease to expire: dropping it causes no warning, and the end of a block does not release it."""
        self._abandonable = False

    def _found_at_exit(self, before: LeaseState, refused: bool) -> LeaseLost | None:
        """The error at the end of a `with` block: None when the lease was held until it was released."""
        if before.phase is LeasePhase.LOST:
            return self._lost_error(before)
        if not refused:
            return None
        return LeaseLost(
            f"lock lost: {self.key} was not ours any more when it was released",
            key=self.key,
            reason=str(LossReason.STOLEN),
            fence=self._fence(),
        )

    def _report_at_exit(self, lost: LeaseLost, error: BaseException | None) -> None:
        """Raise the loss, or add it as a note to another error, unless that error is the same loss."""
        if error is None:
            raise lost
        if not (isinstance(error, LeaseLost) and error.key == self.key):
            error.add_note(f"besides: {lost}")

    def _fence(self) -> int | None:
        grant = self._lease_record.grant
        return None if grant is None else grant.fence

    def _lost_error(self, state: LeaseState) -> LeaseLost:
        what, reason = noun(self.family), state.reason
        if state.phase is LeasePhase.RELEASED:
            text, shown = f"{what} not held: {self.key} was released", "released"
        elif reason is LossReason.UNCONFIRMED:
            text, shown = f"{what} abandoned: renewal failed for {self.key}", str(reason)
        else:
            text, shown = f"{what} lost: {self.key} ({reason})", str(reason)
        return LeaseLost(text, key=self.key, reason=shown, fence=self._fence())

    def __del__(self) -> None:
        """Warn about a lease that is dropped without being released. It is not released here, but left to expire.

        Garbage is collected at any moment, in any thread, so this takes no lock and sends nothing. The renewer finds
        the weak reference dead and stops renewing, so a dropped lease does not live forever.
        """
        try:
            lease_record = self._lease_record
        except AttributeError:  # it was never made
            return
        if lease_record.recorded.phase in LIVE and self._abandonable:
            warnings.warn(
                f"the lease of {lease_record.key} was dropped without release(); "
                "it is no longer renewed and will expire",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease belongs to the process that took it; pass on the Lock, or the fence")

    def __repr__(self) -> str:
        state = self._lease_record.current()
        reason = f" ({state.reason})" if state.reason else ""
        return (
            f"<{type(self).__name__} {self.key!r} {state.phase}{reason} fence={self._fence()} "
            f"owner={self.owner} remaining={self.remaining():.3f} fingerprint={self.fingerprint}>"
        )


class Granted(HeldLease):
    """The part of a lease that the store has granted."""

    __slots__ = ()

    @property
    def fence(self) -> int:
        """The fencing token: rises with every grant of this lock. Pass it to the storage that you write to."""
        fence = self._fence()
        if fence is None:  # cannot be: a full lease is only ever made from a grant
            raise RuntimeError("a lease without a grant")
        return fence

    def condition(self, schema: str | None = None) -> Condition:
        """SQL that is true while this lease is ours, for a transaction of your own in the database that keeps it.

        On etcd it is a `KeyCondition`: comparisons for a transaction there. `schema` is the name under which you
        attached the SQLite file of the lease, if you did. `LeaseLost` when the lease is known to be lost already,
        `Misconfigured` when its store has no transactions for others.
        """
        if schema is not None and not str(schema).isidentifier():
            raise BadInput("schema", f"{schema!r} is not the name of an attached database", "use letters and digits")
        self.ensure_held()
        store, grant = self._manager.store, self._lease_record.grant
        if grant is None or not isinstance(store, SharesDatabase | SharesKeys):
            raise Misconfigured(
                f"leases of {store.capabilities.engine} do not lie in a database with transactions; "
                "give the fence to a guard instead"
            )
        lost = LeaseLost(
            f"{noun(self.family)} lost: {self.key} ({LossReason.STOLEN})",
            key=self.key,
            reason=str(LossReason.STOLEN),
            fence=grant.fence,
        )
        if isinstance(store, SharesKeys):
            return KeyCondition(store.key_ownership(grant), grant.key, grant.fence, lost)
        return Condition(store.ownership(grant, schema), lost)

    @property
    def guaranteed(self) -> Literal[True]:
        """True: the store granted it."""
        return True


class Degraded(HeldLease):
    """The part of a lease that the store may not know."""

    __slots__ = ()

    @property
    def fence(self) -> int | None:
        """None, until the lease has been promoted."""
        return self._fence()

    @property
    def guaranteed(self) -> bool:
        """False, until the lease has been promoted."""
        return not self._lease_record.degraded


def is_loss_of(error: BaseException, key: str) -> bool:
    """Whether all that is wrong is that this lock was lost: in one entry, or in several of a group of tasks."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_loss_of(each, key) for each in error.exceptions)
    return isinstance(error, LeaseLost) and error.key == key
