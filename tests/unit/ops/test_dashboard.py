"""The dashboard: a document that Grafana takes, queries of declared metrics only, lines from the settings."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cli.app import COMMANDS
from holdfast.observe.metrics.table import TABLE, Metric, MetricKind
from holdfast.ops.alerts.model import RunbookName
from holdfast.ops.dashboard import dashboard
from holdfast.ops.dashboard import promql as queries
from holdfast.ops.dashboard.layout import MARKS, placed, rows
from holdfast.ops.dashboard.panels import COLUMNS, Panel, PanelColor, PanelKind, PanelSteps
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.settings.sections import EngineSettings
from holdfast.plane.settings.settings import (
    EscalationSettings,
    ReconcilerSettings,
    SchedulerSettings,
    Settings,
    WorkerSettings,
)

SETTINGS = Settings(database="sqlite:///plane.db")
METRICS = {each.name: each for each in TABLE}
BUILT_IN = {"up", "ALERTS"}  # what every Prometheus has
UNITS = {"short", "s", "percentunit", "cps", "reqps", "Bps", "bytes"}  # of Grafana's list of units
SELECTOR = re.compile(r"(\w+)\{([^{}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"(?:by|on)\s*\(([^()]*)\)")

# Metrics that are on no panel, and why the person on call does not need them.
OFF_PANEL = {
    "holdfast_approvals_repeated_total": "a second click; harmless",
    "holdfast_audit_files_deleted_total": "rotation as configured",
    "holdfast_audit_files_total": "rotation as configured",
    "holdfast_database_bells": "constant while a process runs",
    "holdfast_database_busy_total": "the seconds waited are shown, which say more",
    "holdfast_database_largest_group": "a record, for benchmarks",
    "holdfast_dispatcher_rounds_total": "looks by outcome are shown",
    "holdfast_engine_given_back_total": "the orderly end of a process",
    "holdfast_guard_entered_total": "every job; refusals are shown",
    "holdfast_http_callers": "the memory of the rate limit; who is turned away is shown",
    "holdfast_http_connections": "bounded by the server; connections that it closes are shown",
    "holdfast_otel_exports_total": "what does not arrive cannot be seen there; the log says it",
    "holdfast_policy_busy_jitter_seconds": "a setting; `holdfast policy show` prints it",
    "holdfast_reconciler_spared_total": "nothing was done, rightly",
    "holdfast_replayer_running_total": "nothing was done, rightly",
    "holdfast_replayer_waiting_total": "nothing was done, rightly",
}


def panels(settings: Settings = SETTINGS) -> list[Panel]:
    return [panel for row in rows(settings) for panel in row.panels]


def expressions() -> list[str]:
    return [query.expression for panel in panels() for query in panel.queries] + [mark.expression for mark in MARKS]


def panel(title: str, settings: Settings = SETTINGS) -> Panel:
    (found,) = [each for each in panels(settings) if each.title == title]
    return found


def declared(name: str) -> Metric | None:
    """The metric of a series: histograms have one with a suffix."""
    metric = METRICS.get(name.removesuffix("_bucket"))
    is_histogram = metric is not None and metric.kind is MetricKind.HISTOGRAM
    return metric if is_histogram == name.endswith("_bucket") else None


def test_every_query_is_of_declared_metrics_with_labels_that_they_have() -> None:
    for expression in expressions():
        selected = SELECTOR.findall(expression)
        assert selected, expression
        known: set[str] = {"alertname", "severity", "alertstate"} if "ALERTS" in expression else set()
        for name, inside in selected:
            labels = set(MATCHER.findall(inside))
            if name in BUILT_IN:
                known |= labels
                continue
            metric = declared(name)
            assert metric is not None, f"{name} is not in the table: {expression}"
            allowed = {*metric.labels, "job", "instance"}
            assert labels <= allowed, f"{labels - allowed} of {name}: {expression}"
            known |= {*allowed, "le"}
        grouped = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
        assert grouped <= known, f"{grouped - known}: {expression}"
        assert not set(re.findall(r"holdfast_\w+", expression)) - {name for name, _ in selected}, "a bare name"


def test_counters_are_looked_at_as_rates_and_gauges_are_not() -> None:
    for expression in expressions():
        rated = set(re.findall(r"(?:rate|increase)\((\w+)\{", expression))
        for name, _ in SELECTOR.findall(expression):
            metric = declared(name)
            if metric is not None:
                assert (name in rated) == (metric.kind is not MetricKind.GAUGE), expression


def test_every_metric_is_on_a_panel_or_it_is_said_why_not() -> None:
    text = " ".join(expressions())
    shown = {name for name in METRICS if re.search(rf"\b{name}(_bucket)?\b", text)}
    assert set(METRICS) - shown == set(OFF_PANEL)


def test_a_metric_or_a_label_that_is_not_declared_cannot_be_asked_for() -> None:
    attempts: tuple[Callable[[], str], ...] = (
        lambda: queries.rate("lock_lots_total"),
        lambda: queries.rate("lock_lost_total", "key"),
        lambda: queries.series("lock_lost_total", 'key="k"'),
        lambda: queries.rate("locks_held"),
        lambda: queries.within_range("locks_held"),
        lambda: queries.quantile(0.5, "lock_lost_total"),
    )
    for asked in attempts:
        with pytest.raises((KeyError, ValueError)):
            asked()


def test_the_reader_chooses_jobs_instances_and_families_in_every_query() -> None:
    for expression in expressions():
        for name, inside in SELECTOR.findall(expression):
            if name != "ALERTS":
                assert inside.startswith(queries.CHOSEN), expression
            metric = declared(name)
            if metric is not None and "family" in metric.labels:
                assert "family=" in inside, expression
        left = queries.filled(expression, rate_interval="1m", shown="1h")
        assert "$" not in left


def test_several_values_of_a_variable_are_written_as_grafana_writes_them() -> None:
    assert queries.any_of(["api", "w.1"]) == r"api|w\\.1"
    assert queries.filled('up{job=~"$job"}', rate_interval="1m", shown="1h", job="a|b") == 'up{job=~"a|b"}'


def test_panels_stand_in_the_grid_beside_each_other() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for place in placed(rows(SETTINGS)):
        assert place.x >= 0
        assert place.x + place.width <= COLUMNS
        cells = itertools.product(range(place.x, place.x + place.width), range(place.y, place.y + place.height))
        taken.update(cells)
    assert max(taken.values()) == 1
    deepest = max(y for _, y in taken)
    filled = {y for _, y in taken}
    assert filled == set(range(deepest + 1)), "no empty lines"


def test_the_document_has_what_grafana_needs() -> None:
    document = dashboard(SETTINGS)
    assert json.loads(json.dumps(document)) == document
    assert (document["id"], document["uid"], document["schemaVersion"]) == (None, "holdfast-plane", 41)
    found: list[dict[str, Any]] = document["panels"]
    assert max(Counter(each["id"] for each in found).values()) == 1
    assert all(0 < each["id"] < 2**31 for each in found)
    variable = {"type": "prometheus", "uid": "${datasource}"}
    for each in found:
        assert set(each["gridPos"]) == {"x", "y", "w", "h"}
        if each["type"] == "row":
            continue
        assert each["type"] in {"stat", "timeseries", "state-timeline"}
        assert each["datasource"] == variable
        assert [target["refId"] for target in each["targets"]] == list("ABCDEFGH"[: len(each["targets"])])
        assert all(target["datasource"] == variable and target["expr"] for target in each["targets"])
        assert all(target["legendFormat"] and target["instant"] != target["range"] for target in each["targets"])
        defaults = each["fieldConfig"]["defaults"]
        assert defaults["noValue"].endswith("."), "an empty panel explains itself"
        assert defaults["unit"] in UNITS
        steps = [step["value"] for step in defaults["thresholds"]["steps"]]
        assert steps[0] is None
        assert steps[1:] == sorted(steps[1:])
        if each["type"] == "stat":
            assert each["options"]["reduceOptions"]["calcs"] == ["lastNotNull"]
        else:
            assert each["options"]["legend"]["showLegend"]
    names = [each["name"] for each in document["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "family"]
    marks = document["annotations"]["list"]
    assert [each["name"] for each in marks[1:]] == ["Policy switches", "Alerts", "Leaderships"]


def test_rows_come_in_the_order_of_an_incident_and_titles_are_unique() -> None:
    found = rows(SETTINGS)
    assert [row.title for row in found] == [
        "Is anything wrong?",
        "Causes",
        "Contention",
        "Holds and margins",
        "Error policy",
        "Jobs and runs",
        "Loops",
        "Bus, database and audit",
        "Process",
    ]
    assert max(Counter(each.title for each in panels()).values()) == 1
    assert all(each.kind is PanelKind.STAT and each.steps is not None for each in found[0].panels)


def test_ids_do_not_depend_on_the_panels_before() -> None:
    first = rows(SETTINGS)
    shorter = [replace(row, panels=row.panels[1:]) for row in first]
    ids = {place.what.title: place.number for place in placed(first)}
    assert all(ids[place.what.title] == place.number for place in placed(shorter))


def test_every_text_says_what_it_is_and_names_only_commands_that_exist() -> None:
    runbooks = {runbook.value for runbook in RunbookName}
    for each in panels():
        assert re.fullmatch(r"[A-Za-z0-9].{39,}[.]", each.text, re.DOTALL), each.title
        for words in re.findall(r"`holdfast ([^`]+)`", each.text):
            command, *rest = words.split()
            assert command in COMMANDS, f"{each.title}: {words}"
            if command == "runbook":
                assert rest[0] in runbooks, each.title


def test_lines_follow_the_settings() -> None:
    changed = replace(
        SETTINGS,
        scheduler=SchedulerSettings(job_ttl=12.0),
        worker=WorkerSettings(lease_ttl=9.0),
        engine=EngineSettings(run_ttl=6.0),
        reconciler=ReconcilerSettings(interval=1.5),
        escalation=EscalationSettings(rate=0.5),
    )
    for family, ttl in (("scheduler.job", 12.0), ("worker.job", 9.0), ("workflow.run", 6.0)):
        held = panel(f"Hold of {family}", changed)
        assert held.steps == PanelSteps.rising(ttl / 3, ttl)
        assert f"TTL {ttl:g} s" in held.text
        query = panel("Least left at renewal", changed).queries[0].expression
        assert f'label_replace(vector({ttl:g}), "family", "{family}", "", "")' in query
    assert panel("Wait for locks, p99").steps == PanelSteps.rising(1.0, 2.0)
    assert panel("Renewal delay", changed).steps == PanelSteps.rising(0.5, 1.0)
    fallback = panel("Fallback by risk class", changed).steps
    assert fallback is not None
    assert fallback.rest[-1] == (0.5, PanelColor.ACT)
    overdue = panel("Time since the last tick, in intervals").steps
    assert overdue is not None
    assert overdue.rest[0] == (3.0, PanelColor.LOOK)
    assert 4.0 < overdue.rest[1][0] < 6.0
    waves = panel("Retry waves, Fano factor").steps
    assert waves is not None
    assert [(round(value, 6), colour) for value, colour in waves.rest] == [(9.0, PanelColor.LOOK)]
    unseen = replace(SETTINGS, scheduler=SchedulerSettings(busy_delay=0.05))
    assert panel("Retry waves, Fano factor", unseen).steps is None, "waves that cannot be told have no line"
    never = replace(SETTINGS, escalation=EscalationSettings(rate=0.0))
    assert panel("Fallback grants", never).steps == PanelSteps.rising(0.0, 0.0)


def test_every_lock_of_an_item_has_its_panel_and_every_family_its_ttl() -> None:
    titles = {each.title for each in panels()}
    assert {f"Hold of {each.name}" for each in FAMILIES.values() if each.scope is Scope.ITEM} <= titles
    query = panel("Least left at renewal").queries[0].expression
    assert set(re.findall(r'"family", "([^"]+)"', query)) == set(FAMILIES)


def test_who_waits_to_lead_is_no_contention() -> None:
    loops = {each.name for each in FAMILIES.values() if each.scope is Scope.LOOP}
    for each in rows(SETTINGS)[1].panels:
        for query in each.queries:
            if "family" in query.legend and each.title != "Leases held":
                (left_out,) = set(re.findall(r'family!~"([^"]+)"', query.expression))
                assert {name for name in FAMILIES if re.fullmatch(left_out.replace("\\\\", "\\"), name)} == loops


def test_the_same_settings_give_the_same_document() -> None:
    assert json.dumps(dashboard(SETTINGS)) == json.dumps(dashboard(Settings(database="sqlite:///other.db")))


def test_a_colour_says_what_a_number_means() -> None:
    assert [PanelSteps.rising(1, 2).at(value) for value in (0, 1, 1.5, 2, 9)] == [
        *(PanelColor.WELL, PanelColor.LOOK, PanelColor.LOOK, PanelColor.ACT, PanelColor.ACT),
    ]
    assert [PanelSteps.falling(0.1, 0.3).at(value) for value in (0.05, 0.2, 0.5)] == [
        PanelColor.ACT,
        PanelColor.LOOK,
        PanelColor.WELL,
    ]
    assert [PanelSteps.exactly_one().at(value) for value in (0, 1, 2)] == [
        PanelColor.ACT,
        PanelColor.WELL,
        PanelColor.ACT,
    ]
