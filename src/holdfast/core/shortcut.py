"""Whether it is worth trying to hand a new job to the workers of a pool at once. Pure: no clock.

The short way costs more than standing in line if it turns out that there is no place. So after a try in vain it is left
alone for a while, and for twice as long each time, until one succeeds: under a load that fills the pool, hardly
anything is tried. Times are nanoseconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.types import MS, NS

FIRST_NS: Final = 20 * MS
LONGEST_NS: Final = NS
POOLS_MAX: Final = 10_000
"""So many are remembered; pools come and go, and names are chosen by people."""


class _Vain(NamedTuple):
    pause_ns: int
    until_ns: int


class Shortcut:
    """What one process has found."""

    def __init__(self) -> None:
        self._vain: dict[str, _Vain] = {}

    def open(self, pool: str, now_ns: int) -> bool:
        """Whether to try."""
        vain = self._vain.get(pool)
        return vain is None or now_ns >= vain.until_ns

    def worked(self, pool: str) -> None:
        """A job of this pool went the short way."""
        self._vain.pop(pool, None)

    def in_vain(self, pool: str, now_ns: int) -> None:
        """One did not. Several that were on their way together are one finding."""
        vain = self._vain.pop(pool, None)
        if vain is not None and now_ns < vain.until_ns:
            self._vain[pool] = vain
            return
        pause_ns = FIRST_NS if vain is None else min(2 * vain.pause_ns, LONGEST_NS)
        if len(self._vain) >= POOLS_MAX:
            self._vain.pop(next(iter(self._vain)))  # the one that was noted first
        self._vain[pool] = _Vain(pause_ns, now_ns + pause_ns)
