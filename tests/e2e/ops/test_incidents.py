"""Incidents on real processes and servers: `holdfast why` names the cause first, with figures and the next command."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from holdfast.drills.env.clocks import MovedClocks, built
from holdfast.testing.proxy import FaultProxy
from support.cli.sessions import until
from support.faults.freeze import freeze
from support.faults.small_disk import small_disk
from support.ops.incidents import Incident
from support.servers.nats import NatsServer, nats_executables, own_stream, start_nats
from support.servers.postgres import PostgresServer, postgres_executables, start_postgres
from support.servers.redis import RedisServer, redis_executables, start_redis

Incidents: TypeAlias = Callable[..., Incident]


@pytest.fixture
def incident(tmp_path: Path) -> Iterator[Incidents]:
    """Makes fleets, and ends them."""
    made: list[Incident] = []

    def make(**places: str) -> Incident:
        directory = tmp_path / f"fleet-{len(made)}"
        directory.mkdir()
        made.append(Incident(directory, **{"database": "sqlite:///plane.db?synchronous=normal", **places}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of its own."""
    with start_redis(redis_executables()[-1]) as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """A Postgres of its own."""
    with start_postgres(postgres_executables()[-1]) as server:
        yield server


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A NATS of its own."""
    with start_nats(nats_executables()[-1]) as server:
        yield server


def commands(finding: dict[str, Any]) -> list[str]:
    return [each["command"] for each in finding["next"]]


def test_a_healthy_plane_has_no_finding_that_needs_action(incident: Incidents, redis: RedisServer) -> None:
    fleet = incident(leases=redis.url)
    fleet.start()
    found = fleet.names("fine")
    assert "All servers answer quickly" in found["sentence"]
    assert fleet.shell.run("why").code == 0


def test_a_redis_that_is_gone_is_down_and_the_command_has_its_port(incident: Incidents, redis: RedisServer) -> None:
    fleet = incident(leases=redis.url)
    fleet.start()
    port = redis.port
    redis.kill()
    found = fleet.names("store down")
    assert f"127.0.0.1:{port} is down: the connection is refused" in found["sentence"]
    assert f"redis-cli -h 127.0.0.1 -p {port} PING" in commands(found)


def test_a_redis_that_is_stopped_hangs(incident: Incidents, redis: RedisServer) -> None:
    fleet = incident(leases=redis.url)
    fleet.start()
    redis.pause()
    assert "hangs: it accepts connections" in fleet.names("store down")["sentence"]


def test_a_slow_redis_is_slow_and_not_down(incident: Incidents, redis: RedisServer) -> None:
    with FaultProxy(redis.port) as proxy:
        fleet = incident(leases=f"redis://{proxy.address}")
        fleet.start()
        proxy.slow("to_client", 3.0)
        found = fleet.names("store slow")
        assert "is slow, not down: an answer takes 3" in found["sentence"]


def test_a_flush_of_redis_is_named_as_that(incident: Incidents, redis: RedisServer) -> None:
    fleet = incident(leases=redis.url)
    fleet.start(slots=8)
    jobs = [fleet.submit("nap", 600) for _ in range(4)]
    until(lambda: all(fleet.state(each) == "RUNNING" for each in jobs), "four running jobs")
    redis.cli("FLUSHALL")
    found = fleet.names("leases forgotten")
    assert "No operator broke them" in found["sentence"]
    assert "it executed FLUSHALL 1 times" in found["sentence"]
    assert any("commandstats" in each for each in commands(found))
    until(lambda: "vanished within 10 s" in fleet.names("leases forgotten")["sentence"], "losses that processes report")


def test_handlers_that_hang_are_not_a_lack_of_workers(incident: Incidents) -> None:
    fleet = incident()
    fleet.start(slots=4)
    for _ in range(6):
        fleet.finish("hang")
    for _ in range(6):
        fleet.submit("hang", 1)
    found = fleet.names("handler hangs", "4 attempts hang (hang 4)")  # each of them counts from its own start
    assert "They use 4 of 4 busy slots of pool default" in found["sentence"]
    assert "more workers do not cure it" in found["sentence"]
    assert commands(found)[0] == f"py-spy dump --pid {fleet.workers[0].pid}"


def test_a_stopped_worker_is_named_with_its_pid(incident: Incidents) -> None:
    fleet = incident()
    fleet.start()
    job = fleet.submit("nap", 600)
    until(lambda: fleet.state(job) == "RUNNING", "a running job")
    freeze(fleet.workers[0].pid)
    found = fleet.names("worker silent")
    assert "its process is stopped" in found["sentence"]
    assert f"kill -CONT {fleet.workers[0].pid}" in commands(found)


def test_a_topic_without_workers_is_named_although_the_pool_has_workers(incident: Incidents) -> None:
    fleet = incident()
    fleet.start()
    fleet.submit("elsewhere")
    found = fleet.names("topic without workers")
    assert "No live worker serves topic elsewhere: 1 job waits" in found["sentence"]
    assert "no worker has ever announced it" in found["sentence"]
    assert fleet.plane is not None
    served = httpx.get(f"{fleet.plane.address}/api/v1/findings", timeout=60).json()["findings"]
    assert "topic without workers" in [each["rule"] for each in served], "the API and the command agree"
    fleet.work("works:other")
    until(lambda: fleet.top() == "fine", "a topic that is served")


def test_failing_jobs_are_named_with_their_error(incident: Incidents) -> None:
    fleet = incident()
    fleet.start()
    for _ in range(3):
        fleet.submit("fail")
    found = fleet.names("jobs die")
    assert "the invoice has no address" in found["sentence"]


def test_a_tenant_that_floods_is_named(incident: Incidents) -> None:
    fleet = incident()
    fleet.start(slots=2)
    for _ in range(2):
        fleet.submit("nap", 600, "acme")
    for _ in range(130):
        fleet.submit("nap", 0.1, "acme")
    fleet.submit("quick", tenant="globex")
    found = fleet.names("tenant flood")
    assert "Tenant acme floods the plane: 130 of 131" in found["sentence"]
    assert "globex waits for" in found["sentence"]


def test_a_clock_that_is_an_hour_ahead_is_named(incident: Incidents, tmp_path: Path) -> None:
    fleet = incident()
    fleet.start()
    with MovedClocks(tmp_path / "offsets", built(tmp_path)) as clocks:
        clocks.jump(3600)
        fleet.work("works:other", env=clocks.environment)
        found = fleet.names("worker clock")
        assert re.search(r"is (59|60) min", found["sentence"])


def test_a_database_that_is_gone_is_named_and_no_innocent_server(
    incident: Incidents, postgres: PostgresServer, redis: RedisServer
) -> None:
    with postgres.database() as url:
        fleet = incident(database=url, leases=redis.url)
        fleet.start()
        postgres.kill()
        fleet.names("database down")
        found = fleet.why()["findings"]
        assert found[0]["rule"] == "database down", found
        assert {each["rule"] for each in found if each["severity"] == "act"} == {"database down"}
        assert found[1]["rule"] == "cannot tell"
        postgres.start()  # the fixture takes its database away


def test_a_hanging_database_ends_the_report_within_seconds(
    incident: Incidents, postgres: PostgresServer, redis: RedisServer
) -> None:
    with postgres.database() as url:
        fleet = incident(database=url, leases=redis.url)
        fleet.start()
        freeze(postgres.pid)
        try:
            assert "hangs" in fleet.names("database down")["sentence"]
        finally:
            os.kill(postgres.pid, signal.SIGCONT)


def test_a_transaction_that_blocks_others_is_named(
    incident: Incidents, postgres: PostgresServer, redis: RedisServer
) -> None:
    with postgres.database() as url:
        fleet = incident(database=url, leases=redis.url)
        fleet.start()
        name = url.partition("?")[0].rpartition("/")[2]
        with postgres.connect(name) as connection, connection.transaction():
            connection.execute("LOCK TABLE plane_job")
            found = fleet.names("transaction blocks")
            assert any("pg_terminate_backend" in each for each in commands(found))


def test_a_bus_that_is_gone_is_no_full_pool(incident: Incidents, redis: RedisServer, nats: NatsServer) -> None:
    fleet = incident(leases=redis.url, bus=own_stream(nats))
    fleet.start()
    nats.kill()
    found = fleet.names("bus down")
    assert f"127.0.0.1:{nats.port} is down" in found["sentence"]


def test_a_full_disk_is_named(incident: Incidents, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fleet = incident(database=f"sqlite:///{disk.place}/plane.db?synchronous=normal")
        fleet.start()
        disk.fill()
        found = fleet.names("disk full")
        assert str(disk.place) in found["sentence"]
        disk.free()
        until(lambda: fleet.top() != "disk full", "a disk with room")


def test_a_writer_that_holds_the_file_is_named_with_its_pid(incident: Incidents) -> None:
    fleet = incident()
    fleet.start()
    writer = sqlite3.connect(fleet.shell.directory / "plane.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        found = fleet.names("database locked")
        assert f"process {os.getpid()}" in found["sentence"]
    finally:
        writer.close()
