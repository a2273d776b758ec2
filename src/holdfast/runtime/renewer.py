"""Renewal of leases, detection of losses, and release of orphans, in three threads that do not wait for each other.

All three read the same lease records. The renewer thread talks to the store over its own blocking ports, in batches,
also for asyncio programs: a blocked event loop must not cost the lease. The alarm thread does no I/O, so a hanging
renewal cannot delay the detection of a loss. The reaper thread releases orphans and promotes degraded leases. Only the
alarm thread knows a new record. It passes the record to the renewer shortly before the first renewal, because most
leases are released long before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.lease.latency import Tail
from holdfast.core.lease.states import Event, LeasePhase, remaining_ns
from holdfast.core.ports import Ports
from holdfast.core.timer_wheel import SLOT_NS
from holdfast.errors import Timeout
from holdfast.flows import renew as keeping
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.types import MS, NS, Instant

REAP_FIRST_NS = 100 * MS  # then twice as long each time: a delayed request arrives soon, if at all
CLOCKS_PARTED_NS = 16 * MS  # clocks are read one after the other, and a busy host may take a moment in between


@dataclass(slots=True, eq=False)
class Orphan:
    """A grant that may exist without a holder, and when it must have expired."""

    key: str
    token: str
    until_ns: int
    pause_ns: int = REAP_FIRST_NS
    settled: bool = False

    def __repr__(self) -> str:
        return f"Orphan(key={self.key!r})"


Due: TypeAlias = LeaseRecord | Orphan


class Ticks(Protocol):
    """A timer queue with a thread. The simulator has its own implementation, on virtual time."""

    def put(self, item: Any, due_ns: int) -> None:
        """Enter an item, or move it."""

    def put_all(self, items: Sequence[Any], due_ns: int) -> None:
        """Enter many items that were just handled, due together."""

    def drop(self, item: Any) -> None:
        """Withdraw an item."""

    def items(self) -> list[Any]:
        """Everything that is entered."""
        ...

    def lag_ns(self) -> int:
        """How far behind it is."""
        ...

    def late_ns(self, since_ns: int) -> int:
        """By how much it was kept from running, at most, since a moment."""
        ...

    def abandon(self) -> list[Any]:
        """In a child process: start again with an empty queue, and return the items."""
        ...

    def stop(self, timeout_ns: int) -> None:
        """End it."""


MakeTicks: TypeAlias = Callable[[str, Callable[[list[Any]], Coroutine[Any, Any, None]]], Ticks]


class Renewer:
    """Renews leases, promotes degraded ones, releases orphans, and detects losses."""

    def __init__(
        self,
        ports: Ports,
        tail: Tail,
        make_ticks: MakeTicks,
        on_warning: Callable[[LeaseRecord], None],
    ) -> None:
        self._ports = ports
        self._tail = tail
        self._on_warning = on_warning
        self._renewals = make_ticks("holdfast-keeper", self._renew_due)
        self._alarms = make_ticks("holdfast-alarm", self._check_due)
        self._orphans = make_ticks("holdfast-reaper", self._reap_due)
        self._offsets = (0, 0)
        self._asking_until_ns = 0  # deadline of the request that is under way; 0: there is none
        self._answered_ns = 0  # when the last renewal request ended, with any result
        self.on_beat: Callable[[], None] | None = None  # called before each round of renewals
        self.renewed = 0
        self.requests = 0

    def keep(self, lease_record: LeaseRecord) -> None:
        """Renew and watch a lease until it ends or is dropped."""
        if lease_record.grant is None:
            self._enter(lease_record, self._ports.clock.now())
        elif lease_record.timing.auto_renew:
            self._alarms.put(lease_record, lease_record.recorded.granted.mono + lease_record.timing.first_check_ns)
        else:
            self._set_alarm(lease_record, self._ports.clock.now())

    def drop(self, lease_record: LeaseRecord) -> None:
        """No longer renew and watch it."""
        self._alarms.drop(lease_record)
        if lease_record.entered:
            self._renewals.drop(lease_record)
            self._orphans.drop(lease_record)

    def reconfirm(self) -> None:
        """The store has moved to another server, which may not know every lease: renew all of them now.

        Until the new server has confirmed it, a lease is doubtful; if the server does not know it, it is lost. Leases
        that are not renewed end with their TTL, as always.
        """
        now = self._ports.clock.now()
        for lease_record in self.lease_records():
            if not lease_record.degraded and lease_record.timing.auto_renew and not lease_record.abandoned:
                lease_record.answered(None, now, now)
                if lease_record.recorded.live:
                    lease_record.entered = True
                    self._renewals.put(lease_record, now.mono)
                    self._set_alarm(lease_record, now)

    def reap(self, key: str, token: str, ttl_ns: int, after_ns: int = 0) -> Orphan:
        """See `ports.Reaper`."""
        now = self._ports.clock.now().mono
        orphan = Orphan(key, token, now + ttl_ns + 2 * self._ports.request_timeout_ns)
        self._orphans.put(orphan, now + after_ns + REAP_FIRST_NS)
        return orphan

    def settle(self, orphan: object, *, released: bool) -> None:
        """See `ports.Reaper`."""
        if isinstance(orphan, Orphan):
            orphan.settled = released
            if released:
                self._orphans.drop(orphan)
            else:
                self._orphans.put(orphan, self._ports.clock.now().mono + orphan.pause_ns)

    def lease_records(self) -> list[LeaseRecord]:
        """All records that are renewed and watched."""
        known = dict.fromkeys(self._alarms.items())
        known.update(dict.fromkeys(self._renewals.items()))
        known.update(dict.fromkeys(item for item in self._orphans.items() if isinstance(item, LeaseRecord)))
        return list(known)

    def lag_ns(self) -> int:
        """How far the slower of the two is behind; a health probe compares this with the shortest TTL it serves."""
        return max(self._renewals.lag_ns(), self._alarms.lag_ns())

    def late_ns(self, since_ns: int) -> int:
        """By how much the threads of this process woke up too late, at most, since a moment."""
        return max(self._renewals.late_ns(since_ns), self._alarms.late_ns(since_ns))

    def stalled_ns(self) -> int:
        """For how long no thread has made progress although work was due.

        A store that does not answer delays renewals up to their time limit. That is not a stall, because the renewer
        asks again. A request beyond its time limit, or no request at all, is a stall.
        """
        now, until = self._ports.clock.now().mono, self._asking_until_ns
        behind = now - until if until else min(self._renewals.lag_ns(), now - self._answered_ns)
        return max(behind, self._alarms.lag_ns(), 0)

    def abandon(self) -> list[LeaseRecord]:
        """In a child process: forget the threads, which do not exist here, and return the records of the parent."""
        self._asking_until_ns = 0
        left = [*self._alarms.abandon(), *self._renewals.abandon(), *self._orphans.abandon()]
        return list(dict.fromkeys(item for item in left if isinstance(item, LeaseRecord)))

    def stop(self) -> None:
        """End the threads."""
        self._renewals.stop(2 * NS)
        self._orphans.stop(2 * NS)
        self._alarms.stop(2 * NS)

    def _enter(self, lease_record: LeaseRecord, now: Instant) -> None:
        lease_record.entered = True
        draw = self._ports.entropy.below(65536)
        ticks = self._orphans if lease_record.degraded else self._renewals
        ticks.put(lease_record, now.mono + lease_record.renewal_in_ns(now, draw))
        self._set_alarm(lease_record, now)

    def _set_alarm(self, lease_record: LeaseRecord, now: Instant) -> None:
        loss = lease_record.loss_in_ns(now)
        warn = lease_record.warn_in_ns(now)
        if loss is not None:
            self._check_at(lease_record, now.mono + (loss if warn is None else max(0, min(loss, warn))))

    def _check_at(self, lease_record: LeaseRecord, due_ns: int) -> None:
        self._alarms.put(lease_record, _rounded_up(due_ns))

    async def _check_due(self, due: list[LeaseRecord]) -> None:
        now = self._ports.clock.now()
        # Since the last check most leases were renewed as usual. For those the monotonic clock is enough, unless the
        # clocks have drifted apart since then: the host was suspended or its clock stepped, so each lease is judged.
        offsets = (now.boot - now.mono) // CLOCKS_PARTED_NS, (now.wall - now.mono) // CLOCKS_PARTED_NS
        parted, self._offsets = offsets != self._offsets, offsets
        renewed_in_time: dict[int, list[LeaseRecord]] = {}
        for lease_record in due:
            state, check_ns = lease_record.recorded, lease_record.timing.next_check_ns
            next_check = state.confirmed.mono + check_ns
            if (
                check_ns
                and next_check > now.mono
                and state.phase is LeasePhase.HELD
                and lease_record.entered
                and not parted
            ):
                renewed_in_time.setdefault(next_check, []).append(lease_record)
            else:
                self._check(lease_record)
        for next_check, lease_records in renewed_in_time.items():
            self._alarms.put_all(lease_records, _rounded_up(next_check))

    def _check(self, lease_record: LeaseRecord) -> None:
        state = lease_record.current()  # reading it declares the loss
        if not state.live:
            lease_record.notify()  # the remaining subscribers, if an interrupt cut it short
            self.drop(lease_record)
            return
        now = self._ports.clock.now()
        if lease_record.timing.auto_renew and not lease_record.entered and not lease_record.abandoned:
            self._enter(lease_record, now)
            return
        warn = lease_record.warn_in_ns(now)
        if warn is not None and warn <= 0:
            lease_record.warned = True
            self._on_warning(lease_record)
        self._set_alarm(lease_record, now)

    async def _reap_due(self, due: list[Due]) -> None:
        """Reap and promote. Each item asks the store and may wait in an outage, so these have their own thread."""
        for item in due:
            if isinstance(item, Orphan):
                await self._reap(item)
            elif not item.abandoned:
                await self._promote(item)

    async def _renew_due(self, due: list[LeaseRecord]) -> None:
        batch = [lease_record for lease_record in due if lease_record.recorded.live and not lease_record.abandoned]
        if batch:
            if self.on_beat is not None:
                self.on_beat()
            await self._renew(batch)

    async def _renew(self, batch: list[LeaseRecord]) -> None:
        now = self._ports.clock.now()
        # Leases with the same loss age that are due together have nearly the same time left, so one of them represents
        # all. Doubtful leases have schedules of their own.
        representatives = {
            lease_record.timing.usual_loss_ns
            if lease_record.recorded.phase is LeasePhase.HELD
            else -id(lease_record): lease_record
            for lease_record in batch
        }
        timeout = min(lease_record.renew_timeout_ns(now) for lease_record in representatives.values())
        before = [lease_record.recorded for lease_record in batch]
        self._asking_until_ns = now.mono + timeout + self._ports.request_timeout_ns
        try:
            latency, answered = await keeping.renew(self._ports, batch, timeout)
        finally:
            self._asking_until_ns, self._answered_ns = 0, self._ports.clock.now().mono
        self._tail.observe(latency)
        self.requests += 1
        measured = self._ports.observer.measured
        measured(Measure.RENEW, "", MeasuredOutcome.ANSWERED if answered else MeasuredOutcome.UNANSWERED, latency)
        if answered:
            now = self._ports.clock.now()
            for lease_record, state in zip(batch, before, strict=True):
                if lease_record.recorded.phase is LeasePhase.HELD:
                    left = remaining_ns(state, lease_record.timing, now)
                    measured(Measure.LEFT, lease_record.spec.family, MeasuredOutcome.ANSWERED, left)
        renewed: dict[int, list[LeaseRecord]] = {}
        for lease_record in batch:
            state = lease_record.recorded
            if state.phase is LeasePhase.HELD:
                renewed.setdefault(state.confirmed.mono + lease_record.timing.renew_every_ns, []).append(lease_record)
            elif state.live:
                now = self._ports.clock.now()
                due = now.mono + lease_record.renewal_in_ns(now, self._ports.entropy.below(65536))
                # The timer wheel rounds down; a retry in the present slot would be repeated immediately.
                self._renewals.put(lease_record, max(due, (now.mono // SLOT_NS + 1) * SLOT_NS))
        for due, lease_records in renewed.items():
            self.renewed += len(lease_records)
            self._renewals.put_all(lease_records, due)

    async def _promote(self, lease_record: LeaseRecord) -> None:
        if not lease_record.current().live:
            return
        try:
            outcome = await keeping.promote(self._ports, lease_record.spec, lease_record.token)
        except Timeout:
            lease_record.asked = outcome = True
        if outcome is None:
            self.reap(lease_record.key, lease_record.token, lease_record.timing.ttl_ns)
            lease_record.token, outcome = self._ports.entropy.token(), True
        if isinstance(outcome, tuple):
            grant, sent = outcome
            if not lease_record.promote(grant, sent):
                self.reap(lease_record.key, lease_record.token, lease_record.timing.ttl_ns)
                return
        elif not outcome:
            lease_record.end(Event.REFUSED)
            return
        now = self._ports.clock.now()
        if lease_record.degraded or lease_record.timing.auto_renew:
            self._enter(lease_record, now)
        else:
            self._set_alarm(lease_record, now)

    async def _reap(self, orphan: Orphan) -> None:
        if orphan.settled or await keeping.reap(self._ports, orphan.key, orphan.token):
            return
        now = self._ports.clock.now().mono
        orphan.pause_ns *= 2
        if now < orphan.until_ns:
            self._orphans.put(orphan, now + orphan.pause_ns)


def _rounded_up(due_ns: int) -> int:
    """Round up: the timer wheel rounds down, and a lease that is checked too early would be checked again and again."""
    return due_ns + SLOT_NS - 1
