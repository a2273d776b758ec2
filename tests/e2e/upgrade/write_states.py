"""Writes the stored states: run it with the version that they are to come from.

    PYTHONPATH=/path/to/old/src:tests python tests/e2e/upgrade/write_states.py /path/to/old/src

A plane with a worker is filled through its HTTP API until it has jobs in every state, and is then killed. Leases are
acquired with the lease library. Two states are written: `sqlite` (one file for plane and leases) and `servers`
(Postgres and Redis).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

import holdfast
from e2e.upgrade import stored_state as stored
from e2e.upgrade.upgrade_plane import Plane, running
from support.servers.postgres import postgres_executables, start_postgres
from support.servers.redis import redis_executables, start_redis

WORKFLOW = {
    "name": "refund",
    "steps": {
        "check": {"kind": "job", "topic": "double", "input": "${ input.amount }"},
        "agreed": {"kind": "approval", "message": "Refund ${ input.amount }?", "after": ["check"]},
        "pay": {"kind": "job", "topic": "double", "after": ["agreed"], "input": "${ steps.check.output }"},
    },
    "output": "${ steps.pay.output }",
}
LONG = {
    "name": "long",
    "steps": {"work": {"kind": "job", "topic": "gated", "input": 7, "retry": 2}},
    "output": "${ steps.work.output }",
}


def fill(plane: Plane) -> dict[str, Any]:
    """Bring jobs into every state. Returns what they were when the plane is killed."""

    def submit(job: str, topic: str, **more: Any) -> None:
        plane.post("jobs", {"id": job, "topic": topic, "payload": 3, "tenant": "acme", **more})

    def state(job: str, *values: str) -> None:
        plane.reaches(f"jobs/{job}", "state", *values)

    for number in range(3):
        submit(f"done-{number}", "double", idempotency_key=f"key-{number}", labels={"team": "red"})
    submit("dead", "broken")
    submit("cancelled", "double", delay=3600)
    plane.post("jobs/cancelled/cancel", {"reason": "not needed"})
    submit("asks", "bank.pay")
    submit("asks-limited", "bank.limited")
    submit("refused", "bank.pay")
    plane.post("approvals/refused/reject", {"note": "too much"}, by="approver")
    for number in range(3):
        state(f"done-{number}", "SUCCEEDED")
    state("dead", "FAILED")
    state("cancelled", "CANCELLED")
    state("refused", "DENIED")
    for workflow in (WORKFLOW, LONG):
        plane.post("workflows", {"definition": workflow, "tenant": "acme"})
    for run in ("run-done", "run-waits"):
        plane.post("runs", {"id": run, "workflow": "refund", "input": {"amount": 5}, "tenant": "acme"})
        plane.reaches(f"runs/{run}", "status", "waiting")
    plane.post("approvals/run-done:agreed@1/approve", {"note": "fine"}, by="approver")
    plane.reaches("runs/run-done", "status", "succeeded")
    plane.call("PUT", "policy", {"risk": "high", "mode": "fail_open", "reason": "a test"})
    plane.call("PUT", "tenants/acme/limits", {"slots": 50})
    submit("retried", "busy", max_attempts=9)
    state("retried", "RETRYING")
    submit("limited-0", "limited")
    state("limited-0", "RUNNING")
    plane.post("runs", {"id": "run-long", "workflow": "long", "tenant": "acme"})
    state("run-long:work@1", "RUNNING")
    for number in (1, 2):
        submit(f"limited-{number}", "limited", priority=number)
    for number in range(12):
        submit(f"queued-{number}", "double", tenant=("acme", "globex")[number % 2])
    submit("later", "double", delay=3600)
    submit("unserved", "triple")
    submit("soon", "double", delay=5)
    kept = plane.post("resource-locks/acquire", {"resource": "camera", "owner": "robot", "ttl": 3600, "tenant": "acme"})
    plane.reaches("jobs/soon", "version", 2)  # the scheduler has seen it
    jobs = {each["id"]: each for each in plane.get("jobs?limit=100")["items"]}
    runs = {each["id"]: each for each in plane.get("runs")["items"]}
    return {"jobs": jobs, "runs": runs, "resource": kept}


def lease(url: str) -> dict[str, Any]:
    """Acquire leases. Returns the fences and the token of the one that stays held."""
    locks = holdfast.connect(url)
    with locks.lock("nightly"):
        pass
    with locks.lock("nightly") as held:
        fence = held.fence
    token = locks.acquire_token("upgrade:held", 3600)
    return {"fence": fence, "token": token, "held": locks.inspect("upgrade:held").fence}


def write(name: str, stores: Mapping[str, str], leases: str, source: Path, folder: Path) -> None:
    """Fill a plane and a lease store, and store what the writer knows."""
    known = lease(leases)
    with running(folder, stores, source) as plane:
        known |= fill(plane)
    known["written_ns"] = time.time_ns()
    known["commit"] = subprocess.run(
        ["git", "-C", str(source), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    stored.write(f"{name}.json", json.dumps(known, indent=1, sort_keys=True))


def main() -> None:
    """Write both states."""
    source = Path(sys.argv[1]).resolve()
    assert str(source) in holdfast.__file__, holdfast.__file__
    stored.STORED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plane.db"
        url = f"sqlite:///{file}"
        write("sqlite", {"database": url, "leases": url}, url, source, Path(directory))
        stored.write("sqlite.sql", stored.dump_sqlite(file))
    postgres = postgres_executables()[0]
    with (
        tempfile.TemporaryDirectory() as directory,
        start_redis(redis_executables()[0]) as cache,
        start_postgres(postgres) as server,
        server.database() as url,
    ):
        write("servers", {"database": url, "leases": cache.url}, cache.url, source, Path(directory))
        stored.write("servers.sql", stored.dump_postgres(postgres.folder, url))
        stored.write("servers.redis", stored.dump_redis(redis.Redis.from_url(cache.url)))


if __name__ == "__main__":
    main()
