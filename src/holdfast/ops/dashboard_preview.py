"""The dashboard as a picture, for whoever has a Prometheus and no Grafana: the same panels, places, lines and colours.

It is a likeness: it shows one moment, cannot be zoomed, and Grafana's own fonts and axes look different.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.core.names import DEFAULT
from holdfast.errors import Misconfigured
from holdfast.ops.dashboard_answers import Answers, Line, finite
from holdfast.ops.dashboard_layout import Placed, placed
from holdfast.ops.dashboard_panels import COLUMNS, Colour, Kind, Panel, Row, Unit

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise Misconfigured("a preview needs matplotlib: pip install 'holdfast[plots]'") from error

_WIDE: Final = 0.75  # inches of one column of the grid
_TALL: Final = 0.34
_DPI: Final = 100
_GAP: Final = 0.12
_NAMES_MAX: Final = 10  # in one legend
_INKS: Final = {Colour.WELL: "#2e7d32", Colour.LOOK: "#ef6c00", Colour.ACT: "#c62828"}
_PLAIN: Final = "#37474f"
_UNITS: Final = {
    Unit.SECONDS: "s",
    Unit.PER_SECOND: "/s",
    Unit.REQUESTS: "req/s",
    Unit.BYTES_PER_SECOND: "B/s",
    Unit.SHARE: "%",
    Unit.NUMBER: "",
}


class Picture(NamedTuple):
    """What was drawn."""

    png: bytes
    panels: int
    empty: tuple[str, ...]  # the titles of panels without data


def picture(
    found: Sequence[Row], prometheus: str, shown: float = 900.0, token: str | None = None, prefix: str = DEFAULT
) -> Picture:
    """Draw what a Prometheus knows about the last `shown` seconds."""
    answers = Answers(prometheus, shown, token, prefix)
    places = list(placed(found))
    deep = max(place.y + place.height for place in places)
    figure = Figure(figsize=(COLUMNS * _WIDE, deep * _TALL), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    empty: list[str] = []
    for place in places:
        if isinstance(place.what, Row):
            where = (0.005, 1 - (place.y + 0.8) / deep)
            figure.text(*where, f"{place.what.title}  ", fontsize=12, weight="bold", color=_PLAIN)
        elif not _panel(figure, place, place.what, answers, deep):
            empty.append(place.what.title)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return Picture(out.getvalue(), sum(isinstance(place.what, Panel) for place in places), tuple(empty))


def _panel(figure: Any, place: Placed, panel: Panel, answers: Answers, deep: int) -> bool:
    """Draw one panel; whether it has data."""
    asked = answers.now if panel.kind is Kind.STAT else answers.over_time
    lines = finite([line for query in panel.queries for line in asked(query)])
    axes = figure.add_axes(_box(place, deep))
    axes.set_title(panel.title, fontsize=8, loc="left", pad=3)
    axes.tick_params(labelsize=6, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not lines:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=8, color="grey", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return False
    draw = {Kind.STAT: _stat, Kind.SERIES: _series, Kind.TIMELINE: _timeline}[panel.kind]
    draw(axes, panel, lines, answers)
    return True


def _box(place: Placed, deep: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height, as shares of the picture, with room for a title, ticks and a legend."""
    stat = place.height <= 4  # a number, without axes
    left, right = (_GAP, _GAP) if stat else (0.7, 0.3)
    above, below = (0.9, 0.2) if stat else (1.0, 2.3)
    return (
        (place.x + left) / COLUMNS,
        1 - (place.y + place.height - below) / deep,
        (place.width - left - right) / COLUMNS,
        (place.height - above - below) / deep,
    )


def _stat(axes: Any, panel: Panel, lines: Sequence[Line], _answers: Answers) -> None:
    value = lines[0].values[-1]
    ink = _PLAIN if panel.steps is None else _INKS[panel.steps.at(value)]
    text = "\n".join(line.name for line in lines) if panel.named else _said(panel, value)
    axes.set_facecolor(ink)
    axes.set_xticks([])
    axes.set_yticks([])
    size = 8 if panel.named else 18
    axes.text(
        0.5, 0.5, text, ha="center", va="center", fontsize=size, color="white", weight="bold", transform=axes.transAxes
    )


def _series(axes: Any, panel: Panel, lines: Sequence[Line], answers: Answers) -> None:
    scale = 100 if panel.unit is Unit.SHARE else 1
    named = sorted(lines, key=lambda line: -max(filter(math.isfinite, line.values)))
    if panel.stacked:
        _stack(axes, named, answers)
    else:
        for line in named:
            shown = [scale * value for value in line.values]
            axes.plot(_minutes(line, answers), shown, linewidth=1, label=line.name or panel.title)
    largest = max(filter(math.isfinite, (value for line in lines for value in line.values)))
    high = axes.get_ylim()[1] if largest > 0 else 1.0
    top = max(high, scale * panel.top if panel.top is not None else 0)
    for least, colour in () if panel.steps is None else panel.steps.rest:
        if scale * least <= 1.5 * top:  # a line far above everything would only flatten what there is
            axes.axhline(scale * least, color=_INKS[colour], linewidth=0.8, linestyle="--")
            top = max(top, 1.1 * scale * least)
    axes.set_ylim(-0.03 * top, top)  # a line at 0 is to be seen
    axes.set_xlim(-answers.shown / 60, 0)
    axes.set_ylabel(_UNITS[panel.unit], fontsize=6)
    _legend(axes)


def _stack(axes: Any, lines: Sequence[Line], answers: Answers) -> None:
    moments = sorted({at for line in lines for at in line.at})
    tables = [dict(zip(line.at, line.values, strict=True)) for line in lines]
    heights = [[value if math.isfinite(value := table.get(at, 0.0)) else 0.0 for at in moments] for table in tables]
    minutes = [(at - answers.end) / 60 for at in moments]
    axes.stackplot(minutes, heights, labels=[line.name for line in lines], alpha=0.7)


def _timeline(axes: Any, panel: Panel, lines: Sequence[Line], answers: Answers) -> None:
    shown = sorted(lines, key=lambda line: line.name, reverse=True)
    for height, line in enumerate(shown):
        for at, value in zip(_minutes(line, answers), line.values, strict=True):
            if math.isfinite(value):
                ink = _PLAIN if panel.steps is None else _INKS[panel.steps.at(value)]
                axes.broken_barh([(at, 1.05 * answers.step / 60)], (height - 0.4, 0.8), facecolors=ink)
        axes.text(-answers.shown / 60, height, f" {_said(panel, line.values[-1])}", va="center", fontsize=6)
    axes.set_yticks(range(len(shown)), [line.name for line in shown])
    axes.set_xlim(-answers.shown / 60, 0)


def _minutes(line: Line, answers: Answers) -> list[float]:
    return [(at - answers.end) / 60 for at in line.at]


def _said(panel: Panel, value: float) -> str:
    if value in panel.words:
        return panel.words[int(value)]
    if panel.unit is Unit.SHARE:
        return f"{value:.1%}"
    return f"{value:.3g} {_UNITS[panel.unit]}".rstrip()


def _legend(axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    more = len(names) - _NAMES_MAX
    names = [*names[:_NAMES_MAX], *([f"and {more} more"] if more > 0 else [])]
    shown = handles[: len(names)]
    box: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.12), "ncols": 3, "fontsize": 5.5}
    axes.legend(shown, names, frameon=False, borderaxespad=0, handlelength=1.2, columnspacing=1, **box)
