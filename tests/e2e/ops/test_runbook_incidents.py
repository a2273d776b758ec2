"""Runbooks in real incidents: a process that is stopped while it holds leases, and a Redis that dies under a plane."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import holdfast
from holdfast.ops.runbooks.model import FindingSeverity
from holdfast.plane.settings.settings import Settings
from support.cli.planes import Up
from support.cli.sessions import LIMIT_S, Shell, until
from support.faults.freeze import freeze
from support.fixtures.redis import NEWEST
from support.ops.runbook_harness import found, reported
from support.servers.redis import RedisExecutable, RedisServer, start_redis

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def incident_redis(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One server for the incidents of this file."""
    executable: RedisExecutable = request.param
    with start_redis(executable) as server:
        yield server


def stop_a_holder(url: str, ledger: Path, server: RedisServer) -> list[str]:
    """Stop a process that holds leases until they have run out, and let it find out. Its secrets, if they are there."""
    words = [sys.executable, str(HERE / "runbook_holder.py"), url, str(ledger)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child, holdfast.connect(url) as locks:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        secrets = [] if url != server.url else _secrets(server)
        freeze(child.pid, url)
        until(lambda: not locks.list("job:"), "leases that have run out")
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait(LIMIT_S) == 0
    return secrets


def _secrets(server: RedisServer) -> list[str]:
    """The tokens of the leases, as only the server knows them."""
    return [token for each in range(3) for token in re.findall(r"[0-9a-f]{32}", server.cli("GET", f"job:{each}"))]


@pytest.mark.requires("R25", "R36")
@pytest.mark.parametrize("incident_redis", NEWEST, indirect=True)
def test_a_burst_of_lost_leases_of_a_process_that_stood_still_is_known_as_that(
    incident_redis: RedisServer, tmp_path: Path
) -> None:
    for name, url in (("sqlite", f"sqlite:///{tmp_path / 'leases.db'}"), ("redis", incident_redis.url)):
        ledger = tmp_path / name
        secrets = stop_a_holder(url, ledger, incident_redis)
        assert len(secrets) == (3 if name == "redis" else 0)
        place = Settings(database=f"sqlite:///{tmp_path / 'nowhere.db'}", leases=url)
        report = asyncio.run(reported("not-owned", place, ledger=str(ledger), secrets=secrets))
        burst = found(report, "burst: pause")
        assert "3 leases were lost or refused" in burst.sentence
        assert "scheduler.job 3" in burst.sentence
        assert report.severity is FindingSeverity.ACT
        assert "holdfast tune --family scheduler.job" in [step.command for step in report.next]


OUTAGE = """
database = "sqlite:///plane.db?synchronous=normal"
leases = "{leases}"

[api]
port = 0
"""
FLOW = "name: notes\nrisk: low\nsteps:\n  send: {kind: approval}\n"


@pytest.mark.requires("R91", "R92", "R93", "R94", "R97", "R106")
@pytest.mark.parametrize("executable", NEWEST)
def test_an_outage_is_followed_from_the_first_fallback_to_the_return_to_zero(
    executable: RedisExecutable, tmp_path: Path
) -> None:
    shell = Shell(tmp_path)
    with start_redis(executable) as server:
        (tmp_path / "holdfast.toml").write_text(OUTAGE.format(leases=server.url))
        (tmp_path / "notes.yaml").write_text(FLOW)
        up = Up(shell, "--only", "api,engine")
        asked = ("runbook", "store-outage", "--metrics", up.address, "--interval", "0.5", "--timeout", "20")
        try:
            healthy = shell.run(*asked)
            assert healthy.code == 0, healthy.out
            server.kill()
            assert shell.run("runs", "start", "notes.yaml").code == 0
            until(lambda: _fallbacks(up.address) > 0, "a lock that falls back")
            until(lambda: shell.run("policy", "show", "--json").json["rate"] > 0, "the word of it in the database")
            down = shell.run(*asked)
            assert down.code == 3, down.out
            finding = down.out[down.out.index("FINDING (act now)") :]
            assert "The lease store does not answer" in finding
            assert "Class high is fail_closed: work waits for the store" in finding
            assert "class low is fail_open: work runs under local locks" in finding
            assert "$ holdfast policy set low fail_closed --reason" in finding
            said = shell.run(*asked, "--json").json
            assert (said["severity"], said["exit"]) == ("act", 3)
            server.start()
            until(lambda: not _open(up.address), "a plane that reaches its store again")
            until(lambda: "returned to zero" in shell.run(*asked).out, "fallbacks that have ended")
            over = shell.run(*asked)
            assert over.code == 0, over.out
            assert "FINDING (watch) The store answers, after" in over.out
        finally:
            up.end(signal.SIGKILL)
            shell.close()


def _metric(address: str, name: str) -> list[float]:
    lines = httpx.get(f"{address}/metrics", timeout=LIMIT_S).text.splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)]


def _fallbacks(address: str) -> float:
    return sum(_metric(address, "holdfast_lock_fallback_total{"))


def _open(address: str) -> bool:
    return any(_metric(address, "holdfast_store_breaker_open"))
