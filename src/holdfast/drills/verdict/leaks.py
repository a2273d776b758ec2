"""Judges whether resource usage stays flat, from samples of memory, objects, threads, tasks and files.

Pure. The beginning is ignored, because caches fill then. The rest is compared in two ways, both robust against peaks
and quiet moments: the median of the last third against that of the first, and the slope of a line through the medians
of twelve intervals, which also finds small but steady growth. Falling usage counts as flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import linear_regression, median
from typing import Final, NamedTuple

from holdfast.drills.model import DrillClaim, Plot, PlotLine, ReportFigure, thinned
from holdfast.drills.verdict.resource_usage import MIB, Usage
from holdfast.types import NS

WARM_UP: Final = 0.2  # of the samples
ENOUGH: Final = 36  # samples after that; with fewer there is no judgement
STRETCHES: Final = 12


class Limit(NamedTuple):
    """The growth that still counts as flat: an amount or a share, whichever is more."""

    field: str
    name: str
    unit: int  # the divisor for text
    least: int
    share: float

    def told(self, amount: float) -> str:
        """An amount as text."""
        return f"{amount / self.unit:,.1f} MiB" if self.unit == MIB else f"{amount:,.0f}"


# Resident memory varies by a few MiB when pages of a store's cache, or of holes in the heap, are touched for the first
# time. Allocated heap varies by some ten KiB, and by what each thread keeps for its next request; so it shows a leak
# outside of the interpreter. Objects hardly vary, and show a leak of one small object per operation within minutes. The
# others are exact counts, and vary only with the operations in progress.
LIMITS: Final = (
    Limit("resident", "resident memory", MIB, 8 * MIB, 0.10),
    Limit("heap", "heap in use", MIB, MIB, 0.10),
    Limit("objects", "objects", 1, 4_000, 0.03),
    Limit("threads", "threads", 1, 2, 0.0),
    Limit("tasks", "tasks", 1, 4, 0.0),
    Limit("files", "open files", 1, 4, 0.0),
    Limit("connections", "connections", 1, 3, 0.0),
)


class Trend(NamedTuple):
    """The development of one quantity."""

    first: float  # median of the first third
    last: float  # of the last
    rise: float  # of the line, from the beginning of the first third to the end of the last
    hourly: float
    most: float


def trend_of(samples: Sequence[Usage], field: str) -> Trend | None:
    """The development of a quantity after the warm-up; None: there are too few samples."""
    warm = samples[int(len(samples) * WARM_UP) :]
    if len(warm) < ENOUGH:
        return None
    values = [float(getattr(each, field)) for each in warm]
    times = [each.at_ns / NS for each in warm]
    third = len(values) // 3
    bounds = [round(place * len(values) / STRETCHES) for place in range(STRETCHES + 1)]
    parts = [slice(low, high) for low, high in pairwise(bounds)]
    slope, _ = linear_regression([median(times[each]) for each in parts], [median(values[each]) for each in parts])
    length = times[-1] - times[0]
    return Trend(median(values[:third]), median(values[-third:]), slope * length, slope * 3600.0, max(values))


def _courses(samples: Sequence[Usage]) -> Iterator[tuple[Limit, Trend]]:
    """All quantities with data. 0 bytes of memory mean that the system does not report it."""
    for limit in LIMITS:
        found = trend_of(samples, limit.field)
        if found is not None and (limit.unit != MIB or found.most > 0):
            yield limit, found


def judge_flat(samples: Sequence[Usage]) -> Iterator[DrillClaim]:
    """Whether all quantities stayed flat. Nothing is claimed about quantities with too few samples."""
    for limit, found in _courses(samples):
        allowed = max(float(limit.least), limit.share * found.first)
        # Two medians of thirds see two thirds of a steady rise, and the line sees all of it.
        kept = found.last - found.first <= allowed and found.rise <= 1.5 * allowed
        seen = f"{limit.told(found.first)} at first, {limit.told(found.last)} at last"
        trend = f"a line through it rises by {limit.told(found.rise)}; {limit.told(allowed)} more is flat"
        yield DrillClaim(f"{limit.name}: flat", kept, f"{seen}; {trend}")


def flat_figures(samples: Sequence[Usage]) -> Iterator[ReportFigure]:
    """The same in numbers."""
    for limit, found in _courses(samples):
        value = f"{limit.told(found.first)} → {limit.told(found.last)}"
        yield ReportFigure(limit.name, value, f"most {limit.told(found.most)}, {limit.told(found.hourly)} an hour")


def flat_plots(samples: Sequence[Usage]) -> Iterator[Plot]:
    """The curves: memory, objects, and all counts."""
    if not samples:
        return
    began_ns = samples[0].at_ns

    def line(limit: Limit) -> PlotLine:
        points = [((each.at_ns - began_ns) / NS, getattr(each, limit.field) / limit.unit) for each in samples]
        return PlotLine(limit.name, thinned(points))

    resident, heap, objects, *counted = LIMITS
    yield Plot("Memory", "seconds", "MiB", [line(resident), line(heap)])
    yield Plot("Objects", "seconds", "objects", [line(objects)])
    yield Plot("Threads, tasks, open files and connections", "seconds", "number", [line(each) for each in counted])
