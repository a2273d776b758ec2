"""Each finding of `holdfast doctor`, produced on a real server, and what a lock that demands a guarantee then gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.exit_codes import Exit
from holdfast.core.diagnosis import Severity
from holdfast.errors import Misconfigured, Unavailable
from holdfast.stores.sqlite import mounts
from holdfast.testing.proxy import FaultProxy
from holdfast.types import NS, Guarantee
from support.cli.sessions import Shell
from support.fixtures.redis import StartRedis
from support.harness.doctor import Look, bad, of
from support.load.processes import until
from support.servers.redis import RedisServer, free_port, start_redis
from support.servers.redis_cluster import cluster_port, done, start_cluster
from support.servers.sentinel import in_sync, start_sentinels

pytestmark = [pytest.mark.server, pytest.mark.slow]
SAFE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def test_a_server_that_syncs_every_write_keeps_its_grade(own_redis: StartRedis, look: Look) -> None:
    found = look(own_redis(args=SAFE).url)
    assert found.grade is Guarantee.FENCED
    assert {each.check for each in found.findings} >= {"version", "scripts", "role", "eviction", "persistence"}
    assert {each.check for each in found.findings} >= {"failover", "replicas", "round_trip", "clock", "ttl_resolution"}
    assert all(each.reason and each.fix for each in found.findings if each.severity is not Severity.OK)
    assert bad(found) <= {"round_trip", "threads"}  # a busy machine


@pytest.mark.parametrize(
    ("args", "check", "severity", "said"),
    [
        ((*SAFE, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"), "eviction", "critical", "allkeys-lru"),
        ((*SAFE, "--maxmemory", "64mb", "--maxmemory-policy", "volatile-ttl"), "eviction", "critical", "volatile-ttl"),
        ((), "persistence", "warning", "appendonly no"),
        (("--appendonly", "yes"), "persistence", "warning", "appendfsync everysec"),
    ],
)
def test_a_server_that_loses_leases_is_graded_down(
    own_redis: StartRedis, look: Look, args: tuple[str, ...], check: str, severity: str, said: str
) -> None:
    server = own_redis(args=args)
    found = look(server.url)
    assert found.grade is Guarantee.EFFICIENCY_ONLY
    assert found.limits == (check,)
    assert (of(found, check).severity, said in of(found, check).found) == (severity, True)


def test_an_evicting_policy_without_a_limit_is_only_a_note(own_redis: StartRedis, look: Look) -> None:
    found = look(own_redis(args=(*SAFE, "--maxmemory-policy", "allkeys-lru")).url)
    assert of(found, "eviction").severity is Severity.NOTE
    assert found.grade is Guarantee.FENCED


def test_replicas_and_their_minimum_are_seen_and_a_replica_is_no_store(own_redis: StartRedis, look: Look) -> None:
    primary = own_redis(args=(*SAFE, "--repl-diskless-sync-delay", "0"))
    with start_redis(primary.executable, args=["--replicaof", "127.0.0.1", str(primary.port)]) as replica:
        until(lambda: in_sync(primary) == 1, "the replica follows")
        found = look(primary.url)
        assert of(found, "replicas").severity is Severity.NOTE
        assert of(found, "replicas").found == "1 replicas, min-replicas-to-write 0"
        primary.cli("CONFIG", "SET", "min-replicas-to-write", "1")
        assert of(look(primary.url), "replicas").severity is Severity.OK
        found = look(replica.url)
        assert of(found, "role").severity is Severity.CRITICAL
        assert found.grade is Guarantee.EFFICIENCY_ONLY


def test_sentinel_is_seen_from_the_server_and_from_the_url(redis_executable: Any, look: Look) -> None:
    with start_sentinels(redis_executable) as deployment:
        for url in (deployment.primary().url, deployment.url):
            found = look(url)
            assert of(found, "failover").found == "automatic failover by Sentinel"
            assert of(found, "replicas").severity is Severity.WARNING
            assert "failover" in found.limits


def test_a_cluster_fails_over_if_it_has_replicas(redis_executable: Any, look: Look) -> None:
    with start_cluster(redis_executable) as cluster:
        found = look(cluster.url)
        assert of(found, "failover").severity is Severity.OK
        primary = cluster.primaries[0]
        options = ("--cluster-enabled", "yes")
        with start_redis(redis_executable, args=options, port=cluster_port()) as replica:
            cluster.replicas.append(replica)
            replica.cli("CLUSTER", "MEET", "127.0.0.1", primary.port)
            until(lambda: len(cluster.known(replica)) == 4, "it meets the others", 60)
            until(lambda: done(replica, "CLUSTER", "REPLICATE", cluster.id_of(primary)), "it follows", 60)
            until(lambda: in_sync(primary) == 1, "the replica follows", 60)
            found = look(cluster.url)
            assert of(found, "failover").found == "automatic failover by a cluster"
            assert "failover" in found.limits


def test_a_quorum_is_as_good_as_its_worst_node(own_redis: StartRedis, look: Look) -> None:
    good, other, forgetful = own_redis(args=SAFE), own_redis(args=SAFE), own_redis()
    nodes = ",".join(f"127.0.0.1:{each.port}" for each in (good, other, forgetful))
    found = look(f"redlock://{nodes}")
    assert of(found, "persistence").found == "node 3: appendonly no"
    assert (found.grade, found.limits) == (Guarantee.EFFICIENCY_ONLY, ("persistence",))
    assert of(found, "nodes").found == "all 3 answer"
    forgetful.kill()
    found = look(f"redlock://{nodes}")
    assert (of(found, "nodes").severity, of(found, "nodes").found) == (Severity.WARNING, "no answer of 3 (of 3)")
    assert found.grade is Guarantee.FENCED


def test_missing_permissions_prove_nothing(own_redis: StartRedis, look: Look) -> None:
    server = own_redis(args=SAFE)
    server.cli("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha", "-info", "-config")
    found = look(server.url.replace("redis://", "redis://app:pw@"))
    assert of(found, "scripts").severity is Severity.CRITICAL
    assert of(found, "eviction").found == of(found, "persistence").found == of(found, "version").found == "unknown"
    assert found.grade is Guarantee.EFFICIENCY_ONLY


def test_a_slow_network_is_measured(redis_server: RedisServer, look: Look) -> None:
    with FaultProxy(redis_server.port) as proxy:
        proxy.slow("to_client", 0.06)
        found = look(f"redis://{proxy.address}", ttl_ns=NS, request_timeout_ns=2 * NS)
    assert of(found, "round_trip").severity is Severity.WARNING
    assert of(found, "request_timeout").severity is Severity.WARNING


def test_a_file_on_this_host_is_graded_and_its_disk_timed(tmp_path: Path, look: Look) -> None:
    found = look(f"sqlite:///{tmp_path}/leases.db", directory=tmp_path)
    assert of(found, "file_system").severity is Severity.OK
    assert of(found, "fsync").found.startswith("p50 ")
    assert found.grade is Guarantee.FENCED
    assert [each.name for each in tmp_path.iterdir() if not each.name.startswith("leases.db")] == []


def test_a_file_on_a_network_is_critical(tmp_path: Path, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"36 35 0:44 / {tmp_path} rw shared:1 - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts.file_system_finding, "__defaults__", (str(mountinfo),))
    found = look(f"sqlite:///{tmp_path}/leases.db")
    assert of(found, "file_system").found == "nfs4, which several machines can reach"
    assert (found.worst, found.grade) == (Severity.CRITICAL, Guarantee.EFFICIENCY_ONLY)


def test_a_store_that_is_away_is_an_error_and_no_finding(look: Look) -> None:
    with pytest.raises(Unavailable):
        look(f"redis://127.0.0.1:{free_port()}")


def test_a_lock_that_demands_more_than_the_server_promises_is_refused_with_reason_and_fix(
    own_redis: StartRedis,
) -> None:
    server = own_redis(args=("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"))
    says = r"'money' demands fenced, and this redis promises efficiency_only: eviction: .*allkeys-lru.*noeviction"

    async def awaited() -> None:
        async with holdfast.aio.connect(server.url) as locks:
            with pytest.raises(Misconfigured, match=says):
                await locks.lock("money", guarantee="fenced").acquire(timeout=5)
            async with locks.lock("cache"):
                pass

    asyncio.run(awaited())
    with holdfast.connect(server.url) as locks:
        demanding = locks.lock("money", guarantee="fenced")
        for attempt in (demanding.acquire, demanding.try_acquire):
            with pytest.raises(Misconfigured, match=says):
                attempt()
        assert server.cli("EXISTS", "money") == 0
        locks.lock("cache").acquire().release()
    server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.cli("CONFIG", "SET", "appendonly", "yes")
    server.cli("CONFIG", "SET", "appendfsync", "always")
    with holdfast.connect(server.url) as locks:
        locks.lock("money", guarantee="fenced").acquire().release()


def test_the_command_prints_a_table_or_json_and_ends_with_the_worst_finding(
    own_redis: StartRedis, shell: Shell, tmp_path: Path
) -> None:
    evicting = own_redis(args=("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"))
    done = shell.run("doctor", evicting.url)
    assert done.code == Exit.NO
    assert "redis: efficiency_only (the engine can promise fenced, limited by eviction, persistence)" in done.out
    assert "CONFIG SET maxmemory-policy noeviction" in done.out
    forgetful = own_redis()
    done = shell.run("doctor", "--json", "--url", forgetful.url)
    assert done.code == Exit.ACT
    said = json.loads(done.out)
    assert (said["grade"], said["best"], said["limited_by"]) == ("efficiency_only", "fenced", ["persistence"])
    assert {each["check"] for each in said["findings"]} >= {"eviction", "persistence", "round_trip"}
    done = shell.run("doctor", f"redis://127.0.0.1:{free_port()}")
    assert done.code == Exit.UNAVAILABLE
    done = shell.run("doctor", evicting.url, "--url", evicting.url)
    assert done.code == Exit.USAGE


def test_the_user_of_the_store_is_asked_for_nothing_that_changes_it(own_redis: StartRedis, look: Look) -> None:
    server = own_redis()
    look(server.url)
    assert {key for key in server.cli("KEYS", "*") if not key.startswith("holdfast:")} == set()
    assert server.cli("CONFIG", "GET", "maxmemory-policy") in (
        {"maxmemory-policy": "noeviction"},
        ["maxmemory-policy", "noeviction"],
    )
