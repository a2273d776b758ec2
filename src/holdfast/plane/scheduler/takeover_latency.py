"""Takeover latency: how long a job waits after its scheduler died with its lock, as measured by one scheduler.

The message of such a job is delivered again while the lock is still held, and nacked as busy; the store knows how long
the lock lasts. If the lock has expired when the message is handled, its holder did not release it: the holder died
after its last renewal, one TTL before the lock expired. The latency is the time from then until the message is handled.

Promises: a lock that is released or renewed counts nothing: the last answer of the store decides. Does not promise to
see every takeover: not where the store frees the lock of a dead process immediately (SQLite, on one host); not of a
message whose first delay outlasts the lock, which needs `scheduler.job_ttl` below 12 s or a `scheduler.ack_wait` above
half of it. Memory is bounded: the oldest entries are forgotten.

Clock: the monotonic one of this process; the store returns a duration.
"""

from __future__ import annotations

from typing import Final

from holdfast.core.histogram import Distribution, Histogram
from holdfast.core.ports import Clock
from holdfast.errors import LockBusy
from holdfast.types import MS, NS

SEEN_MAX: Final = 10_000
SLACK_NS: Final = 500 * MS
"""The error of the expiry of a lock: the answer took a moment, and the loop was busy."""


class TakeoverLatency:
    """The takeovers of one scheduler."""

    def __init__(self, clock: Clock, ttl: float) -> None:
        """`ttl`: of the locks, in seconds."""
        self._clock = clock
        self._ttl_ns = round(ttl * NS)
        self._ends: dict[str, int] = {}  # by message: when the lock expires that it waits for
        self._times = Distribution()

    def busy(self, message: str, found: LockBusy) -> None:
        """The lock that a message needs is held. Ignored if its time is not known."""
        self._ends.pop(message, None)
        if found.remaining is None:
            return
        self._ends[message] = self._clock.now().mono + round(found.remaining * NS)
        while len(self._ends) > SEEN_MAX:
            del self._ends[next(iter(self._ends))]

    def unknown(self, message: str) -> None:
        """A message was nacked for another reason, which is no takeover."""
        self._ends.pop(message, None)

    def handled(self, message: str) -> None:
        """A message was handled. If the lock that it waited for has expired, that was a takeover."""
        end_ns, now_ns = self._ends.pop(message, None), self._clock.now().mono
        if end_ns is not None and now_ns >= end_ns - SLACK_NS:
            self._times.observe(now_ns - (end_ns - self._ttl_ns))

    def read(self) -> Histogram:
        """The latencies so far."""
        return self._times.read()
