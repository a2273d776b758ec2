"""Named moments in the code where a test or a drill can stop, kill, hold up or fail it.

Chance hardly ever hits the few microseconds that matter, so faults are placed by name. Two verbs mark the moments:

    reach("store.sqlite.written")                     in ordinary code
    if ARMED: await areach("flow.acquire.granted")    in asynchronous code, where a fault may wait as well

Promises: while nothing is armed, a point costs one look at an empty dictionary, and nothing is remembered. Whatever the
fault raises comes out of the point, as if the line there had raised it. An act is called in whatever thread or task
arrives, and arming is for the whole process.

Does not promise anything to code that arms points in production: nobody but a test or a drill should. What a fault
can be is in `holdfast.testing.faults`; the points are in `failpoint_table`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from holdfast.core.failpoint_table import POINTS, Point
from holdfast.errors import BadInput

Act: TypeAlias = Callable[[], object]
"""What happens at a point. In asynchronous code what it returns is awaited, if it can be; an act that has a method
`awaited` is asked for that instead, and is then called only by points in ordinary code."""

ARMED: Final[dict[str, _Arm]] = {}
"""What is armed, by point. Empty is false, and that is all that a point costs; the rest of the package only looks."""

_RECORDS: Final[list[list[str]]] = []
_RECORDING: Final = "*"  # stands in ARMED while points are recorded, so that they look


class _Arm:
    """One act at one point."""

    __slots__ = ("_act", "_count", "_hit")

    def __init__(self, act: Act, hit: int | None) -> None:
        self._act = act
        self._hit = hit
        self._count = itertools.count(1)  # `next` is one step, so that threads that arrive together count apart

    def due(self) -> Act | None:
        return self._act if self._hit is None or next(self._count) == self._hit else None


def reach(point: str) -> None:
    """Say that the process is at this point. Does nothing unless something is armed."""
    if ARMED and (act := _due(point)) is not None:
        outcome = act()
        if isinstance(outcome, Coroutine):
            outcome.close()
            raise BadInput(
                "act", f"waits, and {point} is in ordinary code", "arm an act that does not return a coroutine"
            )


async def areach(point: str) -> None:
    """Say that the task is at this point; the caller looks at `ARMED` first, and so spares a coroutine each time."""
    if (act := _due(point)) is not None:
        outcome: Any = getattr(act, "awaited", act)()
        if isinstance(outcome, Awaitable):
            await outcome


def _due(point: str) -> Act | None:
    if point not in POINTS:
        raise _unknown(point)
    for record in _RECORDS:
        record.append(point)
    arm = ARMED.get(point)
    return None if arm is None else arm.due()


@contextmanager
def armed(point: str, act: Act, *, hit: int | None = None) -> Iterator[None]:
    """Have `act` called when the point is reached inside the block: each time, or only the `hit`-th time, from 1.

    Inside another block for the same point, this one counts and the other does not.
    """
    if point not in POINTS:
        raise _unknown(point)
    if hit is not None and hit < 1:
        raise BadInput("hit", f"{hit} is no time that a point can be reached", "give 1 for the first time")
    before = ARMED.get(point)
    ARMED[point] = _Arm(act, hit)
    try:
        yield
    finally:
        if before is None:
            del ARMED[point]
        else:
            ARMED[point] = before


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Write down which points are reached inside the block, in their order and as often as they are."""
    record: list[str] = []
    _RECORDS.append(record)
    ARMED[_RECORDING] = _NOTHING
    try:
        yield record
    finally:
        del _RECORDS[next(at for at, each in enumerate(_RECORDS) if each is record)]  # lists that are equal are not one
        if not _RECORDS:
            del ARMED[_RECORDING]


def points(room: str) -> Iterable[Point]:
    """The points of one part of the package: flow, runtime, store, guard or plane."""
    return [point for point in POINTS.values() if point.room == room]


def _unknown(point: str) -> BadInput:
    return BadInput("point", f"{point!r} is not a failpoint", f"use one of {', '.join(POINTS)}")


_NOTHING: Final = _Arm(lambda: None, None)
