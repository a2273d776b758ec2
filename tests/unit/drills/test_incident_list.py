"""The incidents that can be played: their names, findings and alerts."""

from __future__ import annotations

import pytest

from holdfast.drills.catalog import DRILLS, INCIDENTS_DRILL, NAMES, drill
from holdfast.drills.incidents.incident_list import INCIDENTS, incident
from holdfast.drills.incidents.incident_run import NAMED
from holdfast.drills.model import IncidentScore, SceneRecord, scores
from holdfast.drills.planner import planned
from holdfast.errors import BadInput
from holdfast.ops.alerts import alerts
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.runbooks.books.why import RULES


def test_every_incident_has_a_finding_of_the_runbook_and_an_alert_that_asks_for_its_metric() -> None:
    severities = {rule.name: str(rule.severity) for rule in RULES}
    rules = {each.name: each for each in alerts(AlertPlan())}
    for each in INCIDENTS:
        assert severities[each.finding] == each.severity, each.name
        if each.signal is not None:
            assert each.signal.metric in rules[each.signal.alert].expression, each.name


def test_incident_names_are_unique_and_the_drills_about_one_incident_exist() -> None:
    assert len(NAMED) == len(INCIDENTS)
    assert {each.name for each in DRILLS} == set(NAMES)
    alone = NAMED & set(NAMES)
    assert {"hung-handler", "flush", "slow-store", "bus-outage", "database-outage"} <= alone
    assert {"clock-skew", "poison", "tenant-flood", "disk-full", "topic-without-workers"} <= alone


def test_an_unknown_incident_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(BadInput, match="'rain' is no incident; use some of worker-paused"):
        incident("rain")
    with pytest.raises(BadInput, match="--only"):
        planned(drill(INCIDENTS_DRILL), incidents=["rain"])
    assert planned(drill(INCIDENTS_DRILL), incidents=["flush"]).incidents == ("flush",)


def test_a_drill_of_incidents_accepts_no_other_store() -> None:
    with pytest.raises(BadInput, match="cannot break a fleet that it has not started itself"):
        planned(drill("flush"), url="redis://127.0.0.1:6379")


def test_scores_are_those_of_the_scenes_that_have_one() -> None:
    score = IncidentScore("flush", True, "leases forgotten", 3.0, "HoldfastLeasesForgotten")
    scenes = [SceneRecord("flush", "", None, score=score), SceneRecord("pause", "", None)]
    assert scores(scenes) == [score]
