"""Whether the work of a pool is over at once, of late: then its workers may be sent more than they can run. Pure.

Between the end of one attempt and the begin of the next there is the way to the scheduler and back. Where attempts take
minutes nobody notices; where they take a millisecond the workers wait for most of the time. A few attempts that are on
their way already hide it. They are the price as well: what was sent is not in line any more, so a newcomer of a higher
priority, or of another tenant, comes after it. So nothing is sent ahead of time unless all that was heard of a pool
lately was over at once, and the first attempt that is not ends it.
"""

from __future__ import annotations

from typing import Final

from holdfast.types import MS

BRIEF_NS: Final = 10 * MS
"""An attempt that took less was over at once."""

IN_A_ROW: Final = 32
AHEAD: Final = 6
"""For each place of a pool: whoever comes after them waits for six brief attempts, which is 60 ms, and no longer.

With fewer the scheduler decides about a few at a time, and each request to a store is for a few.
"""


class Pace:
    """What one scheduler has heard."""

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}  # how many brief attempts in a row each pool still lacks

    def heard(self, pool: str, took_ns: int | None) -> None:
        """An attempt has ended, after so long; None: nobody knows."""
        brief = took_ns is not None and 0 <= took_ns < BRIEF_NS
        self._missing[pool] = max(0, self._missing.get(pool, IN_A_ROW) - 1) if brief else IN_A_ROW

    def ahead(self, pool: str, places: int) -> int:
        """How many attempts may be on their way to a pool beyond those that it has places for."""
        return AHEAD * places if self._missing.get(pool, IN_A_ROW) == 0 else 0
