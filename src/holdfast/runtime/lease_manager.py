"""Everything that the leases of one `Locks` share: the keeper, the health of the store, the policy, the witness.

Facades of both colours are thin over this. A household survives `fork()` by starting anew in the child: the parent's
leases are lost there (`forked`), its threads and places in line do not exist, and nothing of it is touched.

Puts a household together from the public arguments of `connect`, on real clocks and real chance.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease import loss_diagnosis
from holdfast.core.lease.latency import Tail
from holdfast.core.lease.states import Event, State
from holdfast.core.ports import Clock, Entropy, Observer, Ports, Runtime, Store
from holdfast.errors import BadInput
from holdfast.flows.acquire import AcquireResult, Wish
from holdfast.flows.log import say
from holdfast.flows.store_health import StoreHealth
from holdfast.runtime.callbacks import CallbackThreads
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.policy_switch import ExerciseSwitch, PolicySwitch, policy_switch
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.renewer import MakeTicks, Renewer
from holdfast.runtime.stalls import GarbageCollections, LoopWatch, garbage_collections
from holdfast.runtime.statistics import Measurements, measurements
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.runtime.thread_runtime import ThreadRuntime
from holdfast.runtime.timer_thread import TimerThread
from holdfast.types import MS, NS, Duration, Instant, Owner, duration_ns

log = logging.getLogger("holdfast")

# Looked up for every lease, and slowly on an enum of Python 3.11.
_HOLD, _RELEASED, _LOST = Measure.HOLD, MeasuredOutcome.RELEASED, State.LOST


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one `Locks`, for metrics, consoles and tests. All counts are since it was connected."""

    held: int
    waiting: int
    degraded: int
    granted: int
    busy: int
    busy_peak_to_mean: float  # of the lock-busy retries of the last minute, per 50 ms
    busy_fano: float  # likewise: about 1 at random, far above 1 in waves
    timed_out: int
    store_errors: int
    renewed: int
    renew_requests: int
    unconfirmed: int
    lost: int
    released: int
    not_owned: int
    release_failures: int
    compensated: int
    fallbacks: int
    exercised: int  # likewise given out without the store, because an exercise pretended that it had failed
    promotions: int
    denied: int
    keeper_lag: float
    renew_tail: float
    breaker_open: bool


@dataclass(frozen=True, slots=True)
class Health:
    """Whether leases are really being looked after."""

    ok: bool
    problems: tuple[str, ...]
    stalled: bool = False  # leases are held and not renewed, which a restart cures; a failing store it does not

    def __bool__(self) -> bool:
        return self.ok


