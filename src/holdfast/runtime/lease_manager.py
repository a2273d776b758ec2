"""The lease manager: assembles the parts that the leases of one `Locks` share, and keeps the record of each lease.

The parts: circuit breaker, error policy and its exercises, renewer, recorder, reports, statistics, health, stalls. Both
`Locks` classes are thin layers over this. After `fork()` the child starts with empty parts: the leases of the parent
are lost there (`forked`), its threads and queues do not exist, and the parent's state is not touched.

`make_manager` makes one from the public arguments of `connect`, with real clocks and random numbers.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast.core.diagnosis import KnownFindings
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind
from holdfast.core.lease.latency import Tail
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event, LeasePhase
from holdfast.core.ports import ChangesServers, Clock, Entropy, Observer, Ports, Runtime, Store
from holdfast.errors import BadInput
from holdfast.flows.acquire import AcquireResult
from holdfast.flows.log import log_event
from holdfast.flows.store_breaker import StoreBreaker
from holdfast.runtime.lease_record import LeaseRecord
from holdfast.runtime.lease_reports import LeaseReports
from holdfast.runtime.policy_switch import ExerciseSwitch, PolicySwitch, policy_switch
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.renewer import MakeTicks, Renewer
from holdfast.runtime.stalls import GarbageCollections, LoopWatch, Stalls, garbage_collections
from holdfast.runtime.statistics import LeaseHealth, LeaseStatistics
from holdfast.runtime.system import SystemClock, SystemEntropy, this_owner
from holdfast.runtime.thread_runtime import CallbackThreads, ThreadRuntime
from holdfast.runtime.timer_thread import TimerThread
from holdfast.types import MS, Duration, Owner, duration_ns

log = logging.getLogger("holdfast")

# Looked up for every lease, and slowly on an enum of Python 3.11.
_HOLD, _RELEASED, _LOST = Measure.HOLD, MeasuredOutcome.RELEASED, LeasePhase.LOST


class LeaseManager:
    """The shared parts of one `Locks`."""

    def __init__(
        self,
        renewer_store: Store,
        *,
        clock: Clock,
        entropy: Entropy,
        recorder: Recorder,
        policy: PolicySwitch,
        owner: Callable[[], Owner],
        request_timeout_ns: int,
        make_ticks: MakeTicks | None = None,
        renewer_runtime: Runtime | None = None,
        collections: GarbageCollections | None = None,
    ) -> None:
        self.store = renewer_store
        self.clock = clock
        self.entropy = entropy
        self.recorder = recorder
        self.policy = policy
        self.request_timeout_ns = request_timeout_ns
        self.known = KnownFindings()
        self.exercises = ExerciseSwitch(policy, clock, entropy)
        self.breaker = StoreBreaker(clock, entropy, request_timeout_ns)
        self.stalls = Stalls(collections)
        self.tail = Tail()
        self.callbacks = CallbackThreads()
        self._make_owner = owner
        self.owner = str(owner())
        self.on_fork: list[Callable[[], None]] = []
        renewer_ports = self.ports(renewer_store, renewer_runtime or ThreadRuntime())
        ticks: MakeTicks = make_ticks or (lambda name, act: TimerThread(name, clock, act))
        self.renewer = Renewer(renewer_ports, self.tail, ticks, self._warn)
        if isinstance(renewer_store, ChangesServers):
            renewer_store.follow(self._moved)
        self.reports = LeaseReports(recorder, clock, self.breaker, self.tail, self.renewer, self.stalls)
        self.statistics = LeaseStatistics(recorder, self.renewer, self.breaker, self.tail)
        self.health = LeaseHealth(self.renewer, self.breaker)
        _MANAGERS.add(self)

    def ports(self, store: Store, runtime: Runtime) -> Ports:
        """The ports for blocking flows, or for those of one event loop."""
        return Ports(
            store,
            self.clock,
            self.entropy,
            runtime,
            self.recorder,
            self,
            self.breaker,
            self.policy,
            self.request_timeout_ns,
            self.exercises,
            self.known,
        )

    def watch(self, loop: LoopWatch) -> None:
        """Watch the event loop that uses these locks, so that the record of a loss shows whether it was blocked."""
        self.stalls.watch(loop)
        self.renewer.on_beat = loop.ask

    def reap(self, key: str, token: str, ttl_ns: int, after_ns: int = 0) -> object:
        """See `ports.Reaper`."""
        return self.renewer.reap(key, token, ttl_ns, after_ns)

    def settle(self, orphan: object, *, released: bool) -> None:
        """See `ports.Reaper`."""
        self.renewer.settle(orphan, released=released)

    def take(
        self,
        spec: LockSpec,
        result: AcquireResult,
        *,
        looked_after: bool = True,
    ) -> LeaseRecord:
        """Make the lease record of an acquire result. The caller makes the lease, then has the renewer `keep` it."""
        token, grant, sent, entry, _, contested = result
        on_end = self._ended if looked_after else None
        lease_record = LeaseRecord(spec, token, grant, sent, self.clock, self.tail, on_end)
        if grant is not None and self.recorder.tally(EventKind.GRANTED, spec.family):
            self.reports.note(lease_record, EventKind.GRANTED)
        if looked_after:
            lease_record.entry, lease_record.contested = entry, contested
            if entry is not None:
                entry.held = lease_record
            lease_record.on_last = self.renewer.drop
            lease_record.on_unconfirmed = self._unconfirmed
        return lease_record

    def close(self) -> None:
        """Stop renewing. Leases still held are lost to their holders (`revoked`) and expire in the store."""
        for lease_record in self.renewer.lease_records():
            lease_record.end(Event.REVOKED)
        self.renewer.stop()
        self.stalls.watch(None)

    def forked(self) -> None:
        """In a child process: start again without leases."""
        for lease_record in self.renewer.abandon():
            lease_record.forked()
        self.callbacks = CallbackThreads()
        self.recorder.forked()
        self.exercises.forked()
        self.owner = str(self._make_owner())
        for restart in self.on_fork:
            restart()

    def _moved(self) -> None:
        log_event(
            log, logging.WARNING, "the leases have moved to another server (a failover): all of them are renewed now"
        )
        self.known.findings = None
        self.renewer.reconfirm()

    def _unconfirmed(self, lease_record: LeaseRecord) -> None:
        self.reports.report(lease_record, EventKind.UNCONFIRMED)

    def _ended(self, lease_record: LeaseRecord) -> None:
        """A lease has ended. After a loss the local mutex is left now; after a release, when the store has answered."""
        state, family = lease_record.recorded, lease_record.spec.family
        lost = state.phase is _LOST
        late_ns = self.renewer.late_ns(state.confirmed.mono) if lost else 0
        degraded = lease_record.grant is None
        if degraded and lease_record.asked:
            self.renewer.reap(lease_record.key, lease_record.token, lease_record.timing.ttl_ns)
        # A release has just judged the lease; that reading of the clock is good enough.
        over = self.clock.now() if lost or lease_record.judged is None else lease_record.judged
        self.recorder.measured(
            _HOLD, family, MeasuredOutcome.LOST if lost else _RELEASED, over.mono - state.granted.mono
        )
        if lost:
            if lease_record.entry is not None:
                lease_record.entry.leave()
            self.reports.report(lease_record, EventKind.LOST, ok=False, starved_ns=late_ns)
        elif degraded:
            self.reports.report(lease_record, EventKind.LET_GO)

    def _warn(self, lease_record: LeaseRecord) -> None:
        self.reports.report(lease_record, EventKind.WARNED)
        if lease_record.on_warning is not None:
            self.callbacks.submit(lease_record.on_warning)


_MANAGERS: weakref.WeakSet[LeaseManager] = weakref.WeakSet()


def _after_fork() -> None:
    for manager in list(_MANAGERS):
        try:
            manager.forked()
        except Exception as error:  # noqa: BLE001 - one failure must not keep the others from starting again
            log_event(
                log, logging.ERROR, "a Locks could not be made ready in a forked process; connect again there", error
            )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_manager(
    renewer_store: Store,
    *,
    service: str | None,
    instance: str | None,
    policy: Mapping[str, str] | None,
    policy_file: str | Path | None,
    observers: Sequence[Observer],
    request_timeout: Duration,
    clock: Clock | None = None,
    make_ticks: MakeTicks | None = None,
) -> LeaseManager:
    """The shared parts of one `Locks`. `clock` and `make_ticks` are for tests that move the time."""
    clock = SystemClock() if clock is None else clock
    recorder = Recorder(_checked(observers), clock)
    owner = partial(this_owner, service, instance)
    return LeaseManager(
        renewer_store,
        clock=clock,
        entropy=SystemEntropy(),
        recorder=recorder,
        policy=policy_switch(policy, policy_file, clock, recorder, str(owner())),
        owner=owner,
        request_timeout_ns=duration_ns("request_timeout", request_timeout, low_ns=10 * MS, high_ns=60_000 * MS),
        make_ticks=make_ticks,
        collections=garbage_collections(),
    )


def _checked(observers: object) -> Sequence[Observer]:
    if not isinstance(observers, Sequence) or not all(callable(getattr(each, "note", None)) for each in observers):
        raise BadInput("observers", "is not a list of observers", "give objects with a method note(record)")
    return observers
