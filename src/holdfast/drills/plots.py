"""Lines of numbers for the report: waits by order of arrival, memory over time, and the like."""

from __future__ import annotations

import math
from typing import Final

from holdfast.drills.model import Plot
from holdfast.drills.svg import WIDE, Drawing, width_of

HUES: Final = 6  # classes line-0 … line-5 of the page
_LEFT, _RIGHT, _TOP, _HIGH = 70, 16, 30, 190
_TICKS_MOST: Final = 6


def lines(plot: Plot) -> str | None:
    """All lines over one another, from zero; None where there is nothing to see."""
    every = [point for line in plot.lines for point in line.points]
    if not every:
        return None
    low_x, high_x = min(x for x, _ in every), max(x for x, _ in every)
    step_y = step(max(y for _, y in every))
    high_y = max(step_y, step_y * math.ceil(max(y for _, y in every) / step_y))

    def place(x: float, y: float) -> tuple[float, float]:
        right = (x - low_x) / ((high_x - low_x) or 1.0)
        return _LEFT + right * (WIDE - _LEFT - _RIGHT), _TOP + (1 - y / high_y) * _HIGH

    drawing = Drawing(_TOP + _HIGH + 48, plot.title)
    drawing.text(_LEFT - 8, _TOP - 14, plot.y, "small", "start")
    for number in range(round(high_y / step_y) + 1):
        _, y = place(low_x, number * step_y)
        drawing.line(_LEFT, y, WIDE - _RIGHT, y, "grid")
        drawing.text(_LEFT - 8, y + 4, f"{number * step_y:,g}", "small", "end")
    step_x = step(high_x - low_x)
    for number in range(math.ceil(low_x / step_x), math.floor(high_x / step_x) + 1):
        x, _ = place(number * step_x, 0)
        drawing.text(x, _TOP + _HIGH + 18, f"{number * step_x:,g}", "small", "middle")
    drawing.text(WIDE - _RIGHT, _TOP + _HIGH + 36, plot.x, "small", "end")
    legend = float(_LEFT)
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
