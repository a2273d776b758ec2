"""Outages of the lease store in a window of metrics, and the rest of the window. Pure.

During an outage, renewals take as long as their time limits, and leases are lost for no fault of their TTL. A TTL that
is computed from such a window would take the outage for normal, so `tune` leaves it out and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

SPANS_MAX: Final = 12
"""Each span costs a round of queries. With more outages, those with the shortest gaps count as one."""


class WindowSpan(NamedTuple):
    """A part of a window, in seconds of Unix time."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def outages_of(points: Iterable[tuple[float, float]], step: float) -> list[WindowSpan]:
    """The outages among points, one every `step`: each is 1 if the store was down in the step that ends there.

    An outage has one more step after its end: requests that began during it end then.
    """
    found: list[WindowSpan] = []
    for at, down in sorted(points):
        if not down:
            continue
        span = WindowSpan(at - step, at + step)
        if found and span.start <= found[-1].end:
            found[-1] = WindowSpan(found[-1].start, span.end)
        else:
            found.append(span)
    while len(found) >= SPANS_MAX:
        gaps = [later.start - earlier.end for earlier, later in pairwise(found)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [WindowSpan(found[at].start, found[at + 1].end)]
    return found


def clean_spans(window: WindowSpan, outages: Sequence[WindowSpan], least: float) -> list[WindowSpan]:
    """The parts of a window without an outage that are at least so many seconds long."""
    found, begun = [], window.start
    for outage in outages:
        found.append(WindowSpan(begun, min(outage.start, window.end)))
        begun = max(begun, outage.end)
    found.append(WindowSpan(begun, window.end))
    return [each for each in found if each.seconds >= least]


def told(outages: Sequence[WindowSpan], window: WindowSpan) -> str:
    """A sentence about the outages that were left out."""
    inside = [WindowSpan(max(each.start, window.start), min(each.end, window.end)) for each in outages]
    seconds = sum(each.seconds for each in inside)
    shown = ", ".join(f"{_time(each.start)} to {_time(each.end)}" for each in inside[:3])
    more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
    word = "an outage" if len(inside) == 1 else f"{len(inside)} outages"
    return f"left out {word} of the lease store, {seconds:,.0f} s in all (UTC): {shown}{more}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %b %H:%M:%S}"
