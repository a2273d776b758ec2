"""The keeper renews leases; the alarm says when they are lost; the reaper ties up loose ends. None holds up another.

All read the same tenures. The keeper talks to the store over blocking ports of its own, in batches, also on behalf of
asyncio programs: an event loop that is blocked must not cost the lease. The alarm never talks to anything: a renewal
that hangs cannot delay the news of a loss. A young tenure is known to the alarm alone; only when it nears its first
renewal is it entered with the keeper, because most leases are given back long before.
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

REAP_FIRST_NS = 100 * MS  # then twice as long each time: what was on its way arrives soon, if at all
CLOCKS_PARTED_NS = 16 * MS  # clocks are read one after the other, and a busy host may take a moment in between


@dataclass(slots=True, eq=False)
class Orphan:
    """A grant that may exist though nobody holds it, and when it must have expired by itself."""

    key: str
    token: str
    until_ns: int
    pause_ns: int = REAP_FIRST_NS
    settled: bool = False

    def __repr__(self) -> str:
        return f"Orphan(key={self.key!r})"


Due: TypeAlias = LeaseRecord | Orphan


class Ticks(Protocol):
    """What keeper and alarm need of a ticker; the simulator brings its own, on virtual time."""

    def put(self, item: Any, due_ns: int) -> None:
        """Enter an item, or move it."""

    def put_all(self, items: Sequence[Any], due_ns: int) -> None:
        """Enter many items that have just come out, due together."""

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
        """In a child process: start anew, and return what was entered."""
        ...

    def stop(self, timeout_ns: int) -> None:
        """End it."""


MakeTicks: TypeAlias = Callable[[str, Callable[[list[Any]], Coroutine[Any, Any, None]]], Ticks]


class Renewer:
    """Renews what it is given, promotes what is degraded, gives back what may be left over, and announces losses."""

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
        self._alarms = make_ticks("holdfast-alarm", self._ring_due)
        self._loose_ends = make_ticks("holdfast-reaper", self._tie_up)
        self._offsets = (0, 0)
        self._asking_until_ns = 0  # by when the store must have answered, or a time limit ended the wait
        self._turned_ns = 0  # when the last renewal was over, whatever came of it
        self.on_beat: Callable[[], None] | None = None  # called before each round of renewals
        self.renewed = 0
        self.requests = 0

    def keep(self, lease_record: LeaseRecord) -> None:
        """Look after a tenure until it ends or is dropped."""
        if lease_record.grant is None:
            self._enter(lease_record, self._ports.clock.now())
        elif lease_record.timing.auto_renew:
            self._alarms.put(lease_record, lease_record.recorded.granted.mono + lease_record.timing.first_check_ns)
        else:
            self._set_alarm(lease_record, self._ports.clock.now())

    def drop(self, lease_record: LeaseRecord) -> None:
        """No longer look after it."""
        self._alarms.drop(lease_record)
        if lease_record.entered:
            self._renewals.drop(lease_record)
            self._loose_ends.drop(lease_record)

    def reap(self, key: str, token: str, ttl_ns: int, after_ns: int = 0) -> Orphan:
        """See `ports.Reaper`."""
        now = self._ports.clock.now().mono
        orphan = Orphan(key, token, now + ttl_ns + 2 * self._ports.request_timeout_ns)
        self._loose_ends.put(orphan, now + after_ns + REAP_FIRST_NS)
        return orphan

    def settle(self, orphan: object, *, released: bool) -> None:
        """See `ports.Reaper`."""
        if isinstance(orphan, Orphan):
            orphan.settled = released
            if released:
                self._loose_ends.drop(orphan)
            else:
                self._loose_ends.put(orphan, self._ports.clock.now().mono + orphan.pause_ns)

    def lease_records(self) -> list[LeaseRecord]:
        """Everything that is looked after."""
        known = dict.fromkeys(self._alarms.items())
        known.update(dict.fromkeys(self._renewals.items()))
        known.update(dict.fromkeys(item for item in self._loose_ends.items() if isinstance(item, LeaseRecord)))
        return list(known)

    def lag_ns(self) -> int:
        """How far the slower of the two is behind; a health probe compares this with the shortest TTL it serves."""
        return max(self._renewals.lag_ns(), self._alarms.lag_ns())

    def late_ns(self, since_ns: int) -> int:
        """By how much the threads of this process were kept from running, at most, since a moment."""
        return max(self._renewals.late_ns(since_ns), self._alarms.late_ns(since_ns))

    def stalled_ns(self) -> int:
        """For how long nothing has moved although it should have.

        A store that does not answer keeps renewals waiting, up to their time limit, and others behind them; that is no
        stall, for the keeper asks again. One that does not come back from asking, or does not ask, is one.
        """
        now, until = self._ports.clock.now().mono, self._asking_until_ns
        behind = now - until if until else min(self._renewals.lag_ns(), now - self._turned_ns)
        return max(behind, self._alarms.lag_ns(), 0)

    def abandon(self) -> list[LeaseRecord]:
        """In a child process: forget the threads that do not exist here, and say what the parent was looking after."""
        self._asking_until_ns = 0
        left = [*self._alarms.abandon(), *self._renewals.abandon(), *self._loose_ends.abandon()]
        return list(dict.fromkeys(item for item in left if isinstance(item, LeaseRecord)))

    def stop(self) -> None:
        """End the threads."""
        self._renewals.stop(2 * NS)
        self._loose_ends.stop(2 * NS)
        self._alarms.stop(2 * NS)

    def _enter(self, lease_record: LeaseRecord, now: Instant) -> None:
        lease_record.entered = True
        draw = self._ports.entropy.below(65536)
        ticks = self._loose_ends if lease_record.degraded else self._renewals
        ticks.put(lease_record, now.mono + lease_record.renewal_in_ns(now, draw))
        self._set_alarm(lease_record, now)

    def _set_alarm(self, lease_record: LeaseRecord, now: Instant) -> None:
        loss = lease_record.loss_in_ns(now)
        warn = lease_record.warn_in_ns(now)
        if loss is not None:
            self._ring_at(lease_record, now.mono + (loss if warn is None else max(0, min(loss, warn))))

    def _ring_at(self, lease_record: LeaseRecord, due_ns: int) -> None:
        self._alarms.put(lease_record, _rounded_up(due_ns))

    async def _ring_due(self, due: list[LeaseRecord]) -> None:
        now = self._ports.clock.now()
        # Between two rings most leases were renewed as usual. One look at the monotonic clock is enough for those,
        # unless the clocks have parted since the last ring: then the host was suspended or stepped, and each is judged.
        offsets = (now.boot - now.mono) // CLOCKS_PARTED_NS, (now.wall - now.mono) // CLOCKS_PARTED_NS
        parted, self._offsets = offsets != self._offsets, offsets
        going_well: dict[int, list[LeaseRecord]] = {}
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
                going_well.setdefault(next_check, []).append(lease_record)
            else:
                self._ring(lease_record)
        for next_check, lease_records in going_well.items():
            self._alarms.put_all(lease_records, _rounded_up(next_check))

    def _ring(self, lease_record: LeaseRecord) -> None:
        state = lease_record.current()  # judging it is what declares the loss
        if not state.live:
            lease_record.notify()  # the rest of it, if an interrupt cut it short
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

    async def _tie_up(self, due: list[Due]) -> None:
        """These ask the store one by one and wait each time in an outage, so they have ticks of their own."""
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
        # Leases with the same loss age that are due together have nearly the same time left, so one of them speaks for
        # all of them; doubtful ones are each on a schedule of their own.
        speakers = {
            lease_record.timing.usual_loss_ns
            if lease_record.recorded.phase is LeasePhase.HELD
            else -id(lease_record): lease_record
            for lease_record in batch
        }
        timeout = min(lease_record.renew_timeout_ns(now) for lease_record in speakers.values())
        before = [lease_record.recorded for lease_record in batch]
        self._asking_until_ns = now.mono + timeout + self._ports.request_timeout_ns
        try:
            latency, answered = await keeping.renew(self._ports, batch, timeout)
        finally:
            self._asking_until_ns, self._turned_ns = 0, self._ports.clock.now().mono
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
                # A calendar rounds down; a retry that falls into the present slot would be made over and over.
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
            self._loose_ends.put(orphan, now + orphan.pause_ns)


def _rounded_up(due_ns: int) -> int:
    """A calendar rounds down, and a lease that is looked at a moment too early would be looked at over and over."""
    return due_ns + SLOT_NS - 1