class LeaseManager:
    """The shared parts of one `Locks`."""

    def __init__(
        self,
        keeper_store: Store,
        *,
        clock: Clock,
        entropy: Entropy,
        recorder: Recorder,
        policy: PolicySwitch,
        owner: Callable[[], Owner],
        request_timeout_ns: int,
        make_ticks: MakeTicks | None = None,
        keeper_runtime: Runtime | None = None,
        collections: GarbageCollections | None = None,
    ) -> None:
        self.store = keeper_store
        self.clock = clock
        self.entropy = entropy
        self.recorder = recorder
        self.policy = policy
        self.request_timeout_ns = request_timeout_ns
        self.exercises = ExerciseSwitch(policy, clock, entropy)
        self.health = StoreHealth(clock, entropy, request_timeout_ns)
        self.tail = Tail()
        self.callbacks = CallbackThreads()
        self._make_owner = owner
        self.owner = str(owner())
        self.on_fork: list[Callable[[], None]] = []
        self._collections = collections
        self._loop: LoopWatch | None = None
        keeper_ports = self.ports(keeper_store, keeper_runtime or ThreadRuntime())
        ticks: MakeTicks = make_ticks or (lambda name, act: TimerThread(name, clock, act))
        self.keeper = Renewer(keeper_ports, self.health, self.tail, ticks, self._warn)
        _MANAGERS.add(self)

    def ports(self, store: Store, runtime: Runtime) -> Ports:
        """The ports for flows of one colour."""
        return Ports(
            store, self.clock, self.entropy, runtime, self.recorder, self, self.request_timeout_ns, self.exercises
        )

    def watch(self, loop: LoopWatch) -> None:
        """Have an eye on the event loop that uses these locks, so that a loss can say whether it was blocked."""
        self._loop = loop
        self.keeper.on_beat = loop.ask

    def reap(self, key: str, token: str, ttl_ns: int, after_ns: int = 0) -> object:
        """See `ports.Reaper`."""
        return self.keeper.reap(key, token, ttl_ns, after_ns)

    def settle(self, orphan: object, *, released: bool) -> None:
        """See `ports.Reaper`."""
        self.keeper.settle(orphan, released=released)

    def take(
        self,
        wish: Wish,
        possession: AcquireResult,
        *,
        looked_after: bool = True,
    ) -> LeaseRecord:
        """Turn what a flow got into a tenure. Unless it is meant to expire, `keep` it as soon as its lease exists."""
        lease_record = LeaseRecord(wish, possession.token, possession.grant, possession.sent, self.clock, self.tail)
        if possession.grant is not None:
            self._note(lease_record, EventKind.GRANTED)
        if not looked_after:
            return lease_record
        lease_record.place, lease_record.contested = possession.place, possession.contested
        if lease_record.place is not None:
            lease_record.place.held = lease_record
        lease_record.tell_first(self._ended)
        lease_record.on_over = self.keeper.drop
        lease_record.on_unconfirmed = self._unconfirmed
        return lease_record

    def keep(self, lease_record: LeaseRecord) -> None:
        """Have it renewed and watched. Its lease must exist: if that is dropped, renewal ends."""
        self.keeper.keep(lease_record)

    def statistics(self, waiting: int) -> Statistics:
        """A snapshot."""
        lease_records = self.keeper.lease_records()
        total, burst = self.recorder.total, self.recorder.busy_burst()
        return Statistics(
            held=sum(lease_record.recorded.live for lease_record in lease_records),
            waiting=waiting,
            degraded=sum(lease_record.degraded for lease_record in lease_records),
            granted=total(EventKind.GRANTED),
            busy=total(EventKind.BUSY),
            busy_peak_to_mean=burst.peak_to_mean,
            busy_fano=burst.fano,
            timed_out=total(EventKind.TIMED_OUT),
            store_errors=total(EventKind.FAILED),
            renewed=self.keeper.renewed,
            renew_requests=self.keeper.requests,
            unconfirmed=total(EventKind.UNCONFIRMED),
            lost=total(EventKind.LOST),
            released=total(EventKind.RELEASED),
            not_owned=total(EventKind.RELEASE_REFUSED),
            release_failures=total(EventKind.RELEASE_FAILED),
            compensated=total(EventKind.COMPENSATED),
            fallbacks=total(EventKind.FELL_BACK),
            exercised=total(EventKind.EXERCISED),
            promotions=total(EventKind.PROMOTED),
            denied=total(EventKind.DENIED),
            keeper_lag=self.keeper.lag_ns() / NS,
            renew_tail=self.tail.value_ns / NS,
            breaker_open=self.health.open,
        )

    def measurements(self) -> Measurements:
        """What was counted and measured, by family."""
        return measurements(self.recorder, self.keeper.lease_records())

    def collection_ns(self, since_ns: int) -> int | None:
        """The longest garbage collection since a moment of the monotonic clock. None: nobody times them."""
        return None if self._collections is None else self._collections.longest_ns(since_ns)

    def loop_lag_ns(self, since_ns: int) -> int | None:
        """How long the event loop that uses these locks took at most to come round. None: there is no loop."""
        return None if self._loop is None else self._loop.lag_ns(since_ns)

    def ask_loop(self) -> None:
        """Have the event loop give a sign of life, which `loop_lag_ns` tells of later. Waits for nobody."""
        if self._loop is not None:
            self._loop.ask()

    def health_report(self) -> Health:
        """A probe that fails when this process believes to hold leases and has stopped renewing them."""
        problems = []
        lag = self.keeper.stalled_ns()
        shortest = min(
            (lease_record.timing.renew_every_ns for lease_record in self.keeper.lease_records()), default=None
        )
        stalled = shortest is not None and lag > shortest
        if shortest is not None and stalled:
            problems.append(f"renewal is {lag / NS:.3f} s behind, more than a renewal interval ({shortest / NS:.3f} s)")
        if self.health.open:
            problems.append("the store has been failing; the breaker is open")
        return Health(not problems, tuple(problems), stalled)

    def close(self) -> None:
        """Stop looking after leases. Those still held are lost to their holders (`revoked`) and expire in the store."""
        for lease_record in self.keeper.lease_records():
            lease_record.end(Event.REVOKED)
        self.keeper.stop()
        self._loop = None  # it will be closed, and whoever asks a closed loop waits for ever

    def forked(self) -> None:
        """In a child process: start anew."""
        for lease_record in self.keeper.abandon():
            lease_record.forked()
        self.callbacks = CallbackThreads()
        self.recorder.forked()
        self.exercises.forked()
        self.owner = str(self._make_owner())
        for restart in self.on_fork:
            restart()

    def _unconfirmed(self, lease_record: LeaseRecord) -> None:
        self._note(lease_record, EventKind.UNCONFIRMED)

    def _ended(self, lease_record: LeaseRecord) -> None:
        """A tenure is over. After a release the place is left when the store has been told; after a loss, now."""
        lost = lease_record.recorded.state is _LOST
        late_ns = self.keeper.late_ns(lease_record.recorded.confirmed.mono) if lost else 0  # releases are many
        if lease_record.degraded and lease_record.asked:
            self.keeper.reap(lease_record.key, lease_record.token, lease_record.timing.ttl_ns)
        self._measure_hold(lease_record, MeasuredOutcome.LOST if lost else _RELEASED)
        if lost:
            if lease_record.place is not None:
                lease_record.place.leave()
            self._note(lease_record, EventKind.LOST, ok=False, starved_ns=late_ns)
        elif lease_record.degraded:
            self._note(lease_record, EventKind.LET_GO)

    def _measure_hold(self, lease_record: LeaseRecord, outcome: MeasuredOutcome) -> None:
        # Whoever gives a lease back has just asked whether it is held; that reading of the clock is good enough.
        over = lease_record.judged if outcome is _RELEASED and lease_record.judged is not None else self.clock.now()
        self.recorder.measured(_HOLD, lease_record.wish.family, outcome, over.mono - lease_record.recorded.granted.mono)

    def _warn(self, lease_record: LeaseRecord) -> None:
        self._note(lease_record, EventKind.WARNED)
        if lease_record.on_warning is not None:
            self.callbacks.submit(lease_record.on_warning)

    def _note(self, lease_record: LeaseRecord, kind: EventKind, *, ok: bool = True, starved_ns: int = 0) -> None:
        wish = lease_record.wish
        if not self.recorder.tally(kind, wish.family):
            return
        standing, now, failure = lease_record.recorded, self.clock.now(), self.health.failure
        self.recorder.note(
            Record(
                kind,
                now.wall,
                wish.key,
                wish.family,
                wish.owner,
                fence=None if lease_record.grant is None else lease_record.grant.fence,
                risk=wish.risk,
                reason=None if standing.reason is None else str(standing.reason),
                began_ns=standing.confirmed.wall,
                until_ns=standing.confirmed.wall + wish.timing.loss_age_ns(self.tail.value_ns),
                ok=ok,
                detail=failure.error if kind is EventKind.UNCONFIRMED and failure is not None else "",
                facts=self._autopsy(lease_record, now, starved_ns) if kind is EventKind.LOST else None,
            )
        )

    def _autopsy(self, lease_record: LeaseRecord, now: Instant, starved_ns: int) -> dict[str, Any]:
        """What was known about the lease when it was lost, for whoever asks why."""
        since_ns = lease_record.recorded.confirmed.mono
        return loss_diagnosis.facts(
            lease_record.recorded,
            lease_record.timing,
            now,
            tail_ns=self.tail.value_ns,
            renewals=tuple(self.health.renewals),
            failure=self.health.failure,
            breaker_open=self.health.open,
            keeper_lag_ns=self.keeper.lag_ns(),
            starved_ns=starved_ns,
            collection_ns=self.collection_ns(since_ns) or 0,
            loop_lag_ns=self.loop_lag_ns(since_ns),
        )


