"""The rows of the dashboard in the order in which an operator reads them in an incident, and the annotations.

A panel keeps its id as long as it keeps its title, so that links to it last.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from holdfast.core.name_prefixes import NamePrefixes
from holdfast.ops.dashboard.panels import COLUMNS, Panel, Row
from holdfast.ops.dashboard.promql import series
from holdfast.ops.dashboard.sections.causes import CAUSES
from holdfast.ops.dashboard.sections.contention import contention
from holdfast.ops.dashboard.sections.jobs import JOBS
from holdfast.ops.dashboard.sections.loops import loops
from holdfast.ops.dashboard.sections.margins import margins
from holdfast.ops.dashboard.sections.policy import policy
from holdfast.ops.dashboard.sections.process import process
from holdfast.ops.dashboard.sections.stores import STORES
from holdfast.ops.dashboard.sections.summary import summary
from holdfast.ops.dashboard.thresholds import PanelLimits
from holdfast.plane.settings.settings import Settings

ROW_HEIGHT: Final = 1
IDS: Final = 1_000_000


class GridItem(NamedTuple):
    """A row or a panel, and its position in the grid."""

    what: Row | Panel
    x: int
    y: int
    width: int
    height: int

    @property
    def number(self) -> int:
        """Its id, from its title: panels added before it do not change it."""
        return 1 + zlib.crc32(f"{type(self.what).__name__} {self.what.title}".encode()) % IDS


class Annotation(NamedTuple):
    """An event, drawn as a line through all panels."""

    name: str
    expression: str
    colour: str
    title: str
    text: str
    shown: bool = True


MARKS: Final = (
    Annotation(
        "Policy switches",
        f"max by (job) (changes({series('policy_revision')}[1m])) > 0",
        "purple",
        "The error policy was switched",
        "holdfast policy history",
    ),
    Annotation(
        "Alerts",
        'max by (alertname, severity) (ALERTS{alertname=~"Holdfast.*", alertstate="firing"}) > 0',
        "red",
        "{{alertname}}",
        "{{severity}}",
    ),
    Annotation(
        "Leaderships",
        f"sum by (loop) (increase({series('loop_leaderships_total')}[1m])) > 0",
        "blue",
        "{{loop}} has a new leader",
        "holdfast locks holdfast:",
        shown=False,
    ),
)


def rows(settings: Settings) -> tuple[Row, ...]:
    """The rows, top down, in the order in which an operator reads them in an incident."""
    limits = PanelLimits.of(settings)
    found = (
        summary(limits),
        CAUSES,
        contention(limits),
        margins(limits),
        policy(limits),
        JOBS,
        loops(limits),
        STORES,
        process(limits),
    )
    names = settings.names.words
    return tuple(replace(row, panels=tuple(panel.under(names) for panel in row.panels)) for row in found)


def marks(names: NamePrefixes) -> list[Annotation]:
    """The annotations across the panels, with the prefixes of `names`."""
    return [mark._replace(expression=names.spelled(mark.expression), text=names.spelled(mark.text)) for mark in MARKS]


def placed(found: Sequence[Row]) -> Iterator[GridItem]:
    """Rows and panels in the grid: from left to right, and from the top down."""
    y = 0
    for row in found:
        yield GridItem(row, 0, y, COLUMNS, ROW_HEIGHT)
        y += ROW_HEIGHT
        x = tallest = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            yield GridItem(panel, x, y, panel.width, panel.height)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
