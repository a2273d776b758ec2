"""Made-up numbers over time, for the tests of alert rules, and how `promtool test rules` writes them down.

A *course* says what a number is so many seconds after the beginning; None: there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

Course: TypeAlias = Callable[[float], float | None]


def flat(value: float) -> Course:
    """Always the same."""
    return lambda _: value


def rising(per_s: float, since: float = 0.0, until: float = float("inf")) -> Course:
    """A count that rises evenly for a while."""
    return lambda at: per_s * max(0.0, min(at, until) - since)


def burst(size: float, at: float) -> Course:
    """A count that rises once, all at once."""
    return lambda now: size if now >= at else 0.0


def during(begin: float, end: float, value: float = 1.0, otherwise: float = 0.0) -> Course:
    """One value for a while, and another before and after."""
    return lambda at: value if begin <= at < end else otherwise


def doubling(start: float, every: float) -> Course:
    """Twice as much after each so many seconds."""
    return lambda at: start * 2 ** (at / every)


def added(*courses: Course) -> Course:
    """Several courses on top of each other."""

    def course(at: float) -> float | None:
        values = [each(at) for each in courses]
        return None if None in values else sum(value for value in values if value is not None)

    return course


def beginning(course: Course, at: float, end: float = float("inf")) -> Course:
    """The course of a process that lives from one moment to another: it counts from its own beginning."""
    return lambda now: course(now - at) if at <= now < end else None


def first_of(*courses: Course) -> Course:
    """The first that has a value: the lives of a process that is started several times."""
    return lambda at: next((value for each in courses if (value := each(at)) is not None), None)


def notation(course: Course, lasts_s: float, step_s: float) -> str:
    """A course as promtool reads it: `1+2x3` is 1 3 5 7, `_` no sample, `stale` the mark of a series that ended."""
    values = [course(number * step_s) for number in range(round(lasts_s / step_s) + 1)]
    return " ".join(_words([None if each is None else round(each, 6) for each in values]))


def _words(values: Sequence[float | None]) -> Iterator[str]:
    place = 0
    while place < len(values):
        value = values[place]
        rise = _rise(values, place)
        length = 1
        while place + length < len(values) and _rise(values, place + length - 1) == rise:
            length += 1
        if value is not None:
            yield f"{value:.12g}" if length == 1 or rise is None else f"{value:.12g}{rise:+.12g}x{length - 1}"
            length = length if rise is not None else 1
        else:
            length = _missing(values, place)
            yield "stale" if place else f"_x{length}"
            if place and length > 1:
                yield f"_x{length - 1}"
        place += length


def _rise(values: Sequence[float | None], place: int) -> float | None:
    """To the next; None: one of the two is missing."""
    here, after = values[place], values[place + 1] if place + 1 < len(values) else None
    return None if here is None or after is None else round(after - here, 6)


def _missing(values: Sequence[float | None], place: int) -> int:
    return next((length for length, each in enumerate(values[place:]) if each is not None), len(values) - place)


def series_text(name: str, labels: Mapping[str, str]) -> str:
    """A series as promtool names it."""
    inside = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"