_MANAGERS: weakref.WeakSet[LeaseManager] = weakref.WeakSet()


def _after_fork() -> None:
    for manager in list(_MANAGERS):
        try:
            manager.forked()
        except Exception as error:  # noqa: BLE001 - one that cannot start anew must not keep the others from it
            say(log, logging.ERROR, "a Locks could not be made ready in a forked process; connect again there", error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_manager(
    keeper_store: Store,
    *,
    service: str | None,
    instance: str | None,
    policy: Mapping[str, str] | None,
    policy_file: str | Path | None,
    observers: Sequence[Observer],
    request_timeout: Duration,
) -> LeaseManager:
    """The shared parts of one `Locks`."""
    clock = SystemClock()
    recorder = Recorder(_checked(observers), clock)
    owner = partial(this_owner, service, instance)
    return LeaseManager(
        keeper_store,
        clock=clock,
        entropy=SystemEntropy(),
        recorder=recorder,
        policy=policy_switch(policy, policy_file, clock, recorder, str(owner())),
        owner=owner,
        request_timeout_ns=duration_ns("request_timeout", request_timeout, low_ns=10 * MS, high_ns=60_000 * MS),
        collections=garbage_collections(),
    )


def _checked(observers: object) -> Sequence[Observer]:
    if not isinstance(observers, Sequence) or not all(callable(getattr(each, "note", None)) for each in observers):
        raise BadInput("observers", "is not a list of observers", "give objects with a method note(record)")
    return observers
