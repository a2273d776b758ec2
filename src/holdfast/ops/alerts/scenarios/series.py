"""Simulated numbers over time, for the tests of alert rules, in the notation of `promtool test rules`.

A *curve* maps seconds since the beginning to a value; None: no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

Curve: TypeAlias = Callable[[float], float | None]


def flat(value: float) -> Curve:
    """A constant."""
    return lambda _: value


def rising(per_s: float, since: float = 0.0, until: float = float("inf")) -> Curve:
    """A counter that rises evenly for a while."""
    return lambda at: per_s * max(0.0, min(at, until) - since)


def burst(size: float, at: float) -> Curve:
    """A counter that jumps once."""
    return lambda now: size if now >= at else 0.0


def during(begin: float, end: float, value: float = 1.0, otherwise: float = 0.0) -> Curve:
    """One value for a while, and another before and after."""
    return lambda at: value if begin <= at < end else otherwise


def doubling(start: float, every: float) -> Curve:
    """A value that doubles after each interval."""
    return lambda at: start * 2 ** (at / every)


def added(*curves: Curve) -> Curve:
    """The sum of several curves."""

    def curve(at: float) -> float | None:
        values = [each(at) for each in curves]
        return None if None in values else sum(value for value in values if value is not None)

    return curve


def beginning(curve: Curve, at: float, end: float = float("inf")) -> Curve:
    """The curve of a process that lives from one moment to another: it counts from its own start."""
    return lambda now: curve(now - at) if at <= now < end else None


def first_of(*curves: Curve) -> Curve:
    """The first that has a value: the lives of a process that is started several times."""
    return lambda at: next((value for each in curves if (value := each(at)) is not None), None)


def notation(curve: Curve, lasts_s: float, step_s: float) -> str:
    """A curve as promtool reads it: `1+2x3` is 1 3 5 7, `_` no sample, `stale` the marker of a series that ended."""
    values = [curve(number * step_s) for number in range(round(lasts_s / step_s) + 1)]
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
    """The difference to the next value. None: one of the two is missing."""
    here, after = values[place], values[place + 1] if place + 1 < len(values) else None
    return None if here is None or after is None else round(after - here, 6)


def _missing(values: Sequence[float | None], place: int) -> int:
    return next((length for length, each in enumerate(values[place:]) if each is not None), len(values) - place)


def series_text(name: str, labels: Mapping[str, str]) -> str:
    """A series name as promtool reads it."""
    inside = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"
