"""Every query of the dashboard, asked of a real Prometheus that scrapes a real plane under load.

The plane is `holdfast up --sample` in a process of its own, with everything quickened: loops that tick each second or
sooner, and leases so short that they are renewed while a job runs.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.ops.dashboard import dashboard
from holdfast.ops.dashboard import promql as queries
from holdfast.ops.dashboard.layout import MARKS, rows
from holdfast.ops.dashboard.promql import any_of, filled
from holdfast.plane.locks.registry import FAMILIES, Scope
from holdfast.plane.settings.settings import Settings
from support.cli.sessions import until
from support.servers.prometheus import Point, Prometheus, needs_prometheus, start_prometheus
from support.source_tree import ROOT

pytestmark = needs_prometheus

SETTINGS = """
database = "sqlite:///plane.db?synchronous=normal"

[worker]
lease_ttl = 1.5
heartbeat = 0.5

[reconciler]
interval = 0.5

[replayer]
interval = 0.5

[snapshot]
interval = 0.5

[cleanup]
interval = 1

[runs]
interval = 0.5

[delays]
interval = 0.5
"""

SHOWN = rows(Settings(database="sqlite:///plane.db"))
CHOSEN = ("scheduler.job", "worker.job")

# Panels and series that may be empty on this plane, with the reason.
NO_SERIES = {
    ("Oldest waiting job", "{{topic}}"): "no job waits",
    ("Clock offset", "{{instance}}"): "only Postgres has a clock of its own",
    ("Longest attempt", "{{topic}}"): "no attempt runs at that moment",
    ("Hung attempts, jobs that kill workers", "hung: {{topic}}"): "nothing hangs",
    ("Jobs without workers", "no worker: {{topic}}"): "every topic has workers",
    ("Exercised fallback", "share: {{family}}"): "nothing is exercised",
    ("Exercised fallback", "per second: {{family}}, {{risk}}"): "nothing is exercised",
    ("Stale jobs by state", "timed out per second, {{state}}"): "nothing was overdue",
    ("Stale jobs by state", "past deadline per second, {{state}}"): "nothing was overdue",
    ("Orphans replayed", "{{topic}}"): "nothing was forgotten",
    ("Scheduler", "poll: {{outcome}}"): "no job had to queue",
    ("Outbox relayed", "relayed"): "the database is the bus",
    ("Transactions in trouble", "retried with rows locked"): "only Postgres",
    ("Transactions in trouble", "outcome unknown"): "only Postgres",
    ("Transactions in trouble", "listener reconnects"): "only Postgres",
    ("Waiting for the database", "for a connection"): "only Postgres",
    ("Database queue", "open"): "only Postgres",
}
# Series that may have no number: quantiles and spreads of events that have not happened yet.
NO_NUMBER = {
    ("Retry waves, Fano factor", "all processes"),  # no lock may have been busy
    *(("Hold of approval", p) for p in ("p50", "p95", "p99")),  # no approval may be decided yet
    *(("Job takeover time after a crash", f"{p} {{{{part}}}}") for p in ("p50", "p95", "p99")),  # no process crashed
}


@contextmanager
def plane(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running plane with a sample workload, and where it answers."""
    (directory / "holdfast.toml").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    words = ("up", "--sample", "--json", "--port", "0")
    log = directory / "up.log"
    with (
        log.open("wb") as writing,
        subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=directory,
            env={**environment, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            until(lambda: b"\n" in log.read_bytes() or process.poll() is not None, "a plane that runs")
            yield process, json.loads(log.read_bytes().splitlines()[0])["address"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)  # the second one: the sample is not drained
            process.wait(60)


class Reader:
    """A reader of the dashboard, with all jobs chosen."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self._jobs = any_of(sorted(prometheus.ask("label/job/values")))

    def sent(self, expression: str) -> str:
        """As Grafana sends it."""
        return filled(expression, rate_interval="1m", shown="5m", job=self._jobs)

    def sees(self, title: str, least: float) -> None:
        """Wait for a number of the first row to be this bad."""
        (expression,) = (panel.queries[0].expression for panel in SHOWN[0].panels if panel.title == title)
        self.prometheus.wait_for(self.sent(expression), lambda found: found[0].value >= least)


def has_numbers(found: list[Point]) -> bool:
    return any(math.isfinite(point.value) for point in found)


def look_at_everything(reader: Reader) -> None:
    """Ask every query, and wait for those that must have data."""
    empty: set[tuple[str, str]] = set()
    for panel in (panel for row in SHOWN for panel in row.panels):
        for query in panel.queries:
            line, asked = (panel.title, query.legend), reader.sent(query.expression)
            if line in NO_SERIES or line in NO_NUMBER:
                found = reader.prometheus.query(asked)
            else:
                found = reader.prometheus.wait_for(asked, has_numbers)
            empty |= set() if found else {line}
            for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
                assert all(label in point.labels for point in found), f"{line} has no {label}"
            assert query.legend or len(found) == 1, f"{line} has {len(found)} lines without a name"
    assert empty <= set(NO_SERIES)


@pytest.mark.requires("R43", "R137")
def test_every_query_of_every_panel_is_answered_by_a_plane_under_load(tmp_path: Path) -> None:
    with (
        plane(tmp_path) as (process, address),
        start_prometheus(tmp_path, [address], scrape_interval="500ms") as server,
    ):
        # The slowest things to happen: a run went on, and the lease of a job was renewed.
        server.wait_for('sum(rate(holdfast_run_lock_hold_count{part="engine"}[1m])) > 0')
        server.wait_for('sum(rate(holdfast_lock_renewed_total{family="worker.job"}[1m])) > 0')
        reader = Reader(server)
        look_at_everything(reader)
        for mark in MARKS:
            server.query(reader.sent(mark.expression))
        for variable in dashboard(Settings())["templating"]["list"][1:]:
            series, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            assert server.ask(f"label/{label}/values", **{"match[]": reader.sent(series)}), variable["name"]
        held = filled(queries.total("locks_held", "family"), rate_interval="1m", shown="5m", family=any_of(CHOSEN))
        # A scrape that a busy machine missed leaves a gap of one interval.
        server.wait_for(held, lambda found: {point.labels["family"] for point in found} == set(CHOSEN))
        waiting = server.query(reader.sent(queries.total("locks_waiting", "family", where=queries.items_only())))
        items = {family.name for family in FAMILIES.values() if family.scope is Scope.ITEM}
        assert {point.labels["family"] for point in waiting} == items

        # And when something is wrong, the first row says so: the process is paused for longer than its leases last.
        process.send_signal(signal.SIGSTOP)
        try:
            reader.sees("Processes not answering", 1)
            server.wait_for("max_over_time(up[3s]) == 0")
        finally:
            process.send_signal(signal.SIGCONT)
        reader.sees("Leases lost", 1)
