"""Named moments between a check and what depends on it, where a drill can stop or kill the process.

Random pauses hardly ever hit the few microseconds that matter, so faults are placed by name. Nothing is armed unless a
test or a drill does so; then `reach` costs one dictionary look-up, and nothing otherwise.

    admitted     the lease was held, and the step has not been sent to the storage yet
    entered      a section has registered its fence, and has handed nothing to the caller yet
    reserved     inside a transaction: the fence is noted, the row is not written yet
    written      inside a transaction: everything is written, nothing is committed
    generation   files: the new content is safe on disk under another name, and has not replaced the old one yet
    replaced     files: it has, and the folder has not been made durable yet
    noted        a fence record has been raised, and the work behind it has not begun
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS = ("admitted", "entered", "reserved", "written", "generation", "replaced", "noted")

_armed: dict[str, Callable[[], object]] = {}


def reach(point: str) -> None:
    """Say that the process is at this point. Does nothing unless somebody has armed it."""
    if _armed:
        act = _armed.get(point)
        if act is not None:
            act()


@contextmanager
def armed(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Have `act` called, in whatever thread arrives, each time that the point is reached inside the block."""
    if point not in POINTS:
        raise ValueError(f"{point!r} is not a failpoint; there is {', '.join(POINTS)}")
    before = _armed.get(point)
    _armed[point] = act
    try:
        yield
    finally:
        if before is None:
            del _armed[point]
        else:
            _armed[point] = before
