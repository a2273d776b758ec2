"""Records of events of held leases (granted, unconfirmed, nearly lost, lost) for logs, observers and the ledger.

The record of a loss has the diagnosis: what was known about renewals, the store and this process at that moment.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease import loss_diagnosis
from holdfast.core.lease.latency import Tail
from holdfast.core.ports import CircuitBreaker, Clock, Journal
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.renewer import Renewer
from holdfast.runtime.stalls import Stalls
from holdfast.types import Instant


class LeaseReports:
    """Counts events of leases, and writes the record where one is wanted."""

    def __init__(
        self, journal: Journal, clock: Clock, breaker: CircuitBreaker, tail: Tail, renewer: Renewer, stalls: Stalls
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._breaker = breaker
        self._tail = tail
        self._renewer = renewer
        self._stalls = stalls

    def report(self, lease_record: LeaseRecord, kind: EventKind, *, ok: bool = True, starved_ns: int = 0) -> None:
        """Count an event of a lease, and note its record if an observer or the log wants it."""
        if self._journal.tally(kind, lease_record.spec.family):
            self.note(lease_record, kind, ok=ok, starved_ns=starved_ns)

    def note(self, lease_record: LeaseRecord, kind: EventKind, *, ok: bool = True, starved_ns: int = 0) -> None:
        """Note the record of an event that was counted."""
        spec = lease_record.spec
        state, now, failure = lease_record.recorded, self._clock.now(), self._breaker.failure
        self._journal.note(
            Record(
                kind,
                now.wall,
                spec.key,
                spec.family,
                spec.owner,
                fence=None if lease_record.grant is None else lease_record.grant.fence,
                risk=spec.risk,
                reason=None if state.reason is None else str(state.reason),
                began_ns=state.confirmed.wall,
                until_ns=state.confirmed.wall + spec.timing.loss_age_ns(self._tail.value_ns),
                ok=ok,
                detail=failure.error if kind is EventKind.UNCONFIRMED and failure is not None else "",
                facts=self._diagnosis(lease_record, now, starved_ns) if kind is EventKind.LOST else None,
            )
        )

    def _diagnosis(self, lease_record: LeaseRecord, now: Instant, starved_ns: int) -> dict[str, Any]:
        since_ns = lease_record.recorded.confirmed.mono
        return loss_diagnosis.facts(
            lease_record.recorded,
            lease_record.timing,
            now,
            tail_ns=self._tail.value_ns,
            renewals=tuple(self._breaker.renewals),
            failure=self._breaker.failure,
            breaker_open=self._breaker.open,
            keeper_lag_ns=self._renewer.lag_ns(),
            starved_ns=starved_ns,
            collection_ns=self._stalls.collection_ns(since_ns) or 0,
            loop_lag_ns=self._stalls.loop_lag_ns(since_ns),
        )
