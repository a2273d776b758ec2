"""`holdfast tune` on a real plane: its own `/metrics`, and a real Prometheus that scrapes it, say the same."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import run_app
from holdfast.core.tuning.percentiles import ENOUGH
from holdfast.ops.tuning.metrics import scrape
from support.cli.planes import FUNCTIONS, Up
from support.cli.sessions import Shell, until
from support.servers.prometheus import start_prometheus

JOBS = 110
HOLDS = 'holdfast_lock_hold_seconds_count{family="worker.job"}'
RENEWALS = 'holdfast_lock_renew_seconds_count{outcome="answered"}'
SETTINGS = """
database = "sqlite:///plane.db?synchronous=normal"
takeover = 601

[api]
port = 0

[worker]
app = "works:app"
count = 1
concurrency = 16

[reconciler]
interval = 0.15

[replayer]
interval = 0.15

[snapshot]
interval = 0.15

[runs]
interval = 0.15

[delays]
interval = 0.15
"""


def submit(address: str, number: int) -> None:
    connection = http.client.HTTPConnection(address.partition("://")[2], timeout=60)
    with contextlib.closing(connection):
        for count in range(number):
            body = json.dumps({"topic": "double", "payload": count})
            connection.request("POST", "/api/v1/jobs", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            answer.read()


def seen(metrics: str) -> bool:
    """Whether the plane has enough to tell."""
    found = scrape([metrics])
    holds = found.holds.get(("worker.job", ""))
    return holds is not None and holds.number >= JOBS and found.requests is not None and found.requests.enough


def family(told: Any, name: str) -> Any:
    return next(each for each in told["families"] if each["family"] == name)


@pytest.mark.requires("R112", "R137", "R138")
def test_a_plane_is_tuned_from_its_own_metrics_and_from_a_prometheus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text(SETTINGS)
    (tmp_path / "works.py").write_text(FUNCTIONS)
    try:
        up = Up(shell)
        metrics = f"{up.address}/metrics"

        def tuned(*words: str) -> Any:
            assert run_app(["tune", "--json", *words]) == 0
            return json.loads(capsys.readouterr().out)

        with start_prometheus(tmp_path / "p", [up.address], scrape_interval="1s") as prometheus:
            submit(up.address, JOBS)
            until(lambda: seen(metrics), "enough holds and renewals")
            direct = tuned("--metrics", metrics)
            # What `increase` says is stretched to the ends of its window, and may be less a scrape later: far more than
            # enough is waited for, so that what is asked next is still enough.
            for counter, wanted in ((HOLDS, JOBS), (RENEWALS, 2 * ENOUGH)):
                prometheus.wait_for(f"sum(increase({counter}[1h])) >= {wanted}")
            asked = tuned("--prometheus", prometheus.url, "--window", "1h", "--match", "job=holdfast")
        for told in (direct, asked):
            worker = family(told, "worker.job")
            assert worker["holds"]["all"]["number"] >= JOBS
            assert worker["holds"]["double"]["number"] >= JOBS, "by job class"
            assert worker["recommended"] is not None, worker["refused"]
            # A busy machine may have been so slow that it needs longer leases; then that is what must be said.
            assert worker["recommended"]["ttl"] == 30.0 or worker["recommended"]["ttl"] >= worker["shortest_ttl"] > 30.0
            assert worker["false_loss"]["requests"] >= 100
            scheduler = family(told, "scheduler.job")
            assert scheduler["binding"] == "neither" or scheduler["shortest_ttl"] > scheduler["present_ttl"]
        assert {term["name"] for term in family(asked, "reconciler")["terms"]} >= {"4 x store tail"}
        assert up.end(signal.SIGTERM).code == 0
    finally:
        shell.close()
