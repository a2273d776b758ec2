"""Charts of the report: takeovers against the SLO, and the frequency of events over time.

It also plots numbers: waits by order of arrival, memory over time, and similar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from holdfast.drills.model import Curve, FaultKind, FaultSpan, MeasuredTakeover, Plot
from holdfast.drills.report.svg import WIDE, Drawing, width_of
from holdfast.types import NS

TAKEOVERS_MAX: Final = 24
_LEFT, _RIGHT = 300, 70
_ROW: Final = 22
_CURVE: Final = 86
_CURVE_LEFT, _CURVE_RIGHT = 190, 16


def takeovers(found: Sequence[MeasuredTakeover]) -> str | None:
    """A bar for each takeover, and the SLO as a line. Only the slowest if there are many."""
    if not found:
        return None
    shown = sorted(found, key=lambda each: each.took_ns, reverse=True)[:TAKEOVERS_MAX]
    shown.sort(key=lambda each: each.from_ns)
    most_ns = max(max(each.took_ns, each.slo_ns) for each in shown) * 1.06

    def x(ns: float) -> float:
        return _LEFT + ns / most_ns * (WIDE - _LEFT - _RIGHT)

    drawing = Drawing(_ROW * len(shown) + 34, "takeovers against the SLO")
    for number, each in enumerate(shown):
        y = 20 + _ROW * number
        kind = "well" if each.in_time else "ill"
        drawing.text(_LEFT - 10, y + 13, _cut(each.what), "small", "end")
        took = f"{each.took_ns / NS:.2f} s"
        drawing.rect(_LEFT, y + 3, x(each.took_ns) - _LEFT, _ROW - 8, kind, f"{each.what}: {took}")
        inside = x(each.took_ns) + 48 > x(each.slo_ns) > x(each.took_ns) - 8
        place, anchor, style = (
            (x(each.took_ns) - 6, "end", "inbar") if inside else (x(each.took_ns) + 6, "start", "small")
        )
        drawing.text(place, y + 14, took, style, anchor)
        drawing.line(x(each.slo_ns), y - 2, x(each.slo_ns), y + _ROW - 2, "slo")
    drawing.text(x(shown[0].slo_ns), 13, f"SLO {shown[0].slo_ns / NS:g} s", "slotext", "middle")
    return drawing.markup()


def curves(found: Sequence[Curve], spans: Sequence[FaultSpan]) -> str | None:
    """Bars by time, one row for each curve, with a common time axis."""
    if not found:
        return None
    from_ns = min(each.from_ns for each in found)
    to_ns = max(each.from_ns + each.width_ns * len(each.counts) for each in found)

    def x(at_ns: int) -> float:
        return _CURVE_LEFT + (at_ns - from_ns) / (to_ns - from_ns) * (WIDE - _CURVE_LEFT - _CURVE_RIGHT)

    high = _CURVE * len(found)
    drawing = Drawing(high + 34, "events over time")
    for span in spans:
        if span.kind in (FaultKind.OUTAGE, FaultKind.RESTART):
            told = f"{span.who} {span.kind}".strip()
            drawing.rect(x(span.from_ns), 4, x(span.to_ns) - x(span.from_ns), high, "outage", told)
    most = max(max(each.counts) for each in found) or 1
    for number, each in enumerate(found):
        base = _CURVE * (number + 1)
        drawing.text(_CURVE_LEFT - 12, base - _CURVE / 2 + 4, each.name, "label", "end")
        drawing.line(_CURVE_LEFT, base, WIDE - _CURVE_RIGHT, base, "rule")
        for place, count in enumerate(each.counts):
            if count:
                left = each.from_ns + place * each.width_ns
                wide = x(left + each.width_ns) - x(left)
                tall = count / most * (_CURVE - 14)
                told = f"{count} at {(left - from_ns) / NS:.2f} s"
                drawing.rect(x(left) + 0.4, base - tall, max(wide - 0.8, 1.2), tall, "bar", told)
        drawing.text(_CURVE_LEFT - 12, base - _CURVE / 2 + 20, f"{sum(each.counts)} in total", "small", "end")
    length, number = (to_ns - from_ns) / NS, 0
    step = next((each for each in (0.5, 1, 2, 5, 10, 20, 30, 60) if length / each <= 12), 120)
    while number * step <= length:
        drawing.text(x(from_ns + round(number * step * NS)), high + 20, f"{number * step:g} s", "small", "middle")
        number += 1
    return drawing.markup()


def _cut(words: str, most: int = 46) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


HUES: Final = 6  # classes line-0 … line-5 of the page
_PLOT_LEFT, _PLOT_RIGHT, _TOP, _HIGH = 70, 16, 30, 190
_TICKS_MOST: Final = 6


def lines(plot: Plot) -> str | None:
    """All lines in one plot, from zero; None if there is no data."""
    every = [point for line in plot.lines for point in line.points]
    if not every:
        return None
    low_x, high_x = min(x for x, _ in every), max(x for x, _ in every)
    step_y = step(max(y for _, y in every))
    high_y = max(step_y, step_y * math.ceil(max(y for _, y in every) / step_y))

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - low_x) / ((high_x - low_x) or 1.0)
        return _PLOT_LEFT + right * (WIDE - _PLOT_LEFT - _PLOT_RIGHT), _TOP + (1 - y / high_y) * _HIGH

    drawing = Drawing(_TOP + _HIGH + 48, plot.title)
    drawing.text(_PLOT_LEFT - 8, _TOP - 14, plot.y, "small", "start")
    for number in range(round(high_y / step_y) + 1):
        _, y = place(low_x, number * step_y)
        drawing.line(_PLOT_LEFT, y, WIDE - _PLOT_RIGHT, y, "grid")
        drawing.text(_PLOT_LEFT - 8, y + 4, f"{number * step_y:,g}", "small", "end")
    step_x = step(high_x - low_x)
    for number in range(math.ceil(low_x / step_x), math.floor(high_x / step_x) + 1):
        x, _ = place(number * step_x, 0)
        drawing.text(x, _TOP + _HIGH + 18, f"{number * step_x:,g}", "small", "middle")
    drawing.text(WIDE - _PLOT_RIGHT, _TOP + _HIGH + 36, plot.x, "small", "end")
    legend = float(_PLOT_LEFT)
    for number, line in enumerate(plot.lines):
        kind = f"line line-{number % HUES}"
        drawing.path([place(x, y) for x, y in line.points], kind)
        drawing.line(legend, _TOP + _HIGH + 32, legend + 16, _TOP + _HIGH + 32, kind)
        drawing.text(legend + 22, _TOP + _HIGH + 36, line.name, "small")
        legend += 40 + width_of(line.name)
    return drawing.markup()


def step(length: float) -> float:
    """A round distance between ticks: 1, 2 or 5 times a power of ten."""
    if length <= 0:
        return 1.0
    rough = length / _TICKS_MOST
    power = 10.0 ** math.floor(math.log10(rough))
    return next(round_one * power for round_one in (1, 2, 5, 10) if round_one * power >= rough * (1 - 1e-9))
