"""A Grafana dashboard, generated from the lock registry, the table of metrics and the settings in effect.

Promises: the same settings give the same document, byte for byte; a panel keeps its id as long as it keeps its title,
so that links to it last. Every query uses declared metrics and labels. The document has Grafana's classic model, which
every version since 9 accepts: over its API, by provisioning, or pasted into its import page.

Does not promise to preserve manual changes in Grafana: the next import overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.name_prefixes import DEFAULT
from holdfast.ops.dashboard.layout import Annotation, GridItem, marks, placed, rows
from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row
from holdfast.ops.dashboard.promql import EVERYTHING, PanelQuery
from holdfast.plane.settings.settings import Settings

TITLE: Final = "Holdfast"
SCHEMA: Final = 41  # of Grafana 12; newer versions migrate it, older ones ignore unknown fields
PANELS: Final = "12.0.0"  # without it, Grafana treats panels as older than version 7, and migrates them
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_LEGEND: Final = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_TOOLTIP: Final = {"mode": "multi", "sort": "desc"}


def dashboard(settings: Settings) -> dict[str, Any]:
    """The whole document. Another prefix of metrics makes another dashboard, which does not replace this one."""
    names = settings.names.words
    return {
        "id": None,
        "uid": f"{names.metrics}-plane",
        "title": TITLE if names.metrics == DEFAULT else f"{TITLE} ({names.metrics})",
        "description": "Leases, jobs and loops of a Holdfast plane. Choose the jobs of one plane at a time. Generated "
        "by `holdfast dashboard`. Generate it again after a change of settings: the lines in the panels follow them.",
        "tags": ["holdfast"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cursor through all panels
        "fiscalYearStartMonth": 0,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "refresh": "30s",
        "links": [],
        "annotations": {"list": [_BUILT_IN, *map(_mark, marks(names))]},
        "templating": {"list": _variables(names.metrics)},
        "panels": [_written(each) for each in placed(rows(settings))],
    }


_BUILT_IN: Final = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}


def _mark(mark: Annotation) -> dict[str, Any]:
    return {
        "name": mark.name,
        "datasource": _SOURCE,
        "enable": mark.shown,
        "hide": False,
        "iconColor": mark.colour,
        "expr": mark.expression,
        "step": "60s",
        "titleFormat": mark.title,
        "textFormat": mark.text,
        "tagKeys": "",
        "useValueForTime": False,
    }


def _variables(prefix: str) -> list[dict[str, Any]]:
    held = f"{prefix}_locks_held"  # every process has it, even one with nothing but locks
    source = {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }
    return [
        source,
        # "All jobs" means those with our metrics, by name: `up` is queried as well, and other jobs have it too.
        _variable("job", "Job", f"label_values({held}, job)", everything=None),
        _variable("instance", "Instance", f'label_values({held}{{job=~"$job"}}, instance)'),
        _variable("family", "Family of locks", f'label_values({held}{{job=~"$job", instance=~"$instance"}}, family)'),
    ]


def _variable(name: str, label: str, query: str, everything: str | None = EVERYTHING) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"Variable-{name}", "qryType": 1},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "allValue": everything,
        "multi": True,
        "hide": 0,
        "options": [],
        "refresh": 2,  # when the time range changes: processes come and go
        "regex": "",
        "sort": 1,
    }


def _written(place: GridItem) -> dict[str, Any]:
    what = place.what
    grid = {"x": place.x, "y": place.y, "w": place.width, "h": place.height}
    both = {"id": place.number, "title": what.title, "gridPos": grid}
    if isinstance(what, Row):
        return {**both, "type": "row", "collapsed": False, "panels": []}
    return {
        **both,
        "type": str(what.kind),
        "pluginVersion": PANELS,
        "description": what.text,
        "datasource": _SOURCE,
        "targets": [_target(chr(ord("A") + at), query, what) for at, query in enumerate(what.queries)],
        "fieldConfig": {"defaults": _field(what), "overrides": []},
        "options": _OPTIONS[what.kind](what),
    }


def _target(ref: str, query: PanelQuery, panel: Panel) -> dict[str, Any]:
    at_once = panel.kind is PanelKind.STAT
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend or panel.title,
        "instant": at_once,
        "range": not at_once,
    }


def _field(panel: Panel) -> dict[str, Any]:
    mapped = {str(number): {"text": word, "index": number} for number, word in panel.words.items()}
    by_steps = panel.kind is not PanelKind.SERIES and panel.steps is not None
    top = {} if panel.top is None else {"max": panel.top}
    return {
        "unit": str(panel.unit),
        "noValue": panel.empty,
        "min": 0,
        **top,
        "color": {"mode": "thresholds" if by_steps else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel.steps)},
        "mappings": [{"type": "value", "options": mapped}] if mapped else [],
        "custom": _CUSTOM[panel.kind](panel),
    }


def _steps(steps: PanelSteps | None) -> list[dict[str, Any]]:
    if steps is None:
        return [{"color": "green", "value": None}]
    first: dict[str, Any] = {"color": str(steps.first), "value": None}
    return [first, *({"color": str(colour), "value": value} for value, colour in steps.rest)]


def _series_custom(panel: Panel) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if panel.steps is None else "dashed"},
    }


def _stat_options(panel: Panel) -> dict[str, Any]:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "none" if panel.steps is None else "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "name" if panel.named else "value",
        "wideLayout": True,
    }


def _timeline_options(_panel: Panel) -> dict[str, Any]:
    return {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.9,
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    }


_CUSTOM: Final[Mapping[PanelKind, Callable[[Panel], dict[str, Any]]]] = {
    PanelKind.SERIES: _series_custom,
    PanelKind.STAT: lambda _panel: {},
    PanelKind.TIMELINE: lambda _panel: {"fillOpacity": 70, "lineWidth": 0},
}
_OPTIONS: Final[Mapping[PanelKind, Callable[[Panel], dict[str, Any]]]] = {
    PanelKind.SERIES: lambda _panel: {"legend": _LEGEND, "tooltip": _TOOLTIP},
    PanelKind.STAT: _stat_options,
    PanelKind.TIMELINE: _timeline_options,
}
