"""The elements of a dashboard as values: rows that each answer a question, their panels, and the meaning of colors.

This module does not depend on Grafana; `dashboard` writes these values as its JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from holdfast.core.name_prefixes import NamePrefixes
from holdfast.ops.dashboard.promql import PanelQuery

COLUMNS: Final = 24  # of Grafana's grid


class PanelKind(StrEnum):
    """How a panel shows its queries; the names are Grafana's."""

    STAT = "stat"  # one large number for each series: the current value
    SERIES = "timeseries"
    TIMELINE = "state-timeline"  # a band for each series, colored by its value


class Unit(StrEnum):
    """The unit of a number; the names are Grafana's."""

    NUMBER = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    PER_SECOND = "cps"
    REQUESTS = "reqps"
    BYTES_PER_SECOND = "Bps"
    BYTES = "bytes"


class PanelColor(StrEnum):
    """The meaning of a number for the person on call."""

    WELL = "green"
    LOOK = "orange"  # check it today
    ACT = "red"  # act now


@dataclass(frozen=True, slots=True)
class PanelSteps:
    """The thresholds at which the color changes. Ascending; the first color is for everything below."""

    first: PanelColor
    rest: tuple[tuple[float, PanelColor], ...]

    @classmethod
    def rising(cls, look: float, act: float | None = None) -> PanelSteps:
        """More is worse."""
        act_at = () if act is None else ((act, PanelColor.ACT),)
        return cls(PanelColor.WELL, ((look, PanelColor.LOOK), *act_at))

    @classmethod
    def none_allowed(cls) -> PanelSteps:
        """One is too many."""
        return cls(PanelColor.WELL, ((1.0, PanelColor.ACT),))

    @classmethod
    def falling(cls, act: float, look: float) -> PanelSteps:
        """Less is worse: below `act`, an operator must act; from `look` on, the value is fine."""
        return cls(PanelColor.ACT, ((act, PanelColor.LOOK), (look, PanelColor.WELL)))

    @classmethod
    def exactly_one(cls) -> PanelSteps:
        """None is too few, two are too many."""
        return cls(PanelColor.ACT, ((1.0, PanelColor.WELL), (2.0, PanelColor.ACT)))

    def at(self, value: float) -> PanelColor:
        """The color of a value."""
        return next((colour for least, colour in reversed(self.rest) if value >= least), self.first)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its title is unique: links depend on it, so a new title makes a new panel."""

    title: str
    text: str  # its content, the usual values, and what to do about others
    queries: tuple[PanelQuery, ...]
    unit: Unit = Unit.NUMBER
    steps: PanelSteps | None = None  # None: no value is better than another
    kind: PanelKind = PanelKind.SERIES
    width: int = 8
    height: int = 8
    words: Mapping[int, str] = field(default_factory=dict)  # shown instead of numbers
    named: bool = False  # the number has no meaning: the name of the series is shown
    stacked: bool = False
    top: float | None = None  # the end of the scale
    empty: str = "None so far. If the first row is empty too, Prometheus does not scrape the processes."

    def under(self, names: NamePrefixes) -> Panel:
        """The panel with the prefixes of `names`."""
        queries = tuple(query._replace(expression=names.spelled(query.expression)) for query in self.queries)
        return replace(self, text=names.spelled(self.text), queries=queries)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that together answer a question."""

    title: str
    question: str
    panels: tuple[Panel, ...]
