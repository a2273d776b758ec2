"""A database and a lease store written by an older version open, migrate, and their work continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from e2e.upgrade import stored_state as stored
from e2e.upgrade.upgrade_plane import running
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables
from support.servers.redis import redis_executables, start_redis
from support.source_tree import ROOT

SERVERS = [
    pytest.param("servers", marks=pytest.mark.server, id=f"{postgres}-{redis}")
    for postgres, redis in zip(postgres_executables()[-1:], redis_executables(), strict=False)
]

WAITING = {"asks", "asks-limited", "run-waits:agreed@1"}


@dataclass
class State:
    """A restored state: where it is, and what its writer knew."""

    stores: Mapping[str, str]
    folder: Path
    facts: dict[str, Any]

    @property
    def jobs(self) -> dict[str, Any]:
        """The jobs as they were when the plane was killed."""
        found: dict[str, Any] = self.facts["jobs"]
        return found


@pytest.fixture(params=["sqlite", *SERVERS])
def state(
    request: pytest.FixtureRequest, tmp_path: Path, _postgres_servers: Callable[[PostgresExecutable], PostgresServer]
) -> Iterator[State]:
    """Each stored state, as if its plane had been killed a moment ago."""
    facts = stored.facts(request.param)
    moved = stored.mover(facts["written_ns"])
    if request.param == "sqlite":
        stored.load_sqlite(tmp_path / "plane.db", moved(stored.read("sqlite.sql")))
        url = f"sqlite:///{tmp_path / 'plane.db'}"
        yield State({"database": url, "leases": url}, tmp_path, facts)
        return
    with start_redis(redis_executables()[0]) as redis, _postgres_servers(postgres_executables()[-1]).database() as url:
        with psycopg.connect(url) as connection:
            connection.execute(moved(stored.read("servers.sql")).encode())
        stored.load_redis(redis.client(), stored.read("servers.redis"))
        yield State({"database": url, "leases": redis.url}, tmp_path, facts)


def test_jobs_runs_and_approvals_of_an_older_version_continue(state: State) -> None:
    old = state.jobs
    with running(state.folder, state.stores, ROOT / "src") as plane:
        listed = {each["id"]: each for each in plane.get("jobs?limit=100")["items"]}
        assert listed.keys() == old.keys()
        assert {each["id"] for each in plane.get("dead-letters")["items"]} == {"dead", "refused"}
        assert {each["job"] for each in plane.get("approvals")["items"]} == WAITING
        assert {each["id"] for each in plane.get("runs")["items"]} == state.facts["runs"].keys()
        assert {each["name"] for each in plane.get("workflows")["items"]} == {"refund", "long"}
        assert {each["risk"]: each["mode"] for each in plane.get("policy")["classes"]}["high"] == "fail_open"
        assert plane.get("tenants/acme/limits")["slots"] == 50
        done = plane.get("jobs/done-0")
        assert done == {**done, **old["done-0"], **times(done)}
        assert (done["payload"], done["result"]) == (3, 6)
        repeated = {"topic": "double", "payload": 3, "tenant": "acme", "labels": {"team": "red"}}
        assert plane.post("jobs", {**repeated, "idempotency_key": "key-0"})["id"] == "done-0"

        (state.folder / "gate").touch()
        for job in WAITING:
            plane.post(f"approvals/{job}/approve", by="approver")
        ends = {each: "SUCCEEDED" for each in old if each.startswith(("queued", "limited", "done"))}
        ends |= dict.fromkeys(("soon", "asks", "asks-limited", "retried"), "SUCCEEDED")
        for job, end in ends.items():
            ended = plane.reaches(f"jobs/{job}", "state", "SUCCEEDED", "FAILED", "TIMEOUT", "CANCELLED")
            assert ended["state"] == end, ended
            assert ended["fence"] > (old[job]["fence"] or 0) or job.startswith("done"), job
            assert ended["run_fence"] > (old[job]["run_fence"] or 0) or job.startswith("done"), job
            assert ended["attempt"] >= (2 if old[job]["state"] == "RETRYING" else 1), job
        for run, output in (("run-waits", 20), ("run-long", 7)):
            assert plane.reaches(f"runs/{run}", "status", "succeeded", "failed")["output"] == output
        assert plane.get("jobs/unserved")["state"] == "PENDING"
        assert plane.get("jobs/later")["state"] == "PENDING"
        assert plane.post("dead-letters/dead/retry")["state"] == "PENDING"

        held = state.facts["resource"]
        [holder] = plane.get("resource-locks")["items"]
        assert (holder["resource"], holder["owner"], holder["fence"]) == ("camera", "robot", held["fence"])
        named = {name: held[name] for name in ("resource", "tenant", "token", "owner")}
        plane.post("resource-locks/release", {name: named[name] for name in ("resource", "tenant", "token")})
        again = {"resource": "camera", "owner": "another", "tenant": "acme"}
        assert plane.post("resource-locks/acquire", again)["fence"] > held["fence"]


def times(job: Mapping[str, Any]) -> dict[str, Any]:
    """The points in time of a job: they moved."""
    return {name: value for name, value in job.items() if name.endswith("_at") or name == "not_before"}


def test_leases_of_an_older_version_stay_held_and_fencing_tokens_rise(state: State) -> None:
    facts = state.facts
    with holdfast.connect(state.stores["leases"]) as locks:
        assert locks.inspect("upgrade:held").fence == facts["held"]
        assert locks.acquire_token("upgrade:held", 60) == ""
        with locks.lock("nightly") as lease:
            assert lease.fence > max(facts["fence"], facts["held"])
        locks.renew_token("upgrade:held", facts["token"], 60)
        locks.release_token("upgrade:held", facts["token"])
        with locks.lock("upgrade:held") as lease:
            assert lease.fence > facts["held"]
