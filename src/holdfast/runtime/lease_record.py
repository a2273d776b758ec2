"""The record of one lease, shared by its holder, the renewer and the alarm.

The decisions are `core.lease.states`; this is the one entry where their results are stored. Whoever asks gets the
state
*judged at the moment of asking*, so a holder that wakes from a long pause learns of its loss from its own first
question and not from a thread that has not run yet. A tenure ends once; those who asked to be told are told once,
outside the mutex, by whichever thread noticed. If a signal handler raises meanwhile, the alarm tells the others.
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

_process = object()  # another one in each process, so that a tenure knows at once that it came here by fork


class LeaseRecord:
    """A lease in somebody's hands. `grant` is None while it is degraded: held locally, unknown to the store."""

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
        self.entered = False  # known to the keeper, and not to the alarm alone
        self.asked = False  # while degraded: the store may have granted it without our knowing
        self.holder: weakref.ref[Any] | None = None  # the lease, once it exists
        self.entry: MutexEntry | None = None  # at the local mutex
        self.contested = False  # a fair lock, for which other processes stood in line
        self.on_last: OnEnd | None = None  # told last: from then on nobody looks after it any more
        self.on_unconfirmed: OnEnd | None = None
        self.on_warning: Callable[[], None] | None = None
        self._clock = clock
        self._tail = tail
        self._mutex = Mutex()
        self._process = _process
        self._subscribers: list[OnEnd] = [] if on_end is None else [on_end]
        self._ends: list[LeaseState] = []  # the first one is how it ended; a second one came too late
        self.judged: Instant | None = None  # when it was last asked about, and found to be held
        self.recorded = table.granted(sent)  # as it was last written down, without judging the time
        self.grant = grant
        self._renewal: Renewal | None = None

    @property
    def renewal(self) -> Renewal:
        """What to send to renew it."""
        if self._renewal is None:
            claim = "" if self.grant is None else self.grant.claim
            self._renewal = Renewal(self.key, self.token, claim, self.timing.ttl_ns)
        return self._renewal

    @property
    def abandoned(self) -> bool:
        """Whether its lease was dropped without being released, so that it is left to expire.

        Asked of a weak reference, and not noted by `__del__`: an interrupt in there would be lost, and the lease would
        be renewed forever.
        """
        return self.holder is not None and self.holder() is None

    @property
    def runs_out(self) -> bool:
        """Whether nothing renews it, so that it ends with its TTL. A degraded lease has no TTL in any store."""
        return self.abandoned or (self.grant is not None and not self.timing.auto_renew)

    @property
    def degraded(self) -> bool:
        """Whether the store knows nothing of this lease."""
        return self.grant is None

    def current(self) -> LeaseState:
        """The state as it is at this moment."""
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
        """What is left, conservatively. A degraded lease has no expiry in any store; it shows its whole TTL."""
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
        """How long until its holder should be warned, or None when there is nothing (more) to warn of."""
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
        """A renewal came back: renewed, refused, or nothing."""
        if answer:
            with self._mutex:  # the usual case, thousands of times a second: still live, and in time
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
        """The store granted what so far was held only here. False when it had ended meanwhile."""
        with self._mutex:
            if not self.recorded.live:
                return False
            self.grant = grant
            self._renewal = None
            self._write(self.recorded._replace(confirmed=sent, phase=LeasePhase.HELD, failures=0, failed_period=0))
            return True

    def progress(self) -> None:
        """The work reports that it is getting somewhere."""
        now = self._clock.now()
        self._change(lambda state: table.progressed(self._judge(state, now), now))

    def end(self, event: Event) -> LeaseState:
        """It is over, for a reason that is not time."""
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
        """Be told when it ends; at once when it already has."""
        if self._process is not _process:
            self.forked()
        with self._mutex:
            if self.recorded.live:
                self._subscribers.append(on_end)
                return
        on_end(self)

    def unsubscribe(self, on_end: OnEnd) -> None:
        """No longer be told."""
        with contextlib.suppress(ValueError):  # it has been told
            self._subscribers.remove(on_end)

    def forked(self) -> None:
        """This is a child process, and the lease is the parent's.

        The old mutex may have been held at the fork by a thread that does not exist here, so it is replaced, and
        nobody is told; questions are answered from the state.
        """
        self._mutex = Mutex()
        self._process = _process
        self._subscribers, self.on_last = [], None
        self._ended(table.ended(self.recorded, Event.FORKED))

    def _judge(self, state: LeaseState, now: Instant) -> LeaseState:
        aged = state if self.grant is not None else self._aged(state, now)
        return table.judge(aged, self.timing, now, self._tail.value_ns)

    def _aged(self, state: LeaseState, now: Instant) -> LeaseState:
        """While degraded there is no expiry in any store, so the age since the last confirmation means nothing."""
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
        """Record a change of a lease that goes on, unless a signal handler has ended it in the middle of that."""
        self.recorded = after
        if self._ends:
            self.recorded = self._ends[0]
        return self.recorded

    def _ended(self, after: LeaseState) -> bool:
        """Record the end. False when a signal handler was first."""
        self._ends.append(after)
        self.recorded = self._ends[0]
        return self.recorded is after

    def notify(self) -> None:
        """It has ended: tell everybody, outside the mutex, each once.

        An interrupt in the middle leaves the rest untold, and the tenure with the alarm, which calls this again.
        """
        while self._subscribers:
            try:
                tell = self._subscribers.pop(0)
            except IndexError:  # another thread tells the rest
                break
            tell(self)
        if self.on_last is not None:
            self.on_last(self)


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - it is the process's own
    _process = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
