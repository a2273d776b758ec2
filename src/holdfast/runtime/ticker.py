"""A supervised thread that hands over what is due, when it is due, and sleeps in between.

Made for leases that mostly end long before anything is due: entering and withdrawing cost a dictionary operation, and
the thread is only woken when something is due earlier than it meant to wake up. An idle thread ends; the next entry
starts a new one. If handling raises, the thread survives and the same items come due again shortly.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.core.longest import Longest
from holdfast.core.schedule import Calendar
from holdfast.flows.saying import say
from holdfast.ports import Clock
from holdfast.runtime.driving import run_now
from holdfast.types import MS, NS

_log = logging.getLogger("holdfast")

T = TypeVar("T")
Act: TypeAlias = Callable[[list[T]], Coroutine[Any, Any, None]]

BATCH_MAX = 5_000
IDLE_NS = 5 * NS
AGAIN_NS = 100 * MS


class Ticker(Generic[T]):
    """Items by due time on the monotonic clock, and the thread that acts on them."""

    def __init__(self, name: str, clock: Clock, act: Act[T]) -> None:
        self._name = name
        self._clock = clock
        self._act = act
        self._calendar: Calendar[T] = Calendar()
        self._mutex = threading.Lock()  # used as it is: entering a Condition costs twice as much
        self._wake = threading.Condition(self._mutex)
        self._thread: threading.Thread | None = None
        self._asleep_until_ns = 0
        self._idle_since_ns: int | None = None
        self._acting_since_ns: int | None = None
        # How far ahead of their due time items are entered, at the least. A thread with nothing to do naps this long:
        # whatever is entered meanwhile cannot come due sooner, so nobody needs to wake it for each short lease.
        self._lead_ns = IDLE_NS
        self._stopping = False
        self._late = Longest()
        self._free_ns = 0  # since when the thread has nothing to do but to wait for what is due
        self.crashes = 0

    def __len__(self) -> int:
        return len(self._calendar)

    def put(self, item: T, due_ns: int) -> None:
        """Enter an item, or move it."""
        with self._mutex:
            if self._stopping:
                return
            self._calendar.put(item, due_ns)
            if self._thread is None:
                self._start()
            elif due_ns < self._asleep_until_ns:
                self._lead_ns = min(self._lead_ns, max(MS, due_ns - self._clock.now().mono))
                self._wake.notify()

    def put_all(self, items: Sequence[T], due_ns: int) -> None:
        """Enter many items that have just come out, due together. Some may have been withdrawn for good meanwhile."""
        with self._mutex:
            if self._stopping:
                return
            self._calendar.put_all(items, due_ns)
            if self._thread is None:
                self._start()
            elif due_ns < self._asleep_until_ns:
                self._wake.notify()

    def drop(self, item: T) -> None:
        """Withdraw an item."""
        with self._mutex:
            self._calendar.drop(item)

    def items(self) -> list[T]:
        """Everything that is entered."""
        with self._mutex:
            return list(self._calendar)

    def lag_ns(self) -> int:
        """How far the thread is behind: zero when it keeps up. The health of the keeper is this number.

        What it has in hand counts too: a thread that never comes back from acting has nothing overdue in its calendar.
        """
        with self._mutex:
            due, acting = self._calendar.next_due_ns(), self._acting_since_ns
        now = self._clock.now().mono
        return max(now - each for each in (due, acting, now) if each is not None)

    def late_ns(self, since_ns: int) -> int:
        """By how much the thread woke too late, at most, since a moment, or is late now: it was not let run.

        A thread that sleeps needs nothing but its turn, so this is a stopped process, a starved host, or code that
        kept the interpreter to itself; and never a store that does not answer.
        """
        with self._mutex:
            due, acting = self._calendar.next_due_ns(), self._acting_since_ns
            waits = due is not None and acting is None
            late = self._clock.now().mono - max(due or 0, self._free_ns) if waits else 0
            return max(self._late.since(since_ns), late)

    def abandon(self) -> list[T]:
        """In a child process: the thread does not exist, the mutex may be stuck. Start anew; return the rest."""
        left = list(self._calendar)
        self._calendar = Calendar()
        self._mutex = threading.Lock()
        self._wake = threading.Condition(self._mutex)
        self._thread = None
        self._acting_since_ns = None
        self._asleep_until_ns = 0
        self._late = Longest()
        return left

    def stop(self, timeout_ns: int) -> None:
        """End the thread; what is entered is forgotten."""
        with self._mutex:
            self._stopping = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_ns / NS)

    def _start(self) -> None:
        self._idle_since_ns, self._lead_ns, self._asleep_until_ns = None, IDLE_NS, 0
        self._free_ns = self._clock.now().mono
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # only now: one that could not be started must not pass for one that runs

    def _run(self) -> None:
        while (items := self._next()) is not None:
            if not items:
                continue
            try:
                run_now(self._act(items))
            except BaseException as error:  # noqa: BLE001 - supervised: not even SystemExit of an observer may end it
                self.crashes += 1
                say(_log, logging.ERROR, "a thread of the lease runtime failed and goes on", error, thread=self._name)
                again = self._clock.now().mono + AGAIN_NS
                for item in items:
                    self.put(item, again)

    def _next(self) -> list[T] | None:
        """Sleep until something is due and take it out. None: stopping, or idle for long."""
        with self._mutex:
            now = self._clock.now().mono
            if self._acting_since_ns is not None:
                self._acting_since_ns, self._free_ns = None, now
            due = self._calendar.next_due_ns()
            if self._stopping or (due is None and self._idle_for_long(now)):
                self._thread = None
                return None
            if due is None:
                due = now + self._lead_ns
            else:
                self._idle_since_ns = None
            if due > now:
                self._asleep_until_ns = due
                self._wake.wait((due - now) / NS)
                self._asleep_until_ns = 0
            now = self._clock.now().mono
            if now - max(due, self._free_ns) > MS:
                self._late.note(now, now - max(due, self._free_ns))
            items = self._calendar.pop_due(now, BATCH_MAX)
            self._acting_since_ns = now if items else None
            return items

    def _idle_for_long(self, now: int) -> bool:
        if self._idle_since_ns is None:
            self._idle_since_ns = now
        return now - self._idle_since_ns >= IDLE_NS
