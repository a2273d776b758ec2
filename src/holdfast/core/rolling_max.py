"""The longest of something that keeps happening, since any moment: exact, and in a bounded number of entries.

An entry that is shorter than a later one can never be the answer, so it is forgotten; what is left falls in length.
Noted by one thread at a time; read by any.
"""

from __future__ import annotations

from collections import deque

ENTRIES_MAX = 64


class RollingMax:
    """How long things took, each noted when it was over."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque(maxlen=ENTRIES_MAX)

    def note(self, over_ns: int, took_ns: int) -> None:
        """Something was over at that moment, and had taken so long."""
        entries = self._entries
        while entries and entries[-1][1] <= took_ns:
            entries.pop()
        entries.append((over_ns, took_ns))

    def since(self, moment_ns: int) -> int:
        """The longest that was over after the moment; zero if there was none."""
        return next((took for over, took in tuple(self._entries) if over > moment_ns), 0)
