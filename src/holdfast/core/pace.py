"""Whether the work of a pool is over at once, of late: then its workers may be sent more than they can run. Pure.

Between the end of one attempt and the begin of the next there is the way to the scheduler and back. Where attempts take
minutes nobody notices; where they take a millisecond the workers wait for most of the time. A few attempts that are on
their way already hide it. They are the price as well: what was sent is not in line any more, so a newcomer of a higher
priority, or of another tenant, comes after it. So nothing is sent ahead of time unless all that was heard of a pool
lately was over at once. It ends with the first attempt that is not, with the first one that is sent of a topic that is
not known to be, and when nothing has been heard for a while. What was sent ahead by then is taken back (`dispatcher`).

Times are nanoseconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import Final

from holdfast.types import MS

BRIEF_NS: Final = 10 * MS
"""An attempt that took less was over at once."""

IN_A_ROW: Final = 32
AHEAD: Final = 6
"""For each place of a pool: whoever comes after them waits for six brief attempts, which is 60 ms.

With fewer the scheduler decides about a few at a time, and each request to a store is for a few.
"""

FRESH_NS: Final = 250 * MS
"""For so long what was heard says something about now. Twice a dozen brief attempts fit in."""

TOPICS_MAX: Final = 10_000
"""So many are remembered; names are chosen by people."""


class Pace:
    """What one scheduler has heard."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}  # how many brief attempts in a row each pool still lacks
        self._heard_ns: dict[str, int] = {}  # when each pool was last heard of
        self._brief: set[tuple[str, str]] = set()  # topics, by pool, whose last attempt was over at once

    def heard(self, pool: str, topic: str, took_ns: int | None, now_ns: int) -> None:
        """An attempt has ended, after so long; None: nobody knows."""
        if took_ns is None or not 0 <= took_ns < BRIEF_NS:
            self._missing[pool] = IN_A_ROW
            self._brief.discard((pool, topic))
            return
        self._missing[pool] = max(0, self._missing.get(pool, IN_A_ROW) - 1)
        self._heard_ns[pool] = now_ns
        if len(self._brief) < TOPICS_MAX:
            self._brief.add((pool, topic))

    def sent(self, pool: str, topic: str) -> None:
        """An attempt is on its way to a pool. Unless it will be over at once, those behind it would wait for it."""
        if (pool, topic) not in self._brief:
            self._missing[pool] = IN_A_ROW

    def ahead(self, pool: str, places: int, now_ns: int) -> int:
        """How many attempts may be on their way to a pool beyond those that it has places for."""
        if self._missing.get(pool, IN_A_ROW) or now_ns - self._heard_ns[pool] > FRESH_NS:
            return 0
        return AHEAD * places
