"""How many lines of one kind a log takes: the first ones, then fewer and fewer while they continue coming. Pure.

A kind has a window. Within it so many lines are written and the rest is counted; the first line of the next window is
told how many were left out. A window that had to leave lines out is followed by one twice as long, up to a limit, so an
outage of an hour costs a few dozen lines and not thousands. When a whole window has been quiet all is as at the start.
A traceback is written once in a window.

Clock: the caller's, in nanoseconds. It may be the wall clock: one that goes back begins a new window, and that is all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.types import NS

LINES_MAX: Final = 5
WINDOW_NS: Final = 10 * NS
LONGEST_NS: Final = 300 * NS


class RateEntry(NamedTuple):
    """The outcome of one line."""

    written: bool
    left_out: int = 0  # of the same kind, before this one
    traced: bool = False  # with its traceback


class LogRate:
    """How many lines of one kind were written recently. Races cost a line more or less, and nothing else."""

    __slots__ = ("_began_ns", "_left_out", "_length_ns", "_lines", "_longest_ns", "_traced", "_window_ns", "_written")

    def __init__(self, lines: int = LINES_MAX, window_ns: int = WINDOW_NS, longest_ns: int = LONGEST_NS) -> None:
        self._lines = lines
        self._window_ns = window_ns
        self._longest_ns = longest_ns
        self._began_ns: int | None = None
        self._length_ns = window_ns
        self._written = 0
        self._left_out = 0
        self._traced = False

    @property
    def left_out(self) -> int:
        """How many were left out and not reported yet."""
        return self._left_out

    def enter(self, now_ns: int, *, traced: bool = False) -> RateEntry:
        """Whether to write one more, with a traceback if it is `traced`, and how many were left out before it."""
        left_out = 0
        if self._began_ns is None or not 0 <= now_ns - self._began_ns < self._length_ns:
            left_out = self._begin(now_ns)
        if self._written >= self._lines:
            self._left_out += 1
            return RateEntry(written=False)
        self._written += 1
        traced, self._traced = traced and not self._traced, self._traced or traced
        return RateEntry(True, left_out, traced)

    def _begin(self, now_ns: int) -> int:
        """A new window. How many lines the last one left out."""
        left_out, self._left_out = self._left_out, 0
        if self._began_ns is not None and now_ns - self._began_ns >= 2 * self._length_ns:
            self._length_ns = self._window_ns
        elif left_out:
            self._length_ns = min(2 * self._length_ns, self._longest_ns)
        self._began_ns, self._written, self._traced = now_ns, 0, False
        return left_out
