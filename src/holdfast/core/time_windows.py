"""Windows of time that begin at multiples of their length since 1970 (UTC), and the key under which one is taken.

Promises: every clock that shows a moment of a window gives the same key. The key is kept for so long that no caller can
ask for a window after its key has expired, if clocks differ by less than `skew_ns` and the caller was not paused for
longer than that between reading the clock and asking.
Clock: none. The caller reads one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from holdfast.types import NS

LONGEST_NS: Final = 6 * 86_400 * NS  # the key is kept for longer, and no TTL is longer than a week
MARGIN_NS: Final = 60 * NS
MOST_SKEW_NS: Final = 3600 * NS


def key(name: str, now_ns: int, window_ns: int) -> str:
    """The key of the window that a clock is in: the name, and when the window began."""
    start_ns = now_ns - now_ns % window_ns
    began = datetime.fromtimestamp(start_ns // NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{start_ns % NS:09d}".rstrip("0") if start_ns % NS else ""
    return f"{name}@{began}{fraction}Z"


def skew_ns(window_ns: int) -> int:
    """By how much clocks may differ, and how long a caller may be paused before it asks."""
    return min(window_ns, MOST_SKEW_NS) + MARGIN_NS


def ttl_ns(window_ns: int) -> int:
    """How long the key of a window is kept, from when it was taken."""
    return window_ns + skew_ns(window_ns)
