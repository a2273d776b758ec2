"""The record of one lease, shared by its holder, the renewer and the alarm.

`core.lease.states` decides; this is the only place that stores the result. A reader gets the state *judged at the
moment of reading*. So a holder that wakes up from a long pause sees the loss immediately, and does not depend on a
thread that has not run yet. A lease ends once. Its subscribers are notified once, outside the mutex, by the thread that
noticed the end. If a signal handler raises meanwhile, the timer thread notifies the rest.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.core.failpoints import reach
from holdfast.core.lease import states as table
from holdfast.core.lease.latency import Tail
from holdfast.core.lease.spec import LockSpec
from holdfast.core.lease.states import Event, LeasePhase, LeaseState
from holdfast.core.ports import Clock, MutexEntry
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import Grant, Instant, Renewal

OnEnd: TypeAlias = Callable[["LeaseRecord"], None]

_process = object()  # another object in each process, so that a record detects a fork immediately


class LeaseRecord:
    """The living record of a held lease. `grant` is None while it is degraded: held locally, unknown to the store."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_ends",
        "_mutex",
        "_process",
        "_renewal",
        "_subscribers",
        "_tail",
        "asked",
        "contested",
        "entered",
        "entry",
        "grant",
        "holder",
        "judged",
        "key",
        "on_last",
        "on_unconfirmed",
        "on_warning",
        "recorded",
        "spec",
        "timing",
        "token",
        "warned",
    )

    def __init__(
        self,
        spec: LockSpec,
        token: str,
        grant: Grant | None,
        sent: Instant,
        clock: Clock,
        tail: Tail,
        on_end: OnEnd | None = None,
    ) -> None:
        timing = spec.timing
        self.spec = spec
        self.key = spec.key
        self.token = token
        self.timing = timing
        self.warned = False
        self.entered = False  # known to the renewer, and not to the timer thread alone
        self.asked = False  # while degraded: the store may have granted it, but its answer was lost
        self.holder: weakref.ref[Any] | None = None  # the lease, once it exists
        self.entry: MutexEntry | None = None  # at the local mutex
        self.contested = False  # a fair lock, and other processes were queued for it
        self.on_last: OnEnd | None = None  # called last: from then on it is not renewed any more
        self.on_unconfirmed: OnEnd | None = None
        self.on_warning: Callable[[], None] | None = None
        self._clock = clock
        self._tail = tail
        self._mutex = Mutex()
        self._process = _process
        self._subscribers: list[OnEnd] = [] if on_end is None else [on_end]
        self._ends: list[LeaseState] = []  # the first one is the end; later ones are ignored
        self.judged: Instant | None = None  # when it was last judged, and found to be held
        self.recorded = table.granted(sent)  # as last stored, not judged by the time
        self.grant = grant
        self._renewal: Renewal | None = None

    @property
    def renewal(self) -> Renewal:
        """The request that renews it."""
        if self._renewal is None:
            claim = "" if self.grant is None else self.grant.claim
            self._renewal = Renewal(self.key, self.token, claim, self.timing.ttl_ns)
        return self._renewal

    @property
    def abandoned(self) -> bool:
        """Whether its lease was dropped without being released, so that it is left to expire.

        A weak reference tells, and not `__del__`: an interrupt in `__del__` would be lost, and the lease would be
        renewed forever.
        """
        return self.holder is not None and self.holder() is None

    @property
    def runs_out(self) -> bool:
        """Whether it is not renewed, so that it ends with its TTL. A degraded lease has no TTL in any store."""
        return self.abandoned or (self.grant is not None and not self.timing.auto_renew)

    @property
    def degraded(self) -> bool:
        """Whether the store does not know this lease."""
        return self.grant is None

    def current(self) -> LeaseState:
        """The state at this moment."""
        if self._process is not _process:
            self.forked()
        state = self.recorded
        if state.phase not in table.LIVE:
            return state
        now = self._clock.now()
        if self._judge(state, now) is state:
            self.judged = now
            return state
        return self._change(lambda latest: self._judge(latest, self._clock.now()))

    def remaining_ns(self) -> int:
        """The time left, conservatively. A degraded lease has no expiry in any store; it shows its whole TTL."""
        state = self.current()
        if self.grant is None:
            return self.timing.ttl_ns if state.live else 0
        return table.remaining_ns(state, self.timing, self._clock.now())

    def loss_in_ns(self, now: Instant) -> int | None:
        """How long until time alone ends it, or None when time alone never does."""
        if self.grant is None and self.timing.max_hold_ns is None and self.timing.stall_after_ns is None:
            return None
        return table.loss_in_ns(self._aged(self.recorded, now), self.timing, now, self._tail.value_ns)

    def warn_in_ns(self, now: Instant) -> int | None:
        """How long until its holder should be warned, or None if no warning is due any more."""
        if self.warned or self.grant is None:
            return None
        return table.warn_in_ns(self.recorded, self.timing, now, self._tail.value_ns)

    def renew_timeout_ns(self, now: Instant) -> int:
        """How long the next renewal may take."""
        return table.renew_timeout_ns(self.recorded, self.timing, now, self._tail.value_ns)

    def renewal_in_ns(self, now: Instant, draw: int) -> int:
        """How long until the next renewal (or, while degraded, the next attempt at promotion)."""
        if self.grant is None:
            return self.timing.renew_every_ns // 4 + self.timing.renew_every_ns // 4 * draw // 65536
        return table.renewal_in_ns(self.recorded, self.timing, now, draw)

    def answered(self, answer: bool | None, sent: Instant, now: Instant) -> None:
        """Apply the answer to a renewal: renewed, refused, or none."""
        if answer:
            with self._mutex:  # the usual case, thousands of times a second: still held, and in time
                in_time = table.renewed_in_time(self.recorded, self.timing, sent, now, self._tail.value_ns)
                if in_time is not None and self.grant is not None:
                    self._write(in_time)
                    self.warned = False
                    return
            if self._change(lambda state: table.renewed(self._judge(state, now), sent)).live:
                self.warned = False
        elif answer is False:
            self.end(Event.REFUSED)
        else:
            state = self._change(lambda state: table.unknown(self._judge(state, now), self.timing, now))
            if state.live and self.on_unconfirmed is not None:
                self.on_unconfirmed(self)

    def promote(self, grant: Grant, sent: Instant) -> bool:
        """The store granted a degraded lease. False when it had ended meanwhile."""
        with self._mutex:
            if not self.recorded.live:
                return False
            self.grant = grant
            self._renewal = None
            self._write(self.recorded._replace(confirmed=sent, phase=LeasePhase.HELD, failures=0, failed_period=0))
            return True

    def progress(self) -> None:
        """The work reports progress."""
        now = self._clock.now()
        self._change(lambda state: table.progressed(self._judge(state, now), now))

    def end(self, event: Event) -> LeaseState:
        """End it, for a reason that is not time."""
        return self._change(lambda state: table.ended(state, event))

    def released(self) -> bool:
        """Its holder releases it. False when it had ended already."""
        with self._mutex:
            state = self.recorded
            if state.phase not in table.LIVE or not self._ended(table.released(state)):
                return False
        self.notify()
        return True

    def subscribe(self, on_end: OnEnd) -> None:
        """Call `on_end` when the lease ends; immediately if it has ended."""
        if self._process is not _process:
            self.forked()
        with self._mutex:
            if self.recorded.live:
                self._subscribers.append(on_end)
                return
        on_end(self)

    def unsubscribe(self, on_end: OnEnd) -> None:
        """No longer call `on_end`."""
        with contextlib.suppress(ValueError):  # it was called already
            self._subscribers.remove(on_end)

    def forked(self) -> None:
        """This is a child process, and the lease is the parent's.

        A thread that does not exist here may have held the mutex at the fork, so it is replaced. Subscribers are not
        notified; readers see the state.
        """
        self._mutex = Mutex()
        self._process = _process
        self._subscribers, self.on_last = [], None
        self._ended(table.ended(self.recorded, Event.FORKED))

    def _judge(self, state: LeaseState, now: Instant) -> LeaseState:
        aged = state if self.grant is not None else self._aged(state, now)
        return table.judge(aged, self.timing, now, self._tail.value_ns)

    def _aged(self, state: LeaseState, now: Instant) -> LeaseState:
        """The state of a degraded lease, which has no expiry in any store: its last confirmation is now."""
        return state if self.grant is not None else state._replace(confirmed=now)

    def _change(self, decide: Callable[[LeaseState], LeaseState]) -> LeaseState:
        with self._mutex:
            before = self.recorded
            after = decide(before)
            if after.live or not before.live:
                return self._write(after)
            if not self._ended(after):
                return self.recorded
        reach("runtime.lost")
        self.notify()
        return after

    def _write(self, after: LeaseState) -> LeaseState:
        """Store a change of a held lease, unless a signal handler ends it meanwhile."""
        self.recorded = after
        if self._ends:
            self.recorded = self._ends[0]
        return self.recorded

    def _ended(self, after: LeaseState) -> bool:
        """Store the end. False when a signal handler was first."""
        self._ends.append(after)
        self.recorded = self._ends[0]
        return self.recorded is after

    def notify(self) -> None:
        """Notify the subscribers of the end, outside the mutex, each once.

        After an interrupt in the middle, the record stays with the timer thread, which calls this again.
        """
        while self._subscribers:
            try:
                on_end = self._subscribers.pop(0)
            except IndexError:  # another thread notifies the rest
                break
            on_end(self)
        if self.on_last is not None:
            self.on_last(self)


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - it is the process's own
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
