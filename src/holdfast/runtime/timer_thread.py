"""The timer thread: passes items to a handler when they are due, and sleeps in between.

Most leases end long before an item is due, so entering and withdrawing an item costs one dictionary operation, and
the thread is only woken when an item is due earlier than it meant to wake up. An idle thread ends; the next item starts
a new one. If handling raises, the thread survives and the same items come due again shortly.

Promises: callers take no lock, so a signal handler may raise at any point of any method, or call any method there:
other items still reach the handler, and no call blocks. An item whose `put` was interrupted reaches it or not. An item
whose `drop` was interrupted, or raced with the thread, may still reach it; the handler must expect that.

How: callers leave new items in `_fresh`, a dict, and the thread alone moves them to its calendar. A caller writes
`_fresh` and then reads `_asleep_until_ns` and `_serving`; the thread writes those and then reads `_fresh`. So one of
the two always sees the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast.core.ports import Clock
from holdfast.core.rolling_max import RollingMax
from holdfast.core.timer_wheel import TimerWheel
from holdfast.flows.log import log_event
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.thread_runtime import Wakeup
from holdfast.types import MS, NS

_log = logging.getLogger("holdfast")

T = TypeVar("T")
Act: TypeAlias = Callable[[list[T]], Coroutine[Any, Any, None]]

BATCH_MAX = 5_000
IDLE_NS = 5 * NS
AGAIN_NS = 100 * MS


class TimerThread(Generic[T]):
    """Items by due time on the monotonic clock, and the thread that acts on them."""

    def __init__(self, name: str, clock: Clock, act: Act[T]) -> None:
        self._name = name
        self._clock = clock
        self._act = act
        self._stopping = False
        self.crashes = 0
        self._start_over()

    def _start_over(self) -> None:
        self._timer_wheel: TimerWheel[T] = TimerWheel()
        self._fresh: dict[T, int] = {}  # due times of items that the thread has not sorted in yet
        self._moving: list[T] = []  # on its way from there to the calendar
        self._wakeup = Wakeup()
        self._claim = threading.Lock()  # held by the one thread that serves
        self._serving = False
        self._thread: threading.Thread | None = None
        self._asleep_until_ns = 0
        self._idle_since_ns: int | None = None
        self._acting_since_ns: int | None = None
        # How far ahead of their due time items are entered, at the least. A thread with nothing to do naps this long:
        # items that are entered meanwhile cannot come due sooner, so no short lease needs to wake it.
        self._lead_ns = IDLE_NS
        self._late = RollingMax()
        self._free_ns = 0  # since when the thread has nothing to do but to wait for what is due

    def __len__(self) -> int:
        return len(self.items())

    def put(self, item: T, due_ns: int) -> None:
        """Enter an item, or move it."""
        if self._stopping:
            return
        self._fresh[item] = due_ns
        if not self._serving:
            self._start()
        elif due_ns < self._asleep_until_ns:
            self._lead_ns = min(self._lead_ns, max(MS, due_ns - self._clock.now().mono))
            self._wakeup.notify()

    def put_all(self, items: Sequence[T], due_ns: int) -> None:
        """Enter many items that have just come out, due together. Called by the handler, on the timer thread."""
        if not self._stopping:
            self._timer_wheel.put_all(items, due_ns)

    def drop(self, item: T) -> None:
        """Withdraw an item."""
        self._fresh.pop(item, None)
        self._timer_wheel.drop(item)

    def items(self) -> list[T]:
        """Every item that is entered."""
        return list(dict.fromkeys([*list(self._fresh), *self._moving, *self._timer_wheel]))  # in the order of their way

    def lag_ns(self) -> int:
        """How far the thread is behind: zero when it keeps up. The health of the renewer is this number.

        Items that are being handled count too: a thread that never returns from them has nothing overdue in its queue.
        """
        due, acting = self._next_due_ns(), self._acting_since_ns
        now = self._clock.now().mono
        return max(now - each for each in (due, acting, now) if each is not None)

    def late_ns(self, since_ns: int) -> int:
        """By how much the thread woke too late, at most, since a moment, or is late now: it was not let run.

        A thread that sleeps needs nothing but its turn, so this is a stopped process, a starved host, or code that
        kept the interpreter to itself; and never a store that does not answer.
        """
        due, acting = self._next_due_ns(), self._acting_since_ns
        waits = due is not None and acting is None
        late = self._clock.now().mono - max(due or 0, self._free_ns) if waits else 0
        return max(self._late.since(since_ns), late)

    def abandon(self) -> list[T]:
        """In a child process, where the thread does not exist: start over, and return the items."""
        left = self.items()
        self._start_over()
        return left

    def stop(self, timeout_ns: int) -> None:
        """End the thread; its items are forgotten."""
        self._stopping = True
        thread = self._thread
        self._wakeup.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_ns / NS)

    def _next_due_ns(self) -> int | None:
        """When the first item is due. Any thread may ask."""
        known = [*list(self._fresh.values()), self._timer_wheel.peek_ns()]
        return min((each for each in known if each is not None), default=None)

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        # Several callers may have started a thread at the same time, or one whose start was interrupted. One serves.
        # The check comes after the claim was given up, so an item that was entered too late for the one is not too
        # late for the other.
        while self._claim.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self._serving = False
                self._claim.release()
            if self._stopping or not self._fresh:
                return

    def _serve(self) -> None:
        self._idle_since_ns, self._lead_ns, self._asleep_until_ns = None, IDLE_NS, 0
        self._free_ns = self._clock.now().mono
        self._thread = threading.current_thread()
        self._serving = True
        while (items := self._next()) is not None:
            if not items:
                continue
            try:
                run_now(self._act(items))
            except BaseException as error:  # noqa: BLE001 - supervised: not even SystemExit of an observer may end it
                self.crashes += 1
                log_event(
                    _log, logging.ERROR, "a thread of the lease runtime failed and goes on", error, thread=self._name
                )
                again = self._clock.now().mono + AGAIN_NS
                for item in items:
                    self.put(item, again)

    def _sort_in(self) -> None:
        for item in list(self._fresh):
            self._moving = [item]  # so that `items`, on another thread, misses none
            due_ns = self._fresh.pop(item, None)
            if due_ns is not None:  # else it was withdrawn just now
                self._timer_wheel.put(item, due_ns)
        self._moving = []

    def _next(self) -> list[T] | None:
        """Sleep until something is due and take it out. None: stopping, or idle for long."""
        self._sort_in()
        now = self._clock.now().mono
        if self._acting_since_ns is not None:
            self._acting_since_ns, self._free_ns = None, now
        due = self._timer_wheel.next_due_ns()
        if self._stopping or (due is None and self._idle_for_long(now)):
            return None
        if due is None:
            due = now + self._lead_ns
        else:
            self._idle_since_ns = None
        if due > now:
            self._asleep_until_ns = due
            if not self._fresh:  # an item that is entered from here on wakes us, if it must
                self._wakeup.wait((due - now) / NS)
            self._asleep_until_ns = 0
            self._sort_in()
        now = self._clock.now().mono
        if now - max(due, self._free_ns) > MS:
            self._late.note(now, now - max(due, self._free_ns))
        items = self._timer_wheel.pop_due(now, BATCH_MAX)
        self._acting_since_ns = now if items else None
        return items

    def _idle_for_long(self, now: int) -> bool:
        if self._idle_since_ns is None:
            self._idle_since_ns = now
        return now - self._idle_since_ns >= IDLE_NS
