"""The parts of a dashboard as values: rows that each answer a question, panels in them, and what their colours mean.

Nothing here knows Grafana; `dashboard` writes these as its JSON, `dashboard_preview` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from holdfast.core.name_prefixes import Names
from holdfast.ops.dashboard.promql import Query

COLUMNS: Final = 24  # of Grafana's grid


class Kind(StrEnum):
    """How a panel shows its queries; the names are Grafana's."""

    STAT = "stat"  # one large number for each line, as it is now
    SERIES = "timeseries"
    TIMELINE = "state-timeline"  # a band for each line, coloured by its value


class Unit(StrEnum):
    """What a number is; the names are Grafana's."""

    NUMBER = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    PER_SECOND = "cps"
    REQUESTS = "reqps"
    BYTES_PER_SECOND = "Bps"


class Colour(StrEnum):
    """What a number means to whoever is on call."""

    WELL = "green"
    LOOK = "orange"  # look at it today
    ACT = "red"  # do something now


@dataclass(frozen=True, slots=True)
class Steps:
    """From which value on a number has another colour. Ascending; the first colour is for everything below."""

    first: Colour
    rest: tuple[tuple[float, Colour], ...]

    @classmethod
    def rising(cls, look: float, act: float | None = None) -> Steps:
        """More is worse."""
        act_at = () if act is None else ((act, Colour.ACT),)
        return cls(Colour.WELL, ((look, Colour.LOOK), *act_at))

    @classmethod
    def none_allowed(cls) -> Steps:
        """One is too many."""
        return cls(Colour.WELL, ((1.0, Colour.ACT),))

    @classmethod
    def falling(cls, act: float, look: float) -> Steps:
        """Less is worse: below `act`, something is to be done; from `look` on, all is well."""
        return cls(Colour.ACT, ((act, Colour.LOOK), (look, Colour.WELL)))

    @classmethod
    def exactly_one(cls) -> Steps:
        """None is too few, two are too many."""
        return cls(Colour.ACT, ((1.0, Colour.WELL), (2.0, Colour.ACT)))

    def at(self, value: float) -> Colour:
        """The colour of a value."""
        return next((colour for least, colour in reversed(self.rest) if value >= least), self.first)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its title is unique: links to it are made from that, so a new title is a new panel."""

    title: str
    text: str  # what it shows, what is usual, and what to do when it is not
    queries: tuple[Query, ...]
    unit: Unit = Unit.NUMBER
    steps: Steps | None = None  # None: no number is better than another
    kind: Kind = Kind.SERIES
    width: int = 8
    height: int = 8
    words: Mapping[int, str] = field(default_factory=dict)  # in place of numbers
    named: bool = False  # a number that only says "this one": its name is shown
    stacked: bool = False
    top: float | None = None  # the scale ends here

    def under(self, names: Names) -> Panel:
        """With the words that names begin with."""
        queries = tuple(query._replace(expression=names.spelled(query.expression)) for query in self.queries)
        return replace(self, text=names.spelled(self.text), queries=queries)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that together answer a question."""

    title: str
    question: str
    panels: tuple[Panel, ...]
