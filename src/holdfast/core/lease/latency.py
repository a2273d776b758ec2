"""The tail of renewal latency, as the safety margin needs it: p99.9 over the recent past, in constant space.

Of the last 256 to 511 samples p99.9 is their maximum, so two running maxima, one of them ageing, are enough.
"""

from __future__ import annotations

WINDOW = 256


class Tail:
    """The slowest renewal of the recent past. One thread writes (the renewer); any thread may read."""

    __slots__ = ("_count", "_current_ns", "_previous_ns", "value_ns")

    def __init__(self) -> None:
        self._count = 0
        self._current_ns = 0
        self._previous_ns = 0
        self.value_ns = 0

    def observe(self, latency_ns: int) -> None:
        """One more sample."""
        self._count += 1
        if self._count > WINDOW:
            self._count, self._previous_ns, self._current_ns = 1, self._current_ns, 0
        self._current_ns = max(self._current_ns, latency_ns)
        self.value_ns = max(self._current_ns, self._previous_ns)
