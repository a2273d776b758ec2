"""Alert rules as they are generated: declared metrics only, thresholds from the settings, a runbook for each."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import BadInput, Misconfigured
from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.ops.alerts import alerts, groups
from holdfast.ops.alerts.files import rules_document, yaml_text
from holdfast.ops.alerts.model import Alert, AlertSeverity, Recording, lasting
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.promql import Queries
from holdfast.ops.alerts.scenarios.series import added, beginning, burst, first_of, flat, notation, rising
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.plane.policy.escalation_rules import EscalationRule
from holdfast.plane.settings.sections import EngineSettings
from holdfast.plane.settings.settings import (
    EscalationSettings,
    SchedulerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)
from support.ops.alert_plans import DATABASE, PLANS, needs_promtool, promtool

METRICS = {each.name: each for each in TABLE}
HISTOGRAMS = {
    f"{each.name}_{end}": each
    for each in TABLE
    if each.kind is MetricKind.HISTOGRAM
    for end in ("bucket", "count", "sum")
}
SERIES = re.compile(r"(?<![\w:\"])((?:\w+:)?holdfast_\w+(?::\w+)*)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
BY = re.compile(r"(?:by|on|group_left) \(([^()]*)\)")


def one(plan: AlertPlan, name: str, **labels: str) -> Alert:
    (found,) = [each for each in alerts(plan) if each.name == name and labels.items() <= each.labels.items()]
    return found


@pytest.mark.requires("R62", "R63", "R64", "R139")
@pytest.mark.parametrize("name", PLANS)
def test_rules_ask_for_declared_metrics_and_labels_only(name: str) -> None:
    plan = PLANS[name]
    rules = [rule for group in groups(plan) for rule in group.rules]
    recorded = {each.name for each in rules if isinstance(each, Recording)}
    known = {label for each in TABLE for label in each.labels} | {"le", "job", "instance", *plan.match}
    for rule in rules:
        asked = SERIES.findall(rule.expression)
        assert asked or "up" in rule.expression, rule.name
        for series, matchers in asked:
            metric = METRICS.get(series) or HISTOGRAMS.get(series)
            assert metric is not None or series in recorded, (rule.name, series)
            labels = set(MATCHER.findall(matchers))
            assert plan.match.keys() <= labels, (rule.name, series)
            if metric is not None:
                assert labels <= {*metric.labels, "le", "job", "instance", *plan.match}, (rule.name, series)
        for by in BY.findall(rule.expression):
            assert {each.strip() for each in by.split(",") if each.strip()} <= known, rule.name


def test_what_is_not_declared_cannot_be_asked_for() -> None:
    queries = Queries()
    with pytest.raises(KeyError):
        queries.series("lock_wishes_total")
    with pytest.raises(ValueError, match="no label tenant"):
        queries.series("lock_busy_total", 'tenant="acme"')
    with pytest.raises(ValueError, match="not counted"):
        queries.rate("locks_held", 300.0)


@pytest.mark.parametrize("name", PLANS)
def test_each_alert_says_what_it_means_why_and_what_to_run_next(name: str) -> None:
    for each in alerts(PLANS[name]):
        rule = each.as_rule(PLANS[name].match)
        notes = rule["annotations"]
        assert each.runbook.value in RUNBOOKS
        assert notes["runbook_command"] in {f"holdfast runbook {each.runbook}", f"holdfast {each.runbook}"}
        assert notes["summary"]
        assert each.because in notes["description"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert each.as_dict()["for"] == each.hold_s
        assert re.fullmatch(r"Holdfast[A-Za-z]+", each.name)


@pytest.mark.requires("R139")
def test_abandonment_and_duplicate_ends_page_immediately() -> None:
    for name in ("HoldfastJobLockAbandoned", "HoldfastRunLockAbandoned", "HoldfastDuplicateEnd"):
        found = one(PLANS["default"], name)
        assert (found.severity, found.hold_s) == (AlertSeverity.PAGE, 0.0)
        assert "> 0" in found.expression


@pytest.mark.requires("R96", "R106")
def test_fallbacks_page_by_the_rule_that_also_escalates() -> None:
    rule = EscalationRule()
    found = one(PLANS["default"], "HoldfastFallbackHarmful").expression
    assert f"> {rule.rate:g} and" in found
    assert "[5m] offset 5m" in found
    changed = Settings(database=DATABASE, escalation=EscalationSettings(rate=2.5, window=900.0))
    found = one(AlertPlan(changed), "HoldfastFallbackHarmful").expression
    assert "> 2.5 and" in found
    assert "[15m] offset 15m" in found


@pytest.mark.requires("R72")
@pytest.mark.parametrize(
    ("name", "trend", "metric"),
    [
        ("HoldfastJobLockWaitAccelerating", "holdfast_job_lock_wait:mean{}", "holdfast_job_lock_wait_sum"),
        ("HoldfastStaleJobsAccelerating", "holdfast_stale_jobs:leader:avg{}", "holdfast_stale_jobs"),
        ("HoldfastOrphansAccelerating", "holdfast_orphan_replayed:increase{}", "holdfast_orphan_replayed_total"),
    ],
)
def test_a_trend_accelerates_when_it_rose_more_than_over_the_window_before(name: str, trend: str, metric: str) -> None:
    plan = PLANS["default"]
    span_s = plan.windows.hold_s
    once, twice, now = lasting(span_s), lasting(2 * span_s), trend.format(lasting(span_s))
    found = one(plan, name)
    floor = re.escape(f"{now} > ") + r"[\d.]+" + re.escape(" and ")
    rises = f"({now} - {now} offset {once}) > 1.5 * ({now} offset {once} - {now} offset {twice})"
    more = re.escape(f"{rises} and ({now} offset {once} - {now} offset {twice}) > 0")
    assert re.fullmatch(floor + more, found.expression)
    (recording,) = [rule for group in groups(plan) for rule in group.rules if rule.name == now]
    assert isinstance(recording, Recording)
    assert metric in recording.expression


@pytest.mark.requires("R115", "R116", "R120")
def test_a_loop_may_be_late_for_what_the_settings_promise_and_no_longer() -> None:
    assert "> 85.5 and" in one(PLANS["default"], "HoldfastLoopLate", loop="snapshot").expression
    slower = Settings(database=DATABASE, snapshot=SnapshotSettings(interval=10.0))
    assert "> 111 and" in one(AlertPlan(slower), "HoldfastLoopLate", loop="snapshot").expression
    promised = Settings(database=DATABASE, takeover=100.0)
    assert "> 170.5 and" in one(AlertPlan(promised), "HoldfastLoopLate", loop="snapshot").expression
    sooner = AlertPlan(Settings(database=DATABASE), scrape_s=15.0)
    assert (
        one(sooner, "HoldfastNoLeader", loop="snapshot").hold_s
        < one(PLANS["default"], "HoldfastNoLeader", loop="snapshot").hold_s
    )


@pytest.mark.parametrize(
    ("settings", "family", "bound"),
    [
        (Settings(database=DATABASE), "scheduler.job", "20"),
        (Settings(database=DATABASE, scheduler=SchedulerSettings(job_ttl=12.0)), "scheduler.job", "3"),
        (Settings(database=DATABASE, worker=WorkerSettings(lease_ttl=1.0)), "worker.job", "0.25"),
        (Settings(database=DATABASE, engine=EngineSettings(run_ttl=90.0)), "workflow.run", "30"),
    ],
)
def test_a_margin_is_thin_by_the_ttl_of_its_family(settings: Settings, family: str, bound: str) -> None:
    found = one(AlertPlan(settings), "HoldfastRenewalMarginThin", family=family).expression
    assert f'le=~"{bound.replace(".", chr(92) * 2 + ".")}' in found


def test_rotating_loops_renew_nothing_and_are_not_asked_for_margins() -> None:
    families = {each.labels["family"] for each in alerts(PLANS["small"]) if each.name == "HoldfastRenewalMarginThin"}
    assert "replayer" not in families
    assert "scheduler.job" in families


@pytest.mark.requires("R154")
def test_waves_are_measured_against_the_retry_delay() -> None:
    assert "> 9 and" in one(PLANS["default"], "HoldfastRetryWaves").expression
    short = Settings(database=DATABASE, scheduler=SchedulerSettings(busy_delay=0.05))
    assert "HoldfastRetryWaves" not in {each.name for each in alerts(AlertPlan(short))}


def test_parts_that_a_plane_has_not_are_not_missed() -> None:
    names = {each.labels["part"] for each in alerts(PLANS["small"]) if each.name == "HoldfastPartMissing"}
    assert names == set(PLANS["small"].parts)
    assert {each.labels.get("loop") for each in alerts(PLANS["small"])} == {None, "replayer", "cleanup"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scrape_s": 0.5}, "scrape"),
        ({"scrape_s": 600.0}, "scrape"),
        ({"parts": ()}, "parts"),
        ({"parts": ("kitchen",)}, "parts"),
        ({"match": {"severity": "x"}}, "match"),
        ({"match": {"1st": "x"}}, "match"),
        ({"match": {"plane": 'x"} or vector(1)'}}, "match"),
        ({"match": {"plane": ""}}, "match"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput, match=field):
        replace(PLANS["default"], **changes)  # type: ignore[arg-type]  # wrong on purpose


@needs_promtool
@pytest.mark.parametrize("name", PLANS)
def test_promtool_takes_the_rules(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(yaml_text(rules_document(PLANS[name])), encoding="utf-8")
    said = promtool("check", "rules", str(path))
    assert f"{sum(len(group.rules) for group in groups(PLANS[name]))} rules found" in said


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(Misconfigured, match=r"pip install 'holdfast\[plane\]'"):
        yaml_text({})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (60.0, "1m"), (168.0, "2m48s"), (0.2, "1s"), (90_061.0, "1d1h1m1s"), (3600.0, "1h")],
)
def test_lengths_of_time_are_as_prometheus_writes_them(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_courses_are_written_as_promtool_reads_them() -> None:
    assert notation(rising(0.5), 120.0, 60.0) == "0+30x2"
    assert notation(burst(1.0, 120.0), 240.0, 60.0) == "0+0x1 1+0x2"
    lives = first_of(beginning(rising(1.0), 60.0, 180.0), beginning(flat(7.0), 300.0))
    assert notation(lives, 360.0, 60.0) == "_x1 0+60x1 stale _x1 7+0x1"
    assert notation(added(flat(1.0), rising(1.0)), 60.0, 60.0) == "1+60x1"
