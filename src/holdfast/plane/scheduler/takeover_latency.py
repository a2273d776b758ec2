"""How long it took until a job was had again whose scheduler had died with its lock, as one scheduler can know it.

The message of such a job comes again while the lock is still there, and is given back as busy; the store says how long
the lock still lasts. When the same message is handled at last, and the lock had run out by then, nobody had given it
back: whoever had it fell silent when it last renewed the lock, which is its time to live before it ran out. The time
from then until the message was handled is what is measured.

Promises: a holder that gives its lock back, however late, leaves nothing here; nor does one that renews it, for what
counts is what the store said last. Does not promise to see every takeover: not where the store frees the lock of a
process that is gone at once (SQLite, on one host); not of a message that comes so late that its first wait outlasts the
lock, which cannot be while `scheduler.job_ttl` is above 12 s and `scheduler.ack_wait` at most half of it. Memory is
bounded: of very many the oldest are forgotten.

Clock: the monotonic one of this process; what the store says is a length of time.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.histogram import Distribution, Histogram
from holdfast.core.ports import Clock
from holdfast.errors import LockBusy
from holdfast.types import MS, NS

SEEN_MAX: Final = 10_000
SLACK_NS: Final = 500 * MS
"""By how much the end of a lock may be misjudged: the answer of the store was on its way, and the loop busy."""


class TakeoverTimes:
    """What one scheduler has measured."""

    def __init__(self, clock: Clock, ttl: float) -> None:
        """`ttl`: of the locks, in seconds."""
        self._clock = clock
        self._ttl_ns = round(ttl * NS)
        self._ends: dict[str, int] = {}  # by message: when the lock that is in its way runs out
        self._times = Distribution()

    def busy(self, message: str, found: LockBusy) -> None:
        """The lock that a message needs is held. One whose time is not known says nothing."""
        self._ends.pop(message, None)
        if found.remaining is None:
            return
        self._ends[message] = self._clock.now().mono + round(found.remaining * NS)
        while len(self._ends) > SEEN_MAX:
            del self._ends[next(iter(self._ends))]

    def unknown(self, message: str) -> None:
        """A message was given back for another reason: how long that takes is nobody's takeover."""
        self._ends.pop(message, None)

    def handled(self, message: str) -> None:
        """A message was handled. If the lock that was in its way has run out, that was a takeover."""
        end_ns, now_ns = self._ends.pop(message, None), self._clock.now().mono
        if end_ns is not None and now_ns >= end_ns - SLACK_NS:
            self._times.observe(now_ns - (end_ns - self._ttl_ns))

    def read(self) -> Histogram:
        """What was measured so far."""
        return self._times.read()
