"""The generated alert rules in a real Prometheus that reads a real plane: all of them evaluate, and none speaks."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.drills.incidents.fleet import IncidentFleet
from holdfast.drills.incidents.local_servers import IncidentServers
from holdfast.ops.alerts import alerts
from holdfast.ops.alerts.files import rules_document
from holdfast.ops.alerts.plan import AlertPlan
from holdfast.ops.alerts.rules.causes import FORGOTTEN
from holdfast.plane.policy.runtime import FLUSH_S
from holdfast.plane.settings.lock_times import LOOPS
from holdfast.plane.settings.sources import load
from support.cli.sessions import Shell
from support.load.processes import until
from support.ops.forked_commands import ForkedCommands
from support.servers.prometheus import Prometheus, needs_prometheus, start_prometheus

pytestmark = needs_prometheus

EVALUATIONS_S = 5.0  # ten evaluations: a busy machine skips some
WHY_S = 10.0  # a report, on a busy machine

SETTINGS = 'database = "sqlite:///plane.db?synchronous=normal"\n' + "".join(
    f"[{loop}]\ninterval = 5\n" for loop in LOOPS
)


@pytest.mark.requires("R33", "R62", "R63", "R64")
def test_all_rules_evaluate_on_a_plane_that_works_and_none_of_them_speaks(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(SETTINGS)
    plan = AlertPlan(load(str(config)), scrape_s=1.0)
    with closing(Shell(tmp_path)) as shell:
        plane = shell.start("up", "--sample", "--port", "0", "--json")
        assert plane.stdout is not None
        started = json.loads(plane.stdout.readline())
        assert started["event"] == "started"
        rules = rules_document(plan)
        with start_prometheus(tmp_path, [started["address"]], rules, "1s", "500ms") as prometheus:
            at_work(prometheus)
            prometheus.until(lambda: healthy(prometheus), "every rule evaluated", prometheus.rules)
            found = [each for each in prometheus.rules() if each["type"] == "alerting"]
            assert sorted(each["name"] for each in found) == sorted(each.name for each in alerts(plan))
            prometheus.until(lambda: not pages(prometheus), "no page even pending", prometheus.alerts)
            assert prometheus.query('max_over_time(ALERTS{alertstate="firing"}[1h])') == []


def test_a_flush_of_the_store_makes_its_alert_fire_in_time(tmp_path: Path) -> None:
    with IncidentServers() as servers, servers.redis() as redis, ExitStack() as ends:
        fleet = IncidentFleet(tmp_path / "fleet", ForkedCommands(), leases=redis.url)
        ends.callback(fleet.close)
        fleet.start(slots=8)
        fleet.running(*(fleet.submit("nap", 600) for _ in range(4)))
        plan = AlertPlan(load(str(fleet.directory / "holdfast.toml")), scrape_s=1.0)
        (alert,) = (each for each in alerts(plan) if each.name == "HoldfastLeasesForgotten")
        targets = [fleet.address, fleet.workers[0].said("ready")["probe"]]
        with start_prometheus(tmp_path, targets, rules_document(plan), "1s", "500ms") as prometheus:
            prometheus.until(lambda: healthy(prometheus), "every rule evaluated", prometheus.rules)
            assert alert.name not in firing(prometheus)
            flushed = time.time()
            redis.ask("FLUSHALL")
            prometheus.until(lambda: alert.name in firing(prometheus), "the alert", prometheus.alerts)
            seen = first(prometheus, f'sum(holdfast_lock_lost_total{{reason="stolen"}}) >= {FORGOTTEN}', flushed)
            fired = first(prometheus, f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}', flushed)
            assert fired - seen <= alert.hold_s + plan.windows.seen_s + EVALUATIONS_S
            # Processes write what they have lost every few seconds, and the alert may fire before.
            until(
                lambda: fleet.why()["findings"][0]["rule"] == "leases forgotten",
                "the runbook that the alert names knows the cause",
                FLUSH_S + WHY_S,
            )


def firing(prometheus: Prometheus) -> list[str]:
    """The alerts that fire now."""
    return [each["labels"]["alertname"] for each in prometheus.alerts() if each["state"] == "firing"]


def first(prometheus: Prometheus, expression: str, since: float) -> float:
    """When an expression first had an answer, by the clock of the samples."""
    prometheus.wait_for(expression)
    (found, *_) = prometheus.query_range(expression, since, time.time() + 0.5, 0.5)  # the last step may be earlier
    return float(found["values"][0][0])


def at_work(prometheus: Prometheus) -> None:
    """Wait until every loop has ticked, locks were released, and recorded series exist."""
    prometheus.wait_for(
        "count(holdfast_loop_last_tick_timestamp_seconds)", lambda seen: bool(seen) and seen[0].value == len(LOOPS)
    )
    prometheus.wait_for("sum(holdfast_loop_leader)", lambda seen: bool(seen) and seen[0].value == len(LOOPS))
    prometheus.wait_for('family:holdfast_lock_not_owned:ratio5m{family="scheduler.job"} == 0')
    prometheus.wait_for("sum(loop:holdfast_loop_late:bool) == 0", bool)


def pages(prometheus: Prometheus) -> list[str]:
    """The alerts that page. A starved host may rightly be worth a ticket: its event loops are late."""
    return [each["labels"]["alertname"] for each in prometheus.alerts() if each["labels"]["severity"] == "page"]


def healthy(prometheus: Prometheus) -> bool:
    """Whether every rule was evaluated, and none with an error."""
    rules = prometheus.rules()
    assert not [each.get("lastError") for each in rules if each["health"] == "err"]
    return all(each["health"] == "ok" for each in rules)
