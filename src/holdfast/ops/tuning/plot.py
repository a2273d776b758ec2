"""A plot of measured and configured times: for each family its holds, its TTL now and then, renewals, and the SLO.

Rendered without a display (Agg). Needs matplotlib, which is imported on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.core.histogram import LADDER_NS
from holdfast.core.tuning.percentiles import Spread, shown
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.tuning.report import FamilyReport
from holdfast.types import NS

FAMILIES_MAX: Final = 12
DPI: Final = 100
SUFFIXES: Final = (".png", ".svg", ".pdf")
_ROWS, _ROW_PT, _CHARACTER_PT = 4, 10, 4.6  # of names above the lines
_LEAST_S: Final = LADDER_NS[0] / NS / 2
_BARS, _NOW, _THEN, _SLO, _GREY = "#9db8d2", "#8a8a8a", "#0b6e4f", "#b3261e", "#666666"


def draw(reports: Sequence[FamilyReport], path: Path, source: str) -> None:
    """Write the plot of all families with measured holds."""
    drawn = [each for each in reports if each.classes][:FAMILIES_MAX]
    if not drawn:
        raise BadInput("--plot", "there are no holds to draw", "gather some first; see docs/tuning.md")
    if path.suffix not in SUFFIXES:
        raise BadInput("--plot", f"{path.name} is not the name of an image", f"use a suffix of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise BadInput("--plot", f"{path.parent} is not a directory", "use an existing directory")
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise Misconfigured("plots need matplotlib: pip install 'holdfast[plots]'") from error
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 9}):
        figure, axes = plt.subplots(
            len(drawn), 1, figsize=(9, 0.7 + 2.1 * len(drawn)), sharex=True, squeeze=False, dpi=DPI
        )
        try:
            for axis, report in zip(axes[:, 0], drawn, strict=True):
                _panel(axis, report)
            _scale(axes[-1, 0], drawn)
            figure.suptitle(f"Holds and TTLs, from {source}", x=0.01, y=0.995, ha="left", va="top", fontsize=9)
            figure.tight_layout(rect=(0, 0, 1, 0.985), h_pad=1.4)
            for axis, report in zip(axes[:, 0], drawn, strict=True):
                _mark(axis, _marks(report))
            figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
        except OSError as error:
            raise BadInput("--plot", f"{path} cannot be written: {error.strerror}", "use another file") from None
        finally:
            plt.close(figure)


def _panel(axis: Any, report: FamilyReport) -> None:
    counts = _spread(report).counts
    edges = [_LEAST_S, *(bound / NS for bound in LADDER_NS), 2 * LADDER_NS[-1] / NS]
    total = max(1, counts.number)
    for place, count in enumerate(counts.counts):
        if count:
            left, right = edges[place], edges[place + 1]
            axis.bar(left, 100 * count / total, width=right - left, align="edge", color=_BARS, ec="white", lw=0.5)
    found, made = report.found, report.found.timing
    if made is not None and found.renewed:
        stops = found.deadline_ns or 0
        renewals = [at / NS for at in range(made.renew_every_ns, stops, made.renew_every_ns)]
        axis.plot(renewals, [0] * len(renewals), "^", color=_THEN, ms=6, clip_on=False, zorder=5)
        axis.plot([stops / NS], [0], "|", color=_SLO, ms=12, mew=1.8, clip_on=False, zorder=5)
    title = f"{report.subject.family}  ({counts.number:,} holds)"
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=_ROW_PT * _ROWS)
    axis.set_ylabel("% of holds")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.08)
    axis.set_ylim(bottom=0)


def _spread(report: FamilyReport) -> Spread:
    """The spread of all holds; of the most frequent job class if only those are known."""
    return report.classes.get("") or max(report.classes.values(), key=lambda each: each.number)


def _marks(report: FamilyReport) -> list[tuple[int, str, str, str, float]]:
    """The vertical lines: position, name, color, style and width."""
    found, present = report.found, report.subject.demand.present
    ttl = found.ttl_ns
    marks = [(_spread(report).p99_ns, "p99 hold", _GREY, ":", 1.2)]
    if present is not None and present.ns != ttl:
        marks.append((present.ns, "TTL now", _NOW, "--", 1.4))
    if ttl is not None:
        stays = present is not None and present.ns == ttl
        marks.append((ttl, "TTL, as now" if stays else "TTL recommended", _THEN, "-", 1.8))
    if found.slo is not None:
        marks.append((found.slo.ns, "takeover SLO", _SLO, "-", 1.0))
    return marks


def _mark(axis: Any, marks: Sequence[tuple[int, str, str, str, float]]) -> None:
    """Draw lines with their names above, each in the lowest row with enough room."""
    ends = [float("-inf")] * _ROWS
    for ns, name, colour, style, width in sorted(marks, key=lambda each: each[0]):
        at, text = max(ns / NS, _LEAST_S), f"{name} {shown(ns)}"
        pixel = float(axis.transData.transform((at, 0.0))[0])
        row = next((row for row, end in enumerate(ends) if end < pixel), _ROWS - 1)
        ends[row] = pixel + len(text) * _CHARACTER_PT * DPI / 72 + 6
        axis.axvline(at, color=colour, ls=style, lw=width, zorder=2 + width)
        axis.annotate(
            text,
            (at, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + _ROW_PT * row),
            textcoords="offset points",
            color=colour,
            fontsize=8,
            annotation_clip=False,
        )


def _scale(axis: Any, reports: Sequence[FamilyReport]) -> None:
    longest = max(
        [each.found.slo.ns for each in reports if each.found.slo is not None]
        + [each.found.ttl_ns or 0 for each in reports]
        + [each.subject.demand.present.ns for each in reports if each.subject.demand.present is not None]
        + [spread.longest_ns for each in reports for spread in each.classes.values()]
    )
    axis.set_xscale("log")
    axis.set_xlim(_LEAST_S, 2.6 * longest / NS)
    ticks = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600]
    axis.set_xticks(
        [each for each in ticks if each <= 2.6 * longest / NS],
        [shown(round(each * NS)) for each in ticks if each <= 2.6 * longest / NS],
    )
    axis.set_xticks([], minor=True)
    axis.set_xlabel(
        "▲ when a renewal is due    | when the holder stops without one (the renew deadline)", color=_GREY, fontsize=8
    )
