"""What all guards of this process have refused, by guard and reason: the number to alert on, wherever a guard was made.

Each guard has its own `statistics()`; this is for metrics, which do not know the guards of a program. Names of guards
are bounded: beyond a hundred they share one. A guard that has refused nothing yet is there with a zero, so that its
first refusal is a rise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Final

from holdfast.core.metric_reading import Reading

GUARDS_MAX: Final = 100
OTHER: Final = "other"
REASONS: Final[Mapping[str, str]] = {
    "refused": "stale",
    "lost": "lost",
    "not_entered": "not_entered",
    "unfenced_refused": "unfenced",
}


class Refusals:
    """Counts of many guards. Safe from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._counts: dict[str, dict[str, int]] = {}

    def begin(self, guard: str) -> str:
        """Know of a guard. Returns the name under which its refusals are counted."""
        with self._mutex:
            name = guard if guard in self._counts or len(self._counts) < GUARDS_MAX else OTHER
            self._counts.setdefault(name, dict.fromkeys(REASONS.values(), 0))
        return name

    def count(self, name: str, decided: str) -> None:
        """Count a decision of a guard (a field of `GuardStatistics`), if it is a refusal."""
        reason = REASONS.get(decided)
        if reason is not None:
            with self._mutex:
                self._counts[name][reason] += 1

    def reading(self) -> Reading:
        """What was refused up to now."""
        with self._mutex:
            counts = {(name, reason): n for name, by_reason in self._counts.items() for reason, n in by_reason.items()}
        return Reading("guards", {"refused": counts})

    def forked(self) -> None:
        """In a child process: a thread that counted at that moment does not exist here, and holds nothing up."""
        self._mutex = threading.RLock()


REFUSALS: Final = Refusals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REFUSALS.forked)
