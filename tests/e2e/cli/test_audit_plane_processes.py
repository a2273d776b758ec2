"""The audit ledger of planes as users start them: on by default, of several processes, and read after a kill."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest

from holdfast.observe.ledger.reader import load
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, until


@pytest.fixture
def audited(shell: Shell) -> Shell:
    furnish(shell)
    return shell


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if not name.startswith("#")
    }


def test_a_killed_plane_leaves_a_ledger_that_reads_and_the_next_ones_add_to_it(audited: Shell) -> None:
    up = Up(audited)
    here = json.dumps(str(audited.directory))
    job = audited.run("jobs", "submit", "slow", "--payload", here, "--json").json["job"]["id"]
    until((audited.directory / "begun").exists, "a function that runs")
    ledger, key = audited.directory / "plane.db.audit", f"holdfast:worker:job:{job}"
    until(lambda: any(record.key == key for record in load(ledger)), "the grant in the ledger")
    assert metrics(up.address)["holdfast_audit_records_total"] > 0
    up.process.kill()
    up.ended()
    [held] = audited.run("history", key, "--json").json
    assert (held["end"], held["family"], held["fence"] > 0) == ("unknown", "worker.job", True)
    assert audited.run("check").code == 0

    again = Up(audited, "--only", "scheduler", "--no-audit")
    worker = audited.start("worker", "works:app", "--audit", "plane.db.audit", "--url", "sqlite:///plane.db", "--json")
    (audited.directory / "go").touch()
    assert audited.run("jobs", "submit", "double", "--payload", "4", "--follow").code == 0
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    for stream in (worker.stdout, worker.stderr):
        assert stream is not None
        stream.close()
    assert again.end().code == 0
    assert len(list(ledger.glob("*.jsonl"))) == 2, "the scheduler keeps none"
    checked = audited.run("check", "--json").json
    assert (checked["ok"], checked["files"], checked["skipped"], checked["dropped"]) == (True, 2, 0, 0)


def test_a_ledger_that_cannot_be_is_said_before_anything_is_opened(audited: Shell) -> None:
    (audited.directory / "taken").touch()
    done = audited.run("up", "--audit", "taken/audit")
    assert done.code == 64
    assert "audit.path (--audit): " in done.err
    assert not (audited.directory / "plane.db").exists()
    shown = audited.run("up", "--check", "--no-audit", "--json").json
    assert shown["settings"]["audit.path"]["value"] is None
