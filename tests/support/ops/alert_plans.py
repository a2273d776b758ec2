"""Planes for the tests of alert rules, and promtool."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.core.lease.error_policy import OnError
from holdfast.ops.alerts.files import rules_document, yaml_text
from holdfast.ops.alerts.model import lasting
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.scenarios.scenario import Scenario
from holdfast.plane.settings.settings import (
    EscalationSettings,
    ReconcilerSettings,
    ReplayerSettings,
    SchedulerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)

PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")

DATABASE: Final = "sqlite:///plane.db"
PLANS: Final[Mapping[str, AlertPlan]] = {
    "default": AlertPlan(Settings(database=DATABASE)),
    "quick": AlertPlan(
        Settings(
            database=DATABASE,
            takeover=120.0,
            risk=(("low", OnError.FAIL_OPEN), ("high", OnError.FAIL_CLOSED)),
            reconciler=ReconcilerSettings(interval=10.0),
            snapshot=SnapshotSettings(interval=2.0),
            worker=WorkerSettings(lease_ttl=12.0),
        ),
        scrape_s=15.0,
        match={"plane": "blue"},
    ),
    "small": AlertPlan(
        Settings(
            database=DATABASE,
            scheduler=SchedulerSettings(job_ttl=300.0, busy_delay=2.0, concurrency=4),
            replayer=ReplayerSettings(interval=60.0, lead="rotating"),
            escalation=EscalationSettings(rate=0.5, window=600.0, armed=True),
        ),
        parts=("scheduler", "worker", "replayer", "cleanup"),
        scrape_s=30.0,
    ),
}


def promtool(*words: str) -> str:
    """What promtool says, or the failure of the test with it."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def proved(directory: Path, plan: AlertPlan, scenarios: Sequence[Scenario], group: str | None = None) -> None:
    """Run scenarios against all rules, or against one group and what it should say."""
    document = rules_document(plan)
    document["groups"] = [each for each in document["groups"] if group in (None, each["name"])]
    names = {rule["alert"] for each in document["groups"] for rule in each["rules"] if "alert" in rule}
    (directory / "rules.yml").write_text(yaml_text(document), encoding="utf-8")
    tests = [_only(each.as_test(), names) for each in scenarios]
    assert tests
    found = {"rule_files": ["rules.yml"], "evaluation_interval": lasting(plan.windows.seen_s), "tests": tests}
    (directory / "tests.yml").write_text(yaml_text(found), encoding="utf-8")
    promtool("test", "rules", str(directory / "tests.yml"))


def _only(test: dict[str, Any], names: set[str]) -> dict[str, Any]:
    for asked in test["promql_expr_test"]:
        asked["exp_samples"] = [
            each for each in asked["exp_samples"] if each["labels"].removeprefix('{alertname="')[:-2] in names
        ]
    return test
