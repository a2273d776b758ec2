"""How bunched lock-busy retries are over all processes of a fleet: a wave of which each process sees one retry.

Time is divided into intervals of 50 ms of the wall clock. Each second puts its 20 intervals into 20 groups, in an order
that all processes compute from the number of the second. A process counts its retries by group. Counts of several
processes add up, and a group has as many intervals as any other. So the variance over the groups shows what the
variance over the intervals would show, whatever the delay between retries is: the *Fano factor* is about 1 for retries
at random, and about the number of contenders for retries in waves.

Promises: a rate that changes slowly is no wave. Too few retries give no figure.
Does not promise: waves of processes whose clocks differ by 50 ms or more. They show at each process only.
The clock is the caller's wall clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from statistics import fmean, pvariance
from typing import Final

from holdfast.core.tuning.burstiness import BUCKET_NS
from holdfast.types import NS

GROUPS: Final = NS // BUCKET_NS
LEAST: Final = 5
"""Retries for each group, on average. With fewer, chance alone makes groups differ."""


class GroupCounts:
    """Retries of one process by group. Writers may race: a lost count does not matter here."""

    __slots__ = ("_counts", "_order")

    def __init__(self) -> None:
        self._counts = [0] * GROUPS
        self._order = -1, order_of(-1)

    def note(self, wall_ns: int) -> None:
        """One retry, now."""
        second, rest = divmod(wall_ns, NS)
        known, order = self._order
        if known != second:
            order = order_of(second)
            self._order = second, order
        self._counts[order[rest // BUCKET_NS]] += 1

    def read(self) -> dict[str, int]:
        """What was counted since the start, by the name of the group."""
        return {f"{group:02}": count for group, count in enumerate(self._counts)}


def order_of(second: int) -> tuple[int, ...]:
    """The groups of the intervals of one second: the same in every process, and unlike that of other seconds."""
    drawn = sha256(str(second).encode()).digest()
    return tuple(sorted(range(GROUPS), key=lambda group: drawn[group]))


def fleet_fano(counts: Sequence[float], seconds: float) -> float | None:
    """The Fano factor of retries by group, summed over processes and counted for so long. None: too few for one.

    A window that begins and ends within a second has an interval more of some groups than of others. That alone makes a
    variance of up to half of the square of `mean / seconds`. It is deducted.
    """
    if len(counts) != GROUPS or seconds <= 0 or sum(counts) < LEAST * GROUPS:
        return None
    mean = fmean(counts)
    return max(0.0, pvariance(counts, mean) / mean - 0.5 * mean / max(1.0, seconds) ** 2)
